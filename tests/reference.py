"""A slow and plain second writing of every algorithm, from the papers: one module a model, one loop a sum, float64.

Nothing here is taken from the package but the settings (read by name) and the federation. Losses are written whole and
differentiated by autograd, the IRM penalty through a dummy classifier w and a second backward pass; steps are taken by
torch.optim; the server averages models, not steps.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from perinvfl.data.federation import Federation


class Samples(NamedTuple):
    """Real samples of one client, or a batch of them."""

    x: Tensor
    y: Tensor
    context: Tensor
    offset: Tensor  # added to the logits while training; 0 but where a shortcut is discounted


Batch = Callable[[int], Samples]  # the samples of the n-th step


def samples_of(federation: Federation) -> list[Samples]:
    shares = []
    for x, y, context in zip(*federation.train, strict=True):
        real = context >= 0
        labels = y[real] if federation.task == "multiclass" else y[real].double()
        own, offset = context[real], torch.zeros(int(real.sum()), dtype=torch.float64)
        if federation.split == "discount":
            offset = torch.tensor(shortcut_offsets(labels.tolist(), own.tolist()), dtype=torch.float64)
        if federation.split in ("discount", "judge"):
            own = torch.tensor([number // 2 for number in own.tolist()])
        shares.append(Samples(x[real].double(), labels, own, offset))
    return shares


def log_odds_of_answers(y: list[float], context: list[int]) -> dict[int, float]:
    """By what the reference model said: log P(y = 1 | said) / P(y = 0 | said) less the log-odds of y, by counting.

    An odd context says that the reference model was wrong; each count is one larger than it is.
    """
    counts = {(said, label): 1 for said in (0, 1) for label in (0, 1)}
    labels = {0: 1, 1: 1}
    for label, number in zip(map(int, y), context, strict=True):
        counts[1 - label if number % 2 else label, label] += 1
        labels[label] += 1
    prior = math.log(labels[1] / labels[0])
    return {said: math.log(counts[said, 1] / counts[said, 0]) - prior for said in (0, 1)}


def shortcut_offsets(y: list[float], context: list[int]) -> list[float]:
    """What the discount adds to the logit of each sample."""
    odds = log_odds_of_answers(y, context)
    return [odds[1 - int(label) if number % 2 else int(label)] for label, number in zip(y, context, strict=True)]


def network(named: dict[str, Tensor]) -> nn.Sequential:
    """Linear and ReLU layers with the given parameters: {"0.weight": ..., "0.bias": ..., "1.weight": ...}."""
    count = len({name.split(".")[0] for name in named})
    layers: list[nn.Module] = [nn.Flatten()]
    for layer in range(count):
        weight, bias = named[f"{layer}.weight"], named.get(f"{layer}.bias")
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None).double()
        with torch.no_grad():
            linear.weight.copy_(weight)
            if bias is not None:
                linear.bias.copy_(bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    named = {}
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    for number, layer in enumerate(linears):
        named[f"{number}.weight"] = layer.weight.detach().clone()
        if layer.bias is not None:
            named[f"{number}.bias"] = layer.bias.detach().clone()
    return named


# Losses ------------------------------------------------------------------------------------------------------------


def mean_loss(task: str, logits: Tensor, y: Tensor) -> Tensor:
    if task == "binary":
        return nn.BCEWithLogitsLoss()(logits.squeeze(1), y)
    if task == "multiclass":
        return nn.CrossEntropyLoss()(logits, y)
    return nn.MSELoss()(logits.squeeze(1), y)


def scale_gradient(task: str, logits: Tensor, y: Tensor) -> Tensor:
    """∇_{w | w = 1} R(w · f), still on the tape."""
    w = torch.ones((), dtype=logits.dtype, requires_grad=True)
    return torch.autograd.grad(mean_loss(task, w * logits, y), w, create_graph=True)[0]


def irm_penalty(task: str, logits: Tensor, y: Tensor, own: Tensor, paired: bool) -> Tensor:
    """‖∇_w R‖² over the samples marked `own`; for mini-batches the product of the two halves' gradients."""
    if not paired:
        return scale_gradient(task, logits[own], y[own]) ** 2
    place = torch.arange(len(y))
    even, odd = own & (place % 2 == 0), own & (place % 2 == 1)
    if not even.any() or not odd.any():
        return torch.zeros((), dtype=logits.dtype)
    return scale_gradient(task, logits[even], y[even]) * scale_gradient(task, logits[odd], y[odd])


