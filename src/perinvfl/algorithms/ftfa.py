"""FTFA: Cheng, Chadha & Duchi, Fine-tuning is Fine in Federated Learning, 2021."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import Purpose
from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.algorithms.personal import FineTuned


@dataclass(frozen=True)
class FTFA(FineTuned, FedAvg):
    """FedAvg to the end, then plain gradient steps on each client's own risk."""

    title: ClassVar[str] = "FTFA"
    paper: ClassVar[str] = "Cheng, Chadha & Duchi 2021"
    purpose: ClassVar[Purpose] = "personal"
