"""Every algorithm, batched and looped, against the plain reference."""

import dataclasses
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import (
    ALGORITHMS,
    IRM,
    Alone,
    FedBN,
    PerInvFL,
    Recommended,
)
from perinvfl.algorithms.base import Algorithm
from perinvfl.core import tree
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import ContextUse, Federation, Task
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.pooling import pooled_view
from tests import reference
from tests.algorithms.cases import BALANCED, CASES, DISCOUNTED, PENALIZED, SHIFT, Case

MODEL = ModelSettings(hidden=(5, 4))  # padded to 16 inside
EXECUTORS: tuple[Literal["vmap", "loop"], ...] = ("vmap", "loop")
SEEDS = [3, 11]
ROUNDS = 4


def settings_of(case: Case, optimizer: str) -> list[Algorithm]:
    """The two trials' settings.

    Adam's rates are small and there are two local steps: Adam divides by the gradient's size, rounding included, and
    after one step of Adam the clients' moves of ± the rate can cancel to nothing but rounding.
    """
    rates = ((0.3, 0.1, 0.9), (0.2, 0.15, 0.7)) if optimizer == "sgd" else ((0.01, 0.01, 0.01), (0.007, 0.005, 0.006))
    names = {field.name for field in dataclasses.fields(case.algorithm)} - set(case.algorithm.unused)
    made = []
    for (rate, personal_rate, server_rate), own, l2 in zip(rates, (case.first, case.second), (0.02, 0.05), strict=True):
        settings: dict[str, Any] = {
            "optimizer": optimizer,
            "personal_optimizer": optimizer,
            "server_optimizer": optimizer,
            "learning_rate": rate,
            "personal_learning_rate": personal_rate,
            "server_learning_rate": server_rate,
            "l2": l2,
        }
        usable = {name: value for name, value in settings.items() if name in names}
        made.append(case.algorithm(**(usable | case.shared | own)))
    return made


def federations_of(task: Task, contexts: int, apart: bool) -> list[Federation]:
    outputs = 3 if task == "multiclass" else 1
    return [
        random_federation(clients=4, contexts=contexts, samples=18, shape=(3,), task=task, outputs=outputs, seed=seed)
        for seed in ((1, 2) if apart else (1,))
    ]


def split_by_hand(federation: Federation, use: ContextUse) -> Federation:
    """Contexts as a reference model would leave them that errs at some samples of each client and at none of the last.

    Clients have different sizes, so that all but the first are padded.
    """
    context = federation.train.context.clone()
    for i, row in enumerate(context.tolist()):
        for place, given in enumerate(row):
            wrong = (5 * place + i) % 3 == 0 and i < len(context) - 1
            context[i, place] = -1 if given < 0 else 2 * given + wrong
    return dataclasses.replace(
        federation,
        train=federation.train._replace(context=context),
        contexts=2 * federation.contexts if use == "balance" else federation.contexts,
        split=use,
    )


def whole(simulation: Simulation) -> Params:
    """[T, ...] the server's model; a personal part, which it does not have, is that of the start."""
    first = tree.stack([simulation.model.init(generator(seed, "weights")) for seed in simulation.seeds])
    return {**first, **simulation.server.params}


def run_reference(
    case: Case, simulation: Simulation, federations: list[Federation], trial: int
) -> tuple[reference.FedAvg, list[list[float]], list[dict[str, Tensor]]]:
    """The reference for one trial, fed with the simulation's first weights, participants and batches."""
    start = tree.map(lambda leaf: leaf[trial], simulation.model.strip(whole(simulation)))
    training, settings = simulation.training, simulation.algorithms[trial]
    federation = federations[min(trial, len(federations) - 1)]
    run = case.reference(settings, federation, start, training.weights == "samples", training.batch_size > 0)
    risks = []
    for t in range(ROUNDS):
        ids = simulation.participants(t)
        places = simulation.sample_indices(t, ids, settings.batches_per_round(), "batches")
        own = ids[trial].tolist()
        risks.append(run.round(own, list(places[trial]) if places is not None else [None] * len(own)))
    everyone = torch.arange(simulation.clients).expand(len(SEEDS), -1)
    places = simulation.sample_indices(ROUNDS, everyone, settings.batches_at_end(), "fine-tuning")
    personal = [
        reference.parameters_of(run.personal(i, None if places is None else places[trial, i]))
        for i in range(simulation.clients)
    ]
    return run, risks, personal


