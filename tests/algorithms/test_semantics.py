"""What the methods promise, one promise a test. Many are mistakes that published code has made."""

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import FTFA, IRM, IRMFT, IRML2, Alone, Ditto, FedAvg, GroupDRO, PerInvFL, PFedMe
from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Simulation, Training
from perinvfl.errors import UserError
from perinvfl.learning.problem import Batches, autograd_gradient, functional_gradient
from perinvfl.models import ModelSettings
from tests import reference

MODEL = ModelSettings(hidden=(5, 4))
EXECUTORS = ("vmap", "loop")
ALL: dict[str, Algorithm] = {
    "alone": Alone(),
    "fedavg": FedAvg(),
    "ditto": Ditto(personal_steps=2),
    "ftfa": FTFA(finetune_steps=2),
    "pfedme": PFedMe(local_steps=2, personal_steps=2, pull=1.0),
    "groupdro": GroupDRO(group_step=0.5),
    "irm": IRM(),
    "irm_ft": IRMFT(finetune_steps=2),
    "irm_l2": IRML2(),
    "perinvfl_irm": PerInvFL(local_steps=2, personal_steps=2, warmup_rounds=2),
    "perinvfl_groupdro": PerInvFL(local_steps=2, invariance="groupdro", group_step=0.5),
}
PERSONAL = ("ditto", "irm_l2", "perinvfl_irm", "perinvfl_groupdro")


def small_federation(**settings: Any) -> Federation:
    usual: dict[str, Any] = {"clients": 4, "contexts": 2, "samples": 18, "shape": (3,), "seed": 1}
    return random_federation(**(usual | settings))


def simulate(
    algorithms: Algorithm | list[Algorithm],
    rounds: int = 0,
    executor: str = "loop",
    seeds: list[int] | None = None,
    federation: Federation | None = None,
    folder: Path | None = None,
    **training: Any,
) -> Simulation:
    algorithms = algorithms if isinstance(algorithms, list) else [algorithms]
    how = Training(executor=executor, device="cpu", **training)  # type: ignore[arg-type]
    seeds = seeds or list(range(len(algorithms)))
    simulation = Simulation(algorithms, [federation or small_federation()], seeds, how, MODEL, folder)
    for _ in range(rounds):
        simulation.round()
    return simulation


def with_optimizer(algorithm: Algorithm, kind: str, rate: float | None = None) -> Algorithm:
    """The same method with every optimizer of the given kind, and every step size set where one is given."""
    names = {field.name for field in dataclasses.fields(algorithm)}
    wanted: dict[str, Any] = dict.fromkeys(("optimizer", "personal_optimizer", "server_optimizer"), kind)
    if rate is not None:
        wanted |= dict.fromkeys(("learning_rate", "personal_learning_rate"), rate)
    return dataclasses.replace(algorithm, **{name: value for name, value in wanted.items() if name in names})


def everyone(simulation: Simulation) -> Tensor:
    return torch.arange(simulation.clients).expand(simulation.trials, -1)


def personal(simulation: Simulation) -> Params:
    """[T, N, ...] without padding."""
    return simulation.model.strip(simulation.personal_models(everyone(simulation)))


def final(simulation: Simulation, trial: int) -> dict[str, Tensor]:
    """All that a trial's run came to: ν, q, every θ_i, moments included."""
    states = simulation._take(everyone(simulation))
    rows = states[trial] if isinstance(states, list) else tree.over(lambda leaf: leaf[trial], states)
    stacked = tree.stack(rows) if isinstance(rows, list) else rows
    server = tree.over(lambda leaf: leaf[trial], simulation.server)
    return tree.named_leaves(server, "server") | tree.named_leaves(stacked, "clients")


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def client_view(simulation: Simulation, i: int, trial: int = 0) -> tuple[Broadcast, ClientState, Batches]:
    """What client i of a simulation has at the start of the next round, on its full data."""
    server = tree.over(lambda leaf: leaf[trial], simulation.server)
    sent = simulation.algorithms[trial].broadcast(server, torch.arange(simulation.clients))
    states: Any = simulation._take(everyone(simulation))
    state = states[trial][i] if isinstance(states, list) else tree.over(lambda leaf: leaf[trial, i].clone(), states)
    data = Split(*(part[trial, i] for part in simulation.data))
    return Broadcast(sent.params, sent.weight[i], int(sent.round)), state, Batches(data, None)


def module_of(simulation: Simulation, params: Params) -> torch.nn.Sequential:
    return reference.network(simulation.model.strip(params))


