"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.parts import Part, PartlyPersonal


@dataclass(frozen=True)
class FedBN(PartlyPersonal):
    """FedAvg, but for the scales and shifts of norm layers, batch or group, which stay with each client.

    The statistics that a batch norm predicts with are measured at each client anyway. A model without norm layers is
    refused: FedBN would be FedAvg.
    """

    title: ClassVar[str] = "FedBN"
    paper: ClassVar[str] = "Li et al. 2021"
    personal_part: ClassVar[Part] = "norms"
