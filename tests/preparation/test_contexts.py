"""Inferred contexts: the split, the shares and the discount against slow ones; the stage; what it leaves as it was."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perinvfl import experiment as experiments
from perinvfl.algorithms import IRM, FedAvg, GroupDRO, PerInvFL
from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Upload
from perinvfl.core import checkpoint, tree
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Simulation, Training
from perinvfl.errors import UserError
from perinvfl.learning.shortcut import (
    ContextSettings,
    given_context,
    is_wrong,
    reference_answer,
    shortcut_log_odds,
    soft_shares,
    split_context,
)
from perinvfl.models import ModelSettings
from perinvfl.preparation.reference_model import RIGHT, WRONG, infer_contexts
from perinvfl.runs.experiment import build_experiment, read_experiment
from perinvfl.runs.records import read_run
from perinvfl.runs.train import Watch, train
from perinvfl.runs.trial import Trial
from tests import reference
from tests.commands import untimed

MODEL = ModelSettings(hidden=(5, 4))
EXECUTORS = ("vmap", "loop")
HARD = ContextSettings(infer="hard", reference_rounds=4, reference_rate=0.01)
SOFT = dataclasses.replace(HARD, infer="soft")
LOOP = Training(executor="loop", device="cpu")

small = partial(random_federation, clients=3, contexts=2, samples=20, shape=(3,), seed=4, holdout=12)


def infer(federation: Federation, how: ContextSettings = HARD, training: Training = LOOP) -> Federation:
    return infer_contexts(federation, 7, how, MODEL, training)


def using(use: Any, **settings: Any) -> ContextSettings:
    return dataclasses.replace(HARD, use=use, **settings)


def slow_reference(federation: Federation, how: ContextSettings = HARD) -> reference.FedAvg:
    """FedAvg of the plain reference, as the stage is described: local steps of size 1, Adam at the server."""
    algorithm = FedAvg(
        learning_rate=1.0,
        server_optimizer="adam",
        server_learning_rate=how.reference_rate,
        cooling=how.reference_rounds if how.reference_cooling else 0,
    )
    drawn = Simulation([algorithm], [federation], [7], LOOP, MODEL)
    start = {name: leaf[0] for name, leaf in drawn.model.strip(drawn.server.params).items()}
    kind = reference.CooledFedAvg if how.reference_cooling else reference.FedAvg
    run = kind(algorithm, federation, start, by_size=False, paired=False)
    everyone = list(range(federation.clients))
    for _ in range(how.reference_rounds):
        run.round(everyone, [None] * len(everyone))
    return run


def errs(task: str, logits: list[float], y: float) -> bool:
    """Of one sample: the largest logit is not the label's, or the one logit is on the wrong side of 0."""
    if task == "multiclass":
        return max(range(len(logits)), key=lambda c: logits[c]) != int(y)
    return (logits[0] > 0) != (y == 1)


# The split -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cooling", [False, True])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_hard_split_is_where_the_reference_model_errs(task: Any, cooling: bool) -> None:
    federation = small(task=task, outputs=3 if task == "multiclass" else 1)
    how = dataclasses.replace(HARD, reference_cooling=cooling)
    inferred, run = infer(federation, how), slow_reference(federation, how)
    assert inferred.contexts == 4 and inferred.split == "balance"
    shares = []
    for i in range(federation.clients):
        x, y, before = (part[i] for part in federation.train)
        logits = run.nu(x.double()).tolist()
        expected, wrong = [], 0
        for row, label, own in zip(logits, y.tolist(), before.tolist(), strict=True):
            mistaken = errs(task, row, label)
            expected.append(-1 if own < 0 else 2 * own + mistaken)
            wrong += mistaken and own >= 0
        assert inferred.train.context[i].tolist() == expected
        shares.append(wrong / int(federation.sizes[i]))
    assert 0 < sum(shares) < len(shares)  # both kinds are there
    assert inferred.notes["reference"] == {"wrong": pytest.approx(shares, abs=1e-4)}


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_held_out_data_is_sorted_by_the_same_model_and_none_is_lost(task: Any) -> None:
    federation = small(task=task, outputs=3 if task == "multiclass" else 1)
    inferred, run = infer(federation, using("judge")), slow_reference(federation)
    assert federation.validation is not None
    right, wrong = inferred.inferred[RIGHT], inferred.inferred[WRONG]
    assert right.x is federation.validation.x and wrong.x is federation.validation.x
    for i in range(federation.clients):
        x, y, context = (part[i] for part in federation.validation)
        for place, row in enumerate(run.nu(x.double()).tolist()):
            mistaken, own = errs(task, row, float(y[place])), int(context[place])
            assert int(wrong.context[i, place]) == (own if mistaken else -1)
            assert int(right.context[i, place]) == (-1 if mistaken else own)


