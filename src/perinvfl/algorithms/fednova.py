"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, LocalSteps, ServerState, Upload
from perinvfl.core import tree
from perinvfl.core.hyper import OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Problem


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Clients take different numbers of steps τ_i, and send the mean step d_i = Δ_i / τ_i instead of the sum.

    With the sum, a client that takes more steps would count more. The server moves by τ_eff = Σ p_i τ_i mean steps, so
    τ_i travels beside d_i, as a share of R, and of both the mean is enough. Where all clients take as many steps, it
    is FedAvg.
    """

    title: ClassVar[str] = "FedNova"
    paper: ClassVar[str] = "Wang et al. 2020"
    unused: ClassVar[tuple[str, ...]] = ("optimizer",)

    local_steps: int = hyper(
        10,
        "largest number of steps that a client takes in a round, however many samples it has, so that large "
        "clients do not hold up the others; 10 keeps rounds short",
        symbol="R",
        least=1,
    )
    epochs: float = hyper(
        1.0,
        "passes over its own samples that a client makes in a round, at most local_steps steps, so that "
        "clients with more data take more steps; with 1 it sees about each sample once; without mini-batches "
        "a pass is one step",
        symbol="E",
        above=0,
        search=OneOf((1.0, 2.0, 5.0)),
    )

    def start_control(self, params: Params) -> Params:
        return {"share": next(iter(params.values())).new_ones(())}

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        tau = self.steps_of(batches)
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        for r in range(self.local_steps):
            steps = self.local_step(problem, broadcast, steps, batches, r).unless(r >= tau, steps)
        upload = steps.upload()
        mean_step = tree.map(lambda total: total / tau, upload.update)  # d_i = Δ_i / τ_i
        return upload._replace(update=mean_step, control={"share": tau / self.local_steps}), state

    def steps_of(self, batches: Batches) -> Tensor:
        """τ_i = ⌈E n_i / B⌉, at most R."""
        samples = (batches.data.context >= 0).sum()
        batch = samples if batches.indices is None else batches.indices.shape[-1]
        return (self.epochs * samples / batch).ceil().clamp(1, self.local_steps)

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        """x ← x + τ_eff Σ p_i d_i, with τ_eff = Σ p_i τ_i."""
        tau = server.control["share"] * self.local_steps
        return super().server(server, tree.map(lambda d: tau * d, update), risks, clients)
