"""Tables with a planted shortcut: the law of a column is known, so is how well a model does without it.

The label follows from informative columns, at every client and in every context alike, up to weights that are partly
each client's own. A shortcut column follows from the label: it agrees with it with probability p, which changes from
context to context and breaks at test time. Further columns repeat the shortcut with noise, or tell nothing. Clients
may be shifted against each other, as instruments are.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.digits import PAPER_SPECTRUM, case_name, context_of_position
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.errors import UserError

Shortcut = Literal["sharp", "soft", "categorical", "two", "none"]
LEVELS = 6  # of a categorical shortcut, half of them for each class of a binary label


@dataclass(frozen=True)
class PlantedSettings:
    p_train: tuple[float | tuple[float, ...], ...] = hyper(
        ((0.95, 0.85), (0.95, 0.85), (0.95, 0.85), (0.95, 0.85)),
        "how often the shortcut agrees with the label in training, one entry per client; a list gives that client "
        "several contexts, its rows split evenly among them",
        symbol="p_train",
        least=0,
        most=1,
    )
    p_test: tuple[float, ...] = hyper(
        (0.1, 0.5, 0.9), "how often the shortcut agrees with the label in each test context", least=0, most=1
    )
    rows: int | tuple[int, ...] = hyper(400, "training rows of a client: one number, or one per client", least=1)
    test_rows: int = hyper(1000, "test rows of a client, in every test context", least=1)
    holdout: float = hyper(0.0, "share of the training rows kept out of training, for validation", least=0, most=0.9)
    classes: int = hyper(2, "classes of the label; 1 makes it a number", least=1, most=20)
    shortcut: Shortcut = hyper("sharp", "two values, a number, several levels, two columns, or no such column")
    without_shortcut: bool = hyper(False, "leave the shortcut and what repeats it empty, so that only the rest is left")
    strength: float = hyper(1.5, "how sharply the informative columns decide the label", above=0)
    informative: int = hyper(4, "columns that the label follows from", least=1)
    useless: int = hyper(2, "columns that tell nothing", least=0)
    echoes: int = hyper(0, "columns that repeat the shortcut with noise", least=0)
    correlation: float = hyper(0.0, "correlation of the informative and useless columns", least=0, most=0.95)
    personal: float = hyper(0.3, "how far the weights of the informative columns are a client's own", least=0)
    shift: float = hyper(0.5, "how far the columns of clients are shifted against each other", least=0)

    @property
    def clients(self) -> int:
        return len(self.p_train)

    @property
    def p_contexts(self) -> list[tuple[float, ...]]:
        """Per client, p of each of its training contexts."""
        return [p if isinstance(p, tuple) else (p,) for p in self.p_train]

    @property
    def rows_per_client(self) -> tuple[int, ...]:
        return self.rows if isinstance(self.rows, tuple) else (self.rows,) * self.clients

    @property
    def task(self) -> Task:
        return "regression" if self.classes == 1 else "binary" if self.classes == 2 else "multiclass"

    def check(self, where: str) -> None:
        check_bounds(self, where)
        for key in ("p_train", "p_test"):
            if not getattr(self, key) or () in getattr(self, key):
                raise UserError(f"{where}.{key}: must have at least one entry, and no empty one.")
        if len(self.rows_per_client) != self.clients:
            raise UserError(f"{where}.rows = {self.rows}: must have one entry for each of {self.clients} clients.")
        names = [case_name(p) for p in self.p_test]
        if len(set(names)) < len(names):
            raise UserError(f"{where}.p_test = {self.p_test}: no two test contexts may be the same.")
        if self.classes == 1 and self.shortcut not in ("soft", "none"):
            raise UserError(f'{where}.shortcut = "{self.shortcut}": the shortcut of a number is "soft" or "none".')
        for rows, p in zip(self.rows_per_client, self.p_contexts, strict=True):
            if int(rows * (1 - self.holdout)) < 2 * len(p):
                raise UserError(f"{where}.rows = {rows}: too few for {len(p)} contexts.")


def planted_federation(settings: PlantedSettings, seed: int) -> Federation:
    settings.check("planted")
    most = max(settings.rows_per_client)
    contexts = [
        context_of_position(len(p), rows) for p, rows in zip(settings.p_contexts, settings.rows_per_client, strict=True)
    ]
    parts = []
    for client, context in enumerate(contexts):
        p = torch.tensor(settings.p_contexts[client])[context]
        x, y = _rows(settings, seed, client, p, "train")
        held = _held_out(len(context), settings.holdout)
        parts.append([(x[~held], y[~held], context[~held]), (x[held], y[held], context[held])])
    train, validation = (_stacked([own[place] for own in parts], settings) for place in (0, 1))
    tests = {}
    for p in settings.p_test:
        rows = [
            _rows(settings, seed, client, torch.full((settings.test_rows,), p), "test")
            for client in range(settings.clients)
        ]
        tests[case_name(p)] = Split(
            torch.stack([x for x, _ in rows]),
            torch.stack([y for _, y in rows]),
            torch.zeros(settings.clients, settings.test_rows, dtype=torch.int64),
        )
    return Federation(
        name="planted",
        task=settings.task,
        outputs=settings.classes if settings.classes > 2 else 1,
        contexts=max(map(len, settings.p_contexts)),
        train=train,
        tests=tests,
        spectrum=tuple(case for case in PAPER_SPECTRUM if case in tests) or tuple(tests),
        validation=validation if settings.holdout else None,
        notes={
            "constant": constant_scores(settings.task, train, tests),
            "sizes": (train.context >= 0).sum(1).tolist(),
            "contexts": [len(p) for p in settings.p_contexts],
        },
    )


def _rows(settings: PlantedSettings, seed: int, client: int, p: Tensor, purpose: str) -> tuple[Tensor, Tensor]:
    """x [M, d] and y [M] of a client, p [M] being how often the shortcut agrees; test contexts share all other draws."""
    source = generator(seed, "planted", purpose, client)
    rows, plain = len(p), settings.informative + settings.useless
    common = torch.randn(rows, 1, generator=source)
    x = settings.correlation**0.5 * common + (1 - settings.correlation) ** 0.5 * torch.randn(
        rows, plain, generator=source
    )
    y = _labels(settings, seed, client, x[:, : settings.informative], source)
    tells = _shortcut(settings, y, p, source)
    again = tells[:, torch.arange(settings.echoes) % max(tells.shape[1], 1)] if tells.shape[1] else tells
    echoes = 0.7 * again + 0.7 * torch.randn(again.shape, generator=source)
    planted = torch.cat([tells, echoes], 1) * (not settings.without_shortcut)
    x = torch.cat([x, planted], 1)
    moved = settings.shift * torch.randn(x.shape[1], generator=generator(seed, "planted", "shift", client))
    moved[plain:] *= not settings.without_shortcut
    return x + moved, y


def _labels(settings: PlantedSettings, seed: int, client: int, x: Tensor, source: Generator) -> Tensor:
    """[M] drawn from a linear rule of the informative columns, the same for training and test."""
    outputs = settings.classes if settings.classes > 2 else 1
    rule = torch.randn(x.shape[1], outputs, generator=generator(seed, "planted", "rule"))
    own = torch.randn(x.shape[1], outputs, generator=generator(seed, "planted", "own rule", client))
    rule = rule / rule.norm(dim=0) + settings.personal * own / own.norm(dim=0)
    score = 2 * settings.strength * x @ rule  # [M, outputs]
    if settings.task == "regression":
        return score[:, 0] / 2 + torch.randn(len(x), generator=source)
    drawn = torch.rand(len(x), outputs, generator=source)
    if settings.task == "binary":
        return (drawn[:, 0] < torch.sigmoid(score[:, 0])).float()
    return (score - (-drawn.clamp(min=1e-9).log()).log()).argmax(1)  # Gumbel noise: a draw from the softmax


def _shortcut(settings: PlantedSettings, y: Tensor, p: Tensor, source: Generator) -> Tensor:
    """[M, columns] that follow from the label."""
    if settings.shortcut == "none":
        return torch.zeros(len(y), 0)
    columns = 2 if settings.shortcut == "two" else 1
    agrees = torch.rand(len(y), columns, generator=source) < p[:, None]
    noise = torch.randn(len(y), columns, generator=source)
    other = torch.randint(1, max(settings.classes, 2), (len(y), columns), generator=source)
    if settings.task == "regression":
        return (4 * (p[:, None] - 0.5)) * y[:, None] + noise
    if settings.shortcut == "soft" and settings.task == "binary":
        # A normal number whose sign agrees with probability p.
        gain = torch.special.ndtri(p.clamp(0.001, 0.999))[:, None]
        return gain * (2 * y[:, None] - 1) + noise
    named = torch.where(agrees, y[:, None].long(), (y[:, None].long() + other) % settings.classes)
    if settings.task == "binary" and settings.shortcut != "categorical":
        return 2.0 * named - 1
    if settings.shortcut == "categorical":
        each = max(LEVELS // settings.classes, 1)
        named = named * each + torch.randint(each, named.shape, generator=source)
        return torch.nn.functional.one_hot(named[:, 0], settings.classes * each).float()
    hot = torch.nn.functional.one_hot(named, settings.classes).float().flatten(1)
    return hot + 0.5 * torch.randn(hot.shape, generator=source) if settings.shortcut == "soft" else hot


def _held_out(rows: int, share: float) -> Tensor:
    """[M] bool: evenly spaced, so that every context gives its share."""
    return (torch.arange(rows + 1) * int(rows * share) // rows).diff() > 0


def _stacked(parts: list[tuple[Tensor, Tensor, Tensor]], settings: PlantedSettings) -> Split:
    """Rows of all clients, padded to the longest."""
    longest = max(len(y) for _, y, _ in parts)

    def padded(rows: Tensor, value: int) -> Tensor:
        return torch.cat([rows, rows.new_full((longest - len(rows), *rows.shape[1:]), value)])

    x, y, context = (
        torch.stack([padded(own[place], value) for own in parts]) for place, value in ((0, 0), (1, 0), (2, -1))
    )
    return Split(x, y, context)
