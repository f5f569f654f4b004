"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Upload
from perinvfl.problem import Batches, Problem


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """One global model, each client's risk minimised by R local steps, averaged."""

    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        upload, moments = self.local_training(problem, broadcast, state.moments, batches)
        return upload, state._replace(moments=moments)
