"""Tables with a planted shortcut: the law of every column is known, and so is how well a model does without it.

Columns, in order: informative ones, useless ones, the shortcut, and echoes of the shortcut. The label follows from the
informative columns, in every context and in test alike, by weights that are partly each client's own. The shortcut
follows from the label: it agrees with it with probability p, which changes from context to context and breaks at test
time. Clients may be shifted against each other, as instruments are. Columns have a variance of about 1, but for those
of a shortcut with several levels, which are 0 or 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.core.memory import check_fits, product
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.digits import PAPER_SPECTRUM, case_name, context_of_position
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.errors import UserError

Shortcut = Literal["sharp", "soft", "categorical", "two", "none"]
LEVELS = 6  # of a categorical shortcut, shared out evenly among the classes


@dataclass(frozen=True)
class PlantedSettings:
    p_train: tuple[float | tuple[float, ...], ...] = hyper(
        ((0.95, 0.85), (0.95, 0.85), (0.95, 0.85), (0.95, 0.85)),
        "how often the shortcut agrees with the label in training, one entry per client; a list gives that "
        "client several contexts, its rows split evenly among them; only where it differs between contexts "
        "can it be found, as in the default; of a label that is a number, the correlation is 2p − 1",
        symbol="p_train",
        least=0,
        most=1,
    )
    p_test: tuple[float, ...] = hyper(
        (0.1, 0.3, 0.5, 0.9),
        "how often the shortcut agrees with the label in each test context; the lower, the more it misleads; "
        "the default has one context, 0.9, in which it still holds",
        symbol="p_test",
        least=0,
        most=1,
    )
    rows: int | tuple[int, ...] = hyper(
        400,
        "training rows per client, including those held out, one number or one per client; more make the "
        "shortcut easier to find; 400 are few, as in a small hospital",
        least=1,
    )
    test_rows: int = hyper(
        1000,
        "test rows of each client, the same ones in every test context, so that contexts differ by the "
        "shortcut alone; more make scores more certain",
        least=1,
    )
    holdout: float = hyper(
        0.0,
        "share of the training rows that is kept out of training, so that settings can be chosen by them; 0 "
        "keeps none out",
        least=0,
        most=0.9,
    )
    classes: int = hyper(
        2,
        "number of classes of the label; more are harder to tell; 2 is yes or no, 1 makes the label a number",
        least=1,
        most=20,
    )
    shortcut: Shortcut = hyper(
        "sharp",
        "kind of shortcut, since some are harder to find: sharp, the default, is a column that names a class; "
        "soft a number that is larger for one class; categorical a column with several levels for each class; "
        "two are two columns that name a class, each on its own; none plants none",
    )
    without_shortcut: bool = hyper(
        False,
        "set the shortcut and its echoes to 0, so that only the other columns are left to learn from, which "
        "shows what is possible without it; false keeps it",
    )
    strength: float = hyper(
        1.5,
        "how sharply the informative columns decide the label; larger leaves less to chance, so that there is "
        "less reason to use the shortcut; at 1.5 a good model without it reaches about 82 %",
        above=0,
    )
    informative: int = hyper(
        4,
        "number of columns that determine the label, which a model should rely on; with more, each says less",
        least=1,
    )
    useless: int = hyper(
        2, "number of columns that have nothing to do with the label, as most tables have some; 0 adds none", least=0
    )
    echoes: int = hyper(
        0,
        "number of columns that repeat the shortcut with noise, so that leaving out the shortcut alone is not "
        "enough; 0 adds none",
        least=0,
    )
    correlation: float = hyper(
        0.0,
        "correlation among the informative and useless columns, as columns of real tables are related; 0 "
        "makes them independent",
        least=0,
        most=0.95,
    )
    personal: float = hyper(
        0.3,
        "how much clients differ in what the columns mean: length of a client's own part of the weights, "
        "against a common part of length 1; 0 makes clients alike",
        least=0,
    )
    shift: float = hyper(
        0.5,
        "how far the means of the columns differ between clients, as between instruments; 0 makes them equal",
        least=0,
    )

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

    @property
    def outputs(self) -> int:
        return self.classes if self.classes > 2 else 1

    def check(self, where: str) -> None:
        check_bounds(self, where)
        rows = self.clients * self.test_rows * len(self.p_test) + sum(self.rows_per_client)
        columns = self.informative + self.useless + self.echoes + 1
        bytes_needed = 4 * product((rows, columns)) + 4 * (self.informative + self.useless) ** 2
        check_fits(bytes_needed, f"{where}: {rows} rows of {columns} columns")
        for key in ("p_train", "p_test"):
            if not getattr(self, key) or () in getattr(self, key):
                raise UserError(f"{where}.{key}: must have at least one entry, and no empty one.")
        if len({case_name(p) for p in self.p_test}) < len(self.p_test):
            raise UserError(f"{where}.p_test = {self.p_test}: no two test contexts may be the same.")
        if self.classes == 1 and self.shortcut not in ("soft", "none"):
            raise UserError(f'{where}.shortcut = "{self.shortcut}": where the label is a number, "soft" or "none".')
        if self.classes > 2 and self.shortcut == "soft":
            raise UserError(f'{where}.shortcut = "soft" leans to one of two classes; there are {self.classes}.')
        if self.echoes and self.shortcut == "none":
            raise UserError(f'{where}.echoes = {self.echoes}: there is nothing to repeat with shortcut = "none".')
        if len(self.rows_per_client) != self.clients:
            raise UserError(f"{where}.rows = {self.rows}: must have one entry for each of {self.clients} clients.")
        for rows, p in zip(self.rows_per_client, self.p_contexts, strict=True):
            held = int(rows * self.holdout)
            if rows - held < 2 * len(p) or (self.holdout and not held):
                raise UserError(
                    f"{where}.rows = {rows} with holdout = {self.holdout:g}: too few for {len(p)} contexts of two "
                    "training rows each, and one row to hold out where any are asked for."
                )


def planted_federation(settings: PlantedSettings, seed: int) -> Federation:
    settings.check("planted")
    clients = range(settings.clients)
    trained, held_out = zip(*(_training_rows(settings, seed, client) for client in clients), strict=True)
    train = _stacked(trained)
    tests = {}
    for p in settings.p_test:
        at = torch.full((settings.test_rows,), p)
        own = [_rows(settings, seed, client, at, "test") for client in clients]
        tests[case_name(p)] = _stacked([Split(x, y, torch.zeros(len(y), dtype=torch.int64)) for x, y in own])
    return Federation(
        name="planted",
        task=settings.task,
        outputs=settings.outputs,
        contexts=max(map(len, settings.p_contexts)),
        train=train,
        tests=tests,
        spectrum=tuple(case for case in PAPER_SPECTRUM if case in tests) or tuple(tests),
        validation=_stacked(held_out) if settings.holdout else None,
        notes={
            "constant": constant_scores(settings.task, train, tests),
            "sizes": (train.context >= 0).sum(1).tolist(),
            "contexts": [len(p) for p in settings.p_contexts],
        },
    )


def _training_rows(settings: PlantedSettings, seed: int, client: int) -> tuple[Split, Split]:
    """What a client trains on, and what it holds out: evenly spaced, so that every context gives its share."""
    rows, p = settings.rows_per_client[client], settings.p_contexts[client]
    context = context_of_position(len(p), rows)
    x, y = _rows(settings, seed, client, torch.tensor(p)[context], "train")
    held = (torch.arange(rows + 1) * int(rows * settings.holdout) // rows).diff() > 0
    return Split(x[~held], y[~held], context[~held]), Split(x[held], y[held], context[held])


def _rows(settings: PlantedSettings, seed: int, client: int, p: Tensor, purpose: str) -> tuple[Tensor, Tensor]:
    """x [M, d] and y [M] of a client, p [M] being how often the shortcut agrees; contexts share all other draws."""
    source = generator(seed, "planted", purpose, client)
    plain = settings.informative + settings.useless
    common, own = (torch.randn(len(p), columns, generator=source) for columns in (1, plain))
    x = settings.correlation**0.5 * common + (1 - settings.correlation) ** 0.5 * own
    y = _labels(settings, seed, client, x[:, : settings.informative], source)
    tells = _shortcut(settings, y, p, source)
    repeated = tells[:, torch.arange(settings.echoes) % max(tells.shape[1], 1)]
    x = torch.cat([x, tells, 0.7 * repeated + 0.7 * torch.randn(repeated.shape, generator=source)], 1)
    x = x + settings.shift * torch.randn(x.shape[1], generator=generator(seed, "planted", "shift", client))
    if settings.without_shortcut:
        x[:, plain:] = 0
    return x, y


def _labels(settings: PlantedSettings, seed: int, client: int, x: Tensor, source: Generator) -> Tensor:
    """[M] drawn by a linear rule of the informative columns, the same in training and test; a number has variance 1."""
    shape = (x.shape[1], settings.outputs)
    common = torch.randn(shape, generator=generator(seed, "planted", "rule"))
    own = torch.randn(shape, generator=generator(seed, "planted", "own rule", client))
    rule = settings.strength * (common / common.norm(dim=0) + settings.personal * own / own.norm(dim=0))
    score = x @ rule  # [M, outputs]
    if settings.task == "regression":
        spread = (1 - settings.correlation) * rule.square().sum() + settings.correlation * rule.sum().square()
        return (score[:, 0] + torch.randn(len(x), generator=source)) / (1 + spread).sqrt()
    drawn = torch.rand(score.shape, generator=source)
    if settings.task == "binary":
        return (drawn[:, 0] < torch.sigmoid(2 * score[:, 0])).float()
    gumbel = -(-drawn.clamp(1e-6, 1 - 1e-6).log()).log()
    return (2 * score + gumbel).argmax(1)  # a draw from the softmax


def _shortcut(settings: PlantedSettings, y: Tensor, p: Tensor, source: Generator) -> Tensor:
    """[M, columns] that follow from the label."""
    if settings.shortcut == "none":
        return torch.zeros(len(y), 0)
    shape = (len(y), 2 if settings.shortcut == "two" else 1)
    if settings.shortcut == "soft":
        noise = torch.randn(shape, generator=source)
        if settings.task == "regression":
            follows = (2 * p - 1)[:, None]
            return follows * y[:, None] + (1 - follows.square()).sqrt() * noise
        leans = torch.special.ndtri(p.clamp(0.001, 0.999))  # then the sign agrees with probability p
        return (leans * (2 * y - 1))[:, None] + noise
    agrees = torch.rand(shape, generator=source) < p[:, None]
    other = torch.randint(1, settings.classes, shape, generator=source)
    named = (y.long()[:, None] + torch.where(agrees, 0, other)) % settings.classes
    if settings.shortcut == "categorical":
        each = max(LEVELS // settings.classes, 1)
        level = named[:, 0] * each + torch.randint(each, (len(y),), generator=source)
        return one_hot(level, settings.classes * each).float()
    return 2.0 * named - 1 if settings.task == "binary" else one_hot(named, settings.classes).float().flatten(1)


def _stacked(parts: "list[Split] | tuple[Split, ...]") -> Split:
    """Rows of all clients, padded to the longest: zeros in no context."""
    longest = max(len(own.y) for own in parts)

    def padded(rows: Tensor, value: int) -> Tensor:
        return torch.cat([rows, rows.new_full((longest - len(rows), *rows.shape[1:]), value)])

    columns = zip(*parts, strict=True)
    return Split(
        *(torch.stack([padded(rows, value) for rows in own]) for own, value in zip(columns, (0, 0, -1), strict=True))
    )
