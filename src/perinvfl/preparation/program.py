"""From settings to the program of a run."""

import dataclasses
from functools import partial

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.recommended import Recommended
from perinvfl.data.federation import Federation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings
from perinvfl.models.symmetry import check_images, views_of
from perinvfl.preparation.alignment import in_views, note_view, pilot_view, views_noted
from perinvfl.preparation.facts import facts_of
from perinvfl.preparation.inferred_contexts import (
    PADDING,
    inferred_view,
    note_errors,
    note_errors_again,
    reference_algorithm,
    reference_training,
    reference_view,
    sorted_names,
)
from perinvfl.preparation.phases import Described, Notes, Phase, Predict, Program, sees_all
from perinvfl.preparation.pooling import pooled_view
from perinvfl.preparation.recommended import recommended_program
from perinvfl.preparation.settings import ContextSettings
from perinvfl.preparation.twins import twin_model

# What compiled steps must at least be to save more than compiling costs: some 15 s of the processor, and 5 s where it
# was done before, for a millisecond or so of each step. Large batches hardly gain.
LEAST_STEPS, MOST_COMPILED = 10_000, 256


def program_of(algorithm: Algorithm, training: Training, settings: ContextSettings) -> Program:
    """The phases that the settings ask for in front of an algorithm, and the algorithm."""
    algorithm = algorithm.over(training.rounds)
    if training.compile == "auto" and not _worth_compiling(algorithm, training):
        training = dataclasses.replace(training, compile=False)
    if isinstance(algorithm, Recommended):
        return recommended_program(algorithm, training, settings)
    if algorithm.pooled and settings.infer != "given":
        raise UserError(
            f"contexts.infer: {algorithm.title} takes all data in one place, and clients for contexts; leave "
            "[contexts] out."
        )
    if settings.every and not algorithm.has_global:
        raise UserError(
            f"contexts.every infers contexts by the global model, and {algorithm.title} has none; leave it out."
        )
    if settings.infer == "given":
        sees = pooled_view if algorithm.pooled else sees_all
        return Program((), Phase("main", algorithm, training, sees), lambda notes: {})
    reference = Phase(
        "reference",
        reference_algorithm(settings, algorithm),
        reference_training(settings, training),
        partial(reference_view, settings),
        partial(note_errors, settings),
        model=twin_model if settings.infer == "xrm" else None,
    )
    phases = [reference]
    if settings.align != "nothing":
        pilot = dataclasses.replace(
            reference,
            name="pilot",
            algorithm=reference_algorithm(dataclasses.replace(settings, infer="hard"), algorithm),
            model=None,
            sees=partial(pilot_view, settings),
            note=partial(note_view, settings),
            first_alone=True,
        )
        phases.append(pilot)
    main = Phase("main", algorithm, training, partial(_main_view, settings))
    if settings.every:
        main = dataclasses.replace(main, note=partial(_note_again, settings), note_every=settings.every)
    return Program(tuple(phases), main, facts_of, PADDING)


def _worth_compiling(algorithm: Algorithm, training: Training) -> bool:
    """By what is asked for alone, so that it is decided alike on one machine and at every site, and when resumed."""
    steps = training.rounds * algorithm.batches_per_round()
    return 0 < training.batch_size <= MOST_COMPILED and steps >= LEAST_STEPS


def _main_view(settings: ContextSettings, federation: Federation, notes: Notes) -> Federation:
    return in_views(inferred_view(settings, federation, notes), views_noted(notes))


def _note_again(settings: ContextSettings, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    return note_errors_again(own, notes, _main_view(settings, own, notes), predict)


def case_names(settings: ContextSettings, federation: Federation) -> list[str]:
    """The test cases by which the last phase is scored, in order: test contexts, and what is held out."""
    held_out = federation.validation is not None
    inferred = sorted_names(settings) if held_out and settings.infer != "given" else []
    return [*federation.tests, *(["validation"] if held_out else []), *inferred]


def check_preparation(settings: ContextSettings, data: Described, model: ModelSettings | Model) -> None:
    """Refuse what cannot be prepared on these data, on one machine and across machines alike."""
    if settings.hide_middle and len(data.shape) != 3:
        raise UserError("contexts.hide_middle takes images; these data have no middle.")
    if settings.align != "nothing":
        _check_alignment(settings, data, model)
    if settings.infer == "given":
        return
    if data.task == "regression":
        raise UserError("contexts.infer: a regression has no right and wrong answers to split samples by.")
    if settings.infer == "soft" and data.contexts > 1:
        raise UserError('contexts.infer = "soft" splits clients that have one context each; use "hard".')
    if settings.even_classes and data.task != "binary":
        raise UserError("contexts.even_classes takes a binary label.")


def _check_alignment(settings: ContextSettings, data: Described, model: ModelSettings | Model) -> None:
    check_images("contexts.align", settings.align, data.shape)
    if data.task != "binary":
        raise UserError("contexts.align takes a binary label.")
    if "left-out" in data.tests:
        raise UserError("contexts.align: a client that is left out takes no view; leave out data.leave_out.")
    if isinstance(model, ModelSettings) and set(views_of(model.blind_to)) & set(views_of(settings.align)) != {0}:
        raise UserError(f"contexts.align: a model blind to {model.blind_to} sees no difference; choose one.")
