"""What travels under secure aggregation: vectors of 32-bit numbers, and the masks that are added to them."""

import hashlib
from typing import Any

import numpy
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from perinvfl.algorithms.messages import Combined
from perinvfl.core.tree import Params
from perinvfl.flower.adapter.messages import Array, RecordDict
from perinvfl.flower.codec import NUMBERS, Rejected, check_risk

MASKED = "masked"
UNSIGNED = "uint32"


def unflatten(vector: Any, update: Params, control: Params) -> tuple[Combined, float]:
    """From a mean vector: the mean update, the mean of what came beside it, both shaped like these, and the risk."""
    numbers = torch.from_numpy(vector)
    leaves = [*update.values(), *control.values()]
    split = numbers[:-1].split([leaf.numel() for leaf in leaves])
    parts = iter([part.view(leaf.shape).float() for leaf, part in zip(leaves, split, strict=True)])
    return Combined({name: next(parts) for name in update}, {name: next(parts) for name in control}), float(numbers[-1])


def quantize(numbers: Any, clipping_range: float, target: int) -> Any:
    """From [−c, c] to whole numbers from 0 to target, each the nearest."""
    cut = numpy.clip(numbers.astype(numpy.float64), -clipping_range, clipping_range)
    return numpy.rint((cut + clipping_range) * (target / (2 * clipping_range))).astype(numpy.uint32)


def mask(secret: bytes, size: int) -> Any:
    """[size] uint32: the key stream of a secret. The secret serves once, so the nonce may stay the same."""
    key = hashlib.sha256(b"perinvfl mask" + secret).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * size))
    return numpy.frombuffer(stream, dtype="<u4")


def encode(vector: Any) -> Array:
    return Array(dtype=UNSIGNED, shape=vector.shape, stype=UNSIGNED, data=vector.astype("<u4").tobytes())


def decode_masked(answer: RecordDict, size: int) -> tuple[Any, dict[str, Any]]:
    """The masked vector of one site and the numbers that came with it, or `Rejected`."""
    if MASKED not in answer.array_records or set(answer.array_records[MASKED].keys()) != {"vector"}:
        raise Rejected("is not a masked update")
    array = answer.array_records[MASKED]["vector"]
    if array.stype != UNSIGNED or len(array.data) != 4 * size:
        raise Rejected(f"is a masked update of {len(array.data)} bytes instead of {4 * size}")
    numbers = dict(answer.metric_records[NUMBERS]) if NUMBERS in answer.metric_records else {}
    if "risk" in numbers:
        check_risk(numbers["risk"])
    return numpy.frombuffer(array.data, dtype="<u4"), numbers
