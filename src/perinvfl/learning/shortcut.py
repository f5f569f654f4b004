"""Inferred contexts: what a client does alone to split its samples by where a reference model errs.

A model trained without invariance leans on the shortcut, so it is right where the shortcut holds and wrong where it
does not: two contexts that differ in exactly what should not matter. Kin in the literature: EIIL (Creager, Jacobsen &
Zemel 2021), JTT (Liu et al. 2021); for the discount, products of experts (Clark, Yatskar & Zettlemoyer 2019).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from perinvfl.core import config, optimizers
from perinvfl.core.hyper import hyper
from perinvfl.data.federation import Task
from perinvfl.errors import UserError
from perinvfl.learning import risks
from perinvfl.models.symmetry import Symmetry


@dataclass(frozen=True)
class ContextSettings:
    """The stage in front of an algorithm."""

    infer: Literal["given", "hard", "soft"] = hyper(
        "given", "contexts as the data give them, split by whether a reference model is wrong, or by EIIL's shares"
    )
    use: Literal["balance", "discount", "judge"] = hyper(
        "balance",
        "run the losses over the inferred contexts, each counting alike; or take what the reference model's answer "
        "tells about the label off the logits; or only judge held-out data by them",
    )
    reference_rounds: int = hyper(40, "rounds of FedAvg that make the reference model", least=1)
    reference_rate: float = hyper(1e-3, "step size of the reference model's server (Adam)", above=0)
    reference_cooling: bool = hyper(
        False, "its step size falls to nothing over these rounds, which steadies it on little data", later=True
    )
    hide_middle: float = hyper(
        0.0,
        "radius of the middle of an image that the reference model is not shown, in halves of a side, where the "
        "shortcut is known to lie around the object; 0: it is shown all",
        least=0,
        most=1.4,
        later=True,
    )
    align: Symmetry = hyper(
        "nothing",
        "ways to see an image among which each client takes the one in which a model of the first client, trained with "
        "the shortcut discounted, fits its images best; then all see alike, where clients differ by such a style",
        later=True,
    )
    every: int = hyper(0, "rounds after which contexts are inferred again from the global model; 0: once", least=0)
    soft_steps: int = hyper(100, "steps of EIIL's ascent", least=1)
    even_classes: bool = hyper(
        False,
        "take what the client's class shares tell about the label off the logits, the reference model's too: a rare "
        "class then counts as much as a common one",
        later=True,
    )

    def check(self, where: str) -> None:
        if self.infer == "soft" and (self.use != "balance" or self.every):
            raise UserError(f'{where}.infer = "soft" goes with use = "balance" and every = 0.')
        if self.align != "nothing" and self.infer != "hard":
            raise UserError(f'{where}.align goes with infer = "hard".')
        if self.hide_middle and self.every:
            raise UserError(f"{where}.every infers by the global model, which is shown all; leave out hide_middle.")
        if self.use == "judge" and self.every:
            raise UserError(f'{where}.every means nothing to use = "judge"; leave it out.')


def read_contexts(mapping: Any) -> ContextSettings:
    """Settings as under `[contexts]`. What to do with inferred contexts is refused where nothing asks to infer them."""
    made = config.build(ContextSettings, mapping, "contexts")
    if mapping and "infer" not in mapping:
        raise UserError(f'contexts.{next(iter(mapping))} does nothing without contexts.infer = "hard" or "soft".')
    return made


def is_wrong(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """Where a model errs, from [..., outputs] logits."""
    if task == "multiclass":
        return logits.argmax(-1) != y
    return (logits[..., 0] > 0) != (y > 0.5)


def split_context(given: Tensor, wrong: Tensor) -> Tensor:
    """Each given context in two: 2j where the reference model is right, 2j + 1 where it is wrong; padding stays."""
    return torch.where(given < 0, given, 2 * given + wrong.to(given.dtype))


def given_context(context: Tensor) -> Tensor:
    """The context before it was split."""
    return torch.div(context, 2, rounding_mode="floor")


def reference_answer(y: Tensor, context: Tensor) -> Tensor:
    """[B] what the reference model said, of a binary label: y where it was right."""
    return torch.where(context % 2 == 1, 1 - y, y)


def class_log_odds(y: Tensor, context: Tensor) -> Tensor:
    """log P(y = 1) / P(y = 0) at this client, counted with one sample more of each kind."""
    real = (context >= 0).to(y.dtype)
    return ((y * real).sum() + 1).log() - (((1 - y) * real).sum() + 1).log()


def shortcut_log_odds(y: Tensor, context: Tensor) -> Tensor:
    """[2] how far each answer a of the reference model moves the log-odds of y at this client.

    log P(y = 1 | a) / P(y = 0 | a) − log P(y = 1) / P(y = 0), counted with one sample more of each kind. Where what
    the reference model reads and what else there is to read are independent given y, log-odds add up; a model trained
    on the sum learns the rest alone, from every sample.
    """
    real = (context >= 0).to(y.dtype)
    answer = reference_answer(y, context)
    prior = class_log_odds(y, context)
    odds = []
    for said in (0.0, 1.0):
        chosen = (answer == said).to(y.dtype) * real
        odds.append(((y * chosen).sum() + 1).log() - (((1 - y) * chosen).sum() + 1).log() - prior)
    return torch.stack(odds)


def soft_shares(task: Task, logits: Tensor, y: Tensor, steps: int, rate: float = 0.1) -> Tensor:
    """[M] EIIL: shares q that make the reference model's invariance penalty over the two contexts large.

    Σ over contexts of ‖∇_w mean(q · loss(w · f))‖², climbed by Adam from q = 1/2. The penalty is convex in q, so the
    climb ends at the corners, which are the hard split by right and wrong; stopped early it is soft.
    """
    gradients = risks.scale_gradients(task, logits, y)
    # At q = 1/2 both contexts pull alike; a small lean towards "wrong is the second" breaks the tie.
    logit = {"q": 0.01 * torch.sign(gradients)}
    moments = optimizers.start("adam", logit)
    for _ in range(steps):
        q = torch.sigmoid(logit["q"])
        first, second = ((1 - q) * gradients).mean(), (q * gradients).mean()
        slope = 2 * (second - first) * gradients / len(gradients) * q * (1 - q)
        logit, moments = optimizers.step("adam", logit, {"q": -slope}, moments, rate)
    return torch.sigmoid(logit["q"])
