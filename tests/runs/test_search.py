"""Where a search looks: ranges written in the file; and names of runs that outlive new settings."""

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from perinvfl.algorithms import ALGORITHMS
from perinvfl.core import hyper
from perinvfl.errors import UserError
from perinvfl.runs.asked import trial_of
from perinvfl.runs.experiment import Experiment, build_experiment, read_experiment
from perinvfl.runs.facts import Effort
from perinvfl.runs.records import Run, read_packed
from perinvfl.runs.search import search

ROOT = Path(__file__).parents[2]


def file_with(folder: Path, text: str, head: str = "") -> Path:
    path = folder / "ranges.toml"
    path.write_text(f'{head}\n[data]\nbenchmark = "random"\n[[algorithm]]\n{text}')
    return path


def read(folder: Path, text: str, head: str = "") -> Experiment:
    return read_experiment(file_with(folder, text, head))


def values(experiment: Experiment, trials: int, key: str) -> list[Any]:
    return [getattr(trial.algorithm, key) for trial in search(experiment, trials, 0).trials]


# Ranges in the file ------------------------------------------------------------------------------------------------


def test_a_range_is_drawn_from_by_its_logarithm(tmp_path: Path) -> None:
    drawn = values(read(tmp_path, 'name = "perinvfl"\nl2 = {from = 1e-4, to = 1}\n'), 200, "l2")
    assert all(1e-4 <= value <= 1 for value in drawn)
    assert len(set(drawn)) == 200
    below = sum(value < 1e-2 for value in drawn)  # half of the decades
    assert 70 < below < 130
    backwards = values(read(tmp_path, 'name = "perinvfl"\nl2 = {from = 1, to = 1e-4}\n'), 200, "l2")
    assert backwards == drawn


def test_options_are_all_drawn_and_nothing_else(tmp_path: Path) -> None:
    text = 'name = "perinvfl"\npersonal_after = {one_of = [0, 7, 9]}\ninvariance = {one_of = ["irm", "groupdro"]}\n'
    experiment = read(tmp_path, text)
    assert set(values(experiment, 60, "personal_after")) == {0, 7, 9}
    assert set(values(experiment, 60, "invariance")) == {"irm", "groupdro"}


def test_a_range_does_not_move_what_else_is_drawn(tmp_path: Path) -> None:
    """Settings named with one value are held; those drawn before come out as without the file's range."""
    plain = search(read(tmp_path, 'name = "perinvfl"\nbeta = 0.5\npersonal_optimizer = "adam"\n'), 8, 0).trials
    ranged = search(
        read(tmp_path, 'name = "perinvfl"\nbeta = {from = 2, to = 3}\npersonal_optimizer = "adam"\n'), 8, 0
    ).trials
    for one, other in zip(plain, ranged, strict=True):
        assert one.algorithm.beta == 0.5 and 2 <= other.algorithm.beta <= 3  # type: ignore[attr-defined]
        same = [dataclasses.replace(trial.algorithm, beta=0) for trial in (one, other)]  # type: ignore[call-arg]
        assert same[0] == same[1]


def test_without_a_search_the_middle_or_the_first_is_taken(tmp_path: Path) -> None:
    text = 'name = "perinvfl"\nl2 = {from = 1e-4, to = 1}\nbeta = {one_of = [3, 5]}\n'
    (trial,) = read(tmp_path, text).trials
    assert (trial.algorithm.l2, trial.algorithm.beta) == (pytest.approx(1e-2), 3.0)  # type: ignore[attr-defined]


