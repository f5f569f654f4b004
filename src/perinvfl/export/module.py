"""What is deployed: raw x in, answers out, and a description that travels inside every file."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from perinvfl import config
from perinvfl.errors import UserError
from perinvfl.federation import Federation, Task
from perinvfl.models import Model, ModelSettings, build_model
from perinvfl.saved import Opened
from perinvfl.tree import Params

VERSION = 1  # of the description


@dataclass(frozen=True)
class Description:
    """All that a program needs to use the file, as plain values."""

    task: Task
    shape: tuple[int, ...]  # of one x
    outputs: int
    classes: tuple[str, ...]  # names by number; empty where nobody named them
    features: tuple[str, ...]  # names of the columns, in order; empty where x is no table
    client: str
    personal: bool  # the client's own model, or the one all share
    run: str  # id of the run it came from
    model: dict[str, Any]  # its architecture, as in an experiment file
    version: int = VERSION

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def read_description(text: str, where: str) -> Description:
    try:
        told = json.loads(text)
        lists = {name: tuple(told[name]) for name in ("shape", "classes", "features")}
        described = Description(**{**told, **lists})
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{where} was not written by `perinvfl export`: its description cannot be read.") from None
    if described.version != VERSION:
        raise UserError(f"{where} was written by another version of perinvfl; export the model again.")
    return described


class Deployed(nn.Module):
    """Standardise as in training, apply the model, turn logits into answers."""

    mean: Tensor
    scale: Tensor

    def __init__(self, model: Model, params: Params, task: Task, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.weights = _grow(params)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = self.model.apply(dict(self.weights.named_parameters()), (x - self.mean) / self.scale)
        return answers(self.task, logits)


def answers(task: Task, logits: Tensor) -> tuple[Tensor, ...]:
    """(prediction [B], probability [B, classes]); for regression the prediction alone."""
    if task == "regression":
        return (logits[:, 0],)
    if task == "multiclass":
        return logits.argmax(1), torch.softmax(logits, 1)
    one = torch.sigmoid(logits[:, 0])
    return (logits[:, 0] > 0).to(torch.int64), torch.stack([1 - one, one], 1)


def answer_names(task: Task) -> list[str]:
    return ["prediction"] if task == "regression" else ["prediction", "probability"]


def describe(opened: Opened, client: int, shared: bool) -> tuple[Description, Deployed]:
    """The model one client predicts with, or the shared one, ready to be written."""
    federation = opened.federation
    if shared and opened.shared is None:
        raise UserError(f"{opened.trial.label} trains no global model; leave --global out.")
    params = opened.shared if shared else opened.lead(client)
    assert params is not None
    described = Description(
        task=federation.task,
        shape=federation.shape,
        outputs=federation.outputs,
        classes=federation.schema.classes,
        features=federation.schema.features,
        client=opened.clients[client],
        personal=not shared and opened.personal is not None,
        run=opened.trial.id,
        model=dataclasses.asdict(opened.trial.model),
    )
    return described, Deployed(opened.model, params, federation.task, *standardisation(federation)).eval()


def standardisation(federation: Federation) -> tuple[Tensor, Tensor]:
    """What is taken off x and what the rest is divided by, in a shape that fits x; 0 and 1 where x is used as it is."""
    mean, scale = torch.tensor(federation.schema.mean), torch.tensor(federation.schema.scale)
    shape = federation.shape
    if not mean.numel():
        return torch.zeros(1), torch.ones(1)
    if mean.numel() in (1, shape[-1]) and len(shape) == 1:
        return mean, scale
    if mean.numel() in (1, shape[0]) and len(shape) == 3:  # channels of an image
        return mean.view(-1, 1, 1), scale.view(-1, 1, 1)
    raise UserError(f"The data tell {mean.numel()} means for x of shape {shape}; one a column or channel is needed.")


def rebuild(described: Description, params: Params, mean: Tensor, scale: Tensor) -> Deployed:
    settings = config.build(ModelSettings, described.model, "model")
    model = build_model(settings, described.shape, described.outputs, "float32")
    return Deployed(model, params, described.task, mean, scale).eval()


def _grow(params: Params) -> nn.Module:
    """Parameters as a tree of modules, so that `0.weight` keeps its name in every format."""
    root = nn.Module()
    for name, leaf in params.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.register_parameter(last, nn.Parameter(leaf.detach().clone(), requires_grad=False))
    return root
