"""Networks as modules, and steps by torch.optim."""

import torch
from torch import Tensor, nn


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


def overwrite(model: nn.Module, other: nn.Module) -> None:
    model.load_state_dict(other.state_dict())


def norm_squared(model: nn.Module) -> Tensor:
    return sum((p**2).sum() for p in model.parameters())  # type: ignore[return-value]


def distance_squared(model: nn.Module, anchor: nn.Module) -> Tensor:
    pairs = zip(model.parameters(), anchor.parameters(), strict=True)
    return sum(((p - a.detach()) ** 2).sum() for p, a in pairs)  # type: ignore[return-value]


def make_optimizer(kind: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        group["lr"] = rate
    return optimizer


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
