"""Secure aggregation: the server learns the sum of the updates and no single one (SecAgg+, Bell et al. 2020).

Key agreement, secret sharing and the four stages are Flower's, used from its client mod. Two things are done here:

- A masked update is one vector of 32-bit numbers, as large as ν; Flower's is twice that.
- Masks are the ChaCha20 stream of the shared key. Flower 1.41 draws them from a generator seeded with 32 bits, which a
  server could try out one by one.

The risk travels as the last entry of the vector, so that of the risks too only the mean is seen.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _setup,
    _share_keys,
    check_configs,
    check_stage,
)
from flwr.client.mod.secure_aggregation.secaggplus_mod import _unmask as _give_shares
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from perinvfl.core.tree import Params
from perinvfl.flower.codec import FLAT, TASK, TOLD, UPDATE, Rejected
from perinvfl.flower.transport import Answer, Transport

MASKED = "masked"
UNSIGNED = "uint32"
MODULUS = 2**32
GIVEN = {  # what a site must give in each stage
    Stage.SETUP: (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2),
    Stage.SHARE_KEYS: (Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST),
    Stage.COLLECT_MASKED_VECTORS: (),
    Stage.UNMASK: (Key.NODE_ID_LIST, Key.SHARE_LIST),
}


# The site's side ---------------------------------------------------------------------------------------------------


def masking(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod: what a site answers in each stage. Messages without a stage pass through."""
    if message.metadata.message_type != MessageType.TRAIN or RECORD_KEY_CONFIGS not in message.content.config_records:
        return call_next(message, context)
    kept = context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord({}))
    state = SecAggPlusState(**kept)
    configs = message.content.config_records[RECORD_KEY_CONFIGS]
    check_stage(state.current_stage, configs)
    state.current_stage = str(configs.pop(Key.STAGE))
    check_configs(state.current_stage, configs)
    content = RecordDict()
    told: dict[str, Any] = {}
    if state.current_stage == Stage.SETUP:
        state.nid = message.metadata.dst_node_id
        told = _setup(state, configs)
    elif state.current_stage == Stage.SHARE_KEYS:
        told = _share_keys(state, configs)
    elif state.current_stage == Stage.COLLECT_MASKED_VECTORS:
        seen = bool(message.content.config_records[TASK].get("risks_seen", False))
        content = _masked(state, configs, call_next(message, context).content, seen)
    else:
        _check_unmasking(state, configs)
        told = _give_shares(state, configs)
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    content[RECORD_KEY_CONFIGS] = ConfigRecord(told)
    return Message(content, reply_to=message)


def _masked(state: SecAggPlusState, configs: ConfigRecord, upload: RecordDict, seen: bool) -> RecordDict:
    """The update and the risk as numbers modulo 2^32, plus this site's own mask and one with each other site."""
    update = numpy.frombuffer(upload.array_records[UPDATE][FLAT].data, dtype="<f4")
    told: dict[str, Any] = dict(upload.metric_records[TOLD])
    risk = told.get("risk", 0.0)
    if not seen:
        told.pop("risk", None)
    vector = quantize(numpy.append(update, numpy.float32(risk)), state.clipping_range, state.target_range)
    others: list[int] = []
    sources: Any = configs[Key.SOURCE_LIST]
    ciphertexts: Any = configs[Key.CIPHERTEXT_LIST]
    for source, ciphertext in zip(sources, ciphertexts, strict=True):
        sender, receiver, seed_share, key_share = share_keys_plaintext_separate(
            decrypt(state.ss2_dict[source], ciphertext)
        )
        if sender != source or receiver != state.nid:
            raise ValueError("a share of a key is not from or not for whom it should be")
        state.rd_seed_share_dict[source], state.sk1_share_dict[source] = seed_share, key_share
        others.append(source)
    if len(others) + 1 < state.threshold:
        raise ValueError("too few sites take part for their updates to be hidden")
    vector = vector + mask(state.rd_seed, vector.size)
    for other in others:
        shared = generate_shared_key(
            bytes_to_private_key(state.sk1), bytes_to_public_key(state.public_keys_dict[other][0])
        )
        pairwise = mask(shared, vector.size)
        vector = vector + pairwise if state.nid > other else vector - pairwise
    return RecordDict({MASKED: ArrayRecord({"vector": _encode(vector)}), TOLD: MetricRecord(told)})