def predict(model: nn.Module, batch: Samples) -> Tensor:
    return model(batch.x) + batch.offset[:, None]


def irm_loss(task: str, model: nn.Module, batch: Samples, weight: float, paired: bool, by_context: bool) -> Tensor:
    """Σ_e R_e + λ‖∇_w R_e‖², over the contexts e in the batch or over the batch as one context."""
    logits = predict(model, batch)
    labels = batch.context if by_context else torch.zeros_like(batch.context)
    total = torch.zeros((), dtype=logits.dtype)
    for context in sorted(set(labels.tolist())):
        own = labels == context
        total = total + mean_loss(task, logits[own], batch.y[own])
        total = total + weight * irm_penalty(task, logits, batch.y, own, paired)
    return total


def risk(task: str, model: nn.Module, batch: Samples) -> Tensor:
    return mean_loss(task, predict(model, batch), batch.y)


def context_risks(task: str, model: nn.Module, batch: Samples) -> dict[int, Tensor]:
    """The risk of each context in the batch."""
    logits, risks = predict(model, batch), {}
    for context in sorted(set(batch.context.tolist())):
        own = batch.context == context
        risks[context] = mean_loss(task, logits[own], batch.y[own])
    return risks


def norm_squared(model: nn.Module) -> Tensor:
    return sum((p**2).sum() for p in model.parameters())  # type: ignore[return-value]


def distance_squared(model: nn.Module, anchor: nn.Module) -> Tensor:
    pairs = zip(model.parameters(), anchor.parameters(), strict=True)
    return sum(((p - a.detach()) ** 2).sum() for p, a in pairs)  # type: ignore[return-value]


# Steps -------------------------------------------------------------------------------------------------------------


