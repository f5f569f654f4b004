"""Inferred contexts: the phase that infers them, and what it leaves as it was."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import IRM, FedAvg, GroupDRO, PerInvFL
from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Upload
from perinvfl.core import tree
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.preparation.inferred_contexts import RIGHT, WRONG
from perinvfl.preparation.settings import ContextSettings
from perinvfl.runs.experiment import build_experiment
from tests.preparation.small_contexts import (
    EXECUTORS,
    HARD,
    LOOP,
    MODEL,
    SOFT,
    infer,
    slow_reference,
    small,
    using,
)
from tests.prepared import prepared


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
    other = flat(prepared(small(), 8, how, MODEL, training))
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
    federation = dataclasses.replace(plain, train=train_on, contexts=2, split="balance")
    simulation = Simulation([algorithm], [federation], [0], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
    for _ in range(2):
        simulation.round()
    real = simulation.data.context >= 0
    mixed = torch.arange(real.shape[-1]) % 2
    simulation.set_contexts(torch.where(real, mixed, -1))
    simulation.round()
    shares = [state["shares"] for state in weights_of(simulation)]
    for own in shares:
        assert own.sum().item() == pytest.approx(1.0) and 0.3 < own[1].item() < 0.7 and own[0] != own[1]
    simulation.set_contexts(torch.where(real, 1, -1))  # everything wrong
    assert torch.isfinite(simulation.round()).all() and (simulation.broken < 0).all()


def weights_of(simulation: Simulation) -> list[dict[str, Tensor]]:
    """The weights that each client of the first trial keeps to itself."""
    states: Any = simulation.states_of(simulation.everyone)
    if isinstance(states, list):
        return [state.weights for state in states[0]]
    return [{name: leaf[0, i] for name, leaf in states.weights.items()} for i in range(simulation.clients)]


@pytest.mark.parametrize("use", ["balance", "discount"])
@pytest.mark.parametrize(
    "algorithm", [FedAvg(), IRM(), GroupDRO(), PerInvFL(), PerInvFL(invariance="groupdro")], ids=lambda a: a.title
)
def test_what_leaves_a_client_stays_what_it_was(algorithm: Algorithm, use: Any) -> None:
    """The same names, the same shapes, and one number: not one for each inferred context."""
    assert Upload._fields == ("update", "risk", "control")
    sent = []
    for federation in (small(), infer(small(), using(use))):
        simulation = Simulation([algorithm], [federation], [0], LOOP, MODEL)
        server = tree.over(lambda leaf: leaf[0], simulation.server)
        broadcast = algorithm.broadcast(server, torch.arange(simulation.clients))
        state: ClientState = simulation.states_of(simulation.everyone)[0][0]  # type: ignore[index]
        data = Split(*(part[0, 0] for part in simulation.data))
        message = Broadcast(broadcast.params, broadcast.weight[0], 0)
        upload, _ = algorithm.client_round(simulation.problem, message, state, simulation.problem.batches(data, None))
        assert message.weight.shape == ()  # nor does the server say more
        sent.append({name: leaf.shape for name, leaf in tree.named_leaves(upload, "").items()})
        assert upload.risk.shape == () and not upload.control
    assert sent[0] == sent[1]


def test_what_cannot_be_split_is_refused_in_one_sentence() -> None:
    cases: list[tuple[Federation, ContextSettings, str]] = [
        (small(task="regression"), HARD, "a regression has no right and wrong answers"),
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
