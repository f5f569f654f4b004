"""Few cases that hold every pair of choices: most faults need two settings to meet."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

Case = dict[str, str]
Pair = frozenset[tuple[str, str]]
TRIES = 60


def all_pairs(choices: Mapping[str, Sequence[str]], fits: Callable[[Case], bool]) -> list[Case]:
    """Cases that together hold every pair of choices that can stand in one case.

    fits: whether choices, some of them perhaps still open, can stand together.
    """
    rng = random.Random(0)
    open_pairs = {
        frozenset(((a, one), (b, other)))
        for a, b in itertools.combinations(choices, 2)
        for one in choices[a]
        for other in choices[b]
        if fits({a: one, b: other})
    }
    cases: list[Case] = []
    while open_pairs:
        seed_pair = min(open_pairs, key=sorted)
        found = [case for _ in range(TRIES) if (case := _completed(dict(seed_pair), choices, fits, rng)) is not None]
        if not found:
            open_pairs.discard(seed_pair)  # the two go together, but nothing goes with both
            continue
        best = max(found, key=lambda case: len(_pairs(case) & open_pairs))
        open_pairs -= _pairs(best)
        cases.append(best)
    return cases


def _completed(
    case: Case, choices: Mapping[str, Sequence[str]], fits: Callable[[Case], bool], rng: random.Random
) -> Case | None:
    names = [name for name in choices if name not in case]
    rng.shuffle(names)
    for name in names:
        possible = [option for option in choices[name] if fits({**case, name: option})]
        if not possible:
            return None
        case[name] = rng.choice(possible)
    return {name: case[name] for name in choices}


def _pairs(case: Case) -> set[Pair]:
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}
