"""Flower's SecAgg+: the names of its stages and fields, what a site does in each, and its cryptography.

Private in Flower: `_setup`, `_share_keys` and `_unmask` of its client mod, which we use without the mod itself.
"""

from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _setup,
    _share_keys,
    _unmask,
    check_configs,
    check_stage,
)
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from perinvfl.flower.adapter.messages import ConfigRecord, Context, Message

__all__ = [
    "RECORD_KEY_CONFIGS",
    "Key",
    "KeyShares",
    "SecAggPlusState",
    "Stage",
    "agree_on_key",
    "combine_shares",
    "enter_stage",
    "give_unmasking_shares",
    "is_public_key",
    "keep_state",
    "make_keys",
    "open_key_shares",
    "share_keys",
]


def enter_stage(message: Message, context: Context) -> tuple[SecAggPlusState, ConfigRecord]:
    """A site's state, now in the stage that a message asks for, and what comes with it; ValueError out of turn."""
    state = SecAggPlusState(**context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord({})))
    configs = message.content.config_records[RECORD_KEY_CONFIGS]
    check_stage(state.current_stage, configs)
    state.current_stage = str(configs.pop(Key.STAGE))
    check_configs(state.current_stage, configs)
    return state, configs


def keep_state(context: Context, state: SecAggPlusState) -> None:
    """Keep a site's state until its next stage; Flower's `to_dict` takes it apart, so it is of no use after this."""
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())


def make_keys(state: SecAggPlusState, configs: ConfigRecord, node: int) -> dict[str, Any]:
    """Stage 1, SETUP, at a site: new keys; the public ones are told."""
    state.nid = node
    return dict(_setup(state, configs))


def share_keys(state: SecAggPlusState, configs: ConfigRecord) -> dict[str, Any]:
    """Stage 2, SHARE_KEYS, at a site: its two secrets in shares, each encrypted for one other site."""
    return dict(_share_keys(state, configs))


def give_unmasking_shares(state: SecAggPlusState, configs: ConfigRecord) -> dict[str, Any]:
    """Stage 4, UNMASK, at a site: shares of the seeds of who is active and of the keys of who is dead."""
    return dict(_unmask(state, configs))


class KeyShares(NamedTuple):
    """What one site sends another in stage 2: a share of each of its two secrets."""

    sender: int
    receiver: int
    seed: bytes
    key: bytes


def open_key_shares(shared_key: bytes, ciphertext: bytes) -> KeyShares:
    return KeyShares(*share_keys_plaintext_separate(decrypt(shared_key, ciphertext)))


def agree_on_key(private: bytes, public: bytes) -> bytes:
    """The secret that two sites share, from the private key of one and the public key of the other."""
    return generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))


def is_public_key(public: bytes) -> bool:
    """Whether other sites can agree on a secret with it: a point on the curve that Flower's own keys are on."""
    try:
        return isinstance(bytes_to_public_key(public).curve, SECP384R1)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        return False
