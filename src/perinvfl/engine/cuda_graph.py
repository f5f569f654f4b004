"""One round recorded as a CUDA graph and replayed."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from perinvfl.core import tree

if TYPE_CHECKING:
    from perinvfl.engine.simulation import Simulation


class RecordedRound:
    """One round captured as a CUDA graph: launch overhead, most of a small round's time, is paid once."""

    def __init__(self, simulation: "Simulation", ids: Tensor, indices: Tensor | None) -> None:
        self.algorithm = simulation.algorithms[0].at(simulation.rounds_done)  # a recording is good for no other
        self.indices = None if indices is None else indices.clone()
        self.cohort = cohort = simulation.cohort(
            ids, self.indices
        )  # kept: the graph reads these tensors at every replay
        kept = tree.over(torch.clone, (simulation.server, simulation.store.states, simulation.broken))  # type: ignore[union-attr]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                simulation.advance(cohort)
        torch.cuda.current_stream().wait_stream(stream)
        server, states, simulation.broken = kept
        tree.over(lambda now, was: now.copy_(was), simulation.store.states, states)  # type: ignore[union-attr]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            simulation.server = server
            self.risks = simulation.advance(cohort)
            tree.over(lambda now, new: now.copy_(new), (server, kept[2]), (simulation.server, simulation.broken))
        simulation.server, simulation.broken = server, kept[2]

    def replay(self, indices: Tensor | None) -> Tensor:
        if self.indices is not None and indices is not None:
            self.indices.copy_(indices)
        self.graph.replay()
        return self.risks