# The penalty reaches the gradient ------------------------------------------------------------------------------


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_penalty_reaches_the_gradient(executor: str, rescale: bool) -> None:
    weight, rate = 50.0, 0.01
    runs = {w: simulate(IRM(penalty_weight=w, learning_rate=rate, rescale=rescale), 0, executor) for w in (0.0, weight)}
    start = module_of(runs[0.0], tree.map(lambda leaf: leaf[0], runs[0.0].server.params))
    moved = {}
    for w, simulation in runs.items():
        before = simulation.server.params["0.weight"]
        simulation.round()
        moved[w] = simulation.server.params["0.weight"] - before
        # What one plain step on the mean of the clients' objectives, by double backward, comes to.
        model = copy.deepcopy(start)
        shares = reference.samples_of(simulation.federation)
        losses = [reference.irm_loss("binary", model, share, w, paired=False, by_context=False) for share in shares]
        total = sum(losses) / len(losses) / (w if rescale and w > 1 else 1)
        reference.descend(torch.optim.SGD(model.parameters(), lr=rate), total)  # type: ignore[arg-type]
        for name, leaf in reference.parameters_of(model).items():
            got = simulation.model.strip(simulation.server.params)[name][0].double()
            torch.testing.assert_close(got, leaf, rtol=1e-5, atol=1e-6)
    scale = weight if rescale else 1.0
    assert (scale * moved[weight] - moved[0.0]).norm() > 0.5 * moved[0.0].norm()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_penalty_reaches_the_personal_model(executor: str) -> None:
    off, on = (
        personal(simulate(PerInvFL(penalty_weight=w, rescale=False, personal_learning_rate=0.01), 2, executor))
        for w in (0.0, 50.0)
    )
    assert all((on[name] - off[name]).abs().max() > 1e-3 for name in ("0.weight", "2.weight"))


