"""Birds on land and water: which bird goes to whom, on which side, before which background.

The law of Waterbirds (Sagawa et al., 2020) as the paper's appendix deals it out to clients. Of a client's n_y birds of
class y, exactly round(p · n_y) stand on their own side: landbirds on land, waterbirds on water. A client trains on some
of its birds and is tested on others, in one context for each p_test: once with `test_per_client` birds and once more
with all birds that are left over. No background is shared by training and test, none is used twice in training, nor
twice within a test context. A test bird keeps its two backgrounds, one of land and one of water, in every test context,
and a bird that stands on its own side at some p does so at every larger p: test contexts differ by background alone.

`draw_plan` decides all this from numbers only; `waterbird` makes the pictures from photographs, `drawn` draws them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.bird_settings import BirdSettings, case_name
from perinvfl.data.constant import constant_guesses, constant_scores
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import Augmentation
from perinvfl.errors import UserError

LAND, WATER = 0, 1  # sides; a class is called by the side it belongs to: landbirds 0, waterbirds 1
SIDES = ("land", "water")
GROUPS = ("landbird on land", "landbird on water", "waterbird on land", "waterbird on water")
LEFT_OVER = " left over"


class Flock(NamedTuple):
    """What there is to draw from."""

    labels: list[Tensor]  # per client, [birds] int64: LAND or WATER
    backgrounds: tuple[int, int]  # photographs of land, of water


class Plan(NamedTuple):
    """The pictures of one federation, and where each of them is used."""

    pictures: Tensor  # [K, 4] int64: client, bird of that client, side, background of that side
    y: Tensor  # [K] int64: the bird's class
    train: Tensor  # [N, M] pictures a client trains on
    tests: Tensor  # [N, P] pictures a client is tested on, in any context; -1 is padding, which comes last
    cases: dict[str, Tensor]  # test context -> [N, P] bool: which of these pictures belong to it


def own_side(p: float, birds: int) -> int:
    """How many birds of a class stand on their own side."""
    return round(p * birds)


def draw_plan(settings: BirdSettings, seed: int, flock: Flock, where: str) -> Plan:
    """Deal birds and backgrounds out; the same for the same settings, seed and flock."""
    m, t = settings.train_per_client, settings.test_per_client
    orders = [
        torch.randperm(len(labels), generator=generator(seed, "birds", client)).tolist()
        for client, labels in enumerate(flock.labels)
    ]
    for client, order in enumerate(orders):
        if len(order) < m + t:
            raise UserError(
                f"{where}: client {client} has {len(order)} birds with a photograph and a mask, and "
                f"train_per_client + test_per_client = {m + t}: {m + t - len(order)} are missing."
            )
    decks = [
        torch.randperm(count, generator=generator(seed, "backgrounds", side)).tolist()
        for side, count in enumerate(flock.backgrounds)
    ]
    pictures: list[tuple[int, int, int, int]] = []
    train = [
        _training_pictures(settings.p_train[client], client, order[:m], flock.labels[client], seed, decks, pictures)
        for client, order in enumerate(orders)
    ]
    for side in (LAND, WATER):
        _check_backgrounds(where, "training", side, sum(p[2] == side for p in pictures), flock.backgrounds[side])
    tests: list[list[int]] = []
    cases: dict[str, list[list[bool]]] = {}
    for client, order in enumerate(orders):
        rest = order[m + t :] if settings.left_over < 0 else order[m + t : m + t + settings.left_over]
        rows, members = _test_pictures(
            settings, client, order[m : m + t], rest, flock.labels[client], seed, decks, pictures, where
        )
        tests.append(rows)
        for name, chosen in members.items():
            cases.setdefault(name, []).append([row in chosen for row in rows])
    width = max(map(len, tests))
    table = torch.tensor(pictures)
    y = torch.stack([flock.labels[client][bird] for client, bird, _, _ in pictures])
    return Plan(
        table,
        y,
        torch.tensor(train),
        torch.tensor([rows + [-1] * (width - len(rows)) for rows in tests]),
        {name: torch.tensor([row + [False] * (width - len(row)) for row in rows]) for name, rows in cases.items()},
    )


def _training_pictures(
    p: float,
    client: int,
    birds: list[int],
    labels: Tensor,
    seed: int,
    decks: list[list[int]],
    pictures: list[tuple[int, int, int, int]],
) -> list[int]:
    """Rows of one client's training pictures, in the order of its birds; backgrounds are taken off the decks."""
    ranks, counts = _ranks(birds, labels, seed, "train", client)
    rows = []
    for bird in birds:
        y = int(labels[bird])
        side = y if ranks[bird] < own_side(p, counts[y]) else 1 - y
        rows.append(len(pictures))
        # An empty deck is noticed when all are dealt, so that the error can say how many are missing.
        pictures.append((client, bird, side, decks[side].pop() if decks[side] else -1))
    return rows


def _test_pictures(
    settings: BirdSettings,
    client: int,
    birds: list[int],
    rest: list[int],
    labels: Tensor,
    seed: int,
    decks: list[list[int]],
    pictures: list[tuple[int, int, int, int]],
    where: str,
) -> tuple[list[int], dict[str, set[int]]]:
    """Rows of one client's test pictures, and for each test context those that belong to it."""
    # A deck of its own for each client, of what training left: within a test context none is used twice.
    own_decks = [
        [deck[place] for place in torch.randperm(len(deck), generator=generator(seed, "test", side, client)).tolist()]
        for side, deck in enumerate(decks)
    ]
    needed = _needed(settings, [int((labels[birds] == y).sum()) for y in (LAND, WATER)])
    for side in (LAND, WATER):
        _check_backgrounds(where, f"the test of client {client}", side, needed[side], len(own_decks[side]))
    room = [len(deck) - count for deck, count in zip(own_decks, needed, strict=True)]
    rest = rest[: _most_that_fit(settings, labels[rest], room)]
    rows: list[int] = []
    members: dict[str, set[int]] = {}
    for suffix, group in (("", birds), (LEFT_OVER, rest)):
        ranks, counts = _ranks(group, labels, seed, f"test{suffix}", client)
        placed: dict[tuple[int, int], int] = {}
        for p in settings.p_test:
            chosen = members.setdefault(case_name(p) + suffix, set()) if group else set()
            for bird in group:
                y = int(labels[bird])
                side = y if ranks[bird] < own_side(p, counts[y]) else 1 - y
                if (bird, side) not in placed:
                    placed[bird, side] = len(pictures)
                    rows.append(len(pictures))
                    pictures.append((client, bird, side, own_decks[side].pop()))
                chosen.add(placed[bird, side])
    return rows, members


