"""Tiny random data of every shape: to try an algorithm in milliseconds, on sizes that do not divide evenly.

The labels follow one random linear rule, so they can be learned. Contexts differ in how widely x is spread, so that
risks differ between them. Nothing here imitates a real shift.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.core.memory import check_fits, product
from perinvfl.core.seeding import generator
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.errors import UserError


@dataclass(frozen=True)
class RandomSettings:
    clients: int = hyper(3, "number of clients; more take longer", symbol="N", least=1, most=10**5)
    contexts: int = hyper(
        2,
        "number of training contexts of the client that has most; methods that compare contexts need two",
        symbol="K",
        least=1,
    )
    samples: int = hyper(
        16, "number of training samples of the client that has most; few, so that a run takes milliseconds", least=1
    )
    shape: tuple[int, ...] = hyper(
        (6,), "shape of one sample's x, to try models for tables ([6], the default) or for images ([3, 8, 8])", least=1
    )
    task: Task = hyper(
        "binary",
        "what the label is, to try each kind: binary (yes or no), multiclass (one of several) or regression (a number)",
    )
    outputs: int = hyper(
        1,
        "number of classes of a multiclass task, which is the number of the model's outputs; 1 for the others",
        least=1,
    )
    tests: tuple[str, ...] = hyper(
        ("0.1", "0.5"),
        "names of the test contexts, one for each to make; all follow the same law, so scores hardly differ",
    )
    uneven: bool = hyper(
        True, "give clients different numbers of samples and of contexts, as real ones have; false gives all the same"
    )
    holdout: int = hyper(
        0,
        "validation samples of the client that has most, besides the training samples, so that settings can "
        "be chosen by them; 0 makes none",
        least=0,
    )

    def check(self, where: str) -> None:
        check_bounds(self, where)
        rows = self.clients * (self.samples * (1 + len(self.tests)) + self.holdout)
        check_fits(4 * product((rows, *self.shape)), f"{where}: {self.clients} clients with x of shape {self.shape}")
        if not self.shape:
            raise UserError(f"{where}.shape is empty: must have at least one entry.")
        if not self.tests or len(set(self.tests)) < len(self.tests):
            raise UserError(f"{where}.tests = {self.tests}: must be at least one name, none of them twice.")
        if (self.task == "multiclass") != (self.outputs > 1):
            right = "at least 2 for a multiclass task" if self.task == "multiclass" else f"1 for a {self.task} task"
            raise UserError(f"{where}.outputs = {self.outputs}: must be {right}.")
        if self.samples < 2 * self.contexts:
            raise UserError(f"{where}.samples = {self.samples}: must be at least twice contexts = {self.contexts}.")


def random_federation(
    clients: int = 3,
    contexts: int = 2,
    samples: int = 16,
    shape: tuple[int, ...] = (6,),
    task: Task = "binary",
    outputs: int = 1,
    tests: tuple[str, ...] = ("0.1", "0.5"),
    uneven: bool = True,
    seed: int = 0,
    holdout: int = 0,
) -> Federation:
    """The first client always has `samples` samples in `contexts` contexts; when uneven, the others have fewer.

    >>> random_federation(clients=3, contexts=2, samples=10).sizes.tolist()
    [10, 9, 7]
    """
    settings = RandomSettings(clients, contexts, samples, tuple(shape), task, outputs, tuple(tests), uneven, holdout)
    settings.check("random")
    train = _split(settings, seed, "train", samples, contexts)
    cases = {case: _split(settings, seed, f"test {case}", samples, 1) for case in tests}
    return Federation(
        name="random",
        task=task,
        outputs=outputs,
        contexts=contexts,
        train=train,
        tests=cases,
        spectrum=tuple(cases),
        validation=_split(settings, seed, "validation", holdout, contexts) if holdout else None,
        notes={
            "constant": constant_scores(task, train, cases),
            "sizes": (train.context >= 0).sum(1).tolist(),
            "contexts": [int(row.max()) + 1 for row in train.context],
        },
    )


def _split(settings: RandomSettings, seed: int, purpose: str, samples: int, contexts: int) -> Split:
    """Clients have between half and all of `samples`, and from one to all of `contexts`, unless they are even."""
    context = torch.full((settings.clients, samples), -1)
    for client in range(settings.clients):
        size = samples - (client * samples // (2 * settings.clients) if settings.uneven else 0)
        number = contexts - (client % contexts if settings.uneven else 0)
        context[client, :size] = torch.arange(size) % number
    real = context >= 0
    source = generator(seed, "random", purpose)
    x = torch.randn(settings.clients, samples, *settings.shape, generator=source)
    scale = (1 + 0.5 * context) * real  # [N, M]
    x = x * scale.view(*scale.shape, *[1] * len(settings.shape))
    return Split(x, _labels(settings, seed, x) * real, context)


def _labels(settings: RandomSettings, seed: int, x: Tensor) -> Tensor:
    """[N, M] from one linear rule, the same for training and test."""
    flat = x.flatten(2)
    rule = torch.randn(flat.shape[-1], settings.outputs, generator=generator(seed, "random", "rule"))
    score = flat @ rule / flat.shape[-1] ** 0.5  # [N, M, outputs]
    if settings.task == "multiclass":
        return score.argmax(-1)
    return score[..., 0] if settings.task == "regression" else (score[..., 0] > 0).float()