# Group weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [GroupDRO(group_step=0.5), PerInvFL(invariance="groupdro", group_step=0.5)])
def test_q_follows_the_risks_of_each_round(algorithm: Any) -> None:
    """Made-up risks that change between rounds; a q fed by the first round's would differ."""
    server = algorithm.init_server({"w": torch.zeros(2)}, 3)
    clients, nothing = torch.arange(3), {"w": torch.zeros(2)}
    rounds = [torch.tensor(r) for r in ([2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [5.0, 5.0, 0.0])]
    exponent = torch.zeros(3)
    for risks in rounds:
        server = algorithm.server(server, nothing, risks, clients)
        exponent = exponent + 0.5 * risks
        torch.testing.assert_close(server.weights, torch.softmax(exponent, 0))
        torch.testing.assert_close(algorithm.broadcast(server, clients).weight, 3 * torch.softmax(exponent, 0))
    stale = torch.softmax(3 * 0.5 * rounds[0], 0)
    assert (server.weights - stale).abs().max() > 0.1


def test_only_the_clients_that_took_part_raise_their_q() -> None:
    algorithm = GroupDRO(group_step=1.0)
    server = algorithm.init_server({"w": torch.zeros(2)}, 4)
    server = algorithm.server(server, {"w": torch.zeros(2)}, torch.tensor([2.0, 1.0]), torch.tensor([3, 1]))
    torch.testing.assert_close(server.weights, torch.softmax(torch.tensor([0.0, 1.0, 0.0, 2.0]), 0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_risks_are_those_of_the_model_sent_out_and_drive_q(executor: str) -> None:
    simulation = simulate(GroupDRO(group_step=1.0, learning_rate=2.0, local_steps=3), 0, executor)
    q, seen = torch.full((4,), 0.25, dtype=torch.float64), []
    for _ in range(4):
        model = module_of(simulation, tree.map(lambda leaf: leaf[0], simulation.server.params))
        shares = reference.samples_of(simulation.federation)
        truth = torch.stack([reference.risk("binary", model, share).detach() for share in shares])
        risks = simulation.round()[0].double()
        torch.testing.assert_close(risks, truth, rtol=1e-4, atol=1e-5)
        q = q * torch.exp(risks)
        q = q / q.sum()
        seen.append(risks)
        torch.testing.assert_close(simulation.server.weights[0].double(), q, rtol=1e-5, atol=1e-6)
    assert (seen[0] - seen[-1]).abs().max() > 0.05  # else a stale q would pass


def test_local_group_weights_with_a_step_of_zero_stay_even() -> None:
    """Which contexts a mini-batch happens to hold must not move q by itself."""
    simulation = simulate(PerInvFL(invariance="groupdro", group_step=0.0), rounds=6, batch_size=2)
    states: Any = simulation.store.take(everyone(simulation))
    for state, share in zip(states[0], reference.samples_of(simulation.federation), strict=True):
        own = state.weights["q"][share.context.unique()]
        torch.testing.assert_close(own, own[0].expand_as(own))


# Personal models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", PERSONAL)
def test_personal_steps_compound(name: str, optimizer: str) -> None:
    """S = 2 is S = 1 twice on the same ν, and neither a restart from ν nor one step."""
    base = dataclasses.replace(with_optimizer(ALL[name], optimizer, 0.05), local_steps=1)
    one, two = (dataclasses.replace(base, personal_steps=s) for s in (1, 2))  # type: ignore[call-arg]
    simulation = simulate(one, rounds=3)
    broadcast, state, batches = client_view(simulation, 2)
    problem = simulation.problem
    once = one.client(problem, broadcast, state, batches)[1]
    twice = one.client(problem, broadcast, once, batches)[1].personal
    compound = two.client(problem, broadcast, state, batches)[1].personal
    restarted = one.client(problem, broadcast, once._replace(personal=broadcast.params), batches)[1].personal
    assert same_bits(compound, twice)
    assert not torch.equal(compound["0.weight"], once.personal["0.weight"])
    assert (compound["0.weight"] - restarted["0.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("store", ["vmap memory", "loop memory", "vmap disk", "loop disk"])
@pytest.mark.parametrize("name", PERSONAL)
def test_personal_models_outlast_rounds_and_absence(name: str, store: str, tmp_path: Path) -> None:
    executor, at_rest = store.split()
    algorithm = with_optimizer(ALL[name], "adam", 0.01)
    simulation = simulate(algorithm, 0, executor, fraction=0.5, at_rest=at_rest, folder=tmp_path)
    returned = False
    took_part: set[int] = set()
    for t in range(5):
        present = simulation.participants(t)[0].tolist()
        views = {i: client_view(simulation, i) for i in range(4)}
        simulation.round()
        for i, (broadcast, state, batches) in views.items():
            now = client_view(simulation, i)[1]
            if i not in present:
                assert same_bits(tree.named_leaves(now, "state"), tree.named_leaves(state, "state"))
                continue
            assert not torch.equal(now.personal["0.weight"], state.personal["0.weight"])
            expected = algorithm.client_round(simulation.problem, broadcast, state, batches)[1].personal
            for leaf in expected:
                torch.testing.assert_close(now.personal[leaf], expected[leaf], rtol=1e-4, atol=1e-5)
            if i in took_part and i not in simulation.participants(t - 1)[0].tolist():
                # Back after an absence: a θ that began again at ν would end elsewhere.
                returned = True
                forgotten = state._replace(personal=broadcast.params)
                lost = algorithm.client(simulation.problem, broadcast, forgotten, batches)[1].personal
                assert (lost["0.weight"] - expected["0.weight"]).abs().max() > 1e-3
        took_part |= set(present)
    assert returned


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_large_beta_pins_the_personal_model_to_the_global_one(executor: str) -> None:
    beta = 1e4
    simulation = simulate(
        PerInvFL(beta=beta, personal_learning_rate=0.5 / beta, penalty_weight=1.0, learning_rate=0.5), 3, executor
    )
    anchor = simulation.server.params  # ν^t, which θ is pulled to in the round that follows
    simulation.round()
    for name, leaf in personal(simulation).items():
        wanted = simulation.model.strip(anchor)[name][:, None].expand_as(leaf)
        torch.testing.assert_close(leaf, wanted, rtol=0, atol=5e-4)
    assert (simulation.server.params["0.weight"] - anchor["0.weight"]).abs().max() > 5e-3  # ν has not stopped


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("invariance", ["irm", "groupdro"])
def test_without_pull_the_personal_model_is_trained_alone(invariance: Any, executor: str) -> None:
    algorithm = PerInvFL(
        beta=0.0, invariance=invariance, local_steps=2, personal_steps=2, penalty_weight=7.0, l2=0.01, group_step=0.5
    )
    others = [dataclasses.replace(algorithm, learning_rate=rate) for rate in (0.1, 0.5)]
    runs = [simulate(a, 3, executor) for a in others]
    assert not torch.equal(runs[0].server.params["0.weight"], runs[1].server.params["0.weight"])
    assert same_bits(personal(runs[0]), personal(runs[1]))  # whatever ν does

    start = simulate(algorithm).server.params
    for i, share in enumerate(reference.samples_of(runs[0].federation)):
        model = module_of(runs[0], tree.map(lambda leaf: leaf[0], start))
        optimizer = torch.optim.SGD(model.parameters(), lr=algorithm.personal_learning_rate)
        contexts = share.context.unique().tolist()
        q = [1 / len(contexts)] * len(contexts)
        for _ in range(3 * 2 * 2):
            l2 = algorithm.l2 * reference.norm_squared(model)
            if invariance == "irm":
                loss = reference.irm_loss("binary", model, share, 7.0, paired=False, by_context=True)
                reference.descend(optimizer, (loss + l2) / 7.0)
                continue
            own = [reference.Samples(*(part[share.context == c] for part in share)) for c in contexts]
            risks = [reference.risk("binary", model, part) for part in own]
            q = [w * math.exp(0.5 * r.item()) for w, r in zip(q, risks, strict=True)]
            q = [w / sum(q) for w in q]
            reference.descend(optimizer, sum(w * r for w, r in zip(q, risks, strict=True)) + l2)
        for name, leaf in reference.parameters_of(model).items():
            torch.testing.assert_close(personal(runs[0])[name][0, i].double(), leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("algorithm", [PerInvFL(local_steps=2, penalty_weight=1.0), IRML2(), Ditto()])
def test_a_list_of_pulls_gives_each_client_its_own(algorithm: Any, executor: str) -> None:
    key, values = ("pull" if isinstance(algorithm, Ditto) else "beta"), (0.0, 0.3, 1.0, 2.0)
    listed = personal(simulate(dataclasses.replace(algorithm, **{key: values}), 3, executor))
    for i, value in enumerate(values):
        single = personal(simulate(dataclasses.replace(algorithm, **{key: value}), 3, executor))
        for name in single:
            torch.testing.assert_close(listed[name][:, i], single[name][:, i], rtol=1e-5, atol=1e-6)
    uniform = personal(simulate(dataclasses.replace(algorithm, **{key: 0.3}), 3, executor))
    assert (listed["0.weight"][:, 3] - uniform["0.weight"][:, 3]).abs().max() > 1e-4


# Seeds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_bits_and_another_seed_another_run(name: str, executor: str) -> None:
    algorithm = with_optimizer(ALL[name], "adam", 0.01)
    first, again = (simulate([algorithm] * 2, 3, executor, seeds=[5, 6], batch_size=6, fraction=0.5) for _ in range(2))
    for trial in range(2):
        assert same_bits(final(first, trial), final(again, trial))
    assert same_bits(personal(first), personal(again))
    one, other = final(first, 0), final(first, 1)
    assert not torch.equal(one["server.params['0.weight']"], other["server.params['0.weight']"])
    fresh = simulate([algorithm] * 2, 0, executor, seeds=[5, 6])
    assert not torch.equal(*fresh.server.params["0.weight"])


def test_batches_and_participants_follow_the_seed_client_and_round() -> None:
    simulation = simulate([FedAvg()] * 3, seeds=[5, 6, 5], batch_size=6, fraction=0.5)
    ids = torch.tensor([[0, 1], [0, 1], [0, 1]])
    places = simulation.places(0, ids, 20, "batches")
    later = simulation.places(1, ids, 20, "batches")
    assert places is not None and later is not None
    assert torch.equal(places[0], places[2])
    assert not torch.equal(places[0], places[1])  # seeds
    assert not torch.equal(places[0, 0], places[0, 1])  # clients
    assert not torch.equal(places[0], later[0])  # rounds
    alone = simulation.places(0, torch.tensor([[1], [1], [1]]), 20, "batches")
    assert alone is not None and torch.equal(alone[:, 0], places[:, 1])  # not on who else takes part
    sizes = simulation.federation.sizes
    assert places[:, 0].max() < sizes[0] and places[:, 1].max() == sizes[1] - 1
    who = torch.stack([simulation.participants(t) for t in range(30)])  # [rounds, T, 2]
    assert torch.equal(who[:, 0], who[:, 2]) and not torch.equal(who[:, 0], who[:, 1])
    assert sorted(who[:, 0].unique().tolist()) == [0, 1, 2, 3]
    assert (who[..., 0] < who[..., 1]).all()


def test_trials_with_the_same_seed_and_settings_are_the_same_whatever_runs_beside_them() -> None:
    pair = simulate([FedAvg(learning_rate=0.2), FedAvg(learning_rate=0.5)], 3, seeds=[7, 8], batch_size=6)
    single = simulate(FedAvg(learning_rate=0.5), 3, seeds=[8], batch_size=6)
    assert same_bits(final(pair, 1), final(single, 0))


def test_more_threads_change_no_bit_and_are_given_back() -> None:
    algorithms = [ALL["perinvfl_irm"], dataclasses.replace(ALL["perinvfl_irm"], learning_rate=0.3)]
    one = simulate(algorithms, 2)
    torch.set_num_threads(2)
    two = simulate(algorithms, 2)
    assert torch.get_num_threads() == 2
    for trial in range(2):
        assert same_bits(final(one, trial), final(two, trial))


# Distributed equals central ------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["fedavg", "irm"])
def test_one_full_batch_step_a_round_is_central_training(name: str, server: Any, executor: str) -> None:
    rounds, warmup, weight, l2 = 6, 2, 10.0, 0.01
    rates = {"learning_rate": 0.3} if server == "sgd" else {"learning_rate": 1.0, "server_learning_rate": 0.01}
    shared: dict[str, Any] = {"l2": l2, "server_optimizer": server, **rates}
    algorithm = FedAvg(**shared) if name == "fedavg" else IRM(penalty_weight=weight, warmup_rounds=warmup, **shared)
    simulation = simulate(algorithm, 0, executor)
    model = module_of(simulation, tree.map(lambda leaf: leaf[0], simulation.server.params))
    shares = reference.samples_of(simulation.federation)

    def optimizer() -> torch.optim.Optimizer:
        if server == "adam":
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return torch.optim.SGD(model.parameters(), lr=0.3)

    central = optimizer()
    for t in range(rounds):
        now = 0.0 if name == "fedavg" else (1.0 if t < warmup else weight)
        if name == "irm" and t == warmup:
            central = optimizer()  # Adam forgets when the penalty switches on
        losses = [reference.irm_loss("binary", model, share, now, paired=False, by_context=False) for share in shares]
        loss = sum(losses) / len(shares) + l2 * reference.norm_squared(model)
        reference.descend(central, loss / max(now, 1.0))
        simulation.round()
    for leaf_name, leaf in reference.parameters_of(model).items():
        got = simulation.model.strip(simulation.server.params)[leaf_name][0].double()
        torch.testing.assert_close(got, leaf, rtol=1e-4, atol=1e-5)


# What leaves a client ------------------------------------------------------------------------------------------


def noise_like(leaf: Tensor) -> Tensor:
    return torch.rand(leaf.shape, generator=torch.Generator().manual_seed(leaf.numel())) + 0.5


@pytest.mark.parametrize("gradient_of", [autograd_gradient, functional_gradient])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ALL)
def test_nothing_personal_reaches_the_upload(name: str, optimizer: str, gradient_of: Callable[..., Any]) -> None:
    algorithm = with_optimizer(ALL[name], optimizer, 0.01)
    simulation = simulate(algorithm, rounds=2)
    problem = dataclasses.replace(simulation.problem, gradient_of=gradient_of)
    for i in range(4):
        broadcast, state, batches = client_view(simulation, i)
        other = state._replace(
            personal=tree.map(noise_like, state.personal),
            personal_moments=tree.over(noise_like, state.personal_moments),
            weights=tree.map(noise_like, state.weights),
        )
        upload, _ = algorithm.client(problem, broadcast, state, batches)
        changed, _ = algorithm.client(problem, broadcast, other, batches)
        assert type(upload) is Upload
        assert {n: leaf.shape for n, leaf in upload.update.items()} == {
            n: leaf.shape[1:] for n, leaf in simulation.server.params.items()
        }
        assert upload.risk.shape == ()
        assert same_bits(tree.named_leaves(upload, "upload"), tree.named_leaves(changed, "upload"))
        if name == "alone":
            assert all(not leaf.any() for leaf in tree.leaves(upload))
        else:
            assert upload.update["0.weight"].any() and upload.risk > 0


def test_an_upload_has_room_for_nothing_else() -> None:
    assert Upload._fields == ("update", "risk")
    assert get_args(Params) == (str, Tensor) and Upload.__annotations__ == {"update": Params, "risk": Tensor}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", PERSONAL)
def test_the_server_ends_the_same_whatever_the_personal_models_are(name: str, executor: str) -> None:
    plain, disturbed = (simulate(with_optimizer(ALL[name], "adam", 0.01), 1, executor) for _ in range(2))
    ids = everyone(plain)
    states: Any = disturbed.store.take(ids)
    if isinstance(states, list):
        disturbed.store.put(ids, [[s._replace(personal=tree.map(noise_like, s.personal)) for s in states[0]]])  # type: ignore[arg-type]
    else:
        disturbed.store.put(ids, states._replace(personal=tree.map(noise_like, states.personal)))
    for simulation in (plain, disturbed):
        simulation.round()
        simulation.round()
    assert same_bits(tree.named_leaves(plain.server, "s"), tree.named_leaves(disturbed.server, "s"))
    assert not same_bits(personal(plain), personal(disturbed))


# Trouble stays where it is -------------------------------------------------------------------------------------


def whole(simulation: Simulation, risks: Tensor, trial: int) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in [risks[trial], *final(simulation, trial).values()])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["alone", "fedavg", "groupdro", "irm", "ditto", "perinvfl_irm", "perinvfl_groupdro"])
def test_a_trial_that_breaks_is_flagged_and_disturbs_no_other(name: str, executor: str) -> None:
    good = [dataclasses.replace(ALL[name], learning_rate=rate) for rate in (0.1, 0.2)]
    bad = with_optimizer(ALL[name], "sgd", 1e20)
    mixed = simulate([good[0], bad, good[1]], 0, executor, seeds=[0, 1, 2])
    clean = simulate(good, 0, executor, seeds=[0, 2])
    first_bad = -1
    for t in range(5):
        risks = mixed.round()
        clean.round()
        if first_bad < 0 and not whole(mixed, risks, 1):
            first_bad = t + 1
        assert mixed.broken.tolist() == [-1, first_bad, -1]
    assert first_bad > 0
    assert clean.broken.tolist() == [-1, -1]
    for trial, twin in ((0, 0), (2, 1)):
        got, expected = final(mixed, trial), final(clean, twin)
        if executor == "loop":
            assert same_bits(got, expected)
        else:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_personal_model_that_breaks_is_flagged_though_the_global_one_is_fine(executor: str) -> None:
    bad = PerInvFL(personal_learning_rate=1e20)
    simulation = simulate([PerInvFL(), bad], 4, executor)
    assert simulation.server.params["0.weight"].isfinite().all()
    assert simulation.broken[0] == -1 and simulation.broken[1] > 0


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"learning_rate": 1}, {"learning_rate": 0.25}),  # a whole number where a number with a point is meant
        ({"learning_rate": 0.25}, {"learning_rate": 1}),
        ({"local_steps": 1}, {"local_steps": 3}),
    ],
)
def test_settings_of_one_trial_are_never_taken_for_another(
    first: dict[str, Any], second: dict[str, Any], executor: str
) -> None:
    """Either each trial runs with its own settings, or the mixture is refused."""
    algorithms: list[Algorithm] = [FedAvg(**first), FedAvg(**second)]
    try:
        together = simulate(algorithms, 2, executor, seeds=[4, 5])
    except (UserError, ValueError):
        return
    for trial, algorithm in enumerate(algorithms):
        single = simulate(algorithm, 2, executor, seeds=[4 + trial])
        torch.testing.assert_close(final(together, trial), final(single, 0), rtol=1e-5, atol=1e-6)


