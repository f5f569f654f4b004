"""What a report shows, as plain values. Reads records; trains nothing."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perinvfl.core.naming import client_names, plural, thing_of, without_folder
from perinvfl.errors import UserError
from perinvfl.plots.figure_data import CONSTANT, SHORTCUTS, TITLES, is_number, is_search, styles_of
from perinvfl.report.advice import verdict
from perinvfl.report.notes import LAST_ROUND, RULE_WORDS, notes_on
from perinvfl.report.spans import score_spans
from perinvfl.report.summary import summarise
from perinvfl.results.finished import check_has_records
from perinvfl.results.folds import join_folds
from perinvfl.results.paper import CASES, TABLES, as_published
from perinvfl.results.scores import class_balanced, has_groups
from perinvfl.results.search_records import SearchRecords, published_folders, read_published
from perinvfl.results.selection import RULES
from perinvfl.results.table import by_setting
from perinvfl.runs.catalogue import read_catalogue
from perinvfl.runs.picking import EVERY, Pick
from perinvfl.runs.records import CHECKPOINT, Event, Run, evaluations_at, find_runs, is_run, read_run

Begin = Callable[[str, int, int], None]
MOST_CLIENT_CURVES = 12  # clients that get learning curves of their own


@dataclass(frozen=True)
class Taken:
    """Runs of one method that differ in their seeds, at the rounds to show; the last where none are given."""

    runs: list[Run]
    rounds: Sequence[int] = ()

    @cached_property
    def balanced(self) -> list[Run]:
        return list(map(class_balanced, self.runs))

    def shown(self) -> list[Event]:
        return evaluations_at(self.balanced, self.rounds)

    def as_counted(self) -> list[Event]:
        """The same with every sample counting alike."""
        return evaluations_at(self.runs, self.rounds)


def gather(
    places: Sequence[Path], diagnosed: bool = False, pick: Pick = EVERY, begin: Begin = lambda *run: None
) -> dict[str, Any]:
    """Sections by benchmark, and the diagnosis of every single run folder (of all with a checkpoint if asked).

    begin: called before each diagnosis with the run's name, its number from 1, and how many there are.
    """
    sections, loose = [], []
    for place in places:
        published = published_folders(place)
        if published and not is_run(place):
            sections += [_published_section(read_published(folder)) for folder in published.values()]
        else:
            check_has_records(place)
            loose += _runs_at(place, pick)
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in loose:
        start = run.start
        data = start["asked"]["data"]
        own = data.get("checksum", "")  # of own data, what is in the file
        key = (data["benchmark"], own, tuple(start["notes"]["constant"]), start["clients"])
        groups.setdefault(key, []).append(run)
    sections += [_plain_section(runs) for runs in groups.values()]
    if not sections:
        raise UserError("There is no finished run here; `perinvfl run FILE.toml` makes one.")
    for number, section in enumerate(sections):
        section["id"] = f"s{number}"
    return {"sections": sections, "diagnoses": _diagnoses(places, loose, diagnosed, begin)}


def _runs_at(place: Path, pick: Pick) -> list[Run]:
    if is_run(place):
        run = read_run(place)
        runs = [] if run is None else [run]
    else:
        runs = find_runs(place)
    runs = [run for run in runs if not run.chooses_only]
    runs = pick.among(runs)
    if is_search(runs):
        raise UserError(
            f"{place} holds the trials of a search; a report shows one chosen setting per method; "
            "`perinvfl plot --kind sensitivity` shows a search."
        )
    return [run for run in join_folds(runs) if run.finished and run.broken is None and run.evaluations]


def _diagnoses(places: Sequence[Path], runs: list[Run], diagnosed: bool, begin: Begin) -> list[dict[str, Any]]:
    folders = [place for place in places if is_run(place) and (place / CHECKPOINT).exists()]
    if diagnosed:
        firsts = {label: same[0] for label, same in by_setting(runs).items()} if runs else {}
        kept = [run.folder for run in firsts.values() if (run.folder / CHECKPOINT).exists()]
        folders += [folder for folder in kept if folder not in folders]
        if not folders:
            raise UserError("--diagnose: none of these runs kept its checkpoint.pt, so there is no model to diagnose.")
    if not folders:
        return []
    from perinvfl.diagnose import diagnose  # runs the models, and so imports torch

    found = []
    for number, folder in enumerate(folders, start=1):
        begin(folder.name, number, len(folders))
        found.append(diagnose(folder).as_json())
    return found


def _plain_section(runs: list[Run]) -> dict[str, Any]:
    by_label = by_setting(runs)
    methods = {label: Taken(same) for label, same in by_label.items()}
    section = _section(runs, {"last round": (LAST_ROUND, methods)})
    section["verdict"] = verdict(section, by_label)
    if section["own"]:
        section["summary"] = summarise(section, by_label)
    return section


def _published_section(published: SearchRecords) -> dict[str, Any]:
    views = {}
    for rule in published.rules():
        views[rule] = (
            RULE_WORDS.get(rule, f"{RULES[rule].doc.capitalize()}."),
            {
                method: Taken(runs := published.runs_of(method, choice.setting), choice.rounds(len(runs)))
                for method, choice in published.choices(rule).items()
            },
        )
    section = _section(published.chosen, views)
    section["notes"].append(
        f"Searched on one seed: {published.effort}. The settings that a rule selects were trained again with "
        f"{section['seeds']} fresh seeds, which are shown."
    )
    return section


def _section(runs: list[Run], views: dict[str, tuple[str, dict[str, Taken]]]) -> dict[str, Any]:
    balanced, as_counted = any(map(has_groups, runs)), runs
    runs = [class_balanced(run) for run in runs]
    start = runs[0].start
    benchmark, regression = start["asked"]["data"]["benchmark"], start["task"] == "regression"
    cases = [case for case in start["notes"]["constant"] if not case.startswith("validation")]  # held out, no test
    firsts = {label: taken.runs[0] for _, methods in views.values() for label, taken in methods.items()}
    styles = styles_of(firsts)
    shortcut = SHORTCUTS.get(benchmark)
    words = own_words(start)
    return {
        "own": _is_own(start),
        "words": words,
        "classes": list(start.get("schema", {}).get("classes", ())),
        "verdict": None,
        "summary": None,
        "title": TITLES.get(benchmark, start["experiment"]),
        "benchmark": benchmark,
        "experiment": start["experiment"],
        "unit": "" if regression else "%",
        "measure": "Mean squared error" if regression else "Class-balanced accuracy" if balanced else "Accuracy",
        "larger_is_better": not regression,
        "clients": client_names(start.get("schema", {}).get("clients", ()), start["clients"]),
        "contexts": start["notes"].get("contexts", []),
        "sizes": start["notes"].get("sizes", []),
        "cases": [{"name": case, "p": float(case) if is_number(case) else None} for case in cases],
        "spectrum": start["spectrum"],
        "across": f"How often the {shortcut} agrees with the label at test (p)" if shortcut else words["context"],
        "trained": _trained_range(start),
        "seeds": max(len(taken.runs) for _, methods in views.values() for taken in methods.values()),
        "constant": _constant(runs, cases, regression),
        "constant_plain": _constant(as_counted, start["spectrum"], regression)["cases"] if balanced else None,
        "views": [
            {
                "rule": rule,
                "words": words,
                "methods": [_method(label, taken, cases, styles[label]) for label, taken in methods.items()],
            }
            for rule, (words, methods) in views.items()
        ],
        "environments": _distinct([run.start["environment"] for run in runs]),
        "data": without_folder(start["asked"]["data"]),
        "notes": notes_on(as_counted),
    }


def _method(label: str, taken: Taken, cases: list[str], style: tuple[str, str]) -> dict[str, Any]:
    first = taken.runs[0].start
    asked, clients = first["asked"], first["clients"]
    factor = 1.0 if first["task"] == "regression" else 100.0
    lead = [_lead(event) for event in taken.shown()]
    algorithm = asked["algorithm"]["name"]
    known = read_catalogue().algorithms.get(algorithm)
    beside_paper = as_published(taken.runs[0]) and not has_groups(taken.runs[0])  # the paper counts every bird alike
    published = TABLES.get(asked["data"]["benchmark"], {}).get(algorithm) if beside_paper else None
    by_seed = {case: [_mean(seed[case], factor) for seed in lead] for case in cases}
    return {
        "name": label,
        "algorithm": algorithm,
        # It sees data from which the shortcut was taken by someone who knew it.
        "reference": any(asked["data"].get(key, False) for key in ("grayscale", "without_shortcut")),
        "spans": score_spans(taken.runs) if "checksum" in asked["data"] and not taken.rounds else {},
        "paper_name": known.paper if known else "",
        "colour": style[0],
        "shape": style[1],
        "seeds": [run.start["asked"]["seed"] for run in taken.runs],
        "rounds": [event["round"] for event in taken.shown()],
        "cases": {case: [_mean(values), _deviation(values)] for case, values in by_seed.items()},
        "by_seed": by_seed,
        "clients": [
            {case: _mean([seed[case][client] for seed in lead], factor) for case in cases} for client in range(clients)
        ],
        "plain": _plain(taken, first["spectrum"]),
        "shared": _shared(taken, cases, clients, factor),
        "paper": dict(zip(CASES, published, strict=True)) if published and tuple(first["spectrum"]) == CASES else None,
        "curves": _curves(taken, cases, clients, factor),
        "settings": {f"{part}.{key}": value for part in ("algorithm", "training", "model") for key, value in
                     asked[part].items() if (part, key) not in (("algorithm", "name"), ("algorithm", "label"))},
        "seconds": _mean([run.evaluations[-1]["seconds"] for run in taken.runs]),
    }  # fmt: skip


def _is_own(start: Event) -> bool:
    """Data of one's own: in a file, in memory or at sites."""
    data = start["asked"]["data"]
    return "checksum" in data or data["benchmark"] == "sites"


