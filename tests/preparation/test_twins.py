"""XRM's twins: against a plain loop of two models, and what they find where a reference model would not."""

import math

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import FedAvg
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.engine.program_run import ProgramRun
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import ContextSettings
from perinvfl.preparation.twins import Twins, confident, in_halves, twin_model
from tests.preparation.small_contexts import EXECUTORS, small

ROUNDS, RATE = 5, 0.05
HOW = ContextSettings(infer="xrm", reference_rounds=ROUNDS, reference_rate=RATE)
LINEAR = ModelSettings(kind="linear")


def run_of(
    federation: Federation, executor: str, how: ContextSettings = HOW, model: ModelSettings = LINEAR
) -> ProgramRun:
    training = Training(rounds=1, executor=executor, device="cpu")  # type: ignore[arg-type]
    return ProgramRun(program_of(FedAvg(), training, how), [FedAvg()], {7: federation}, [7], model)


def by_hand(federation: Federation, twins: list[Tensor]) -> list[list[int]]:
    """Two linear models [classes or 1, d], one sample after another; how far off each held-out answer is."""
    classes = federation.classes
    multi = federation.task == "multiclass"
    moments = [[torch.zeros_like(w), torch.zeros_like(w)] for w in twins]
    clients: list[list[tuple[int, tuple[Tensor, int]]]] = []
    for x, y, context in zip(*federation.train, strict=True):
        real = [(row.double(), int(label)) for row, label, own in zip(x, y, context, strict=True) if own >= 0]
        clients.append(list(enumerate(real)))

    def shares(w: Tensor, row: Tensor) -> Tensor:
        logits = w @ row
        return (
            torch.softmax(logits, 0) if multi else torch.stack([1 - torch.sigmoid(logits[0]), torch.sigmoid(logits[0])])
        )

    for t in range(1, ROUNDS + 1):
        leaves = [w.clone().requires_grad_() for w in twins]
        total = torch.zeros((), dtype=torch.float64)
        for rows in clients:
            for place, (row, label) in rows:
                own, other = leaves[place % 2], twins[1 - place % 2]
                said = shares(other, row)
                guess = int(said.argmax())
                trust = (float(said[guess]) - 1 / classes) * classes / (classes - 1)
                losses = -shares(own, row).log()
                total = total + ((1 - trust) * losses[label] + trust * losses[guess]) / len(rows) / len(clients)
        for twin, gradient in enumerate(torch.autograd.grad(total, leaves)):
            mean, square = moments[twin]
            mean.mul_(0.9).add_(0.1 * gradient)
            square.mul_(0.999).add_(0.001 * gradient**2)
            step = (mean / (1 - 0.9**t)) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
            twins[twin] = twins[twin] - RATE * step
    return [
        [(int(shares(twins[1 - place % 2], row).argmax()) - label) % classes for place, (row, label) in rows]
        for rows in clients
    ]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3)])
def test_twins_are_two_models_that_replace_each_others_labels(executor: str, task: Task, outputs: int) -> None:
    federation = small(task=task, outputs=outputs)
    run = run_of(federation, executor)
    begun = Simulation([Twins()], [in_halves(federation)], [7], run.training, twin_model(federation, LINEAR, "float32"))
    start = {name: leaf[0].double() for name, leaf in begun.model.strip(begun.server.params).items()}
    expected = by_hand(federation, [start["first.0.weight"], start["second.0.weight"]])
    while run.rounds_done < 1:
        run.round()
    for row, own in zip(run.notes[7]["errors"], expected, strict=True):
        assert row[row >= 0].tolist() == own


def test_twins_read_the_shortcut_alone_however_long_they_learn() -> None:
    """A column that is right in 90 of 100, and four that lean to the class: a plain model reads both."""
    source = generator(0, "twins")
    y = (torch.rand(3, 400, generator=source) < 0.5).float()
    said = torch.where(torch.rand(y.shape, generator=source) < 0.9, y, 1 - y)
    weak = torch.randn(3, 400, 4, generator=source) + 0.35 * (2 * y - 1)[..., None]
    x = torch.cat([weak, 4 * (2 * said - 1)[..., None]], -1)
    data = Split(x, y, torch.zeros(3, 400, dtype=torch.int64))
    federation = Federation("twins", "binary", 1, 1, data, {"same": data}, ("same",))
    for rounds in (60, 200):
        how = ContextSettings(infer="xrm", reference_rounds=rounds, reference_rate=0.01)
        run = run_of(federation, "loop", how, ModelSettings(hidden=(8,)))
        while run.rounds_done < 1:
            run.round()
        answers = (y.long() + run.notes[7]["errors"]) % 2
        assert float((answers == said).float().mean()) > 0.97


def test_twins_take_no_batch_norm() -> None:
    image = torch.zeros(2, 8, 3, 16, 16)
    data = Split(image, torch.arange(8).expand(2, -1).float() % 2, torch.zeros(2, 8, dtype=torch.int64))
    federation = Federation("images", "binary", 1, 1, data, {"same": data}, ("same",))
    norm = ModelSettings(kind="resnet18", width=2, stem="small", norm="batch")
    with pytest.raises(UserError, match="without batch norm"):
        run_of(federation, "loop", model=norm).round()


def test_a_guess_is_not_trusted() -> None:
    said, trust = confident("multiclass", torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))
    assert said[1] == 0 and trust[0] == pytest.approx(0.0, abs=1e-6) and trust[1] > 0.99
    said, trust = confident("binary", torch.tensor([[0.0], [-math.log(3)]]))
    assert said[1] == 0 and trust.tolist() == pytest.approx([0.0, 0.5])
