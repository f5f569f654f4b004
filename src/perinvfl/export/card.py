"""The model card: what a model was trained on, how, how well it does by test context, what it is for and not for."""

from pathlib import Path
from typing import Any

from perinvfl.core.naming import class_names, without_folder
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation
from perinvfl.export.module import Description
from perinvfl.runs.found_words import Names, found_in_words
from perinvfl.runs.loaded import LoadedRun
from perinvfl.runs.predictions import VALIDATION

MEASURE = {"binary": "accuracy, %", "multiclass": "accuracy, %", "regression": "mean squared error"}


def model_card(opened: LoadedRun, description: Description, client: int, file: Path) -> str:
    run, trial, federation = opened.run, opened.trial, opened.federation
    algorithm = trial.algorithm
    whose = f"the personal model of {description.client}" if description.personal else "the model all clients share"
    asked = run.asked
    return "\n".join(
        [
            f"# {file.name}: {trial.label}, {description.client}",
            "",
            f"This is {whose}, trained by {algorithm.title} ({algorithm.paper}) with perinvfl "
            f"{run.start['environment']['perinvfl']}. Run {description.run}, seed {trial.seed}, "
            f"{_rounds_done(opened)} rounds, begun {run.start.get('began', 'at an unknown time')}.",
            "",
            "## What goes in, what comes out",
            *_interface(opened, description),
            "",
            "## What it was trained on",
            *_training_data(opened, client),
            "",
            f"## How well it does ({MEASURE[federation.task]})",
            *_accuracy(opened, description, client),
            "",
            "## How it was chosen",
            "The model of the last round. No round was picked by looking at results"
            + ("; its settings are one draw of a random search." if run.setting is not None else "."),
            "",
            "## Settings",
            *_settings(asked),
            "",
            "## Intended use",
            f"Predictions for {description.client}, on data collected and encoded as its training data were, including "
            "data from contexts that were not seen in training, to the extent that the table above shows."
            if description.personal
            else _shared_use(opened, description),
            "",
            "## Limits",
            "- It was tested on the contexts named above and on no others.",
            "- Where a client has one training context, invariance could not be checked within its own data.",
            "- Before you rely on the model, look at what it relies on: `perinvfl diagnose` on the run shows it.",
            "- Raw data did not leave the client in training. Beyond that, there is no guarantee of privacy.",
            "",
        ]
    )


def _shared_use(opened: LoadedRun, description: Description) -> str:
    views = opened.federation.views
    if not views:
        return "Predictions for any client of the federation, and as a start for a client that joins later."
    names = [name for name, view in zip(opened.clients, views, strict=True) if view == description.view]
    return f"Predictions for clients that see their images as this model does: {', '.join(names)}."


def _interface(opened: LoadedRun, description: Description) -> list[str]:
    schema, shape = opened.federation.schema, description.shape
    inside = "are used as they are"
    if schema.mean or description.dtype == "uint8":
        inside = "are standardised inside the model"
    if description.features:
        columns = ", ".join(f"`{name}`" for name in description.features)
        inputs = f"`x`: float32, [any, {len(description.features)}], columns in their own units, which {inside}"
        lines = [f"{inputs}: {columns}.", *_columns(description)]
    else:
        lines = [f"`x`: {description.dtype}, [any, {', '.join(map(str, shape))}]; values {inside}."]
    if description.view:
        turns = description.view // 2
        ways = ["mirrored"] * (description.view % 2) + [f"turned by {90 * turns}°"] * (turns > 0)
        lines.append(f"The model takes images as the client has them and sees them {' and '.join(ways)}.")
    if description.task == "regression":
        return [*lines, "", "`prediction`: float32, [any], in the label's own units."]
    names = class_names(description.classes, max(2, description.outputs))
    numbered = ", ".join(f"{number} = {name}" for number, name in enumerate(names))
    return [
        *lines,
        "",
        f"`prediction`: int64, [any], the class ({numbered}); `probability`: float32, [any, {len(names)}].",
    ]


def _columns(description: Description) -> list[str]:
    """What to write where a value is missing, and for the levels of categories."""
    if not description.columns:
        return []
    lines = ["", "A missing value is NaN; of a number, the model puts the median of the training rows in its place."]
    flagged = [f"`{column.name}`" for column in description.columns if column.flagged]
    if flagged:
        lines.append(f"It also knows that the value was missing in {', '.join(flagged)}.")
    for column in description.columns:
        if column.missing_values:
            numbers = [f"{number:g}" for number in column.missing_values]
            stand = "stands" if len(numbers) == 1 else "stand"
            lines.append(f"{' and '.join(numbers)} {stand} for a missing value in `{column.name}`.")
        if column.category:
            pairs = [(f"{code:g}", level) for code, level in zip(column.codes, column.levels, strict=True)]
            codes = ", ".join(code if code == level else f"{code} = {level}" for code, level in pairs)
            lines.append(f"`{column.name}` is a category: {codes or 'no level is named'}; any other number: other.")
    return lines


def _training_data(opened: LoadedRun, client: int) -> list[str]:
    federation = opened.federation
    contexts = federation.contexts_per_client[client]
    size = int(federation.sizes[client])
    amount = f"{size} samples in {contexts} context{'s' if contexts > 1 else ''}"
    found = found_in_words(opened.run.found, Names.of(opened.run.start.get("schema", {})))
    return [
        f"`{federation.name}`: {federation.clients} clients; {opened.clients[client]} has {amount}. "
        f"All clients together have {int(federation.sizes.sum())} samples.",
        *(["", f"Before training: {found}"] if found else []),
    ]


def _accuracy(opened: LoadedRun, description: Description, client: int) -> list[str]:
    kind = "personal" if description.personal else "global"
    measured = opened.run.evaluations[-1][kind]
    constant = {**_constant_in_validation(opened.federation), **opened.run.notes.get("constant", {})}
    regression = opened.federation.task == "regression"
    lines = ["", "| test context | this model | a constant answer |", "|---|---|---|"]
    for case, values in measured.items():
        levels = constant.get(case, [None] * len(values))
        title = f"{case}: rows like those trained on, held out" if case == VALIDATION else case
        lines.append(f"| {title} | {_shown(values[client], regression)} | {_shown(levels[client], regression)} |")
    return lines


def _constant_in_validation(federation: Federation) -> dict[str, list[float | None]]:
    if federation.validation is None:
        return {}
    return constant_scores(federation.task, federation.train, {VALIDATION: federation.validation})


def _shown(value: float | None, regression: bool) -> str:
    """Empty where the client has no sample of a context.

    >>> _shown(0.7, regression=False), _shown(0.31, regression=True), _shown(None, regression=True)
    ('70.00', '0.3100', '')
    """
    if value is None:
        return ""
    return f"{value:#.4g}" if regression else f"{100 * value:.2f}"


def _settings(asked: dict[str, Any]) -> list[str]:
    lines = ["", "| setting | value |", "|---|---|"]
    shown = {**asked, "data": without_folder(asked.get("data", {}))}
    for part in ("algorithm", "training", "model", "contexts", "data"):
        lines += [f"| {part}.{key} | `{value}` |" for key, value in shown.get(part, {}).items()]
    return lines


def _rounds_done(opened: LoadedRun) -> int:
    return opened.run.evaluations[-1]["round"]
