"""FedSR: Nguyen, Torr & Lim, A Simple and Effective Domain Generalization Method for Federated Learning, 2022."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Purpose, ServerState, Upload, erm
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning import risks
from perinvfl.learning.last_layer import check_last_layer, last_layer_shape
from perinvfl.learning.problem import Batches, FeatureObjective, Problem


@dataclass(frozen=True)
class FedSR(Algorithm):
    """R_i + α_L2R E‖z‖² + α_CMI E‖z − m_y‖² / 2: features z that are short, and near those of their class everywhere.

    Paper: z ~ N(μ(x), σ(x)²) is drawn, and α_CMI weighs KL[p(z | x) ‖ r(z | y)], r a Gaussian for each class that is
    learned along with the model. Here: z is μ(x), and both Gaussians have variance 1, so that the divergence is
    ‖z − m_y‖² / 2; m_y is at its best, the mean of the class's features over all clients, of the round before. Of
    sums and counts by class the server needs the mean over clients alone.
    """

    title: ClassVar[str] = "FedSR"
    purpose: ClassVar[Purpose] = "shift"
    paper: ClassVar[str] = "Nguyen, Torr & Lim 2022"

    l2r: float = hyper(
        0.01,
        "weight of the squared length of the features in the loss, so that they hold no more than the label "
        "needs; 0 leaves it out, 0.01 is a mild weight",
        symbol="α_L2R",
        least=0,
        search=LogUniform(1e-4, 0.1),
    )
    cmi: float = hyper(
        0.001,
        "weight of the squared distance of features from the mean of their class over all clients, so that a "
        "class looks alike everywhere; 0 leaves it out, 0.001 is a mild weight",
        symbol="α_CMI",
        least=0,
        search=LogUniform(1e-4, 0.1),
    )

    def start_control(self, params: Params) -> Params:
        outputs, width = last_layer_shape(params)
        zeros = next(iter(params.values())).new_zeros(max(outputs, 2), width - 1)
        return {"features": zeros, "share": zeros[:, 0].clone()}  # m_y, and how common each class is

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        check_last_layer(self.title, problem.model, broadcast.params)
        sums = FeatureObjective(lambda *seen: (seen[1].sum(), self.class_sums(problem, broadcast, *seen)))
        _, found = problem.value(sums, broadcast.params, batches[0])  # at ν^t
        upload, state = super().client(problem, broadcast, state, batches)
        return upload._replace(control={"features": found[:, :-1], "share": found[:, -1]}), state

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> FeatureObjective:
        m, risk_of = broadcast.control["features"], erm(problem)

        def objective(features: Tensor, logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            risk, aux = risk_of(logits, y, context)
            z, whole = features.float(), problem.whole(context)
            length = risks.context_means(z.square().sum(1), whole)[0]
            distance = risks.context_means((z - m[class_of(problem, y)]).square().sum(1), whole)[0]
            return risk + self.l2r * length + self.cmi * distance / 2, aux

        return FeatureObjective(objective)

    def class_sums(self, problem: Problem, sent: Broadcast, z: Tensor, logits: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """[classes, D + 1] Σ of the features of each class, and the number of its samples, both over the batch size."""
        real = (c >= 0).float()[:, None]  # padding is of no class
        classes = torch.arange(sent.control["share"].shape[0], device=y.device)
        member = (class_of(problem, y)[:, None] == classes).float() * real  # [B, classes]
        return member.t() @ torch.cat([z.float(), torch.ones_like(real)], 1) / real.sum()

    def server_control(self, server: ServerState, control: Params, clients: Tensor) -> Params:
        """m_y ← Σ_i Σ_y z / Σ_i n_iy; a class that nobody had keeps its mean."""
        share = control["share"][:, None]
        m = torch.where(share > 0, control["features"] / share.clamp(min=1e-12), server.control["features"])
        return {"features": m, "share": control["share"]}


def class_of(problem: Problem, y: Tensor) -> Tensor:
    """[B] the number of each sample's class; a regression has one class."""
    return torch.zeros_like(y, dtype=torch.int64) if problem.task == "regression" else y.long()