def _check_unmasking(state: SecAggPlusState, configs: ConfigRecord) -> None:
    """A server that had both secrets of one site could take its masks off."""
    active, dead = set(configs[Key.ACTIVE_NODE_ID_LIST]), set(configs[Key.DEAD_NODE_ID_LIST])  # type: ignore[arg-type]
    if active & dead or state.nid not in active:
        raise ValueError("both secrets of one site were asked for")


# The server's side -------------------------------------------------------------------------------------------------


class TooFew(Exception):
    """So many sites left that what is left cannot be added up."""

    def __init__(self, why: str, left_out: dict[int, Rejected]) -> None:
        super().__init__(why)
        self.left_out = left_out


def collect(
    post: Transport,
    questions: dict[int, RecordDict],
    round: int,
    timeout: float,
    clipping_range: float,
    size: int,
    heard: Callable[[int], None] | None = None,
) -> tuple[Any, dict[int, dict[str, Any]], dict[int, Rejected]]:
    """The mean of the sites' vectors, what each told besides, and who was left out and why.

    size: numbers in a vector, the risk included.
    """
    node = {client: post.node(client) for client in questions}
    client_of = {number: client for client, number in node.items()}
    threshold = len(questions) // 2 + 1
    target = 2 ** (31 - max(1, math.ceil(math.log2(len(questions)))))  # the sum must stay below the modulus
    left_out: dict[int, Rejected] = {}

    def stage(
        told: dict[int, dict[str, Any]], name: str, notify: Callable[[int], None] | None = None
    ) -> dict[int, RecordDict]:
        contents = {}
        for client, fields in told.items():
            content = questions[client] if name == Stage.COLLECT_MASKED_VECTORS else RecordDict()
            content[RECORD_KEY_CONFIGS] = ConfigRecord({Key.STAGE: name, **fields})
            contents[client] = content
        answers = post.ask(MessageType.TRAIN, contents, round, timeout, notify)
        fine = {}
        for client, answer in answers.items():
            if isinstance(answer, Rejected):
                left_out[client] = answer
            elif any(key not in answer.config_records.get(RECORD_KEY_CONFIGS, {}) for key in GIVEN[name]):
                left_out[client] = Rejected(f"does not give what stage {name} asks for")
            else:
                fine[client] = answer
        if len(fine) < threshold:
            why = f"{len(fine)} of {len(questions)} sites answered in stage {name}, and {threshold} are needed"
            raise TooFew(why, left_out)
        return fine

    setup = {
        Key.SAMPLE_NUMBER: len(questions),
        Key.SHARE_NUMBER: len(questions),
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: float(clipping_range),
        Key.TARGET_RANGE: target,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1.0,
    }
    introduced = stage(dict.fromkeys(questions, setup), Stage.SETUP)
    keys = {node[client]: _fields(answer, Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2) for client, answer in introduced.items()}
    addressed = {str(number): pair for number, pair in keys.items()}
    shared = stage({client: dict(addressed) for client in introduced}, Stage.SHARE_KEYS)
    letters: dict[int, list[tuple[int, bytes]]] = {node[client]: [] for client in shared}
    for client, answer in shared.items():
        for to, letter in zip(*_fields(answer, Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST), strict=True):
            if to in letters:
                letters[to].append((node[client], letter))
    forwarded = {
        client_of[to]: {Key.SOURCE_LIST: [s for s, _ in sent], Key.CIPHERTEXT_LIST: [text for _, text in sent]}
        for to, sent in letters.items()
    }
    answers = stage(forwarded, Stage.COLLECT_MASKED_VECTORS, heard)
    vectors, told = {}, {}
    for client, answer in answers.items():
        try:
            vectors[client], told[client] = _decode(answer, size)
        except Rejected as why:
            left_out[client] = why
    if len(vectors) < threshold:
        raise TooFew(f"{len(vectors)} usable answers of {len(questions)}, and {threshold} are needed", left_out)
    total = numpy.zeros(size, dtype=numpy.uint32)
    for vector in vectors.values():
        total = total + vector
    total = _unmask(total, stage, {c: node[c] for c in shared}, set(vectors), threshold, keys)
    mean = total.astype(numpy.float64) * (2 * clipping_range / target) / len(vectors) - clipping_range
    return mean, told, left_out


