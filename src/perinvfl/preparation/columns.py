"""Columns of a table, or colours of images, in the program of `recommended`: how they relate to the label is summed up,
and what changes its meaning is left out of what models see."""

import dataclasses
from functools import partial

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.data.encoding import gap_columns
from perinvfl.data.federation import Federation
from perinvfl.data.images import AS_IT_IS
from perinvfl.learning.ranks import ranks
from perinvfl.learning.slopes import summaries, zero_sums
from perinvfl.learning.variation import Variation, find_variation
from perinvfl.models import Model, ModelSettings, Precision
from perinvfl.models.lens import make_lens
from perinvfl.preparation.inferred_contexts import bare
from perinvfl.preparation.lens import LENS
from perinvfl.preparation.phases import Described, Notes, Predict
from perinvfl.preparation.summing import sums_model, sums_received

SEEN = "seen"  # the name of the note: [1, 2] where something varies, by its number here, and whether it was kept
SOURCES = (None, "contexts", "clients")
MOST_DIRECTIONS = 8


def plain_view(federation: Federation, notes: Notes) -> Federation:
    return bare(dataclasses.replace(federation, augmentation=AS_IT_IS))


def ranked_view(federation: Federation, notes: Notes) -> Federation:
    """A table by the ranks of each client's values; images as they are."""
    seen = plain_view(federation, notes)
    if is_image(federation.shape):
        return seen
    x, context = seen.train.x, seen.train.context
    own = [ranks(rows.flatten(1), real).view(rows.shape) for rows, real in zip(x, context >= 0, strict=True)]
    return dataclasses.replace(seen, train=seen.train._replace(x=torch.stack(own).to(x.device)))


def _zeros(data: Described, cells: int = 0) -> dict[str, Tensor]:
    """cells: of the second look, where the label is the side of a direction and contexts are those of the first."""
    targets = data.outputs if data.task == "multiclass" and not cells else 1
    return zero_sums(data.shape, targets, cells or data.contexts)


def _cells(data: Described) -> int:
    return data.contexts * max(data.outputs, 2)


def first_model(data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    return sums_model(partial(_zeros, data))


def second_model(data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    return sums_model(partial(_zeros, data, _cells(data)))


# What is found -------------------------------------------------------------------------------------------------------


def is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3


def note_variation(own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """The lens that follows from the sums, the same at every client."""
    sums = sums_received(_zeros(own), predict, own.train.x[0])
    found = find_variation(sums, is_image(own.shape), gap_columns(own.schema.encodings))
    seen = torch.tensor([[SOURCES.index(found.source), int(found.kept)]])
    return {**notes, LENS: _lens(sums, found, is_image(own.shape))[None], SEEN: seen}


def _lens(sums: Params, found: Variation, images: bool) -> Tensor:
    """[2 + k, d]: what was found is left out. A table's columns are brought to one scale later.

    Directions in ranks, each column over its deviation, are those in columns of deviation 1.
    """
    d = len(sums["total"])
    scale = torch.ones(d, dtype=torch.float64)
    scale[list(found.columns)] = 0
    directions = torch.tensor(found.directions, dtype=torch.float64).reshape(-1, d)
    if images:  # what is left of an image is as bright as the whole was
        scale = scale * (d / (d - len(directions))) ** 0.5
    else:
        directions = directions * _per_deviation(sums)
    return make_lens(scale, torch.zeros_like(scale), directions, min(MOST_DIRECTIONS, d)).float()


def _per_deviation(sums: Params) -> Tensor:
    """[d] one over the deviation of each column; 0 where a column does not vary."""
    deviation = (sums["total_square"].double() / sums["samples"].double().clamp(min=1e-30)).sqrt()
    return torch.where(deviation > 0, 1 / deviation.clamp(min=1e-30), 0.0)


def second_view(federation: Federation, notes: Notes) -> Federation:
    """Of images, the label is on which side of the direction a sample lies; contexts are those of a class in a context.

    Where no single direction was found, there is nothing to measure again: all samples lie on one side. Of a table,
    only the sums of its columns are asked for.
    """
    data, lens = federation.train, notes[LENS][0]
    side = torch.zeros_like(data.y, dtype=torch.float32)
    if not is_image(federation.shape):
        seen = dataclasses.replace(federation, task="binary", outputs=1, contexts=_cells(federation))
        return plain_view(dataclasses.replace(seen, train=data._replace(y=side)), notes)
    if _one_direction(lens) and federation.task != "regression":
        for client in range(federation.clients):
            along = summaries(data.x[client]) @ lens[2].double()
            real = data.context[client] >= 0
            side[client] = (along > along[real].mean()).float()
    classes = federation.classes
    label = data.y.long().clamp(0, classes - 1)
    context = torch.where(data.context >= 0, data.context * classes + label, -1)
    seen = dataclasses.replace(federation, task="binary", outputs=1, contexts=_cells(federation))
    return plain_view(dataclasses.replace(seen, train=data._replace(y=side, context=context)), notes)


def _one_direction(lens: Tensor) -> bool:
    return int((lens[2:].norm(dim=1) > 0).sum()) == 1


def note_second(own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """A table's columns are brought to mean 0 and deviation 1. Of images: the direction in which the two sides differ,
    within a class and context, at every client alike."""
    lens = notes[LENS][0]
    sums = sums_received(_zeros(own, _cells(own)), predict, own.train.x[0])
    if not is_image(own.shape):
        return {**notes, LENS: _scaled(lens, sums)[None]}
    if not _one_direction(lens) or not float(sums["weight"][0]) > 0:
        return notes
    better = (sums["slope"] / sums["weight"].clamp(min=1e-12)[:, None])[:1]
    found = make_lens(lens[0], lens[1], better.to(lens), len(lens) - 2)
    return {**notes, LENS: found[None]}


def _scaled(lens: Tensor, sums: Params) -> Tensor:
    if not float(sums["samples"][0]) > 0:  # nobody has a context of enough samples to tell of
        return lens
    scale = lens[0].double() * _per_deviation(sums)
    shift = -scale * sums["total"].double() / sums["samples"].double()
    return torch.cat([torch.stack([scale, shift]).to(lens), lens[2:]])
