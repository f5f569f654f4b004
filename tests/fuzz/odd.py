"""Odd values, and mutations of bytes and of nested values."""

import copy
import datetime
import json
import math
import random
from typing import Any

TEXTS = (
    "", " ", "[/b]", "[bold red]", "glucose [mg/dl]", "\x1b[2J", "\0", "a\nb", "é" * 3, "😀", "\ud800", "../..", "/",
    "/dev/null", "9" * 5000, "1e999", "-1e-999", "nan", "NaN", "inf", "0x10", "1_000", "١٢", "²", "x" * 100_000, "None",
    "true", "json:dumps", ":", "a:b:c", "{}", "%s", "{0}", "<script>", "' OR 1=1", "2020-01-01", "label", "client",
    "context",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 100, 255, 256, 65_536, 10**6, 10**9, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    10**309, -(10**309), 16**6000, 0.0, -0.0, 0.5, 1.0, -1.0, 1e-30, 5e-324, 1e20, 3.5e38, 1e300, 1.8e308, -1e308,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    True, False, [], [[]], [0], [1, "a"], [True], [10**30], [math.nan], [0.1] * 1000, {}, {"a": 1},
    {"from": 1, "to": 2}, {"one_of": []}, {"one_of": [1, 10**30]}, {"from": 1e-300, "to": 1e300},
    datetime.date(2020, 1, 1),
    datetime.time(1, 2),
)  # fmt: skip


def as_json(value: Any) -> bytes:
    """As text, whatever it holds; what Python does not write is written by hand."""
    try:
        return json.dumps(value, default=str).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return b'{"a": ' + b"9" * 5000 + b', "b": ' + b"[" * 5000


def nested(depth: int, rng: random.Random) -> Any:
    made: Any = rng.choice([1, "a", None, []])
    for _ in range(depth):
        made = [made] if rng.random() < 0.5 else {"a": made}
    return made


def odd_value(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(NUMBERS)
    if kind < 0.6:
        return rng.choice(TEXTS)
    if kind < 0.85:
        return copy.deepcopy(rng.choice(OTHERS))
    if kind < 0.9:
        return nested(rng.choice((3, 50, 200)), rng)
    if kind < 0.95:
        return [odd_value(rng) for _ in range(rng.randrange(4))]
    return rng.randrange(-(10 ** rng.randrange(1, 40)), 10 ** rng.randrange(1, 40))


def mutate(value: Any, rng: random.Random) -> Any:
    """The same with a few changes somewhere inside."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        value = _mutate_once(value, rng)
    return value


def _mutate_once(value: Any, rng: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return odd_value(rng)
    holder, key = rng.choice(places)
    action = rng.random()
    if action < 0.5:
        holder[key] = odd_value(rng)
    elif action < 0.6:
        del holder[key]
    elif action < 0.7:
        source, other = rng.choice(places)
        if other in source if isinstance(source, dict) else other < len(source):
            holder[key] = copy.deepcopy(source[other])
    elif action < 0.8:
        holder[key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 50))
    elif action < 0.9 and isinstance(holder, dict):
        holder[rng.choice([text for text in TEXTS if "\ud800" not in text])] = holder.pop(key)
    elif isinstance(holder[key], int | float):
        holder[key] = (
            -holder[key]
            if rng.random() < 0.5
            else holder[key] * rng.choice((10, 1000, 10**12, 10**400 if isinstance(holder[key], int) else 0.1))
        )
    else:
        holder[key] = odd_value(rng)
    return value


def _places(value: Any, depth: int = 0) -> Any:
    if depth > 8:
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(pairs)[:60]:
        yield value, key
        yield from _places(part, depth + 1)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, doubled, spliced."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice((1, 1, 4, 8, 64)))
        action = rng.randrange(8)
        if action == 0:
            made[at:end] = rng.randbytes(end - at)
        elif action == 1:
            made[at:end] = b""
        elif action == 2:
            made[at:at] = made[at:end] * rng.choice((1, 2, 100))
        elif action == 3:
            made = made[:at]
        elif action == 4:
            made[at:at] = rng.choice(
                (b"\xff\xfe", b"\0", b"\xc3\x28", b"[" * 3000, b'"', b"9" * 5000, b"\xf0\x9f", b"\r", b"1e999")
            )
        elif action == 5 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif action == 6:
            made[at:end] = rng.choice((b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 8, (2**40).to_bytes(8, "little")))
        else:
            other = rng.randrange(len(made) + 1)
            made[at:at] = made[other : other + 30]
    return bytes(made)
