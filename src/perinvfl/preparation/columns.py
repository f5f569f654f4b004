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
from perinvfl.learning.colours import (
    LEAST_LEFT,
    colour_numbers,
    colour_statistics,
    contrasts_of,
    find_colours,
    left_without,
)
from perinvfl.learning.ranks import ranks
from perinvfl.learning.slopes import summaries, zero_sums
from perinvfl.learning.variation import Variation, find_variation
from perinvfl.models import Model, ModelSettings, Precision
from perinvfl.models.lens import make_lens
from perinvfl.preparation.inferred_contexts import bare
from perinvfl.preparation.lens import LENS
from perinvfl.preparation.phases import Described, Notes, Predict
from perinvfl.preparation.summing import sums_model, sums_received

# The name of the note: [1, 3] where something varies, by its number in SOURCES; whether it was kept, as nothing else is
# left; and whether images are to be brought to the same brightness.
SEEN = "seen"
STYLE = "style"  # [1, 1 + k] what was compared, and columns that differ between clients and stay, if there are any
CONTRASTS = "contrasts"  # likewise, until colours are settled: of `learning.colours`
SOURCES = (None, "contexts", "clients")
MOST_DIRECTIONS = 8


def plain_view(federation: Federation, notes: Notes) -> Federation:
    return bare(dataclasses.replace(federation, augmentation=AS_IT_IS))


def first_view(federation: Federation, notes: Notes) -> Federation:
    """A table by the ranks of each client's values; images by their colours."""
    seen = plain_view(federation, notes)
    x, context = seen.train.x, seen.train.context
    if is_image(federation.shape):
        numbers = colour_statistics(x.flatten(0, 1)).float().unflatten(0, x.shape[:2])
    else:
        own = [ranks(rows.flatten(1), real).view(rows.shape) for rows, real in zip(x, context >= 0, strict=True)]
        numbers = torch.stack(own)
    return dataclasses.replace(seen, train=seen.train._replace(x=numbers.to(x.device)))


def _first_zeros(data: Described) -> Params:
    shape = (colour_numbers(data.shape[0]),) if is_image(data.shape) else data.shape
    return zero_sums(shape, data.outputs if data.task == "multiclass" else 1, data.contexts)


def _second_zeros(data: Described) -> Params:
    """The label is the side of a direction, and contexts are those of the first look, class by class."""
    return zero_sums(data.shape, 1, _cells(data))


def _cells(data: Described) -> int:
    return data.contexts * max(data.outputs, 2)


def first_model(data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    return sums_model(partial(_first_zeros, data))


def second_model(data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    return sums_model(partial(_second_zeros, data))


# What is found -------------------------------------------------------------------------------------------------------


def is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3


def note_variation(own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """The lens that follows from the sums, the same at every client."""
    sums, images = sums_received(_first_zeros(own), predict, own.train.x[0]), is_image(own.shape)
    if images:
        found, evened = find_colours(sums, own.shape[0])
    else:
        found, evened = find_variation(sums, False, gap_columns(own.schema.encodings)), False
    seen = torch.tensor([[SOURCES.index(found.source), int(found.kept), int(evened)]])
    if not images:
        style = {STYLE: torch.tensor([[SOURCES.index(found.compared), *found.style]])} if found.style else {}
        return {**notes, LENS: _column_lens(sums, found)[None], SEEN: seen, **style}
    contrasts = contrasts_of(sums, own.shape[0]).float()
    return {**notes, LENS: _colour_lens(found, own.shape[0])[None], SEEN: seen, CONTRASTS: contrasts[None]}


def is_evened(notes: Notes) -> bool:
    """Whether images are to be brought to the same brightness and contrast."""
    return bool(notes[SEEN][0, 2])


def _colour_lens(found: Variation, channels: int) -> Tensor:
    """[2 + k, channels]; what is left of an image is as bright as the whole was."""
    directions = torch.tensor(found.directions, dtype=torch.float64).reshape(-1, channels)
    scale = torch.full((channels,), (channels / (channels - len(directions))) ** 0.5, dtype=torch.float64)
    return make_lens(scale, torch.zeros_like(scale), directions, min(MOST_DIRECTIONS, channels)).float()


def _column_lens(sums: Params, found: Variation) -> Tensor:
    """[2 + k, d]: what was found is left out; columns are brought to one scale later.

    Directions in ranks, each column over its deviation, are those in columns of deviation 1.
    """
    d = len(sums["total"])
    scale = torch.ones(d, dtype=torch.float64)
    scale[list(found.columns)] = 0
    directions = torch.tensor(found.directions, dtype=torch.float64).reshape(-1, d) * _per_deviation(sums)
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
    lens, kept = notes[LENS][0], {name: leaf for name, leaf in notes.items() if name != CONTRASTS}
    sums = sums_received(_second_zeros(own), predict, own.train.x[0])
    if not is_image(own.shape):
        return {**notes, LENS: _scaled(lens, sums)[None]}
    if not _one_direction(lens) or not float(sums["weight"]) > 0:
        return kept
    better = (sums["slope"] / sums["weight"].clamp(min=1e-12)).double().cpu()
    glass = Variation(None, directions=(tuple(better[0].tolist()),)).glass(own.shape[0])
    if left_without(notes[CONTRASTS][0].double(), glass) < LEAST_LEFT:
        return kept
    return {**kept, LENS: make_lens(lens[0], lens[1], better.to(lens), len(lens) - 2)[None]}


def _scaled(lens: Tensor, sums: Params) -> Tensor:
    if not float(sums["samples"][0]) > 0:  # nobody has a context of enough samples to tell of
        return lens
    scale = lens[0].double() * _per_deviation(sums)
    shift = -scale * sums["total"].double() / sums["samples"].double()
    return torch.cat([torch.stack([scale, shift]).to(lens), lens[2:]])