def test_options_become_what_a_single_value_would(tmp_path: Path) -> None:
    """A whole number among options of a real setting, or a list, must name the same run as when written alone."""
    text = 'name = "perinvfl"\nbeta = {one_of = [1, [0.1, 0.2, 0.3]]}\n'
    drawn = search(read(tmp_path, text), 12, 0).trials
    assert {repr(trial.algorithm.beta) for trial in drawn} == {"1.0", "(0.1, 0.2, 0.3)"}  # type: ignore[attr-defined]
    for trial in drawn:
        assert rebuilt(trial.asked(), trial.seed) == trial.id


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("beta = {from = 0, to = 1}", "algorithm[0].beta: a search range is"),
        ("beta = {from = -1, to = 1}", "algorithm[0].beta: a search range is"),
        ("beta = {from = 1}", "algorithm[0].beta: a search range is"),
        ("beta = {from = 1, to = 2, step = 1}", "algorithm[0].beta: a search range is"),
        ('beta = {from = "a", to = 2}', "algorithm[0].beta: a search range is"),
        ("beta = {from = true, to = 2}", "algorithm[0].beta: a search range is"),
        ("beta = {from = nan, to = 2}", "algorithm[0].beta: a search range is"),
        (f"beta = {{from = 1, to = {10**400}}}", "algorithm[0].beta: a search range is"),  # no float holds it
        ("beta = {one_of = []}", "algorithm[0].beta: a search range is"),
        ("beta = {one_of = 3}", "algorithm[0].beta: a search range is"),
        ("beta = {}", "algorithm[0].beta: a search range is"),
        ("beta = {from = 1, to = inf}", "algorithm[0].beta"),
        ("beta = {one_of = [1, -2]}", "algorithm[0].beta"),
        ('beta = {one_of = [1, "two"]}', "algorithm[0].beta"),
        ('invariance = {one_of = ["irm", "dro"]}', "algorithm[0].invariance"),
        ("local_steps = {from = 1, to = 9}", "algorithm[0].local_steps"),
        ("rescale = {from = 1, to = 9}", "algorithm[0].rescale"),
        ("betta = {from = 1, to = 9}", "algorithm[0].betta is not a setting; did you mean beta?"),
        ("beta = {one_of = [1, [1, 2]]}", "perinvfl.beta lists 2 values for 3 clients"),
        ("label = {one_of = ['a', 'b']}", "algorithm[0].label"),
    ],
)
def test_wrong_ranges_are_one_sentence_that_names_the_key(tmp_path: Path, written: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        read(tmp_path, f'name = "perinvfl"\n{written}\n')
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_number_of_settings_is_no_matter_of_luck(tmp_path: Path) -> None:
    """One setting alone to draw, of two options: its first draw may be what the file has already."""
    held = "learning_rate = 0.1\nserver_learning_rate = 1.0\nl2 = 0.0\n"
    experiment = read(tmp_path, f'name = "fedavg"\n{held}local_steps = {{one_of = [1, 2]}}\n')
    for _ in range(12):
        assert len(search(experiment, 5, 0).trials) == 5
    assert len(search(read(tmp_path, f'name = "fedavg"\n{held}'), 5, 0).trials) == 1  # nothing to draw


def test_the_effort_is_read_from_the_file(tmp_path: Path) -> None:
    head = "[search]\ntrials = 5\nleave_out = false\nseeds = [7, 8]"
    assert read(tmp_path, 'name = "fedavg"', head).effort == Effort(trials=5, leave_out=False, seeds=(7, 8))
    assert read(tmp_path, 'name = "fedavg"').effort == Effort()
    with pytest.raises(UserError, match=r"search\.trials"):
        read(tmp_path, 'name = "fedavg"', "[search]\ntrials = 0")
    with pytest.raises(UserError, match=r"search\.trial is not a setting; did you mean trials"):
        read(tmp_path, 'name = "fedavg"', "[search]\ntrial = 4")


# Names of runs -----------------------------------------------------------------------------------------------------


def rebuilt(asked: dict[str, Any], seed: int) -> str:
    """The id of the trial that asks for the same."""
    return trial_of(asked, seed=seed).id


@lru_cache
def packed(folder: str) -> list[Run]:
    return read_packed(ROOT / "results" / folder / "search.jsonl.xz")


@pytest.mark.parametrize("folder", ["rc_mnist", "beyond/rc_mnist"])
def test_published_runs_keep_their_names(folder: str) -> None:
    """Settings that came later leave the ids of earlier records alone, so that none is made again."""
    runs = packed(folder)
    seen: dict[str, int] = {}
    for run in runs:
        if seen.setdefault(run.method, 0) < 3:
            seen[run.method] += 1
            assert rebuilt(run.asked, run.seed) == run.id, run.method
    assert {"FedAvg", "IRM"} <= seen.keys() and any(kind.startswith("PerInvFL") for kind in seen)
    assert "invariant_by" not in packed("rc_mnist")[0].start["asked"]["algorithm"]


@pytest.mark.parametrize("name", ["rc_mnist", "beyond/rc_mnist"])
def test_the_published_search_is_drawn_again(name: str) -> None:
    experiment = read_experiment(ROOT / "experiments" / f"{name}.toml")
    drawn = search(experiment, experiment.effort.trials, search_seed=0).trials
    assert [trial.id for trial in drawn] == [run.id for run in packed(name)]
    assert [trial.facts for trial in drawn] == [run.facts for run in packed(name)]


def later_fields(settings: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(settings) if field.metadata.get("later")]


def test_later_settings_name_a_run_only_where_they_are_set() -> None:
    assert set(later_fields(ALGORITHMS["perinvfl"])) == {
        "personal_after",
        "personal_part",
        "invariant_by",
        "cooling",
        "agreement",
        "matching",
        "trimming",
        "clipping",
        "average_after",
    }

    def asked(**algorithm: Any) -> Any:
        table = {"data": {"benchmark": "random"}, "algorithm": [{"name": "perinvfl", **algorithm}]}
        return build_experiment(table).trials[0]

    plain = asked()
    assert asked(personal_after=0, invariant_by="irm").id == plain.id
    assert "personal_after" not in plain.asked()["algorithm"] and "contexts" not in plain.asked()
    others = [asked(personal_after=2), asked(invariant_by="fishr")]
    assert len({plain.id, *(trial.id for trial in others)}) == 3
    assert others[0].asked()["algorithm"]["personal_after"] == 2


def test_inferred_contexts_name_a_run() -> None:
    def named(**contexts: Any) -> str:
        table = {"data": {"benchmark": "random"}, "contexts": contexts, "algorithm": [{"name": "irm"}]}
        return build_experiment(table).trials[0].id

    assert named() == named(infer="given")
    ids = {named(), named(infer="hard"), named(infer="hard", use="discount"), named(infer="hard", every=3)}
    assert len(ids) == 4


def test_hyper_asked_leaves_out_later_ones_at_their_default() -> None:
    @dataclasses.dataclass(frozen=True)
    class Some:
        old: int = hyper.hyper(1, "there from the beginning")
        new: int = hyper.hyper(2, "came later", later=True)

    assert hyper.asked(Some()) == {"old": 1}
    assert hyper.asked(Some(new=3)) == {"old": 1, "new": 3}