def make_optimizer(kind: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def overwrite(model: nn.Module, other: nn.Module) -> None:
    model.load_state_dict(other.state_dict())


# Algorithms --------------------------------------------------------------------------------------------------------


class FedAvg:
    """McMahan et al. 2017; also the server and the bookkeeping of all the others."""

    def __init__(
        self, settings: Any, federation: Federation, start: dict[str, Tensor], by_size: bool, paired: bool
    ) -> None:
        self.set, self.task, self.paired, self.by_size = settings, federation.task, paired, by_size
        self.samples = samples_of(federation)
        self.clients = len(self.samples)
        self.nu = network(start)
        self.server_optimizer = make_optimizer(settings.server_optimizer, self.nu, settings.server_learning_rate)
        # One model a client that lives as long as the run, so that its optimizer's moments do.
        self.local = [copy.deepcopy(self.nu) for _ in range(self.clients)]
        self.local_optimizer = [self.new_local_optimizer(i) for i in range(self.clients)]
        self.q = [1 / self.clients] * self.clients
        self.t = 0

    def new_local_optimizer(self, i: int) -> torch.optim.Optimizer:
        return make_optimizer(self.set.optimizer, self.local[i], self.set.learning_rate)

    def own(self, name: str, i: int) -> float:
        """A setting that may be a list with one entry a client."""
        value = getattr(self.set, name)
        return value[i] if isinstance(value, tuple) else value

    def batch(self, i: int, places: Tensor | None) -> Batch:
        if places is None:
            return lambda step: self.samples[i]
        return lambda step: Samples(*(part[places[step]] for part in self.samples[i]))

    def round(self, participants: list[int], places: list[Tensor | None]) -> list[float]:
        """One round; the risks R(ν^t; D_i) of the participants."""
        self.before_round()
        sizes = [len(self.samples[i].y) if self.by_size else 1 for i in participants]
        risks = []
        for i, chosen in zip(participants, places, strict=True):
            overwrite(self.local[i], self.nu)
            risks.append(self.client(i, self.batch(i, chosen)))
        shares = self.shares(participants, [size / sum(sizes) for size in sizes])
        self.server_optimizer.zero_grad()
        for k, p in enumerate(self.nu.parameters()):
            moves = [list(self.local[i].parameters())[k].detach() - p.detach() for i in participants]
            p.grad = -self.together(moves, shares)  # ν ← ν − α(ν − mean ν_i)
        self.server_optimizer.step()
        self.after_round(dict(zip(participants, risks, strict=True)))
        self.t += 1
        return risks

    def shares(self, participants: list[int], shares: list[float]) -> list[float]:
        """What each participant's move counts."""
        return shares

    def together(self, moves: list[Tensor], shares: list[float]) -> Tensor:
        return sum((share * move for share, move in zip(shares, moves, strict=True)), torch.zeros_like(moves[0]))

    def before_round(self) -> None:
        pass

    def after_round(self, risks: dict[int, float]) -> None:
        pass

    def client(self, i: int, batch: Batch) -> float:
        """R local steps of the client's copy of ν; gives back R(ν^t; D_i)."""
        first = self.told(i, batch(0))
        for r in range(self.set.local_steps):
            descend(self.local_optimizer[i], self.global_loss(i, batch(r)))
        return first

    def told(self, i: int, batch: Samples) -> float:
        """The one number that the server hears: R(ν^t; D_i)."""
        return risk(self.task, self.nu, batch).item()

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        return risk(self.task, self.local[i], batch) + self.set.l2 * norm_squared(self.local[i])

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.nu


class Personalized(FedAvg):
    """A personal model a client that lives as long as the run."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.theta = [copy.deepcopy(self.nu) for _ in range(self.clients)]
        self.theta_optimizer = [self.new_theta_optimizer(i) for i in range(self.clients)]

    def new_theta_optimizer(self, i: int) -> torch.optim.Optimizer:
        return make_optimizer(self.set.personal_optimizer, self.theta[i], self.set.personal_learning_rate)

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.theta[i]


class Ditto(Personalized):
    """Li et al. 2021: v minimises F + (λ/2)‖v − w^t‖², w^t the model of the start of the round."""

    def client(self, i: int, batch: Batch) -> float:
        first = super().client(i, batch)
        for s in range(self.set.personal_steps):
            loss = risk(self.task, self.theta[i], batch(self.set.local_steps + s))
            loss = loss + self.set.l2 * norm_squared(self.theta[i])
            loss = loss + self.own("pull", i) / 2 * distance_squared(self.theta[i], self.nu)
            descend(self.theta_optimizer[i], loss)
        return first


class PFedMe(Personalized):
    """Dinh, Tran & Nguyen 2020: θ from w by K steps on one batch, then w_i −= lr · λ(w_i − θ)."""

    def client(self, i: int, batch: Batch) -> float:
        first = risk(self.task, self.nu, batch(0)).item()
        w, theta, pull = self.local[i], self.theta[i], self.own("pull", i)
        overwrite(theta, self.nu)
        self.theta_optimizer[i] = self.new_theta_optimizer(i)  # θ starts anew at w^t, and so do its moments
        for r in range(self.set.local_steps):
            for _ in range(self.set.personal_steps):
                loss = risk(self.task, theta, batch(r)) + self.set.l2 * norm_squared(theta)
                descend(self.theta_optimizer[i], loss + pull / 2 * distance_squared(theta, w))
            for p, target in zip(w.parameters(), theta.parameters(), strict=True):
                p.grad = pull * (p - target).detach()
            self.local_optimizer[i].step()
        return first


class Alone(FedAvg):
    """No collaboration: each client goes on from its own model; the server's never moves and it hears nothing."""

    def round(self, participants: list[int], places: list[Tensor | None]) -> list[float]:
        for i, chosen in zip(participants, places, strict=True):
            self.client(i, self.batch(i, chosen))
        self.t += 1
        return [0.0] * len(participants)

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.local[i]


class GroupDRO(FedAvg):
    """Sagawa et al. 2020, each client a group: loss N q_i R_i, q_i ∝ q_i exp(η_q R_i) after each round."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        weight = self.clients * self.q[i]
        return weight * risk(self.task, self.local[i], batch) + self.set.l2 * norm_squared(self.local[i])

    def after_round(self, risks: dict[int, float]) -> None:
        raised = [q * math.exp(self.set.group_step * risks.get(i, 0.0)) for i, q in enumerate(self.q)]
        self.q = [value / sum(raised) for value in raised]


class GroupDROContexts(GroupDRO):
    """Over inferred contexts: the client's weight is shared among its contexts, q_i s_ij, with Σ_j s_ij = 1.

    s_ij ∝ s_ij exp(η_q R_ij) after the client's round, R_ij the risk at ν^t, 0 where a mini-batch does not hold j. The
    server hears Σ_j s_ij R_ij.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        own = [sorted(set(share.context.tolist())) for share in self.samples]
        self.share = [{context: 1 / len(contexts) for context in contexts} for contexts in own]
        self.heard: dict[int, float] = {}  # R_ij of the client at work

    def told(self, i: int, batch: Samples) -> float:
        self.heard = {context: r.item() for context, r in context_risks(self.task, self.nu, batch).items()}
        return sum(self.share[i][context] * r for context, r in self.heard.items())

    def client(self, i: int, batch: Batch) -> float:
        told = super().client(i, batch)
        raised = {c: s * math.exp(self.set.group_step * self.heard.get(c, 0.0)) for c, s in self.share[i].items()}
        self.share[i] = {context: value / sum(raised.values()) for context, value in raised.items()}
        return told

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        loss = self.set.l2 * norm_squared(self.local[i])
        for context, r in context_risks(self.task, self.local[i], batch).items():
            loss = loss + self.clients * self.q[i] * self.share[i][context] * r
        return loss


class VREx(FedAvg):
    """Krueger et al. 2021 over clients: (1 + 2λ(R_i − mean R)) R_i, the bracket from the round a client was last in."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ahead = [0.0] * self.clients  # R_i − mean R

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        weight = self.set.penalty_weight
        loss = (1 + 2 * weight * self.ahead[i]) * risk(self.task, self.local[i], batch)
        loss = loss + self.set.l2 * norm_squared(self.local[i])
        return loss / (weight if self.set.rescale and weight > 1 else 1.0)

    def after_round(self, risks: dict[int, float]) -> None:
        mean = sum(risks.values()) / len(risks)
        for i, r in risks.items():
            self.ahead[i] = r - mean


class Scheduled(FedAvg):
    """λ_t = min(λ, 1) before warmup_rounds, then λ; Adam forgets when it changes."""

    def weight(self) -> float:
        full = self.set.penalty_weight
        return min(full, 1.0) if self.t < self.set.warmup_rounds else full

    def divisor(self) -> float:
        return self.weight() if self.set.rescale and self.weight() > 1 else 1.0

    def before_round(self) -> None:
        if self.t == self.set.warmup_rounds and self.t > 0:
            self.forget()

    def forget(self) -> None:
        self.server_optimizer = make_optimizer(self.set.server_optimizer, self.nu, self.set.server_learning_rate)
        self.local_optimizer = [self.new_local_optimizer(i) for i in range(self.clients)]


class IRM(Scheduled):
    """Arjovsky et al. 2019, each client an environment (objective glob-irm)."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        model = self.local[i]
        loss = irm_loss(self.task, model, batch, self.weight(), self.paired, by_context=False)
        return (loss + self.set.l2 * norm_squared(model)) / self.divisor()


class IRMContexts(IRM):
    """IRM with every inferred context of a client an environment, each counting alike."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        model = self.local[i]
        loss = irm_loss(self.task, model, batch, self.weight(), self.paired, by_context=True)
        return (loss + self.set.l2 * norm_squared(model)) / self.divisor()


class FineTuning(FedAvg):
    """After the last round: plain gradient steps on the client's own risk, from ν."""

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        model, batch = copy.deepcopy(self.nu), self.batch(i, places)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.set.finetune_learning_rate)
        for f in range(self.set.finetune_steps):
            descend(optimizer, risk(self.task, model, batch(f)) + self.set.l2 * norm_squared(model))
        return model


