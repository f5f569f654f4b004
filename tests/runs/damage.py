"""Ways in which a file is damaged: cut, emptied, overwritten, bytes flipped, lines lost, doubled or exchanged."""

import random
from collections.abc import Iterator

Damage = tuple[str, bytes | None]  # what was done, and what is left of the file; None: not even its name


def damages(content: bytes, seed: int, cuts: int, flips: int) -> Iterator[Damage]:
    """All that change the file."""
    return (damage for damage in _attempts(content, seed, cuts, flips) if damage[1] != content)


def _attempts(content: bytes, seed: int, cuts: int, flips: int) -> Iterator[Damage]:
    rng = random.Random(seed)
    lines = content.splitlines(keepends=True)
    yield "removed", None
    yield "emptied", b""
    yield "one newline", b"\n"
    yield "its last newline lost", content[:-1]
    yield "zeros in place of all", bytes(len(content))
    yield "zeros behind the end", content + bytes(512)
    yield "text behind the end", content + b"and so on\n"
    for at in sorted(rng.sample(range(1, len(content) - 1), cuts)):
        yield f"cut after {at} bytes", content[:at]
    for n in range(1, len(lines)):
        yield f"cut after line {n}", b"".join(lines[:n])
    for n in range(len(lines)):
        yield f"line {n + 1} lost", b"".join(lines[:n] + lines[n + 1 :])
        yield f"line {n + 1} twice", b"".join(lines[: n + 1] + lines[n:])
        yield f"line {n + 1} zeros", b"".join([*lines[:n], bytes(len(lines[n]) - 1) + b"\n", *lines[n + 1 :]])
    for n in range(len(lines) - 1):
        yield (
            f"lines {n + 1} and {n + 2} exchanged",
            b"".join([*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]),
        )
    for at in rng.sample(range(len(content)), flips):
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.randrange(8)
        yield f"a bit of byte {at} flipped", bytes(flipped)
    for at in (place for place, byte in enumerate(content) if byte in b"0123456789"):
        if rng.random() < flips / len(content):  # a number that is still a number
            changed = bytearray(content)
            changed[at] = ord(str((int(chr(content[at])) + 1) % 10))
            yield f"the digit at byte {at} changed", bytes(changed)
    for size in (16, 512, 4096):
        at = rng.randrange(max(1, len(content) - size))
        yield f"{size} zeros at byte {at}", content[:at] + bytes(min(size, len(content) - at)) + content[at + size :]
        yield f"{size} bytes gone at byte {at}", content[:at] + content[at + size :]