def test_is_wrong_takes_any_leading_axes() -> None:
    logits = torch.tensor([[[2.0], [-1.0]], [[0.0], [3.0]]])
    assert is_wrong("binary", logits, torch.tensor([[1.0, 1.0], [1.0, 0.0]])).tolist() == [[False, True], [True, True]]
    classes = torch.tensor([[[0.0, 2.0, 1.0]], [[5.0, 2.0, 1.0]]])
    assert is_wrong("multiclass", classes, torch.tensor([[1], [2]])).tolist() == [[False], [True]]


@given(st.lists(st.tuples(st.integers(-1, 5), st.booleans()), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_split_context_gives_back_what_it_was_split_from(samples: list[tuple[int, bool]]) -> None:
    before, wrong = (torch.tensor(column) for column in zip(*samples, strict=True))
    split = split_context(before, wrong)
    assert split.dtype == torch.int64
    assert given_context(split).tolist() == before.tolist()
    for now, (was, mistaken) in zip(split.tolist(), samples, strict=True):
        assert now == -1 if was < 0 else (now % 2 == 1) == mistaken
    assert split_context(given_context(split), wrong).tolist() == split.tolist()  # inferring again changes no number


# Shares --------------------------------------------------------------------------------------------------------


def eiil_by_autograd(logits: Tensor, y: Tensor, steps: int) -> Tensor:
    """Climb Σ_e ‖∇_w mean(q_e loss(w · f))‖² by torch's Adam, the gradient in w by a tape of its own."""
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    slopes = [torch.autograd.grad(loss(w * z, label), w)[0].sign() for z, label in zip(logits[:, 0], y, strict=True)]
    place = (0.01 * torch.stack(slopes)).requires_grad_()
    climber = torch.optim.Adam([place], lr=0.1, maximize=True)
    for _ in range(steps):
        q = torch.sigmoid(place)
        penalty = torch.zeros((), dtype=torch.float64)
        for share in (1 - q, q):
            risk = (share * loss(w * logits[:, 0], y)).mean()
            penalty = penalty + torch.autograd.grad(risk, w, create_graph=True)[0] ** 2
        climber.zero_grad()
        penalty.backward(inputs=[place])
        climber.step()
    return torch.sigmoid(place).detach()


def drawn_logits(size: int, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, 1, generator=source, dtype=torch.float64)
    return logits, torch.randint(2, (size,), generator=source).double()


@pytest.mark.parametrize("steps", [1, 12])
def test_soft_shares_climb_as_autograd_and_adam_do(steps: int) -> None:
    logits, y = drawn_logits(15, 0)
    torch.testing.assert_close(soft_shares("binary", logits, y, steps), eiil_by_autograd(logits, y, steps))


@pytest.mark.parametrize("seed", range(3))
def test_soft_shares_tend_to_the_hard_split(seed: int) -> None:
    logits, y = drawn_logits(40, seed)
    wrong = is_wrong("binary", logits, y)
    early, late = (soft_shares("binary", logits, y, steps) for steps in (5, 3000))
    assert torch.equal(late > 0.5, wrong)
    assert (late - wrong.double()).abs().max() < 0.05
    assert (early - wrong.double()).abs().min() > 0.2  # soft where it is stopped early


def test_soft_shares_know_nothing_of_padding() -> None:
    federation = small(contexts=1)
    train = federation.train
    more = Split(
        torch.cat([train.x, torch.full((3, 5, 3), 9.0)], 1),
        torch.cat([train.y, torch.ones(3, 5)], 1),
        torch.cat([train.context, torch.full((3, 5), -1)], 1),
    )
    plain, padded = (infer(f, SOFT).train.context for f in (federation, dataclasses.replace(federation, train=more)))
    assert (padded[:, 20:] == -1).all() and torch.equal(plain < 0, train.context < 0)
    torch.testing.assert_close(padded[:, :20], plain, rtol=1e-4, atol=1e-5)
    for i in range(3):  # and each client's are those of its real samples alone
        real = train.context[i] >= 0
        logits = slow_reference(federation).nu(train.x[i, real].double()).detach()
        expected = eiil_by_autograd(logits, train.y[i, real].double(), SOFT.soft_steps)
        torch.testing.assert_close(plain[i, real].double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algorithm", [IRM(), GroupDRO(), PerInvFL(), PerInvFL(invariance="groupdro")])
def test_methods_train_over_soft_shares_alike_batched_and_looped(algorithm: Algorithm) -> None:
    federation = infer(small(contexts=1), SOFT)
    assert federation.train.context.is_floating_point() and federation.contexts == 2
    ended = []
    for executor in EXECUTORS:
        simulation = Simulation([algorithm], [federation], [0], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
        for _ in range(3):
            simulation.round()
        assert (simulation.broken < 0).all()
        ended.append(simulation.server.params)
    for name in ended[0]:
        torch.testing.assert_close(ended[0][name], ended[1][name], rtol=1e-4, atol=1e-5)


# The discount --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 3)), min_size=1, max_size=30),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_log_odds_of_the_shortcut_are_counted(samples: list[tuple[int, int]]) -> None:
    y, context = (torch.tensor(column) for column in zip(*samples, strict=True))
    real = [(float(label), number) for label, number in samples if number >= 0]
    expected = reference.log_odds_of_answers([label for label, _ in real], [number for _, number in real])
    got = shortcut_log_odds(y.double(), context)
    assert got.tolist() == pytest.approx([expected[0], expected[1]], abs=1e-9)
    for label, number, said in zip(y.tolist(), context.tolist(), reference_answer(y, context).tolist(), strict=True):
        assert number < 0 or said == (label if number % 2 == 0 else 1 - label)


def planted(agree: list[float], samples: int, purpose: str) -> Split:
    """y in four weak features, and in a strong one that agrees with y so often; independent of each other given y."""
    source = generator(0, "planted", purpose)
    clients = len(agree)
    y = (torch.rand(clients, samples, generator=source) < 0.5).float()
    weak = 0.2 * torch.randn(clients, samples, 4, generator=source) + 0.1 * (2 * y - 1)[..., None]
    same = torch.rand(clients, samples, generator=source) < torch.tensor(agree)[:, None]
    strong = 4 * (2 * torch.where(same, y, 1 - y) - 1)
    return Split(torch.cat([weak, strong[..., None]], -1), y, torch.zeros(clients, samples, dtype=torch.int64))


def test_the_discount_leaves_what_the_shortcut_does_not_tell() -> None:
    tests = {"reversed": planted([0.1, 0.1, 0.1], 500, "reversed"), "as trained": planted([0.9, 0.9, 0.5], 500, "same")}
    train_on = planted([0.95, 0.95, 0.5], 400, "train")  # the last client has no shortcut
    federation = Federation("planted", "binary", 1, 1, train_on, tests, ("reversed",))
    wide = ModelSettings(hidden=(8,))
    how = using("discount", reference_rounds=25)
    discounted = infer_contexts(federation, 0, how, wide, LOOP)
    odds = torch.stack([shortcut_log_odds(y, c) for _, y, c in zip(*discounted.train, strict=True)])
    assert odds[2].abs().max() < 0.2  # nothing to take off there
    assert (odds[:2, 0] < -1.5).all() and (odds[:2, 1] > 1.5).all()
    scores = {}
    for name, data in (("plain", federation), ("discounted", discounted)):
        algorithm = FedAvg(learning_rate=1.0, server_optimizer="adam", server_learning_rate=0.01)
        simulation = Simulation([algorithm], [data], [0], LOOP, wide)
        for _ in range(100):
            simulation.round()
        scores[name] = {case: row[0] for case, row in simulation.evaluate()["global"].items()}
    assert (scores["plain"]["reversed"] < 0.5).all()
    assert (scores["discounted"]["reversed"] > 0.75).all()
    assert scores["discounted"]["as trained"][2] >= scores["plain"]["as trained"][2]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("use", ["judge", "balance", "discount"])
def test_even_classes_take_the_class_shares_off(use: Any, executor: str) -> None:
    """What the objective sees is the logit plus the log-odds of the classes at this client, counted by hand."""
    federation = infer(small(), using(use, even_classes=True))
    simulation = Simulation([FedAvg()], [federation], [7], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
    for i in range(federation.clients):
        data = Split(*(part[i] for part in federation.train))
        y = [label for label, number in zip(data.y.tolist(), data.context.tolist(), strict=True) if number >= 0]
        shares = math.log((sum(y) + 1) / (len(y) - sum(y) + 1))
        plain = dataclasses.replace(simulation.problem, even_classes=False).batches(data, None)[0].offset
        offset = simulation.problem.batches(data, None)[0].offset
        assert offset is not None and (plain is not None) == (use == "discount")
        expected = shares + (torch.zeros(len(offset)) if plain is None else plain)
        torch.testing.assert_close(offset, expected)


def test_a_rare_class_counts_with_even_classes() -> None:
    """One informative feature and one class in ten: a plain model says "common" of all that is unclear."""
    source = generator(0, "rare")
    y = (torch.rand(3, 2000, generator=source) < 0.1).float()
    x = torch.randn(3, 2000, 1, generator=source) + (2 * y - 1)[..., None] / 2
    train_on = Split(x, y, torch.zeros(3, 2000, dtype=torch.int64))
    federation = Federation("rare", "binary", 1, 1, train_on, {"same": train_on}, ("same",))
    found = {}
    for even in (False, True):
        data = infer_contexts(federation, 0, using("judge", even_classes=even), ModelSettings(hidden=()), LOOP)
        algorithm = FedAvg(learning_rate=1.0, server_optimizer="adam", server_learning_rate=0.05)
        simulation = Simulation([algorithm], [data], [0], LOOP, ModelSettings(hidden=()))
        for _ in range(200):
            simulation.round()
        logits = simulation.executor.predict(simulation.models_of("global", simulation.everyone), x[None])[0, ..., 0]
        found[even] = float((logits[y > 0.5] > 0).float().mean())
    assert found[False] < 0.2 and found[True] == pytest.approx(0.69, abs=0.05)  # P(N(1/2, 1) > 0)


def test_held_out_data_is_sorted_by_class_too_where_classes_count_alike() -> None:
    plain, even = (infer(small(), using("judge", even_classes=even)).inferred for even in (False, True))
    assert list(even) == [f"validation {side}, class {c}" for side in ("right", "wrong") for c in (0, 1)]
    for data in (plain, even):
        there = torch.stack([split.context >= 0 for split in data.values()])
        held_out = small().validation
        assert held_out is not None
        assert torch.equal(there.sum(0), (held_out.context >= 0).long())  # each sample once, padding never
    for name, split in even.items():
        assert set(split.y[split.context >= 0].tolist()) <= {float(name[-1])}
    assert any((split.context >= 0).any() for name, split in even.items() if "wrong" in name)


# The stage -----------------------------------------------------------------------------------------------------


def flat(federation: Federation) -> dict[str, Tensor]:
    parts = {"train": federation.train, **federation.inferred}
    return {f"{name} {k}": part for name, split in parts.items() for k, part in enumerate(split)}


@pytest.mark.parametrize("how", [HARD, using("discount"), using("judge")], ids=lambda how: how.use)
@pytest.mark.parametrize(
    "training", [LOOP, dataclasses.replace(LOOP, batch_size=6, fraction=0.67)], ids=["full", "mini"]
)
def test_the_stage_is_a_function_of_data_seed_and_settings(how: ContextSettings, training: Training) -> None:
    one, same = (flat(infer(small(), how, training)) for _ in range(2))
    assert one.keys() == same.keys() and len(one) == 9
    assert all(torch.equal(one[name], same[name]) for name in one)
    batched = flat(infer(small(), how, dataclasses.replace(training, executor="vmap")))
    assert all(torch.equal(one[name], batched[name]) for name in one)
    other = flat(infer_contexts(small(), 8, how, MODEL, training))
    assert not torch.equal(one["train 2"], other["train 2"])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("algorithm", [FedAvg(), PerInvFL(), PerInvFL(invariance="groupdro")])
def test_to_judge_changes_nothing_but_what_is_measured(algorithm: Algorithm, executor: str) -> None:
    plain = small()
    ended, measured = [], []
    for federation in (plain, infer(plain, using("judge"))):
        training = Training(executor=executor, device="cpu", batch_size=6)  # type: ignore[arg-type]
        simulation = Simulation([algorithm], [federation], [0], training, MODEL)
        for _ in range(3):
            simulation.round()
        ended.append(simulation.state())
        measured.append(simulation.evaluate()["global"])
    assert ended[0].keys() == ended[1].keys()
    assert all(torch.equal(ended[0][name], ended[1][name]) for name in ended[0])
    assert measured[1].keys() - measured[0].keys() == {RIGHT, WRONG}
    assert all(torch.equal(measured[0][name], measured[1][name]) for name in measured[0])


def taught() -> Federation:
    """The labels of client 1 are what its reference model says, so that it has no sample that model gets wrong."""
    federation = small()
    assert federation.validation is not None
    splits = {"train": federation.train, "validation": federation.validation}
    for _ in range(20):  # other labels make another reference model, until both agree
        run = slow_reference(dataclasses.replace(federation, train=splits["train"]))
        changed = {}
        for name, split in splits.items():
            y = split.y.clone()
            y[1] = (run.nu(split.x[1].double())[:, 0] > 0).float()
            changed[name] = split._replace(y=y)
        if all(torch.equal(changed[name].y, splits[name].y) for name in splits):
            return dataclasses.replace(federation, **splits)  # type: ignore[arg-type]
        splits = changed
    raise AssertionError("labels and reference model never agreed")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("use", ["balance", "discount"])
def test_a_client_whose_reference_model_never_errs(use: Any, executor: str) -> None:
    federation = infer(taught(), using(use))
    assert federation.notes["reference"]["wrong"][1] == 0  # type: ignore[index]
    assert (federation.train.context[1] % 2)[federation.train.context[1] >= 0].max() == 0
    assert (federation.train.context[0] % 2)[federation.train.context[0] >= 0].max() == 1
    methods: list[Algorithm] = [IRM(), GroupDRO(), PerInvFL(), PerInvFL(invariance="groupdro")]
    for algorithm in methods:
        simulation = Simulation([algorithm], [federation], [0], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
        for _ in range(3):
            assert torch.isfinite(simulation.round()).all()
        assert (simulation.broken < 0).all()
        scores = simulation.evaluate()["global"]
        assert scores[WRONG].isnan().tolist() == [[False, True, False]]
        assert not scores[RIGHT].isnan().any()


@pytest.mark.parametrize("algorithm", [GroupDRO(group_step=0.5), PerInvFL(invariance="groupdro", group_step=0.5)])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_context_that_appears_later_is_weighed(executor: str, algorithm: Algorithm) -> None:
    """Inferred again, a client may have what it had not, and have lost all that it had."""
    plain = small(contexts=1)
    train_on = plain.train._replace(context=torch.where(plain.train.context < 0, -1, 0))  # nothing wrong yet
    federation = dataclasses.replace(plain, train=train_on, contexts=2, split="balance", infer_every=10**6)
    simulation = Simulation([algorithm], [federation], [0], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
    for _ in range(2):
        simulation.round()
    real = simulation.data.context >= 0
    mixed = torch.arange(real.shape[-1]) % 2
    simulation.data.context.copy_(torch.where(real, mixed, -1))
    simulation.round()
    shares = [state["shares"] for state in weights_of(simulation)]
    for own in shares:
        assert own.sum().item() == pytest.approx(1.0) and 0.3 < own[1].item() < 0.7 and own[0] != own[1]
    simulation.data.context.copy_(torch.where(real, 1, -1))  # everything wrong
    assert torch.isfinite(simulation.round()).all() and (simulation.broken < 0).all()


def weights_of(simulation: Simulation) -> list[dict[str, Tensor]]:
    """The weights that each client of the first trial keeps to itself."""
    states: Any = simulation._take(simulation.everyone)
    if isinstance(states, list):
        return [state.weights for state in states[0]]
    return [{name: leaf[0, i] for name, leaf in states.weights.items()} for i in range(simulation.clients)]


@pytest.mark.parametrize("use", ["balance", "discount"])
@pytest.mark.parametrize(
    "algorithm", [FedAvg(), IRM(), GroupDRO(), PerInvFL(), PerInvFL(invariance="groupdro")], ids=lambda a: a.title
)
def test_what_leaves_a_client_stays_what_it_was(algorithm: Algorithm, use: Any) -> None:
    """The same names, the same shapes, and one number: not one for each inferred context."""
    assert Upload._fields == ("update", "risk")
    sent = []
    for federation in (small(), infer(small(), using(use))):
        simulation = Simulation([algorithm], [federation], [0], LOOP, MODEL)
        server = tree.over(lambda leaf: leaf[0], simulation.server)
        broadcast = algorithm.broadcast(server, torch.arange(simulation.clients))
        state: ClientState = simulation._take(simulation.everyone)[0][0]  # type: ignore[index]
        data = Split(*(part[0, 0] for part in simulation.data))
        message = Broadcast(broadcast.params, broadcast.weight[0], 0)
        upload, _ = algorithm.client_round(simulation.problem, message, state, simulation.problem.batches(data, None))
        assert message.weight.shape == ()  # nor does the server say more
        sent.append({name: leaf.shape for name, leaf in tree.named_leaves(upload, "").items()})
        assert upload.risk.shape == ()
    assert sent[0] == sent[1]


def test_what_cannot_be_split_is_refused_in_one_sentence() -> None:
    cases: list[tuple[Federation, ContextSettings, str]] = [
        (small(task="regression"), HARD, "a regression has no right and wrong answers"),
        (small(task="multiclass", outputs=3), using("discount"), "takes a binary label"),
        (small(task="multiclass", outputs=3), using("balance", even_classes=True), "takes a binary label"),
        (small(contexts=2), SOFT, "splits clients that have one context each"),
    ]
    for federation, how, words in cases:
        with pytest.raises(UserError, match=words) as refusal:
            infer(federation, how)
        assert str(refusal.value).startswith("contexts.") and str(refusal.value).count(". ") == 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"infer": "soft", "use": "discount"}, 'contexts.infer = "soft" goes with use = "balance"'),
        ({"infer": "soft", "every": 5}, 'contexts.infer = "soft" goes with use = "balance"'),
        ({"infer": "hard", "use": "judge", "every": 5}, "contexts.every means nothing"),
        ({"use": "balance"}, "contexts.use does nothing without contexts.infer"),
        ({"every": 5}, "contexts.every does nothing without contexts.infer"),
        ({"even_classes": True}, "contexts.even_classes does nothing without contexts.infer"),
        ({"infer": "hardly"}, "contexts.infer"),
        ({"reference_rounds": 0}, "contexts.reference_rounds"),
        ({"rounds": 3}, "contexts.rounds is not a setting"),
    ],
)
def test_settings_that_make_no_sense_are_refused(table: dict[str, Any], words: str) -> None:
    whole = {"data": {"benchmark": "random"}, "contexts": table, "algorithm": [{"name": "irm"}]}
    with pytest.raises(UserError, match=words):
        build_experiment(whole)


# Inferring again, and going on after a stop --------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_contexts_are_inferred_again_from_the_global_model_of_the_time(executor: str) -> None:
    plain = small()
    federation = infer(plain, using("balance", every=2))
    training = Training(executor=executor, device="cpu")  # type: ignore[arg-type]
    algorithms = [IRM(learning_rate=rate, penalty_weight=1.0) for rate in (0.5, 0.2)]
    simulation = Simulation(algorithms, [federation], [0, 1], training, MODEL)
    begun = simulation.data.context.clone()
    for t in range(5):
        before = simulation.model.strip(simulation.server.params)
        simulation.round()
        if t not in (2, 4):
            continue
        for trial in range(2):
            model = reference.network({name: leaf[trial] for name, leaf in before.items()})
            for i in range(plain.clients):
                x, y, context = (part[i] for part in plain.train)
                for place, row in enumerate(model(x.double()).tolist()):
                    given = int(context[place])
                    expected = -1 if given < 0 else 2 * given + errs("binary", row, float(y[place]))
                    assert int(simulation.data.context[trial, i, place]) == expected
    assert not torch.equal(simulation.data.context, begun)  # else nothing was inferred again
    assert not torch.equal(simulation.data.context[0], simulation.data.context[1])  # each trial has its own
    assert torch.equal(federation.train.context, infer(plain, using("balance", every=2)).train.context)  # untouched


@pytest.mark.parametrize("use", ["balance", "discount"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_simulation_goes_on_with_the_contexts_of_the_time(executor: str, use: Any) -> None:
    federation = infer(small(), using(use, every=3))
    training = Training(executor=executor, device="cpu", batch_size=8, fraction=0.67)  # type: ignore[arg-type]
    algorithm = PerInvFL(invariance="groupdro", group_step=0.3, learning_rate=0.5)

    def fresh() -> Simulation:
        return Simulation([algorithm], [federation], [0], training, MODEL)

    whole = fresh()
    for _ in range(9):
        whole.round()
    for stop in (2, 3, 4, 7):
        first, second = fresh(), fresh()
        for _ in range(stop):
            first.round()
        saved = {name: leaf.clone() for name, leaf in first.state().items()}
        assert ("contexts" in saved) and (stop < 4 or not torch.equal(saved["contexts"], second.data.context))
        second.restore(saved)
        for _ in range(9 - stop):
            second.round()
        ended, expected = second.state(), whole.state()
        assert ended.keys() == expected.keys()
        assert all(torch.equal(ended[name], expected[name]) for name in expected), stop


@pytest.mark.parametrize("together", [1, 8])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perinvfl.runs.train.CHECKPOINT_SHARE", 0.0)  # a checkpoint after every round
    file = tmp_path / "again.toml"
    file.write_text(
        """
        name = "again"
        seeds = [0, 1]
        [data]
        benchmark = "random"
        samples = 20
        holdout = 10
        [contexts]
        infer = "hard"
        every = 4
        reference_rounds = 3
        reference_rate = 0.02
        [model]
        hidden = [5]
        [training]
        rounds = 11
        batch_size = 8
        evaluate_every = 2
        executor = "loop"
        device = "cpu"
        [[algorithm]]
        name = "perinvfl"
        learning_rate = 0.3
        penalty_weight = 2.0
        """
    )

    class Stop(Watch):
        def round(self, trials: list[Trial], rounds_done: int, risk: float | None) -> None:
            if rounds_done == 6:
                raise KeyboardInterrupt

    def asked() -> Any:
        experiments._inferred.cache_clear()  # another process would have nothing in memory
        experiments._federation.cache_clear()
        return read_experiment(file)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(asked(), whole, Watch(), together)
    for _ in range(1 if together > 1 else 2):  # alone, each of the two runs is stopped once
        with pytest.raises(KeyboardInterrupt):
            train(asked(), broken, Stop(), together)
        if together == 1:
            train(dataclasses.replace(asked(), trials=asked().trials[:1]), broken, Watch(), together)
    train(asked(), broken, Watch(), together)
    for trial in asked().trials:
        run = read_run(broken / trial.folder)
        assert run is not None and run.finished and run.start["asked"]["contexts"]["every"] == 4
        assert "validation wrong" in run.evaluations[-1]["personal"]
        assert untimed(whole / trial.folder / "events.jsonl") == untimed(broken / trial.folder / "events.jsonl")
    for path in whole.rglob("checkpoint.pt"):
        left, right = (checkpoint.load(p) for p in (path, broken / path.relative_to(whole)))
        assert left.keys() == right.keys() and "contexts" in left
        assert all(torch.equal(left[key], right[key]) for key in left.keys() - {"seconds"})
    assert together > 1 or len(list(whole.rglob("checkpoint.pt"))) == 2
