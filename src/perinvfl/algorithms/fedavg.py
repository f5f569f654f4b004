"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """One global model, each client's risk minimised by R local steps, averaged."""

    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017"