def own_words(start: Event) -> dict[str, str]:
    """What clients, context and label are called: on own data, by the names of their columns."""
    data, own = start["asked"]["data"], _is_own(start)
    thing = thing_of(data.get("client") or "") if own else ["client"]
    client = thing[0] if len(thing) == 1 and thing[0].isalpha() else "site"
    return {
        "client": client,
        "clients": plural(client),
        "context": data.get("context") or "test" if own else "Test context",
        "label": data.get("label") or "label" if own else "label",
    }


def _plain(taken: Taken, spectrum: list[str]) -> float | None:
    """Accuracy over the shifted contexts with every sample counting alike, where classes do elsewhere on the page."""
    if not has_groups(taken.runs[0]):
        return None
    return _mean([_mean(_lead(event)[case]) for event in taken.as_counted() for case in spectrum], 100.0)


def _shared(taken: Taken, cases: list[str], clients: int, factor: float) -> list[dict[str, float | None]] | None:
    """The global model at each client, where the method also has personal ones."""
    events = taken.shown()
    if not all("personal" in event and "global" in event for event in events):
        return None
    return [
        {case: _mean([event["global"][case][client] for event in events], factor) for case in cases}
        for client in range(clients)
    ]


def _curves(taken: Taken, cases: list[str], clients: int, factor: float) -> dict[str, Any]:
    """Rounds that every seed has evaluated; by case the mean over clients and, of a few clients, each."""
    by_round = [{event["round"]: _lead(event) for event in run.evaluations} for run in taken.balanced]
    rounds = sorted(set.intersection(*map(set, by_round)))

    def over_seeds(case: str, round: int, client: int | None) -> float | None:
        values = [run[round][case] for run in by_round]
        return _mean([_mean(v) if client is None else v[client] for v in values], factor)

    few = range(clients if clients <= MOST_CLIENT_CURVES else 0)
    return {
        "rounds": rounds,
        "mean": {case: [over_seeds(case, round, None) for round in rounds] for case in cases},
        "clients": [{case: [over_seeds(case, round, i) for round in rounds] for case in cases} for i in few],
        "risk": _risk_curve(taken, rounds),
    }


