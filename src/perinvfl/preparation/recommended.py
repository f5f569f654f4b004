"""The program of `recommended`: look what changes its meaning between contexts, look away from it, then train.

1. *sums*: every client sums up how its columns (of images, the means of the channels) relate to the label, by context.
2. *sums again*: the direction that was found in images, measured once more from all samples.
3. *main*: the two models, on data seen through a lens that leaves the shortcut out.
"""

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.recommended import Recommended
from perinvfl.data.federation import Federation
from perinvfl.learning.training import Training
from perinvfl.learning.variation import SCALE, Variation, find_variation, summaries, zero_sums
from perinvfl.models import Model
from perinvfl.models.lens import make_lens, through
from perinvfl.preparation.inferred_contexts import bare
from perinvfl.preparation.phases import Described, Notes, Phase, Predict, Program
from perinvfl.preparation.settings import ContextSettings
from perinvfl.preparation.summing import Sums, sums_model, sums_received

LENS, SEEN = "lens", "seen"  # the names of the notes
SOURCES = (None, "contexts", "clients")  # by number in the note
MOST_DIRECTIONS = 8


def recommended_program(algorithm: Recommended, training: Training, settings: ContextSettings) -> Program:
    once = dataclasses.replace(
        training, rounds=1, batch_size=0, fraction=1.0, weights="uniform", at_rest="memory", compile=False
    )
    look = Phase("sums", Sums(), once, _plain_view, _note_variation, model=_first_model)
    again = Phase("sums again", Sums(), once, _sides_view, _note_direction, model=_second_model)
    main = Phase("main", algorithm, training, _main_view)
    return Program((look, again), main, facts_found, own_preparation=True)


# What is summed ------------------------------------------------------------------------------------------------------


def _plain_view(federation: Federation, notes: Notes) -> Federation:
    return bare(dataclasses.replace(federation, augmentation=type(federation.augmentation)()))


def _zeros(data: Described, cells: int = 0) -> dict[str, Tensor]:
    """cells: of the second look, where the label is the side of a direction and contexts are those of the first."""
    targets = data.outputs if data.task == "multiclass" and not cells else 1
    return zero_sums(data.shape, targets, cells or data.contexts)


def _cells(data: Described) -> int:
    return data.contexts * max(data.outputs, 2)


def _first_model(data: Described) -> Model:
    return sums_model(partial(_zeros, data))


def _second_model(data: Described) -> Model:
    return sums_model(partial(_zeros, data, _cells(data)))


# What is found -------------------------------------------------------------------------------------------------------


def is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3


def _note_variation(own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """The lens that follows from the sums, the same at every client."""
    sums = sums_received(_zeros(own), predict, own.train.x[0])
    found = find_variation(sums, is_image(own.shape))
    seen = torch.tensor([[SOURCES.index(found.source), int(found.kept)]])
    return {**notes, LENS: _lens(sums, found, is_image(own.shape))[None], SEEN: seen}


def _lens(sums: dict[str, Tensor], found: Variation, images: bool) -> Tensor:
    """[2 + k, d]: a table's columns are brought to mean 0 and deviation 1, those that were found to 0."""
    known = {name: leaf.double() / SCALE for name, leaf in sums.items()}
    d = len(known["total"])
    scale, shift = torch.ones(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    if not images:
        samples = known["samples"].clamp(min=1)
        deviation = (known["total_square"] / samples).sqrt()
        scale = torch.where(deviation > 0, 1 / deviation.clamp(min=1e-30), 0.0)
        scale[list(found.columns)] = 0
        shift = -scale * known["total"] / samples
    directions = torch.tensor(found.directions, dtype=torch.float64).reshape(-1, d) * scale
    return make_lens(scale, shift, directions, min(MOST_DIRECTIONS, d)).float()


def _sides_view(federation: Federation, notes: Notes) -> Federation:
    """The label is on which side of the direction a sample lies; contexts are those of a class in a context.

    Where no single direction was found, there is nothing to measure again: all samples lie on one side.
    """
    data, lens = federation.train, notes[LENS][0]
    side = torch.zeros_like(data.y, dtype=torch.float32)
    if _one_direction(lens) and is_image(federation.shape) and federation.task != "regression":
        for client in range(federation.clients):
            along = summaries(data.x[client]) @ lens[2].double()
            real = data.context[client] >= 0
            side[client] = (along > along[real].median()).float()
    classes = max(federation.outputs, 2)
    label = data.y.long().clamp(0, classes - 1)
    context = torch.where(data.context >= 0, data.context * classes + label, -1)
    seen = dataclasses.replace(federation, task="binary", outputs=1, contexts=_cells(federation))
    return _plain_view(dataclasses.replace(seen, train=data._replace(y=side, context=context)), notes)


def _one_direction(lens: Tensor) -> bool:
    return int((lens[2:].norm(dim=1) > 0).sum()) == 1


def _note_direction(own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """The direction in which the two sides differ, within a class and context, at every client alike."""
    lens = notes[LENS][0]
    sums = sums_received(_zeros(own, _cells(own)), predict, own.train.x[0])
    if not _one_direction(lens) or not float(sums["weight"][0]) > 0:
        return notes
    better = (sums["slope"] / sums["weight"].clamp(min=1e-12)[:, None])[:1]
    found = make_lens(lens[0], lens[1], better.to(lens), len(lens) - 2)
    return {**notes, LENS: found[None]}


def _main_view(federation: Federation, notes: Notes) -> Federation:
    return in_lens(federation, lens_noted(notes))


def in_lens(federation: Federation, lens: Tensor | None) -> Federation:
    """The same federation, seen through a lens."""
    if lens is None:
        return federation
    return federation.with_inputs(lambda x: through(x, lens, federation.shape), lens=lens)


def lens_noted(notes: Notes) -> Tensor | None:
    """The lens that was noted; None where data are seen as they are."""
    if LENS not in notes:
        return None
    lens = notes[LENS][0]
    plain = bool((lens[0] == 1).all()) and not bool(lens[1:].any())
    return None if plain else lens


def facts_found(notes: Notes) -> dict[str, Any]:
    """What may be told: where something changes its meaning, and what is left out for it."""
    lens, (source, kept) = notes[LENS][0], notes[SEEN][0].tolist()
    directions = [[round(value, 4) for value in row] for row in lens[2:].tolist() if any(row)]
    columns = (lens[0] == 0).nonzero().flatten().tolist() if source else []
    found = {"varies_between": SOURCES[source], "left_out": columns, "directions": directions, "kept": bool(kept)}
    return {"shortcut": found}
