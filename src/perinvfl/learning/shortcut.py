"""What a shortcut tells: splits of a client's samples by where a reference model errs, and what its answers are worth.

A model trained without invariance leans on the shortcut, so it is right where the shortcut holds and wrong where it
does not: two contexts that differ in exactly what should not matter. Kin in the literature: EIIL (Creager, Jacobsen &
Zemel 2021), JTT (Liu et al. 2021); for the discount, products of experts (Clark, Yatskar & Zettlemoyer 2019).
"""

import torch
from torch import Tensor

from perinvfl.core import optimizers
from perinvfl.data.federation import Task
from perinvfl.learning import risks


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


def offsets(y: Tensor, context: Tensor, discount: bool, even_classes: bool) -> Tensor | None:
    """[M] log-odds that the reference model's answers and the class shares already account for; None where neither is.

    From all of a client's samples.
    """
    offset = None
    if discount:
        odds = shortcut_log_odds(y, context)
        offset = torch.where(reference_answer(y, context) > 0.5, odds[1], odds[0])
    if even_classes:
        offset = class_log_odds(y, context) + (torch.zeros_like(y) if offset is None else offset)
    return offset


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
