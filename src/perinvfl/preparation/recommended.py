"""The program of `recommended`: look what changes its meaning between contexts, look away from it, then train.

1. *sums*: every client sums up how the ranks of its columns (of images, the means of the channels) relate to the
   label, by context.
2. *sums again*: of a table, means and deviations of the columns, to bring them to one scale; of images, the direction
   that was found, measured once more from all samples.
3. *border*: sums of the same kind about what is around the middle of images, and in the cells of a grid; clients note
   what cells that bear a mark say of the label, or else the border.
4. *reference*: a plain model learns what is easy; clients note its answers after 1, 2, 4, ... rounds.
5. *answers*: sums of the same kind, the answers being columns: do they change their meaning between contexts?
6. *pilot*, if clients are to be aligned: the first client trains alone, the others take the view that fits it best.
7. *main*: the two models, on data seen through a lens that leaves the shortcut out; where answers vary still, those of
   the border or of the reference, what they tell about the label is taken off the logits.
"""

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.recommended import Recommended, reference
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import without_middle
from perinvfl.learning import risks
from perinvfl.learning.shortcut import answers, error, known, split_context
from perinvfl.learning.slopes import LEAST_SAMPLES, columns_of, zero_sums
from perinvfl.learning.training import Training
from perinvfl.learning.variation import LEANED_ON, find_answer, is_leaned_on
from perinvfl.models import Model, ModelSettings, Precision
from perinvfl.models.lens import BESIDE_CHANNELS
from perinvfl.models.symmetry import Symmetry
from perinvfl.preparation.alignment import VIEW, best_view, in_views, views_noted
from perinvfl.preparation.border import (
    BORDER,
    BORDERS,
    MARKED,
    border_answers,
    border_classes,
    border_model,
    border_view,
    borders_exchanged,
    cells_marked,
    has_border,
    levels,
    note_border,
    what_is_hidden,
)
from perinvfl.preparation.columns import (
    SEEN,
    SOURCES,
    STYLE,
    first_model,
    first_view,
    is_image,
    note_second,
    note_variation,
    plain_view,
    second_model,
    second_view,
)
from perinvfl.preparation.inferred_contexts import bare
from perinvfl.preparation.lens import LENS, in_lens, lens_noted
from perinvfl.preparation.phases import Described, Notes, Phase, Predict, Program
from perinvfl.preparation.settings import ContextSettings
from perinvfl.preparation.summing import Sums, sums_model, sums_received

# The names of the notes.
ANSWERS, CHOSEN, RIGHT, BY_BORDER, EXCHANGED = "answers", "chosen", "right", "by border", "exchanged"
PADDING = {ANSWERS: 0}
MOST_REFERENCE_ROUNDS = 64