def _unmask(
    total: Any,
    stage: Callable[..., dict[int, RecordDict]],
    took_part: dict[int, int],
    counted: set[int],
    threshold: int,
    keys: dict[int, list[Any]],
) -> Any:
    """Ask those who are left for what takes the masks off: the own seeds of who counts, the keys of who dropped out."""
    active = [number for client, number in took_part.items() if client in counted]
    dead = [number for client, number in took_part.items() if client not in counted]
    lists = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
    answers = stage({client: dict(lists) for client in counted}, Stage.UNMASK)
    shares: dict[int, list[bytes]] = {number: [] for number in took_part.values()}
    for answer in answers.values():
        for owner, share in zip(*_fields(answer, Key.NODE_ID_LIST, Key.SHARE_LIST), strict=True):
            if owner in shares:
                shares[owner].append(share)
    for number, collected in shares.items():
        if len(collected) < threshold:
            raise TooFew(f"{len(collected)} shares of a secret came back, and {threshold} are needed", {})
        secret = combine_shares(collected)
        if number in active:
            total = total - mask(secret, total.size)
            continue
        for other in active:  # the masks it would have cancelled
            pairwise = mask(
                generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(keys[other][0])), total.size
            )
            total = total + pairwise if number > other else total - pairwise
    return total


def unflatten(vector: Any, like: Params) -> tuple[Params, float]:
    """The mean update and the mean risk from a mean vector."""
    numbers = torch.from_numpy(vector)
    parts = numbers[:-1].split([leaf.numel() for leaf in like.values()])
    update = {name: part.view(leaf.shape).float() for (name, leaf), part in zip(like.items(), parts, strict=True)}
    return update, float(numbers[-1])


def quantize(numbers: Any, clipping_range: float, target: int) -> Any:
    """From [−c, c] to whole numbers from 0 to target, each the nearest."""
    cut = numpy.clip(numbers.astype(numpy.float64), -clipping_range, clipping_range)
    return numpy.rint((cut + clipping_range) * (target / (2 * clipping_range))).astype(numpy.uint32)


def mask(secret: bytes, size: int) -> Any:
    """[size] uint32: the key stream of a secret. The secret serves once, so the nonce may stay the same."""
    key = hashlib.sha256(b"perinvfl mask" + secret).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * size))
    return numpy.frombuffer(stream, dtype="<u4")


def _encode(vector: Any) -> Array:
    return Array(dtype=UNSIGNED, shape=vector.shape, stype=UNSIGNED, data=vector.astype("<u4").tobytes())


def _decode(answer: RecordDict, size: int) -> tuple[Any, dict[str, Any]]:
    if MASKED not in answer.array_records or set(answer.array_records[MASKED].keys()) != {"vector"}:
        raise Rejected("is not a masked update")
    array = answer.array_records[MASKED]["vector"]
    if array.stype != UNSIGNED or len(array.data) != 4 * size:
        raise Rejected(f"is a masked update of {len(array.data)} bytes instead of {4 * size}")
    told = dict(answer.metric_records[TOLD]) if TOLD in answer.metric_records else {}
    return numpy.frombuffer(array.data, dtype="<u4"), told


def _fields(answer: Answer, *names: str) -> list[Any]:
    assert isinstance(answer, RecordDict)
    record = answer.config_records[RECORD_KEY_CONFIGS]
    return [record[name] for name in names]
