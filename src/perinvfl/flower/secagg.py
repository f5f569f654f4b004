"""Secure aggregation: the server learns the sum of the updates and no single one (SecAgg+, Bell et al. 2020).

Key agreement, secret sharing and the four stages are Flower's, used from its client mod. Two things are done here:

- A masked update is one vector of 32-bit numbers, as large as ν; Flower's is twice that.
- Masks are the ChaCha20 stream of the shared key. Flower 1.41 draws them from a generator seeded with 32 bits, which a
  server could try out one by one.

What a method sends beside its update (SCAFFOLD's control variates) follows it in the vector, and the risk is the last
entry: of all of them only the mean is seen.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy

from perinvfl.flower.adapter.messages import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from perinvfl.flower.adapter.secagg import (
    RECORD_KEY_CONFIGS,
    Key,
    SecAggPlusState,
    Stage,
    agree_on_key,
    combine_shares,
    enter_stage,
    give_unmasking_shares,
    is_public_key,
    keep_state,
    make_keys,
    open_key_shares,
    share_keys,
)
from perinvfl.flower.codec import CONTROL, FLAT, NUMBERS, TASK, UPDATE, Rejected
from perinvfl.flower.limits import LARGEST_SECRET
from perinvfl.flower.masked_vectors import MASKED, decode_masked, encode, mask, quantize
from perinvfl.flower.transport import Answer, Transport

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
    state, configs = enter_stage(message, context)
    content = RecordDict()
    given: dict[str, Any] = {}
    if state.current_stage == Stage.SETUP:
        given = make_keys(state, configs, message.metadata.dst_node_id)
    elif state.current_stage == Stage.SHARE_KEYS:
        given = share_keys(state, configs)
    elif state.current_stage == Stage.COLLECT_MASKED_VECTORS:
        seen = bool(message.content.config_records[TASK].get("risks_seen", False))
        content = _masked(state, configs, call_next(message, context).content, seen)
    else:
        _check_unmasking(state, configs)
        given = give_unmasking_shares(state, configs)
    keep_state(context, state)
    content[RECORD_KEY_CONFIGS] = ConfigRecord(given)
    return Message(content, reply_to=message)


def _masked(state: SecAggPlusState, configs: ConfigRecord, upload: RecordDict, seen: bool) -> RecordDict:
    """The upload as numbers modulo 2^32, plus this site's own mask and one with each other site."""
    sent = [upload.array_records[part][FLAT].data for part in (UPDATE, CONTROL) if part in upload.array_records]
    update = numpy.concatenate([numpy.frombuffer(data, dtype="<f4") for data in sent])
    numbers: dict[str, Any] = dict(upload.metric_records[NUMBERS])
    risk = numbers.get("risk", 0.0)
    if not seen:
        numbers.pop("risk", None)
    vector = quantize(numpy.append(update, numpy.float32(risk)), state.clipping_range, state.target_range)
    others = _keep_key_shares(state, configs)
    if len(others) + 1 < state.threshold:
        raise ValueError("too few sites take part for their updates to be hidden")
    vector = vector + mask(state.rd_seed, vector.size)
    for other in others:
        pairwise = mask(agree_on_key(state.sk1, state.public_keys_dict[other][0]), vector.size)
        vector = vector + pairwise if state.nid > other else vector - pairwise
    return RecordDict({MASKED: ArrayRecord({"vector": encode(vector)}), NUMBERS: MetricRecord(numbers)})