def compare(case: Case, optimizer: str, training: dict[str, Any], federations: list[Federation]) -> None:
    algorithms = settings_of(case, optimizer)
    if case.algorithm.pooled:
        federations = [pooled_view(federation, {}) for federation in federations]
    close: dict[str, Any] = {"rtol": 2e-4, "atol": 1e-5 if optimizer == "sgd" else 2e-5}
    simulations, risks = {}, {}
    for executor in EXECUTORS:
        how = Training(executor=executor, device="cpu", **training)
        simulations[executor] = Simulation(algorithms, federations, SEEDS, how, MODEL)
    runs = [run_reference(case, simulations["loop"], federations, trial) for trial in range(2)]
    start = simulations["loop"].server.params
    everyone = torch.arange(federations[0].clients).expand(2, -1)
    for executor, simulation in simulations.items():
        risks[executor] = [simulation.round() for _ in range(ROUNDS)]
        personal = simulation.model.strip(simulation.personal_models(everyone))
        server = simulation.model.strip(whole(simulation))
        for trial, (run, expected_risks, expected_personal) in enumerate(runs):
            label = f"{executor}, trial {trial}: "
            for t, row in enumerate(expected_risks):
                got = risks[executor][t][trial]
                expected = torch.tensor(row, dtype=torch.float64)
                torch.testing.assert_close(got.double(), expected, msg=label_of(label, f"risk {t}"), **close)
            for name, leaf in reference.parameters_of(run.nu).items():
                torch.testing.assert_close(server[name][trial].double(), leaf, msg=label_of(label, name), **close)
            for i, model in enumerate(expected_personal):
                for name, leaf in model.items():
                    got = personal[name][trial, i].double()
                    torch.testing.assert_close(got, leaf, msg=label_of(label, f"personal {i} {name}"), **close)
            if isinstance(run, reference.GroupDRO | reference.FedDGGA):
                q = simulation.server.weights[trial].double()
                torch.testing.assert_close(q, torch.tensor(run.q).double(), msg=label_of(label, "q"), **close)
            if isinstance(run, reference.PooledGroupDRO):
                compare_local_weights(simulation, "q", [run.group_q], trial, close)
            if isinstance(run, reference.VREx):
                ahead = simulation.server.weights[trial].double()
                torch.testing.assert_close(ahead, torch.tensor(run.ahead).double(), msg=label_of(label, "R_i"), **close)
            if isinstance(run, reference.PerInvFLGroupDRO):
                compare_local_weights(simulation, "q", run.local_q, trial, close)
            if isinstance(run, reference.GroupDROContexts):
                compare_local_weights(simulation, "shares", run.share, trial, close)
    if case.algorithm is not Alone:  # the runs above did move
        moved = simulations["loop"].server.params
        for name, leaf in start.items():
            assert (moved[name] - leaf).abs().max() > 1e-3
    if case.algorithm.has_personal:
        assert max(float((leaf[:, 0] - leaf[:, 1]).abs().max()) for leaf in personal.values()) > 1e-4


def label_of(label: str, what: str) -> Any:
    return lambda message: f"{label}{what}: {message}"


def compare_local_weights(
    simulation: Simulation, kind: str, weights: list[dict[int, float]], trial: int, close: dict[str, Any]
) -> None:
    states: Any = simulation.store.take(simulation.everyone)
    for i, expected in enumerate(weights):
        q = states[trial][i].weights[kind] if isinstance(states, list) else states.weights[kind][trial, i]
        own = torch.tensor([q[context] for context in expected]).double()
        torch.testing.assert_close(own / own.sum(), torch.tensor(list(expected.values())).double(), **close)


def test_every_algorithm_has_a_case() -> None:
    """`recommended` and FedBN have references of their own, in test_recommended.py and test_parts.py."""
    assert {case.algorithm for case in CASES.values()} | {Recommended, FedBN} == set(ALGORITHMS.values())


