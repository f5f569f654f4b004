"""What a shortcut tells: splits of a client's samples by where a reference model errs, and what its answers are worth.

A model trained without invariance leans on the shortcut, so it is right where the shortcut holds and wrong where it
does not: two contexts that differ in exactly what should not matter. Kin in the literature: EIIL (Creager, Jacobsen &
Zemel 2021), JTT (Liu et al. 2021); for the discount, products of experts (Clark, Yatskar & Zettlemoyer 2019).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core import optimizers
from perinvfl.data.federation import Task
from perinvfl.learning import risks


def answers(task: Task, logits: Tensor) -> Tensor:
    """The class that a model names, from [..., outputs] logits."""
    return logits.argmax(-1) if task == "multiclass" else (logits[..., 0] > 0).long()


def error(said: Tensor, y: Tensor, answers: int) -> Tensor:
    """How many answers further than the true class an answer is, counted in a circle: 0 where it is right."""
    return (said - y.long()) % answers


def split_context(given: Tensor, error: Tensor, parts: int = 2) -> Tensor:
    """Each given context in parts, by how the reference model errs: j · parts where it is right; padding stays."""
    return torch.where(given < 0, given, parts * given + error.to(given.dtype))


def given_context(context: Tensor, parts: int = 2) -> Tensor:
    """The context before it was split."""
    return torch.div(context, parts, rounding_mode="floor")


def reference_answer(y: Tensor, context: Tensor, answers: int = 2) -> Tensor:
    """[B] what the reference model said, where contexts are split by `error`."""
    return (y.long() + context) % answers


def class_log_odds(y: Tensor, context: Tensor) -> Tensor:
    """log P(y = 1) / P(y = 0) at this client, counted with one sample more of each kind."""
    return _log_odds(y, (context >= 0).to(y.dtype), 1)


def _log_odds(y: Tensor, real: Tensor, more: Tensor | float) -> Tensor:
    """Of the samples that are real, and two more, of which so many are of class 1."""
    return ((y * real).sum() + more).log() - (((1 - y) * real).sum() + (2 - more)).log()


def shortcut_log_odds(y: Tensor, context: Tensor, classes: int = 2, answers: int = 0) -> Tensor:
    """[answers, outputs] how far each answer a of the reference model moves the log-odds of y at this client.

    Of a binary label log P(y = 1 | a) / P(y = 0 | a) − log P(y = 1) / P(y = 0); of several classes
    log P(y = c | a) − log P(y = c) for each c, up to a constant; counted with one sample more of each kind. Where what
    the reference model reads and what else there is to read are independent given y, log-odds add up; a model trained
    on the sum learns the rest alone, from every sample. answers: how many different ones there are; 0: as many as
    classes. Where there are more, each is given rarely, and the samples more are as common as the classes are.
    """
    parts = answers or classes
    answer = reference_answer(y, context, parts)
    if classes > 2:
        numbers = torch.arange(classes, device=y.device)
        member = (y[:, None] == numbers) * (context >= 0)[:, None].float()  # [M, C]
        counts = (answer[:, None] == numbers).to(member.dtype).T @ member  # [answers, C]
        return (counts + 1).log() - (member.sum(0) + 1).log()
    real = (context >= 0).to(y.dtype)
    more = 2 * torch.sigmoid(class_log_odds(y, context)) if parts > classes else 1
    prior = _log_odds(y, real, more)
    odds = [_log_odds(y, (answer == said).to(y.dtype) * real, more) - prior for said in range(parts)]
    return torch.stack(odds)[:, None]


@dataclass(frozen=True)
class Known:
    """What is known of a client's labels before a model looks at the data, from all of its samples."""

    log_odds: Tensor | None  # [answers, outputs] by the reference model's answers
    prior: Tensor | None  # log-odds of a binary label by its share

    def offset(self, y: Tensor, context: Tensor) -> Tensor | None:
        """[B, outputs] of logits, for some of the samples; None where nothing is known."""
        offset = None
        if self.log_odds is not None:
            offset = self.log_odds[reference_answer(y, context, len(self.log_odds))]
        if self.prior is not None:
            offset = self.prior + (torch.zeros_like(y)[:, None] if offset is None else offset)
        return offset


def known(y: Tensor, context: Tensor, discount: bool, even_classes: bool, classes: int = 2, answers: int = 0) -> Known:
    return Known(
        shortcut_log_odds(y, context, classes, answers) if discount else None,
        class_log_odds(y, context) if even_classes else None,
    )


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
