"""`perinvfl table`: the table of finished runs, or a published one."""

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perinvfl.cli.options import NO_RULE, Method, Seed, pick_of
from perinvfl.core.naming import shortened
from perinvfl.core.saying import hand_over
from perinvfl.errors import UserError
from perinvfl.results.finished import published_names, read_finished
from perinvfl.results.packed import packed_files
from perinvfl.results.published import SCORES, score_named, table_of_published
from perinvfl.results.ranking import Ranking, is_search, rank, ranking_json, ranking_text
from perinvfl.results.render import as_json, render, render_text
from perinvfl.results.score_names import measures_for
from perinvfl.results.scores import has_groups
from perinvfl.results.search_records import published_folders, read_published
from perinvfl.results.selection import RULES, rule_named
from perinvfl.results.table import Table, finished_runs, left_out_notes, make_table
from perinvfl.results.worlds import BOUND, WorldRecords, read_worlds, worlds_folder
from perinvfl.results.worlds_table import as_json as worlds_json
from perinvfl.results.worlds_table import full_text, summary_text
from perinvfl.runs.picking import Pick
from perinvfl.runs.records import Run, find_runs, read_packed
from perinvfl.terminal.console import wide_console
from perinvfl.terminal.tables import show_table, show_text


class FileFormat(StrEnum):
    md = "md"
    csv = "csv"
    latex = "latex"
    json = "json"


class ScoreName(StrEnum):
    accuracy = "accuracy"
    balanced = "balanced"
    worst_group = "worst-group"
    auroc = "auroc"
    average_precision = "average-precision"
    sensitivity = "sensitivity"
    specificity = "specificity"
    brier = "brier"
    calibration_error = "calibration-error"
    r2 = "r2"
    mae = "mae"


Place = Annotated[
    Path,
    typer.Argument(
        help=f"A folder with runs, or a published table: {', '.join(published_names())}.",
        autocompletion=lambda incomplete: [name for name in published_names() if name.startswith(incomplete)],
    ),
]
RuleName = Annotated[
    str,
    typer.Option(
        "--rule",
        help=f"Selection rule of a published table or a search: {', '.join(RULES)}; by default the one that the "
        "table is about, or one that looks at no test result.",
    ),
]
Format = Annotated[
    FileFormat | None, typer.Option("--format", help="Format for a file; by default a table for the terminal.")
]
AskedScore = Annotated[
    ScoreName | None,
    typer.Option(
        "--score",
        help="Score of each test case; by default accuracy (mean squared error of a regression, R² with --on), or "
        "balanced where several tables are shown at once. Scores other than accuracy, and intervals, need runs that "
        "keep predictions, or tests with groups.",
    ),
]
On = Annotated[
    Path | None,
    typer.Option(
        "--on",
        help="Another labelled file, such as next year's rows, on which the models are scored instead of on their "
        "tests; each row by the model of its own client.",
    ),
]


def table(
    place: Place,
    rule: RuleName = "",
    format: Format = None,
    score: AskedScore = None,
    full: Annotated[
        bool, typer.Option("--full", help="For worlds: one row per world instead of one per method.")
    ] = False,
    method: Method = None,
    seed: Seed = None,
    on: On = None,
) -> None:
    """Show the table of finished runs, or a published one. Nothing is trained."""
    pick, worlds, shown = pick_of(method, seed), worlds_folder(place), score.value if score else ""
    if on is not None:
        worst = "--score worst-group" if shown == "worst-group" else ""
        for option in filter(None, ("--full" if full else "", "--rule" if rule else "", worst)):
            raise UserError(f"{option} and --on exclude each other; leave one of them out.")
        _show([_on_file(place, on, pick, shown)], format)
        return
    if worlds is not None:
        _refuse(place, {"--rule": rule, "--score": score, "--method": method, "--seed": seed})
        _show_worlds(read_worlds(worlds), format, full)
        return
    if full:
        raise UserError(f"--full is for the table of worlds; {place} is another one.")
    packed = packed_files(place)
    if packed:
        _refuse(place, {"--rule": rule})
        _show(_packed(packed, pick, shown), format)
        return
    made = _published(place, rule, shown)
    if made is not None:
        _refuse(place, {"--method": method, "--seed": seed})
    else:
        runs = pick.among(find_runs(place))
        if is_search(runs) and score is None:
            _show_search(rank(runs, rule), format)
            return
        _check_no_rule(rule, runs, place)
        made = table_of(runs, shown)
    _show([made], format)