# Padding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ALL)
def test_padding_units_stay_zero(name: str, optimizer: str, executor: str) -> None:
    rates = None if optimizer == "sgd" else 0.01
    algorithm = dataclasses.replace(with_optimizer(ALL[name], optimizer, rates), l2=0.01)
    simulation = simulate(algorithm, 3, executor, batch_size=6)
    for params in (simulation.server.params, simulation.personal_models(everyone(simulation))):
        shapes = {n: leaf.shape for n, leaf in simulation.model.strip(params).items()}
        for n, leaf in params.items():
            rest = leaf.clone()
            rest[tuple(slice(0, size) for size in shapes[n])] = 0
            assert not rest.any(), n
        assert params["0.weight"].shape[-2] == 16 and shapes["0.weight"][-2] == 5


def test_padded_samples_change_nothing() -> None:
    plain = small_federation()
    extra = 7

    def lengthen(part: Tensor, fill: float) -> Tensor:
        return torch.cat([part, torch.full((4, extra, *part.shape[2:]), fill, dtype=part.dtype)], 1)

    longer = Split(lengthen(plain.train.x, 50.0), lengthen(plain.train.y, 1), lengthen(plain.train.context, -1))
    padded = dataclasses.replace(plain, train=longer)
    for name, algorithm in ALL.items():
        a, b = (simulate(algorithm, 3, federation=federation) for federation in (plain, padded))
        torch.testing.assert_close(final(a, 0), final(b, 0), rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(personal(a), personal(b), rtol=1e-4, atol=1e-5, msg=name)


# Going on from a saved state -----------------------------------------------------------------------------------

STORES = ["vmap memory", "loop memory", "vmap disk", "loop disk"]


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["fedavg", "alone", "groupdro", "ditto", "perinvfl_irm", "perinvfl_groupdro"])
def test_a_restored_simulation_goes_on_with_the_same_bits(
    name: str, store: str, fraction: float, tmp_path: Path
) -> None:
    """Saved after round 3; the first process lives on for a round (and dies), the second one does rounds 4 to 6."""
    executor, at_rest = store.split()
    algorithms = [with_optimizer(ALL[name], "adam", rate) for rate in (0.01, 0.005)]

    def fresh(folder: str) -> Simulation:
        return simulate(
            algorithms, 0, executor, batch_size=6, fraction=fraction, at_rest=at_rest, folder=tmp_path / folder
        )

    straight = fresh("straight")
    for _ in range(6):
        straight.round()

    begun = fresh("cut")
    begun.round()
    begun.state()
    begun.store.settle()  # as after a first checkpoint
    begun.round()
    begun.round()
    saved = {key: leaf.clone() for key, leaf in begun.state().items()}
    begun.store.settle()
    begun.round()
    resumed = fresh("cut")
    resumed.restore(saved)
    assert resumed.rounds_done == 3
    for _ in range(3):
        resumed.round()
    for trial in range(2):
        assert same_bits(final(resumed, trial), final(straight, trial))
    assert same_bits(personal(resumed), personal(straight))
    assert torch.equal(resumed.broken, straight.broken)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_crash_before_the_rows_are_written_loses_nothing(executor: str, tmp_path: Path) -> None:
    def fresh(folder: str) -> Simulation:
        return simulate(
            ALL["perinvfl_irm"], 0, executor, fraction=0.5, at_rest="disk", folder=tmp_path / folder, batch_size=6
        )

    straight, begun = fresh("straight"), fresh("cut")
    for _ in range(6):
        straight.round()
    for _ in range(2):
        begun.round()
    begun.store.settle()
    begun.round()
    saved = {key: leaf.clone() for key, leaf in begun.state().items()}  # and no settle() any more
    resumed = fresh("cut")
    resumed.restore(saved)
    for _ in range(3):
        resumed.round()
    assert same_bits(final(resumed, 0), final(straight, 0))


