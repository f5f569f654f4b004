"""What an experiment file may name: shown by `perinvfl list`, and presets that are sound."""

import typing
from pathlib import Path

import pytest

from perinvfl.algorithms.base import Purpose
from perinvfl.cli.list import MODELS, PURPOSES, SECTIONS
from perinvfl.models import ModelSettings
from perinvfl.runs.catalogue import read_catalogue
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.presets import preset_file, preset_line, preset_names
from tests.commands import called, check_refusal, perinvfl


def test_list_is_short_and_names_everything() -> None:
    printed = perinvfl("list")
    assert printed.returncode == 0 and len(printed.stdout.splitlines()) < 75
    catalogue = read_catalogue()
    words = printed.stdout.replace(",", " ").split()
    for name in (*catalogue.algorithms, *catalogue.benchmarks, *MODELS):
        assert name in words
    for preset in preset_names():
        method, _, table = preset.partition("-")
        assert method in printed.stdout.partition(f"...-{table}:")[2].partition("\n")[0]


def test_list_groups_algorithms_by_what_they_are_for() -> None:
    catalogue = read_catalogue()
    assert set(PURPOSES) == set(typing.get_args(Purpose))
    shown = called("list").stdout
    for purpose, words in PURPOSES.items():
        group = shown.partition(f"Algorithms: {words}\n")[2].splitlines()
        names = [name for name, entry in catalogue.algorithms.items() if entry.purpose == purpose]
        assert [line.split()[0] for line in group[: len(names)]] == names and not group[len(names)].startswith("  ")
    assert {name: catalogue.algorithms[name].purpose for name in ("recommended", "fedprox", "fedrep")} == {
        "recommended": "shift",
        "fedprox": "shared",
        "fedrep": "personal",
    }


def test_list_shows_one_thing_with_its_settings() -> None:
    shown = called("list", "perinvfl").stdout
    for word in ("algorithm perinvfl", "β", "λ", "0.01 to 100000, log", "beta", "Tang, Guo & Zhang 2022"):
        assert word in shown
    assert "p_train" not in shown and "fedavg" not in shown
    assert "p_train" in called("list", "rc_mnist").stdout
    assert "batch_size" in called("list", "[training]").stdout == called("list", "training").stdout
    assert "nothing to set" in called("list", "recommended").stdout
    assert "penalty_weight = " in called("list", "perinvfl-rc_mnist").stdout
    weights = called("list", "weights").stdout
    assert "setting of [model]" in weights and "setting of [training]" in weights
    for name in ("test_contexts", "recommended-rc_mnist", "linear"):
        assert called("list", name).returncode == 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dito", "did you mean ditto"), ("rc_m", "did you mean rc_mnist or "), ("qqqq", "`perinvfl list` names them.")],
)
def test_an_unknown_name_gets_near_ones(name: str, hint: str) -> None:
    done = called("list", name)
    check_refusal(done.returncode, done.stdout, done.stderr, f'"{name}" is not an algorithm')
    assert hint in done.stderr


def test_models_and_sections_are_those_of_the_settings() -> None:
    assert set(SECTIONS) == set(read_catalogue().sections)
    assert tuple(MODELS) == typing.get_args(typing.get_type_hints(ModelSettings)["kind"])
    for kind, (_, own) in MODELS.items():
        build = "a:b" if kind == "module" else ""
        means = set(ModelSettings(kind=kind, build=build).asked()) - {"kind"}  # type: ignore[arg-type]
        assert means - {"hidden"} <= set(own) <= means | {"blind_to", "kernels"}


def test_every_preset_is_a_sound_experiment() -> None:
    for name in preset_names():
        experiment = read_experiment(preset_file(name))
        assert experiment.name == name and len(experiment.trials) == 1 and preset_line(name)


def test_a_preset_is_found_by_its_former_name() -> None:
    assert preset_file("recommended-rc_mnist_blind") == preset_file("discounted-rc_mnist_blind")


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from perinvfl.algorithms import FedAvg
from perinvfl.core.hyper import hyper

@dataclass(frozen=True)
class Slow(FedAvg):
    \"\"\"FedAvg that takes its time.\"\"\"

    title: ClassVar[str] = "Slow"
    patience: float = hyper(0.5, "how slow it is", symbol="p", least=0)
"""


def test_an_algorithm_of_ones_own_is_listed(tmp_path: Path) -> None:
    (tmp_path / "own_methods.py").write_text(OWN)
    shown = called("list", "own_methods:Slow", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for words in ("algorithm own_methods:Slow: Slow", "FedAvg that takes its time.", "how slow it is", "local_steps"):
        assert words in shown.stdout
    for name, said in (("own_methods:Fast", "own_methods has no Fast"), ("elsewhere:Slow", "no module elsewhere")):
        refused = called("list", name, cwd=tmp_path)
        assert refused.returncode == 2 and said in refused.stderr