@pytest.mark.parametrize("batch", ["full", pytest.param("mini", marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_vmap_and_loop_equal_the_reference(name: str, optimizer: str, batch: str) -> None:
    """Two trials with their own settings and seeds; sample weights and partial participation in half of the cases."""
    even = (optimizer, batch) in (("sgd", "full"), ("adam", "mini"))
    training: dict[str, Any] = {"weights": "uniform" if even else "samples"}
    if batch == "mini":
        training["batch_size"] = 12
        # Who forgets what when a client sits out the end of the warm-up is for test_objectives.
        if optimizer == "sgd" or name not in PENALIZED:
            training["fraction"] = 0.6
    compare(CASES[name], optimizer, training, federations_of("binary", 3 if batch == "full" else 2, batch == "mini"))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [0, 12])
@pytest.mark.parametrize("task", ["multiclass", "regression"])
@pytest.mark.parametrize("name", ["irm", "perinvfl_irm", "perinvfl_groupdro", *SHIFT])
def test_other_tasks_equal_the_reference(name: str, task: Task, batch_size: int) -> None:
    case = CASES[name]
    if task == "regression":  # its penalty is of the fourth order in the parameters
        gentle = {"learning_rate": 0.005} | ({"personal_learning_rate": 0.002} if case.algorithm is PerInvFL else {})
        case = case._replace(shared=case.shared | gentle)
    compare(case, "sgd", {"batch_size": batch_size, "weights": "samples"}, federations_of(task, 2, False))


@pytest.mark.parametrize("batch_size", [0, 12])
def test_fishr_of_several_classes_equals_the_reference(batch_size: int) -> None:
    """Of a regression its penalty is of the eighth order in the parameters, and diverges at any usual step size."""
    compare(CASES["pooled_fishr"], "sgd", {"batch_size": batch_size}, federations_of("multiclass", 2, False))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [0, 12])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", BALANCED)
def test_balanced_contexts_equal_the_reference(name: str, optimizer: str, batch_size: int) -> None:
    case = BALANCED[name]
    training: dict[str, Any] = {"batch_size": batch_size, "weights": "samples" if optimizer == "sgd" else "uniform"}
    if batch_size and (optimizer == "sgd" or name not in PENALIZED):
        training["fraction"] = 0.6
    given = federations_of("binary", 2 if batch_size == 0 else 1, apart=batch_size > 0)
    compare(case, optimizer, training, [split_by_hand(federation, "balance") for federation in given])


@pytest.mark.parametrize("name", BALANCED)
def test_balanced_contexts_of_several_classes_equal_the_reference(name: str) -> None:
    (given,) = federations_of("multiclass", 2, apart=False)
    compare(BALANCED[name], "sgd", {}, [split_by_hand(given, "balance")])


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [0, 12])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", DISCOUNTED)
def test_a_discounted_shortcut_equals_the_reference(name: str, optimizer: str, batch_size: int) -> None:
    given = federations_of("binary", 2, apart=batch_size > 0)
    federations = [split_by_hand(federation, "discount") for federation in given]
    assert all(share.offset.abs().max() > 0.1 for share in reference.samples_of(federations[0]))
    compare(CASES[name], optimizer, {"batch_size": batch_size}, federations)


@pytest.mark.parametrize("name", ["irm", "irm_l2", "perinvfl_irm"])
def test_adam_with_clients_that_sit_out_equals_the_reference(name: str) -> None:
    case = CASES[name]
    case = case._replace(first=case.first | {"warmup_rounds": 0}, second=case.second | {"warmup_rounds": 0})
    compare(case, "adam", {"batch_size": 12, "fraction": 0.5}, federations_of("binary", 2, False))


def test_the_linear_model_equals_the_reference() -> None:
    """No hidden layer and no bias: nothing to pad."""
    algorithm = IRM(learning_rate=0.002, local_steps=2, penalty_weight=5.0)
    federations = federations_of("regression", 2, False)
    training = Training(executor="vmap", device="cpu")
    simulation = Simulation([algorithm] * 2, federations, SEEDS, training, ModelSettings(kind="linear"))
    runs = [run_reference(CASES["irm"], simulation, federations, trial) for trial in range(2)]
    for _ in range(ROUNDS):
        simulation.round()
    for trial, (run, _, _) in enumerate(runs):
        expected = reference.parameters_of(run.nu)["0.weight"]
        torch.testing.assert_close(simulation.server.params["0.weight"][trial].double(), expected, rtol=1e-4, atol=1e-6)