def _keep_key_shares(state: SecAggPlusState, configs: ConfigRecord) -> list[int]:
    """Keep the shares that the others sent in the stage before; who they are."""
    sources: Any = configs[Key.SOURCE_LIST]
    ciphertexts: Any = configs[Key.CIPHERTEXT_LIST]
    for source, ciphertext in zip(sources, ciphertexts, strict=True):
        shares = open_key_shares(state.ss2_dict[source], ciphertext)
        if shares.sender != source or shares.receiver != state.nid:
            raise ValueError("a key share has the wrong sender or receiver")
        state.rd_seed_share_dict[source], state.sk1_share_dict[source] = shares.seed, shares.key
    return list(sources)


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
    """The mean of the sites' vectors, the numbers that came with each, and who was left out and why.

    size: numbers in a vector, the risk included.
    """
    secure = SecureSum(post, questions, round, timeout, clipping_range, size)
    public_keys = secure.setup()
    key_shares = secure.share_keys(public_keys)
    vectors, numbers = secure.collect_masked_vectors(key_shares, heard)
    total = secure.unmask(vectors, public_keys, took_part=key_shares)
    mean = total.astype(numpy.float64) * (2 * clipping_range / secure.target) / len(vectors) - clipping_range
    return mean, numbers, secure.left_out