class FTFA(FineTuning, FedAvg):
    """Cheng, Chadha & Duchi 2021."""


class IRMFT(FineTuning, IRM):
    """The paper's ablation: IRM, then fine-tuning."""


class PerInvFLBase(Personalized):
    """Algorithm 1. What L_INV is, subclasses say."""

    def client(self, i: int, batch: Batch) -> float:
        first, step = 0.0, 0
        for r in range(self.set.local_steps):
            for _ in range(self.set.personal_steps):
                descend(self.theta_optimizer[i], self.personal_loss(i, batch(step)))  # l. 8
                step += 1
            if r == 0:
                first = self.told(i, batch(step))
            descend(self.local_optimizer[i], self.global_loss(i, batch(step)))  # l. 10
            step += 1
        return first

    def pulls(self, i: int) -> Tensor:
        """β‖θ − ν_{i,r}‖² and the l2 term."""
        near = self.own("beta", i) * distance_squared(self.theta[i], self.local[i])
        return near + self.set.l2 * norm_squared(self.theta[i])

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        raise TypeError("a subclass says what L_INV is")


class PerInvFLIRM(PerInvFLBase, IRM):
    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        loss = irm_loss(self.task, self.theta[i], batch, self.weight(), self.paired, by_context=True)
        return (loss + self.pulls(i)) / self.divisor()

    def forget(self) -> None:
        super().forget()
        self.theta_optimizer = [self.new_theta_optimizer(i) for i in range(self.clients)]