@pytest.mark.parametrize("store", STORES)
def test_a_saved_state_does_not_change_afterwards(store: str, tmp_path: Path) -> None:
    executor, at_rest = store.split()
    simulation = simulate(ALL["perinvfl_irm"], 2, executor, at_rest=at_rest, folder=tmp_path)
    saved = simulation.state()
    kept = {key: leaf.clone() for key, leaf in saved.items()}
    simulation.round()
    assert same_bits(saved, kept)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_restore_takes_a_simulation_back(executor: str, rounds: int, fraction: float) -> None:
    simulation = simulate(ALL["perinvfl_irm"], rounds, executor, fraction=fraction)
    saved = {key: leaf.clone() for key, leaf in simulation.state().items()}
    ends = []
    for _ in range(2):
        for _ in range(2):
            simulation.round()
        ends.append({key: leaf.clone() for key, leaf in final(simulation, 0).items()})
        simulation.restore(saved)
    assert same_bits(*ends)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["fedavg", "perinvfl_irm", "perinvfl_groupdro", "pfedme"])
def test_states_at_rest_on_disk_change_nothing(name: str, executor: str, tmp_path: Path) -> None:
    algorithm = with_optimizer(ALL[name], "adam", 0.01)
    memory = simulate(algorithm, 0, executor, fraction=0.5, batch_size=6)
    disk = simulate(algorithm, 0, executor, fraction=0.5, batch_size=6, at_rest="disk", folder=tmp_path / "rows")
    for _ in range(5):
        assert torch.equal(memory.round(), disk.round())
        disk.store.settle()  # every row comes back from its file
    assert same_bits(final(memory, 0), final(disk, 0))
    assert same_bits(personal(memory), personal(disk))
    if name == "perinvfl_irm":
        assert list((tmp_path / "rows").glob("*.rows"))


