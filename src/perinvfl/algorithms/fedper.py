"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, 2019, Algorithms 1 and 2."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.parts import Part, PartlyPersonal


@dataclass(frozen=True)
class FedPer(PartlyPersonal):
    """The features W_B are averaged over clients; the head W_{P_i} is each client's own. Both are trained together.

    The paper keeps the last K_P layers personal; here K_P = 1.
    """

    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al. 2019"
    personal_part: ClassVar[Part] = "head"