def recommended_program(algorithm: Recommended, training: Training, settings: ContextSettings) -> Program:
    once = dataclasses.replace(
        training, rounds=1, batch_size=0, fraction=1.0, weights="uniform", at_rest="memory", compile=False
    )
    hidden = settings.hide_middle
    # What it is not shown it cannot learn by heart, so it may go on for longer.
    rounds = max(training.rounds // 2 if hidden else min(training.rounds // 3, MOST_REFERENCE_ROUNDS), 2)
    after = tuple(2**power for power in range(rounds.bit_length()) if 2**power < rounds)
    answers = len(after) + 1
    learning = dataclasses.replace(training, rounds=rounds, at_rest="memory", compile=False)
    phases = [
        Phase("sums", Sums(), once, first_view, note_variation, model=first_model),
        Phase("sums again", Sums(), once, second_view, note_second, model=second_model),
        Phase("border", Sums(), once, partial(border_view, hidden), partial(note_border, hidden), model=border_model),
        Phase(
            "reference",
            reference(min(1.0, MOST_REFERENCE_ROUNDS / rounds)),
            learning,
            partial(_reference_view, hidden),
            partial(_note_answers, hidden),
            note_after=after,
        ),
        Phase(
            "answers",
            Sums(),
            once,
            _answers_view,
            partial(_note_choice, hidden > 0, training.batch_size > 0),
            model=partial(_answers_model, answers),
        ),
    ]
    if settings.align != "nothing":
        pilot = Phase("pilot", reference(), learning, _pilot_view, partial(_note_view, settings.align))
        phases.append(dataclasses.replace(pilot, first_alone=True))
    main = Phase("main", algorithm, training, _main_view)
    return Program(tuple(phases), main, facts_found, PADDING, own_preparation=True)


# The reference ------------------------------------------------------------------------------------------------------


def _reference_view(hidden: float, federation: Federation, notes: Notes) -> Federation:
    """hidden: the radius of the middle of images that the reference is not shown; 0: it is shown all."""
    augmentation = dataclasses.replace(federation.augmentation, middle=())
    federation = dataclasses.replace(bare(federation), augmentation=augmentation)
    if hidden:
        federation = federation.with_inputs(lambda x: without_middle(x, hidden))
    seen = in_lens(federation, lens_noted(notes))
    return dataclasses.replace(seen, even_classes=federation.task == "binary")


def _note_answers(hidden: float, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """What the reference says now, beside what it said before: [1, M, answers]."""
    seen = _reference_view(hidden, own, notes)
    logits = predict(seen.train.x[0])
    said = answers(own.task, logits)
    before = notes.get(ANSWERS, said.new_zeros(1, len(said), 0))
    return {**notes, ANSWERS: torch.cat([before, said[None, :, None]], 2)}


def _answers_model(answers: int, data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    return sums_model(partial(_answers_zeros, answers, data))


def _answers_zeros(answers: int, data: Described) -> dict[str, Tensor]:
    return zero_sums((answers + has_border(data),), 1, data.contexts)


def _answers_view(federation: Federation, notes: Notes) -> Federation:
    """Answers as columns, the border's last. Of several classes, each sample once for each: is it that class, was it
    called so?

    The answers of a regression are not asked about, and left empty.
    """
    seen, data, said = plain_view(federation, notes), federation.train, notes[ANSWERS]

    def columns(target: int, label: int) -> Tensor:
        border = [notes[BORDER][..., target, None]] if has_border(federation) else []
        return torch.cat([(said == label).float(), *border], 2)

    if federation.task == "multiclass":
        each = range(federation.classes)
        data = Split(
            torch.cat([columns(c, c) for c in each], 1),
            torch.cat([data.y == c for c in each], 1).float(),
            torch.cat([data.context for c in each], 1),
        )
    else:
        x = columns(0, 1) if federation.task == "binary" else torch.zeros_like(said, dtype=torch.float32)
        data = data._replace(x=x, y=data.y.float())
    return dataclasses.replace(seen, task="binary", outputs=1, train=data)


def _note_choice(certain: bool, batches: bool, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """Which answers are to be discounted; -1 for none. certain: the user says that the border is a shortcut."""
    said, kept = notes[ANSWERS], {name: leaf for name, leaf in notes.items() if name != BORDER}
    answers, chosen, marked = said.shape[2], -1, bool(cells_marked(notes))
    if own.task != "regression":
        sums = sums_received(_answers_zeros(answers, own), predict, own.train.x[0])
        border = columns_of(sums, slice(answers, None))
        chosen = _choice(columns_of(sums, slice(answers)), border, own, certain, marked)
        by_border = chosen == answers or (chosen < 0 and not marked)
        if by_border and has_border(own) and is_leaned_on(border):
            done = "kept" if chosen < 0 else "told" if certain else "discounted"
            kept[BY_BORDER] = torch.tensor([BORDERS.index(done)])
            if batches and done != "kept" and not marked:
                kept[EXCHANGED] = torch.ones(1, dtype=torch.long)
    if chosen < 0:
        return {**kept, CHOSEN: torch.tensor([-1])}
    named = said[..., chosen % answers]
    if chosen == answers:
        read = border_answers(notes[BORDER])
        kept[ANSWERS], named = torch.cat([said, read[..., None]], 2), border_classes(read, own)
    right = named[0] == own.train.y[0]
    return {**kept, CHOSEN: torch.tensor([chosen]), RIGHT: _shares(own, right)[None]}


def _choice(reference: Params, border: Params, own: Federation, certain: bool, marked: bool) -> int:
    """By the sums of the reference's answers and of what the border says, which comes last: what varies.

    Where both do, what says more about the label reads more of the shortcut. Of a mark, its cells say all there is to
    say; the reference reads other things too.
    """
    answers = len(reference["total"])
    if certain:
        return answers if has_border(own) and is_leaned_on(border) else answers - 1
    found = find_answer(reference, is_image(own.shape), own.classes)
    if has_border(own):
        at_border = find_answer(border, True, own.classes, between_clients=LEANED_ON)
        if at_border is not None and (marked or found is None or at_border.strength > found.strength):
            return answers
    return -1 if found is None else found.place


def _shares(own: Federation, right: Tensor) -> Tensor:
    """[K] how often so in each of a client's contexts; -1 where there are too few samples to tell."""
    member = risks.membership(own.train.context[0], own.contexts)
    count = member.sum(0)
    return torch.where(count >= LEAST_SAMPLES, right.float() @ member / count.clamp(min=1), -1.0)


# The pilot and the last phase ----------------------------------------------------------------------------------------


def _pilot_view(federation: Federation, notes: Notes) -> Federation:
    seen = _main_view(federation, notes)
    augmentation = dataclasses.replace(seen.augmentation, middle=())
    return bare(dataclasses.replace(seen, augmentation=augmentation))


def _note_view(align: Symmetry, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """The view in which the model of the first client fits this client's images best; the first keeps its own."""
    seen = _main_view(own, notes)
    data = Split(*(part[0] for part in seen.train))
    labels = data.y, data.context
    offset = known(*labels, seen.split == "discount", seen.even_classes, seen.classes, seen.answers).offset(*labels)
    best = 0 if client == 0 else best_view(align, data, offset, predict)
    return {**notes, VIEW: torch.tensor([best])}


def _main_view(federation: Federation, notes: Notes) -> Federation:
    if EXCHANGED in notes:
        federation = borders_exchanged(federation)
    seen = in_views(in_lens(federation, lens_noted(notes)), views_noted(notes))
    # Where data are scored by class and context, a rare class counts as much as a common one.
    seen = dataclasses.replace(seen, even_classes=bool(federation.groups) and federation.task == "binary")
    if federation.task == "regression":
        return seen
    # Where nothing is discounted, all answers are alike and say nothing: runs of several seeds, of which some discount,
    # are one program.
    chosen = int(notes[CHOSEN][0])
    said = notes[ANSWERS][..., chosen] if chosen >= 0 else torch.zeros_like(federation.train.context)
    parts = levels(federation) or federation.classes
    context = split_context(federation.train.context, error(said, federation.train.y, parts), parts)
    return dataclasses.replace(
        seen, train=seen.train._replace(context=context), split="discount", answers=levels(federation)
    )


def facts_found(notes: Notes) -> dict[str, Any]:
    """What may be told: where something changes its meaning, and what is left out for it."""
    lens, (source, kept, *_) = notes[LENS][0], notes[SEEN][0].tolist()
    hidden, evened = what_is_hidden(notes)
    lens = lens[:, :-BESIDE_CHANNELS] if MARKED in notes else lens
    directions = [[round(value, 4) for value in row] for row in lens[2:].tolist() if any(row)]
    columns = (lens[0] == 0).nonzero().flatten().tolist() if source else []
    answers: dict[str, Any] = {"reference": {"chosen": int(notes[CHOSEN][0])}} if CHOSEN in notes else {}
    if BY_BORDER in notes:
        answers["border"] = BORDERS[int(notes[BY_BORDER][0])]
        answers |= {"cells": cells} if (cells := cells_marked(notes)) else {}
    if EXCHANGED in notes:
        answers["borders_exchanged"] = True
    answers |= ({"hidden": hidden} if hidden else {}) | ({"evened": True} if evened else {})
    found = {"varies_between": SOURCES[source], "left_out": columns, "directions": directions, "kept": bool(kept)}
    if STYLE in notes:
        compared, *style = notes[STYLE][0].tolist()
        answers["style"] = {"columns": style, "compared": SOURCES[compared]}
    views = views_noted(notes)
    told: dict[str, Any] = {"shortcut": {**found, **answers}} | ({"views": list(views)} if views else {})
    if RIGHT in notes:
        told["right"] = [[round(share, 4) for share in row] for row in notes[RIGHT].tolist()]
    return told
