"""XRM (Pezeshki et al. 2024): twin models that each learn half of every client's samples and judge the other half.

Each twin's labels are replaced by what the other says of them, as far as it is confident: so both come to imitate what
they have in common, which is the shortcut, and what they get wrong in samples they never saw is where it fails. The
paper flips labels at random and for good; here a label is replaced in expectation and anew at every step, so that
clients need no memory of flips. Deployed, the twins are two models of FedAvg.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.algorithms.messages import Broadcast
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation, Task
from perinvfl.errors import UserError
from perinvfl.learning import risks
from perinvfl.learning.problem import FeatureObjective, Objective, Problem
from perinvfl.models import Model, ModelSettings, Precision, build_model
from perinvfl.preparation.phases import Described

FIRST, SECOND = "first.", "second."  # the beginnings of the twins' parameters


@dataclass(frozen=True)
class Twins(FedAvg):
    title: ClassVar[str] = "Twins"

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            own, other = sides(logits, context)
            said, trust = confident(problem.task, other.detach())
            losses = (1 - trust) * risks.losses(problem.task, own, y)
            losses = losses + trust * risks.losses(problem.task, own, said.to(y.dtype))
            risk = risks.context_means(losses, problem.whole(context))[0]
            return risk, risk

        return objective


def sides(logits: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """[B, outputs] each: of the twin that learns a sample, and of the one that has never seen it."""
    first, second = logits.chunk(2, 1)
    second_half = (context % 2 == 1)[:, None]
    return torch.where(second_half, second, first), torch.where(second_half, first, second)


def confident(task: Task, logits: Tensor) -> tuple[Tensor, Tensor]:
    """[B] the class that a model names, and how far beyond a guess it is sure: from 0 to 1."""
    if task == "multiclass":
        share, said = torch.softmax(logits, 1).max(1)
        classes = logits.shape[1]
        return said, (share - 1 / classes) * classes / (classes - 1)
    share = torch.sigmoid(logits[:, 0])
    return (share > 0.5).long(), (2 * share - 1).abs()


def in_halves(federation: Federation) -> Federation:
    """The data with every context in two: samples of even places, and of odd ones."""
    given = federation.train.context
    half = torch.arange(given.shape[1], device=given.device) % 2
    context = torch.where(given < 0, given, 2 * given + half)
    return dataclasses.replace(
        federation, train=federation.train._replace(context=context), contexts=2 * federation.contexts
    )


def never_seen(logits: Tensor) -> Tensor:
    """[M, outputs] what the twin says that has not learned a sample, of all of a client's samples in their order."""
    return sides(logits, torch.arange(len(logits)))[1]


def twin_model(data: Described, asked: ModelSettings | Model, precision: Precision) -> Model:
    """Two models side by side: [B, 2 · outputs] logits."""
    model = asked
    if isinstance(model, ModelSettings):
        model = build_model(model, data.shape, data.outputs, precision)
    if model.statistics is not None:
        raise UserError('contexts.infer = "xrm" takes a model without batch norm; set model.norm = "group".')

    def apply(params: Params, x: Tensor) -> Tensor:
        return torch.cat([model.apply(_part(params, name), x) for name in (FIRST, SECOND)], 1)

    def init(generator: Generator) -> Params:
        return {name + key: leaf for name in (FIRST, SECOND) for key, leaf in model.init(generator).items()}

    def strip(params: Params) -> Params:
        return {name + key: leaf for name in (FIRST, SECOND) for key, leaf in model.strip(_part(params, name)).items()}

    return Model(init, apply, strip, features=apply, classify=lambda params, h: h, unmapped=model.unmapped)


def _part(params: Params, name: str) -> Params:
    return {key.removeprefix(name): leaf for key, leaf in params.items() if key.startswith(name)}
