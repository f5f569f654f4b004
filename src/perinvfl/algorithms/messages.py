"""What goes back and forth in a round, and what stays: four types that say who sees what."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from perinvfl.core.optimizers import Moments
from perinvfl.core.tree import EMPTY, Params
from perinvfl.errors import UserError
from perinvfl.learning.problem import Number


class Broadcast(NamedTuple):
    """What one client receives at the start of a round."""

    params: Params  #: ν^t; where a part of the model is personal, the rest of it
    weight: Tensor  #: the weight of this client's risk in the global objective: N q_i for GroupDRO, else 1
    round: Number  #: t
    control: Params = EMPTY  #: the server's control variate, c of SCAFFOLD; empty for other methods


class Upload(NamedTuple):
    """All that a client sends to the server: never θᵢ, never data."""

    update: Params  #: ν_{i,R} − ν^t, summed step by step: a difference of two models rounds small steps away
    risk: Tensor  #: R(ν^t; D_i), one number
    #: A second set of numbers, of which the server needs the mean alone: SCAFFOLD's change of the control variate,
    #: c_i⁺ − c_i, or FedNova's share of steps. Empty for other methods; `start_control` declares it.
    control: Params = EMPTY


class Combined(NamedTuple):
    """The uploads of a round, combined."""

    update: Params  #: by the algorithm's aggregation
    control: Params = EMPTY  #: the mean


class ClientState(NamedTuple):
    """What stays with the client between rounds. Parts an algorithm does not use are empty."""

    personal: Params  #: θ_i
    personal_moments: Moments
    moments: Moments  #: of the local optimizer of ν
    weights: Params  #: its own weights: {"q": [K]} of GroupDRO, APFL's α, FedALA's W
    last: Tensor  #: the round it last took part in; -1 before the first
    control: Params = EMPTY  #: c_i of SCAFFOLD


class ServerState(NamedTuple):
    """What stays with the server between rounds."""

    params: Params  #: ν
    moments: Moments
    weights: Tensor  #: q, [N]
    round: Tensor  #: t, number of rounds done
    control: Params = EMPTY  #: c of SCAFFOLD, the mean share of steps of FedNova
    average: Params = EMPTY  #: mean of ν over rounds, where that is what predicts

    @property
    def in_use(self) -> Params:
        """The ν that predicts and is evaluated; training goes on from `params`."""
        return self.average or self.params


class WithheldRisks:
    """What the server of an algorithm gets instead of the clients' risks, unless it declares that it needs them.

    Any use is an error, on one machine as across machines: else a method that weighs clients by their risks would slip
    past secure aggregation, which shows the server their mean alone.
    """

    def __init__(self, title: str) -> None:
        self._title = title

    def __getattr__(self, name: str) -> Any:
        raise self._refusal()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        raise next(part for part in _flat((*args, *(kwargs or {}).values())) if isinstance(part, cls))._refusal()

    def _refusal(self) -> UserError:
        return UserError(
            f"{self._title} looks at the risks of single clients in `server` without saying so; declare "
            "needs_risks: ClassVar[bool] = True on its class."
        )


def _refuse(self: WithheldRisks, *others: Any) -> Any:
    raise self._refusal()


# Python looks operators up on the class.
for _name in [
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "pow",
    "rpow",
    "matmul",
    "rmatmul",
    "neg",
    "abs",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "getitem",
    "len",
    "iter",
    "float",
    "int",
    "bool",
]:
    setattr(WithheldRisks, f"__{_name}__", _refuse)


def _flat(parts: Iterable[Any]) -> Iterator[Any]:
    """All that stands in lists and tuples."""
    for part in parts:
        if isinstance(part, list | tuple):
            yield from _flat(part)
        else:
            yield part