@dataclass
class SecureSum:
    """One sum, as the server forms it: four stages, in each a question to every site that answered the one before."""

    post: Transport
    questions: dict[int, RecordDict]
    round: int
    timeout: float
    clipping_range: float
    size: int
    left_out: dict[int, Rejected] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.questions)
        self.node = {client: self.post.node(client) for client in self.questions}
        self.client_of = {number: client for client, number in self.node.items()}
        self.threshold = count // 2 + 1
        self.target = 2 ** (31 - max(1, math.ceil(math.log2(count))))  # the sum must stay below the modulus

    def setup(self) -> dict[int, list[Any]]:
        """Stage 1: the two public keys of each site, by node."""
        fields = {
            Key.SAMPLE_NUMBER: len(self.questions),
            Key.SHARE_NUMBER: len(self.questions),
            Key.THRESHOLD: self.threshold,
            Key.CLIPPING_RANGE: float(self.clipping_range),
            Key.TARGET_RANGE: self.target,
            Key.MOD_RANGE: MODULUS,
            Key.MAX_WEIGHT: 1.0,
        }
        answers = self._ask(Stage.SETUP, dict.fromkeys(self.questions, fields))
        return {
            self.node[client]: _fields(answer, Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2) for client, answer in answers.items()
        }

    def share_keys(self, public_keys: dict[int, list[Any]]) -> dict[int, dict[str, Any]]:
        """Stage 2: all public keys to each site; what the sites have for each other, encrypted, by whom it is for."""
        keys = {str(number): pair for number, pair in public_keys.items()}
        answers = self._ask(Stage.SHARE_KEYS, {self.client_of[number]: dict(keys) for number in public_keys})
        letters: dict[int, list[tuple[int, bytes]]] = {self.node[client]: [] for client in answers}
        for client, answer in answers.items():
            for to, letter in zip(*_fields(answer, Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST), strict=True):
                if to in letters:
                    letters[to].append((self.node[client], letter))
        return {
            self.client_of[to]: {Key.SOURCE_LIST: [s for s, _ in sent], Key.CIPHERTEXT_LIST: [text for _, text in sent]}
            for to, sent in letters.items()
        }

    def collect_masked_vectors(
        self, key_shares: dict[int, dict[str, Any]], heard: Callable[[int], None] | None
    ) -> tuple[dict[int, Any], dict[int, dict[str, Any]]]:
        """Stage 3: the shares on to whom they are for, together with the question; the masked vectors, and the rest."""
        answers = self._ask(Stage.COLLECT_MASKED_VECTORS, key_shares, heard)
        vectors, numbers = {}, {}
        for client, answer in answers.items():
            try:
                vectors[client], numbers[client] = decode_masked(answer, self.size)
            except Rejected as why:
                self.left_out[client] = why
        if len(vectors) < self.threshold:
            usable = f"{len(vectors)} usable answers of {len(self.questions)}"
            raise TooFew(f"{usable}, and {self.threshold} are needed", self.left_out)
        return vectors, numbers

    def unmask(self, vectors: dict[int, Any], public_keys: dict[int, list[Any]], took_part: Collection[int]) -> Any:
        """Stage 4: what takes the masks off, which is the own seeds of who counts and the keys of who dropped out."""
        active = [self.node[client] for client in took_part if client in vectors]
        dead = [self.node[client] for client in took_part if client not in vectors]
        lists = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
        answers = self._ask(Stage.UNMASK, {client: dict(lists) for client in vectors})
        secrets = self._combine(answers, active + dead)
        total = numpy.zeros(self.size, dtype=numpy.uint32)
        for vector in vectors.values():
            total = total + vector
        for number in active:
            total = total - mask(secrets[number], self.size)
        for number in dead:
            for other in active:  # the masks it would have cancelled
                pairwise = mask(agree_on_key(secrets[number], public_keys[other][0]), self.size)
                total = total + pairwise if number > other else total - pairwise
        return total

    def _combine(self, answers: dict[int, RecordDict], numbers: list[int]) -> dict[int, bytes]:
        """The secret of each of these nodes, from the shares that came back; without one site's, if that is needed."""
        for client in (None, *answers):
            rest = {other: answer for other, answer in answers.items() if other != client}
            shares = self._shares(rest, numbers)
            try:
                secrets = {number: combine_shares(collected) for number, collected in shares.items()}
            except (ValueError, IndexError, OverflowError):
                continue
            if client is not None:
                self.left_out[client] = Rejected("gave a wrong share of a secret")
            return secrets
        raise TooFew("the shares of a secret do not fit together: sites gave wrong ones", {})

    def _shares(self, answers: dict[int, RecordDict], numbers: list[int]) -> dict[int, list[bytes]]:
        """Of the secret of each of these nodes."""
        shares: dict[int, list[bytes]] = {number: [] for number in numbers}
        for answer in answers.values():
            for owner, share in zip(*_fields(answer, Key.NODE_ID_LIST, Key.SHARE_LIST), strict=True):
                if owner in shares:
                    shares[owner].append(share)
        for collected in shares.values():
            if len(collected) < self.threshold:
                raise TooFew(f"{len(collected)} shares of a secret came back, and {self.threshold} are needed", {})
        return shares

    def _ask(
        self, stage: str, fields: dict[int, dict[str, Any]], heard: Callable[[int], None] | None = None
    ) -> dict[int, RecordDict]:
        """One stage: these fields to these sites, and the answers that have what the stage asks for."""
        contents = {}
        for client, given in fields.items():
            content = self.questions[client] if stage == Stage.COLLECT_MASKED_VECTORS else RecordDict()
            content[RECORD_KEY_CONFIGS] = ConfigRecord({Key.STAGE: stage, **given})
            contents[client] = content
        fine = {}
        for client, answer in self.post.ask(MessageType.TRAIN, contents, self.round, self.timeout, heard).items():
            if isinstance(answer, Rejected):
                self.left_out[client] = answer
            elif not _gives(answer, stage, len(self.questions)):
                self.left_out[client] = Rejected(f"does not give what stage {stage} asks for")
            else:
                fine[client] = answer
        if len(fine) < self.threshold:
            answered = f"{len(fine)} of {len(self.questions)} sites answered in stage {stage}"
            raise TooFew(f"{answered}, and {self.threshold} are needed", self.left_out)
        return fine


def _gives(answer: RecordDict, stage: str, sites: int) -> bool:
    """Whether an answer has what the stage asks for: two public keys, or whom each of some secrets is for or of."""
    record = answer.config_records.get(RECORD_KEY_CONFIGS, ConfigRecord())
    given: list[Any] = [record.get(key) for key in GIVEN[stage]]
    if stage == Stage.SETUP:
        return all(isinstance(key, bytes) and len(key) <= LARGEST_SECRET and is_public_key(key) for key in given)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        return True
    numbers, secrets = given
    return (
        isinstance(numbers, list)
        and isinstance(secrets, list)
        and len(numbers) == len(secrets) <= sites
        and len(set(map(str, numbers))) == len(numbers)
        and all(type(number) is int for number in numbers)
        and all(isinstance(secret, bytes) and len(secret) <= LARGEST_SECRET for secret in secrets)
    )


def _fields(answer: Answer, *names: str) -> list[Any]:
    assert isinstance(answer, RecordDict)
    record = answer.config_records[RECORD_KEY_CONFIGS]
    return [record[name] for name in names]