class IRML2(PerInvFLIRM):
    """The paper's ablation: the personal loss is the plain risk + β‖θ − ν‖²; no λ in it, so nothing to divide by."""

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        return risk(self.task, self.theta[i], batch) + self.pulls(i)


class PerInvFLGroupDRO(PerInvFLBase, GroupDRO):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        own = [sorted(set(share.context.tolist())) for share in self.samples]
        self.local_q = [{context: 1 / len(contexts) for context in contexts} for contexts in own]

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        """Σ_j q_j R_j over the contexts in the batch, q raised first. An absent context's odds do not change."""
        q, risks = self.local_q[i], context_risks(self.task, self.theta[i], batch)
        before = sum(q[context] for context in risks)
        raised = {context: q[context] * math.exp(self.set.group_step * r.item()) for context, r in risks.items()}
        shares = {context: value / sum(raised.values()) for context, value in raised.items()}
        for context, share in shares.items():
            q[context] = share * before
        return sum((shares[context] * r for context, r in risks.items()), self.pulls(i))


class PerInvFLIRMContexts(PerInvFLIRM, IRMContexts):
    """Over inferred contexts, ν's loss as well as θ_i's."""


class PerInvFLGroupDROContexts(GroupDROContexts, PerInvFLGroupDRO):
    """Likewise."""


class LatePerInvFLIRM(PerInvFLIRM):
    """θ_i starts from ν^t, its moments forgotten, in the rounds up to `personal_after`."""

    def client(self, i: int, batch: Batch) -> float:
        if self.t <= self.set.personal_after:
            overwrite(self.theta[i], self.nu)
            self.theta_optimizer[i] = self.new_theta_optimizer(i)
        return super().client(i, batch)


