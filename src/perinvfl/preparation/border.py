"""The border of images in the program of `recommended`, and marks on them: what they look like is summed up. A mark is
left out of what models see; what the border says, or a mark that covers much, is read by every client."""

import dataclasses
from functools import partial

import torch
from torch import Tensor

from perinvfl.core.image_grid import GRID
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation
from perinvfl.data.images import AS_IT_IS
from perinvfl.learning.border import (
    RADIUS,
    apart,
    border_numbers,
    border_statistics,
    cell_brightness,
    find_reading,
    read_border,
)
from perinvfl.learning.slopes import JOINT_COLUMNS, columns_of, zero_sums
from perinvfl.learning.variation import LEANED_ON, find_marks
from perinvfl.models import Model, ModelSettings, Precision
from perinvfl.models.lens import BESIDE_CHANNELS, evened, for_images
from perinvfl.preparation.columns import is_evened, is_image
from perinvfl.preparation.inferred_contexts import bare
from perinvfl.preparation.lens import LENS, in_lens, lens_noted
from perinvfl.preparation.phases import Described, Notes, Predict
from perinvfl.preparation.summing import sums_model, sums_received

LEVELS, WIDTH = 8, 0.5  # of how sure a border is of one of two classes: steps of its log-odds
# What was done about the border, where it says much about the label: kept, as it says the same everywhere; discounted,
# as it does not; or because the user said so.
BORDERS = "kept", "discounted", "told"
# The names of the notes: [1, M, targets] how likely the classes are by the border alone, or by cells that bear a mark;
# and [1, GRID²] which cells do.
BORDER, MARKED = "border", "marked"
MOST_HIDDEN = GRID**2 // 4  # cells; a mark that covers more is discounted instead


def has_border(data: Described) -> bool:
    """Whether samples are images, of not too many channels to look at all numbers together, and labels are classes."""
    images = len(data.shape) == 3 and border_numbers(data.shape[0]) + GRID**2 <= JOINT_COLUMNS
    return images and data.task != "regression"


def border_zeros(data: Described) -> Params:
    numbers = border_numbers(data.shape[0]) + GRID**2 if has_border(data) else 1
    return zero_sums((numbers,), data.outputs if data.task == "multiclass" else 1, data.contexts)


def border_model(data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    return sums_model(partial(border_zeros, data))


def border_view(radius: float, federation: Federation, notes: Notes) -> Federation:
    """The numbers of the border and of cells in place of images, without what was found before; else nothing.

    radius: of the middle, where a user has said so; else 0. A smaller one than `RADIUS` is no reason to look nearer to
    the object: what is outside of it shows more of the object, and the object must not be discounted.
    """
    data = federation.train
    numbers = torch.zeros(*data.y.shape, 1)
    if has_border(federation):
        images = in_lens(bare(federation), lens_noted(notes)).train.x.flatten(0, 1)
        images = evened(images) if is_evened(notes) else images
        looks = border_statistics(images, max(radius, RADIUS)), cell_brightness(images)
        numbers = torch.cat(looks, 1).unflatten(0, data.y.shape)
    return dataclasses.replace(
        bare(federation), train=data._replace(x=numbers.to(data.x.device)), augmentation=AS_IT_IS
    )


def note_border(radius: float, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    if not is_image(own.shape):
        return notes
    marked: list[int] = []
    hidden: list[int] = []
    if has_border(own):
        sums, around = sums_received(border_zeros(own), predict, own.train.x[0]), border_numbers(own.shape[0])
        cells = columns_of(sums, slice(around, None))
        marked = [] if radius else find_marks(cells)
        marked = marked if marked and apart(columns_of(cells, marked)) > LEANED_ON else []
        hidden = _with_neighbours(marked)
        if hidden and len(hidden) <= MOST_HIDDEN:
            marked, likely = [], torch.full((own.train.y.shape[1], len(sums["weight"])), 1 / own.classes)
        else:
            hidden, places = [], [around + cell for cell in marked] or list(range(around))
            numbers, labels = border_view(radius, own, notes).train.x[0], (own.train.y[0], own.train.context[0])
            likely = read_border(find_reading(columns_of(sums, places)), numbers[:, places], *labels, own.classes)
        notes = {**notes, BORDER: likely[None].float()}
    bearing = torch.zeros(1, GRID**2, dtype=torch.long)
    bearing[0, marked] = 1
    lens = for_images(notes[LENS][0], hidden, is_evened(notes))
    return {**notes, LENS: lens[None], MARKED: bearing}


def _with_neighbours(cells: list[int]) -> list[int]:
    """These cells and those that touch them: a mark reaches into cells whose mean it hardly changes."""
    near = {
        (row, column)
        for cell in cells
        for row in range(cell // GRID - 1, cell // GRID + 2)
        for column in range(cell % GRID - 1, cell % GRID + 2)
    }
    return sorted(row * GRID + column for row, column in near if 0 <= row < GRID and 0 <= column < GRID)


def what_is_hidden(notes: Notes) -> tuple[list[int], bool]:
    """Cells that models are not shown, and whether images are brought to the same brightness."""
    if MARKED not in notes:
        return [], False
    shown = notes[LENS][0, 0, -BESIDE_CHANNELS:]
    return (shown[:-1] == 0).nonzero().flatten().tolist(), bool(shown[-1] == 0)


def cells_marked(notes: Notes) -> list[int]:
    return notes[MARKED][0].nonzero().flatten().tolist() if MARKED in notes else []


def borders_exchanged(federation: Federation) -> Federation:
    """In training, most images with the border of another one of their batch, which therefore says nothing.

    A border that is discounted leaves something to learn: its numbers do not show all of it.
    """
    augmentation = federation.augmentation
    if not augmentation.middle:  # else a user has asked for as much
        augmentation = dataclasses.replace(augmentation, middle=(RADIUS, RADIUS), some_whole=True)
    return dataclasses.replace(federation, augmentation=augmentation)


def border_answers(likely: Tensor) -> Tensor:
    """[..., M] what the border says, from [..., M, targets]: the class it names; of two classes, how surely.

    Of two classes, the first half of the `LEVELS` stands for 0 and the second half for 1.
    """
    if likely.shape[-1] > 1:
        return likely.argmax(-1)
    surely = torch.logit(likely[..., 0].double(), eps=1e-6) / WIDTH + LEVELS / 2
    return surely.floor().clamp(0, LEVELS - 1).long()


def border_classes(answers: Tensor, data: Described) -> Tensor:
    """The class that each answer stands for."""
    return answers // (LEVELS // 2) if data.task == "binary" else answers


def levels(data: Described) -> int:
    """How many different answers there may be; 0: as many as classes."""
    return LEVELS if has_border(data) and data.task == "binary" else 0