def _ranks(birds: list[int], labels: Tensor, seed: int, purpose: str, client: int) -> tuple[dict[int, int], list[int]]:
    """The place of each bird in a random order of its class, and how many birds each class has."""
    ranks: dict[int, int] = {}
    counts = []
    for y in (LAND, WATER):
        members = [bird for bird in birds if int(labels[bird]) == y]
        order = torch.randperm(len(members), generator=generator(seed, "sides", purpose, client, y)).tolist()
        ranks |= {bird: place for bird, place in zip(members, order, strict=True)}
        counts.append(len(members))
    return ranks, counts


def _needed(settings: BirdSettings, counts: list[int]) -> list[int]:
    """Backgrounds of each side that so many landbirds and waterbirds need over all test contexts."""
    own = [own_side(max(settings.p_test), count) for count in counts]
    other = [count - own_side(min(settings.p_test), count) for count in counts]
    return [own[LAND] + other[WATER], own[WATER] + other[LAND]]


def _most_that_fit(settings: BirdSettings, labels: Tensor, room: list[int]) -> int:
    """How many of these birds, from the first on, find backgrounds."""
    for many in range(len(labels), 0, -1):
        waterbirds = int(labels[:many].sum())
        needed = _needed(settings, [many - waterbirds, waterbirds])
        if needed[LAND] <= room[LAND] and needed[WATER] <= room[WATER]:
            return many
    return 0


def _check_backgrounds(where: str, what: str, side: int, needed: int, there: int) -> None:
    if needed > there:
        raise UserError(
            f"{where}: {what} needs {needed} photographs of {SIDES[side]} and {there} are there: "
            f"{needed - there} are missing."
        )


def bird_federation(
    name: str, settings: BirdSettings, plan: Plan, images: Tensor, notes: dict[str, object]
) -> Federation:
    """The federation of a plan and its pictures, uint8 [K, 3, size, size]. Test contexts share one tensor of images.

    The context of a test sample is its side, so that class and context together name its group.
    """
    side = plan.pictures[:, 2]
    held = torch.zeros(settings.train_per_client, dtype=torch.bool)
    held[: settings.holdout] = True  # what lies there was drawn at random

    def gather(rows: Tensor, context: Tensor) -> Split:
        return Split(images[rows], plan.y[rows].float(), context)

    train = _drawn_rows(plan.train[:, ~held], plan.y, settings.sampling)
    trained = gather(train.clamp(min=0), torch.where(train < 0, -1, 0))
    validation = gather(plan.train[:, held], torch.zeros(settings.clients, settings.holdout, dtype=torch.int64))
    if settings.leave_out >= 0:
        others = [i for i in range(settings.clients) if i != settings.leave_out]
        rows = plan.train[settings.leave_out].expand(len(others), -1)
        trained = Split(*(part[others] for part in trained))
        validation = Split(*(part[others] for part in validation))
        tests = {"left-out": gather(rows, side[rows])}
    else:
        pool = gather(plan.tests.clamp(min=0), side[plan.tests.clamp(min=0)])
        tests = {case: pool._replace(context=pool.context.where(rows, -1)) for case, rows in plan.cases.items()}
    spectrum = tuple(case for case in tests if not case.endswith(LEFT_OVER))
    return Federation(
        name=name,
        task="binary",
        outputs=1,
        contexts=1,
        train=trained,
        tests=tests,
        spectrum=spectrum,
        validation=validation if settings.holdout and settings.leave_out < 0 else None,
        notes={
            **notes,
            "constant": constant_scores("binary", trained, tests),
            "sizes": (trained.context >= 0).sum(1).tolist(),
            "contexts": [1] * trained.y.shape[0],
            "groups": {
                "names": list(GROUPS),
                "counts": {case: group_counts(split) for case, split in tests.items()},
                "majority": [int(guess) for guess in constant_guesses("binary", trained)],
            },
        },
        groups=GROUPS,
        augmentation=Augmentation(settings.flip, settings.crop, settings.middle),
    )


def group_counts(split: Split) -> list[list[int]]:
    """Per client, how many real samples each group has."""
    group = torch.where(split.context < 0, -1, 2 * split.y.long() + split.context)
    return [[int((row == g).sum()) for g in range(len(GROUPS))] for row in group]


def _drawn_rows(rows: Tensor, y: Tensor, sampling: str) -> Tensor:
    """[N, M'] rows that batches are drawn from; where classes are balanced, the rarer one is repeated in turn."""
    if sampling == "natural":
        return rows
    balanced = []
    for own in rows:
        classes = [own[y[own] == side] for side in (LAND, WATER)]
        most = max(map(len, classes))
        balanced.append(torch.cat([part[torch.arange(most) % len(part)] for part in classes if len(part)]))
    width = max(map(len, balanced))
    return torch.stack([torch.nn.functional.pad(part, (0, width - len(part)), value=-1) for part in balanced])