def test_disk_without_a_folder_is_refused() -> None:
    with pytest.raises(UserError, match="folder"):
        simulate(ALL["perinvfl_irm"], at_rest="disk")


# Adam forgets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_moments_are_forgotten_when_the_penalty_switches_on(executor: str) -> None:
    algorithm = with_optimizer(PerInvFL(warmup_rounds=2, penalty_weight=50.0), "adam", 0.01)
    simulation = simulate(algorithm, 0, executor)
    counts = []
    for _ in range(4):
        simulation.round()
        state = client_view(simulation, 0)[1]
        moments = (simulation.server.moments, state.personal_moments, state.moments)
        counts.append([int(m.steps["count"].max()) for m in moments])
    assert counts == [[1, 1, 1], [2, 2, 2], [1, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_that_sits_out_the_switch_forgets_too(executor: str) -> None:
    """Its moments are of the old objective, whenever it comes back."""
    algorithm = with_optimizer(PerInvFL(warmup_rounds=2, penalty_weight=50.0), "adam", 0.01)
    simulation = simulate(algorithm, 0, executor, fraction=0.5)
    present = [simulation.participants(t)[0].tolist() for t in range(12)]
    tried = False
    steps = dict.fromkeys(range(4), 0)  # since the switch
    before: set[int] = set()
    for t in range(12):
        simulation.round()
        for i in present[t]:
            steps[i] = steps[i] + 1 if t >= 2 else 0
            if t < 2:
                before.add(i)
            elif i in before and i not in present[2]:
                tried = True
                count = client_view(simulation, i)[1].moments.steps["count"]
                assert int(count) == steps[i], f"client {i} still remembers the warm-up in round {t}"
    assert tried


# Precision and evaluation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["fedavg", "irm", "perinvfl_irm", "perinvfl_groupdro"])
def test_bfloat16_stays_near_float32(name: str, executor: str) -> None:
    exact, rough = (simulate(ALL[name], 5, executor, precision=precision) for precision in ("float32", "bfloat16"))
    assert rough.server.params["0.weight"].dtype == torch.float32
    assert rough.broken.tolist() == [-1]
    for a, b in ((exact.server.params, rough.server.params), (personal(exact), personal(rough))):
        assert not same_bits(a, b)
        for leaf in a:
            torch.testing.assert_close(a[leaf], b[leaf], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_evaluate_measures_each_client_on_each_test(executor: str) -> None:
    algorithms: list[Algorithm] = [PerInvFL(), PerInvFL(beta=0.1)]
    simulation = simulate(algorithms, 3, executor, federation=small_federation(holdout=8))
    measured = simulation.evaluate()
    assert list(measured) == ["personal", "global"]
    chunked = simulation.evaluate(client_chunk=3)
    tests = {**simulation.federation.tests, "validation": simulation.federation.validation}
    models = personal(simulation)
    for trial in range(2):
        for i in range(4):
            own = {name: leaf[trial, i] for name, leaf in models.items()}
            shared = {name: leaf[trial] for name, leaf in simulation.model.strip(simulation.server.params).items()}
            for case, split in tests.items():
                assert split is not None
                real = split.context[i] >= 0
                for kind, params in (("personal", own), ("global", shared)):
                    logits = reference.network(params)(split.x[i][real].double())[:, 0]
                    right = ((logits > 0) == (split.y[i][real] > 0.5)).double().mean().item()
                    assert measured[kind][case][trial, i].item() == pytest.approx(right)
                    assert chunked[kind][case][trial, i].item() == pytest.approx(right)
    assert list(simulate(FedAvg(), 1, executor).evaluate()) == ["global"]
    assert list(simulate(Alone(), 1, executor).evaluate()) == ["personal"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["ftfa", "perinvfl_irm"])
def test_personal_models_come_in_the_order_asked_for(name: str, executor: str) -> None:
    simulation = simulate(ALL[name], 2, executor)
    straight = simulation.personal_models(torch.tensor([[0, 1, 2, 3]]))
    turned = simulation.personal_models(torch.tensor([[3, 1, 0, 2]]))
    some = simulation.personal_models(torch.tensor([[2, 0]]))
    for leaf in straight:
        torch.testing.assert_close(some[leaf], straight[leaf][:, [2, 0]])
        torch.testing.assert_close(turned[leaf], straight[leaf][:, [3, 1, 0, 2]])
