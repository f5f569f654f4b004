"""LG-FedAvg: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020,
Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.parts import Part, PartlyPersonal


@dataclass(frozen=True)
class LGFedAvg(PartlyPersonal):
    """The reverse of FedPer: the features ℓ_i are each client's own, the head g is averaged over clients.

    The paper may begin at a model that FedAvg has trained; here all begin at the same random model.
    """

    title: ClassVar[str] = "LG-FedAvg"
    paper: ClassVar[str] = "Liang et al. 2020"
    personal_part: ClassVar[Part] = "features"