def _risk_curve(taken: Taken, rounds: list[int]) -> list[float | None]:
    """Training risk of the global model, mean over clients and seeds."""
    by_round = [{event["round"]: event["risks"] for event in run.evaluations} for run in taken.runs]
    return [_mean([_mean(run[round]) for run in by_round]) for round in rounds]


def _constant(runs: list[Run], cases: list[str], regression: bool) -> dict[str, Any]:
    """What a client that ignores its input would score."""
    factor = 1.0 if regression else 100.0
    drawn = {run.start["asked"]["seed"]: run.start["notes"]["constant"] for run in runs}.values()
    clients = len(next(iter(drawn))[cases[0]])
    return {
        "colour": CONSTANT[0],
        "cases": {case: _mean([_mean(d[case]) for d in drawn], factor) for case in cases},
        "clients": [{case: _mean([d[case][i] for d in drawn], factor) for case in cases} for i in range(clients)],
    }


def _trained_range(start: Event) -> list[float] | None:
    asked = start["asked"]["data"].get("p_train")
    if not asked:
        return None
    found = [p for client in asked for p in (client if isinstance(client, list) else [client])]
    return [min(found), max(found)]


def _lead(event: Event) -> dict[str, list[float]]:
    return event.get("personal") or event["global"]


def _distinct(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def _mean(values: Sequence[float | None], factor: float = 1.0) -> float | None:
    """Over those that are known: a client may have no sample of a test context."""
    known = [value for value in values if value is not None]
    return round(factor * statistics.fmean(known), 5) if known else None


def _deviation(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return round(statistics.pstdev(known), 5) if known else 0.0