def _published(place: Path, rule: str, score: str) -> Table | None:
    """A published table, from its records or else finished from the package; None where a folder holds other runs."""
    records = {name: read_published(folder) for name, folder in published_folders(place).items()}
    if records:
        return table_of_published(place.name, records, rule, score)
    if place.exists():
        return None
    finished = read_finished(place)
    if finished is None:
        names = ", ".join(published_names())
        raise UserError(f"{place} is not a folder, nor a published table; those are {names}.")
    if score:
        score_named(score)
    if rule:
        rule_named(rule)
    return finished.table(rule, score)


def _check_no_rule(rule: str, runs: list[Run], place: Path) -> None:
    if rule and is_search(runs):
        raise UserError("--rule and --score exclude each other here: a rule ranks by what it looks at.")
    if rule:
        raise UserError(NO_RULE.format(rule=rule, place=place))


def _packed(files: dict[str, Path], pick: Pick, score: str) -> list[Table]:
    """Published runs without a search, each file a table."""
    made = {name: table_of(pick.among(read_packed(file)), score) for name, file in files.items()}
    return [dataclasses.replace(table, name=name) for name, table in made.items()]


def _show(tables: list[Table], format: FileFormat | None) -> None:
    """One below the other; as JSON, a list where there are several."""
    if format is FileFormat.json and len(tables) > 1:
        hand_over(json.dumps([as_json(made) for made in tables], indent=2, ensure_ascii=False))
        return
    for number, made in enumerate(tables):
        if format is None:
            show_table(wide_console(), made)
        else:
            title = f"{made.title}\n\n" if len(tables) > 1 else ""
            hand_over("\n" * bool(number) + title + render(made, format.value))


def _refuse(place: Path, given: dict[str, object]) -> None:
    """An option that means nothing here is not passed over in silence."""
    for name, value in given.items():
        if value:
            raise UserError(f"{name} does not apply to {place}, a published table; leave it out.")


def _show_search(ranking: Ranking, format: FileFormat | None) -> None:
    if format is FileFormat.json:
        hand_over(json.dumps(ranking_json(ranking), indent=2, ensure_ascii=False))
    elif format is None:
        show_text(wide_console(), ranking_text(ranking))
    else:
        hand_over(render_text(ranking_text(ranking), format.value))


def _check_same_data(runs: list[Run]) -> None:
    """Another file is read as all of them were trained: they share a label and clients."""
    keys = ("label", "client", "task", "classes", "exclude_clients")
    asked = [{key: run.asked["data"].get(key) for key in keys} for run in runs]
    odd = next((run for run, own in zip(runs, asked, strict=True) if own != asked[0]), None)
    if odd is not None:
        both = " and ".join(dict.fromkeys((runs[0].experiment, odd.experiment)))
        raise UserError(f"The folder holds runs of different labels or clients ({both}); give one experiment's folder.")


def _on_file(place: Path, file: Path, pick: Pick, score: str) -> Table:
    from perinvfl.export.another_file import answers_on
    from perinvfl.export.by_client import strangers_in_words
    from perinvfl.scoring.score_table import Answered, table_on_file

    found = pick.among(find_runs(place))
    runs = [run for run in found if run.finished and run.broken is None] or finished_runs(found)
    _check_same_data(runs)
    answered = [(run, answers_on(run, file)) for run in runs]
    first = answered[0][1]
    if not any(len(labels) for _, answers in answered for labels in answers.found.labels[first.case]):
        own = ", ".join(name for name in first.clients if name not in first.strangers)
        raise UserError(f"{file} holds no row of {shortened(own)}, and no model is shared.")
    alone = [*dict.fromkeys(run.label for run, answers in answered if answers.unanswered)]
    notes = [f"{first.rows} rows of {file.name}, each answered by the model of its own client."]
    notes += strangers_in_words(first.strangers, alone)
    asked = score or measures_for(runs[0].task)[0]
    of_runs = [Answered(run, answers.found, answers.clients) for run, answers in answered]
    return table_on_file(of_runs, first.case, asked, [*notes, *left_out_notes(found)])


def table_of(runs: list[Run], score: str) -> Table:
    """Of a score that was asked for, from predictions where there are any; else as recorded."""
    grouped = any(map(has_groups, runs))
    if score == "worst-group" or not score or (grouped and score in SCORES):
        return make_table(runs, score or "accuracy")  # type: ignore[arg-type]
    from perinvfl.scoring.score_table import has_scores, score_table  # with numpy

    if score == "accuracy" and not has_scores(runs):
        return make_table(runs)
    return score_table(runs, score)


def _show_worlds(records: WorldRecords, format: FileFormat | None, full: bool) -> None:
    if format is FileFormat.json:
        hand_over(json.dumps(worlds_json(records), indent=2, ensure_ascii=False))
        return
    text = full_text(records) if full else summary_text(records)
    if format is None:
        show_text(wide_console(), text, BOUND)
    else:
        hand_over(render_text(text, format.value))
