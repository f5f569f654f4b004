"""The table of methods says what the code does."""

import dataclasses
import re
from typing import Any

import pytest
import torch

from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.parts import PartlyPersonal, names_of
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.problem import autograd_gradient
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, resnet18
from tests.algorithms.small_runs import client_view, small_federation
from tests.commands import ROOT

PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
HEADS = {
    "shift": "For data that differ from training",
    "shared": "One model",
    "personal": "A model for each client",
    "pooled": "All data in one place",
}
FEDERATED = [name for name, algorithm in ALGORITHMS.items() if not algorithm.pooled]
SENT = {"head": "its features", "features": "its head", "norms": "all but the norms"}  # by what is personal
STEPS = {"local_steps": 2, "personal_steps": 3, "weight_steps": 5}


def rows() -> dict[str, list[str]]:
    found = {}
    for line in PAGE.splitlines():
        if line.startswith("| ["):
            cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            found[re.findall(r"\[(\w+)\]", cells[0])[0]] = cells
    return found


def test_every_method_has_its_row_under_what_it_is_for() -> None:
    assert set(rows()) == set(ALGORITHMS)
    group = ""
    for line in PAGE.splitlines():
        if line.startswith("| **"):
            group = next(key for key, words in HEADS.items() if words in line)
        elif line.startswith("| ["):
            name = re.findall(r"\[(\w+)\]", line)[0]
            assert ALGORITHMS[name].purpose == group, name


def test_pooled_methods_take_all_data() -> None:
    for name in set(ALGORITHMS) - set(FEDERATED):
        assert rows()[name][1:6] == ["nothing", "-", "all data", "all data", "no"]


@pytest.mark.parametrize("name", FEDERATED)
def test_traffic_and_what_the_server_needs(name: str) -> None:
    algorithm, row = ALGORITHMS[name](), rows()[name]
    model = resnet18(2, norm="group", width=2, stem="small")
    params = model.init(torch.Generator())
    down = algorithm.broadcast(algorithm.init_server(algorithm.shared_part(model, params), 3), torch.arange(3))
    if isinstance(algorithm, PartlyPersonal):
        assert row[2] == row[3] == SENT[algorithm.personal_part] and not down.control
        assert set(down.params) == set(params) - names_of(model, algorithm.personal_part, params)
    else:
        up = algorithm.start_control(params)
        sent = [sum(leaf.numel() for leaf in each.values()) for each in (params, down.control, up)]
        assert list(down.params) == list(params)
        assert [int(cell) for cell in row[2:4]] == [1 + round(beside / sent[0]) for beside in sent[1:]]
    assert (row[5] == "with consent") == algorithm.sees_risks() and not algorithm.sees_updates()
    assert (row[4] == "each risk") == algorithm.sees_risks()
    kept = algorithm.init_client(params, 2)
    assert (row[1] == "nothing") == (not algorithm.has_personal and not kept.control and not kept.personal)


@pytest.mark.parametrize("name", [name for name, row in rows().items() if row[6].startswith("`") and name != "fedbn"])
def test_gradients_of_a_round(name: str) -> None:
    cls: type[Algorithm] = ALGORITHMS[name]
    fields = {field.name for field in dataclasses.fields(cls)} - set(cls.unused)
    settings: dict[str, Any] = {key: value for key, value in STEPS.items() if key in fields}
    training = Training(executor="loop", device="cpu")
    simulation = Simulation([cls(**settings)], [small_federation()], [0], training, ModelSettings(hidden=(4,)))
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(1)
        return autograd_gradient(*given)

    problem = dataclasses.replace(simulation.problem, gradient_of=counted)
    simulation.algorithms[0].client(problem, *client_view(simulation, 0))
    formula = re.findall(r"`([^`]+)`", rows()[name][6])[0]
    assert len(calls) == eval(formula, {"R": 2, "S": 3, "P": 5})