def half_cosine(t: int, first: int, last: int) -> float:
    """1 up to the first round, 0 from the last."""
    return (1 + math.cos(math.pi * min(max((t - first) / (last - first), 0.0), 1.0))) / 2


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        group["lr"] = rate
    return optimizer


class CooledFedAvg(FedAvg):
    """The server's step size falls to nothing over `cooling` rounds."""

    def before_round(self) -> None:
        super().before_round()
        share = half_cosine(self.t, 0, self.set.cooling)
        set_rate(self.server_optimizer, self.set.server_learning_rate * share)


class CooledPerInvFL(LatePerInvFLIRM):
    """ν's step size falls until θ_i goes its own way, and θ_i's from there."""

    def before_round(self) -> None:
        super().before_round()
        share = half_cosine(self.t, 0, self.set.personal_after)
        set_rate(self.server_optimizer, self.set.server_learning_rate * share)
        for optimizer in self.theta_optimizer:
            set_rate(optimizer, self.theta_rate())

    def new_theta_optimizer(self, i: int) -> torch.optim.Optimizer:
        return set_rate(super().new_theta_optimizer(i), self.theta_rate())

    def theta_rate(self) -> float:
        return self.set.personal_learning_rate * half_cosine(self.t, self.set.personal_after, self.set.cooling)


class PartPerInvFL(PerInvFLIRM):
    """What is not personal is ν_{i,r} in training and ν in use."""

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        self.share(self.theta[i], self.local[i])
        return super().personal_loss(i, batch)

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        self.share(self.theta[i], self.nu)
        return self.theta[i]

    def share(self, theta: nn.Sequential, nu: nn.Sequential) -> None:
        layers = [(own, other) for own, other in zip(theta, nu, strict=True) if isinstance(own, nn.Linear)]
        for own, other in layers[:-1] if self.set.personal_part == "head" else layers[-1:]:
            overwrite(own, other)


class AgreeingFedAvg(FedAvg):
    """FedGMA: a coordinate on whose direction the clients agree less than τ counts as much as they agree."""

    def together(self, moves: list[Tensor], shares: list[float]) -> Tensor:
        mean = super().together(moves, shares)
        agreed = super().together([torch.sign(move) for move in moves], shares).abs()
        return torch.where(agreed >= self.set.agreement, mean, agreed * mean)


class MatchedFedAvg(FedAvg):
    """FedOMG: within κ‖ḡ‖ of the mean move, the one whose smallest inner product with a client's move is largest."""

    def shares(self, participants: list[int], shares: list[float]) -> list[float]:
        def flat(model: nn.Module) -> Tensor:
            return torch.cat([p.detach().flatten() for p in model.parameters()])

        moves = [flat(self.local[i]) - flat(self.nu) for i in participants]
        mean = sum(share * move for share, move in zip(shares, moves, strict=True))
        assert isinstance(mean, Tensor)
        length = float(mean.norm())
        ahead = [float(move @ mean) / length**2 for move in moves]
        longest = max(float(move.norm()) for move in moves) / length
        step = 1 / (max(map(abs, ahead)) + self.set.matching * longest)
        logs = [0.0] * len(moves)
        for _ in range(200):
            direction = self.mixed(logs, moves)
            for i, move in enumerate(moves):
                slope = ahead[i] + self.set.matching * float(move @ direction) / (length * float(direction.norm()))
                logs[i] -= step * slope
        direction = self.mixed(logs, moves)
        weights = torch.softmax(torch.tensor(logs, dtype=torch.float64), 0).tolist()
        factor = self.set.matching * length / float(direction.norm())
        return [share + factor * weight for share, weight in zip(shares, weights, strict=True)]

    def mixed(self, logs: list[float], moves: list[Tensor]) -> Tensor:
        weights = torch.softmax(torch.tensor(logs, dtype=torch.float64), 0).tolist()
        return super().together(moves, weights)
