"""What is deployed: raw x in, answers out, and a description that travels inside every file."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from perinvfl.core import config
from perinvfl.core.naming import shortened
from perinvfl.core.tree import Params
from perinvfl.core.unpacking import parse_json
from perinvfl.data.encoding import Encoding, encode, feature_names, read_encodings
from perinvfl.data.federation import Federation, Task
from perinvfl.errors import UserError
from perinvfl.models import Model, ModelSettings, build_model
from perinvfl.models.lens import fits, seeing_through
from perinvfl.models.symmetry import seeing
from perinvfl.runs.loaded import LoadedRun

VERSION = 1  # of the description
MOST = 10**8  # numbers in one x


@dataclass(frozen=True)
class Description:
    """All that a program needs to use the file, as plain values."""

    task: Task
    shape: tuple[int, ...]  # of one x
    outputs: int
    classes: tuple[str, ...]  # names by number; empty where nobody named them
    features: tuple[str, ...]  # names of the columns of x, in order; empty where x is no table
    client: str
    personal: bool  # the client's own model, or the one all share
    run: str  # id of the run it came from
    model: dict[str, Any]  # its architecture, as in an experiment file
    dtype: Literal["float32", "uint8"]  # of x; uint8 pictures are scaled inside the model
    view: int = 0  # of `models.symmetry`, in which the model sees x; it does so itself
    lens: tuple[tuple[float, ...], ...] = ()  # of `models.lens`, likewise; empty: none
    columns: tuple[Encoding, ...] = ()  # what the model makes of each column; empty: it takes x without gaps as it is
    version: int = VERSION

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Of one x, once its columns are encoded."""
        return (len(feature_names(self.columns)),) if self.columns else self.shape

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def read_description(text: str, where: str, build: str | None = "") -> Description:
    """build: the own code that may be run; None where the file needs none to be run."""
    try:
        fields = parse_json(text)
        lists = {name: tuple(fields[name]) for name in ("shape", "classes", "features")}
        lens = tuple(tuple(map(float, row)) for row in fields.get("lens", ()))
        columns = read_encodings(fields.get("columns", ()))
        described = Description(**{**fields, **lists, "lens": lens, "columns": columns})
        _check(described)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise UserError(f"{where} was not written by `perinvfl export`: its description cannot be read.") from None
    if described.version != VERSION:
        raise UserError(f"{where} was written by another version of perinvfl; export the model again.")
    needed = described.model.get("build", "")
    if needed and build is not None and needed != build:
        raise UserError(
            f"{where} holds the weights of your own model, which {shortened(str(needed))} builds. No code that a file "
            f"names is run unasked: add --build {shortened(str(needed))} if you trust that code, or export the model "
            "as .onnx, which needs none."
        )
    return described


def _check(described: Description) -> None:
    """ValueError where something in it cannot be meant: a file may say anything."""
    shape, texts = described.shape, (*described.classes, *described.features, described.client, described.run)
    whole = (*shape, described.outputs, described.view)
    if not all(type(number) is int and 0 <= number <= MOST for number in whole) or not 1 <= len(shape) <= 8:
        raise ValueError
    if not all(map(_sound_column, described.columns)):
        raise ValueError
    image = len(shape) == 3
    sound = (
        min(*shape, described.outputs) >= 1 and math.prod(shape) <= MOST
        and described.task in ("binary", "multiclass", "regression") and described.dtype in ("float32", "uint8")
        and all(isinstance(text, str) for text in texts) and isinstance(described.personal, bool)
        and (described.task == "multiclass") == (described.outputs > 1)
        and len(described.classes) in (0, max(2, described.outputs))
        and (not described.features or shape == (len(described.features),))
        and (not described.columns or shape == (len(described.columns),))
        and len({len(row) for row in described.lens}) <= 1
        and all(fits(len(row), shape if image else described.seen_shape) for row in described.lens)
        and len(described.lens) != 1 and all(math.isfinite(number) for row in described.lens for number in row)
        and described.view in (range(8) if image and shape[1] == shape[2] else (0, 1) if image else (0,))
        and isinstance(described.model, dict) and "weights" not in described.model
    )  # fmt: skip
    if not sound:
        raise ValueError


def _sound_column(column: Encoding) -> bool:
    plain = all(isinstance(flag, bool) for flag in (column.flagged, column.category, column.other))
    number = isinstance(column.median, int | float) and math.isfinite(column.median)
    return plain and number and isinstance(column.name, str) and len(column.levels) == len(column.codes)


class Deployed(nn.Module):
    """Encode and standardise as in training, apply the model, turn logits into answers."""

    mean: Tensor
    scale: Tensor
    label: Tensor

    def __init__(
        self, model: Model, params: Params, task: Task, steps: Params, columns: tuple[Encoding, ...] = ()
    ) -> None:
        super().__init__()
        self.model, self.task, self.columns = model, task, columns
        for name, value in steps.items():
            self.register_buffer(name, value)
        self.weights = _grow(params)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return answers(self.task, self.outputs(x))

    def outputs(self, x: Tensor) -> Tensor:
        """[B, outputs] logits; of a regression predictions, in the label's own unit."""
        x = encode(x, self.columns) if self.columns else x
        x = x if x.dtype == torch.uint8 else (x - self.mean) / self.scale
        logits = self.model.apply(dict(self.weights.named_parameters()), x)
        if self.task == "regression":
            logits = self.label[0] + self.label[1] * logits
        return logits


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


def describe(opened: LoadedRun, client: int, shared: bool) -> tuple[Description, Deployed]:
    """The model one client predicts with, or the shared one, ready to be written."""
    federation = opened.federation
    if shared and opened.shared is None:
        raise UserError(f"{opened.trial.label} trains no global model; leave --global out.")
    params = opened.shared if shared else opened.lead(client)
    assert params is not None
    described = Description(
        task=federation.task,
        shape=(len(federation.schema.encodings),) if federation.schema.encodings else federation.shape,
        outputs=federation.outputs,
        classes=federation.schema.classes,
        features=federation.schema.columns,
        client=opened.clients[client],
        personal=not shared and opened.personal is not None,
        run=opened.trial.id,
        model={key: value for key, value in opened.trial.model.asked().items() if key != "weights"},
        dtype="uint8" if federation.train.x.dtype == torch.uint8 else "float32",
        view=0 if shared else federation.view_of(client),
        lens=() if federation.lens is None else tuple(tuple(row) for row in federation.lens.tolist()),
        columns=federation.schema.encodings,
    )
    model, steps = _seeing(opened.model, described), standardisation(federation)
    return described, Deployed(model, params, federation.task, steps, described.columns).eval()


def standardisation(federation: Federation) -> Params:
    """What is done to x and to a regression's answer, in shapes that fit; 0 and 1 where they are used as they are."""
    schema, shape = federation.schema, federation.shape
    mean, scale = torch.tensor(schema.mean or (0.0,)), torch.tensor(schema.scale or (1.0,))
    if len(shape) == 3:  # channels of an image
        mean, scale = mean.view(-1, 1, 1), scale.view(-1, 1, 1)
    if mean.numel() not in (1, shape[0] if len(shape) == 3 else shape[-1]) or mean.shape != scale.shape:
        raise UserError(
            f"The data give {mean.numel()} means for x of shape {shape}; one per column or channel is needed."
        )
    return {"mean": mean, "scale": scale, "label": torch.tensor([schema.label_mean, schema.label_scale])}


def rebuild(described: Description, params: Params, steps: Params) -> Deployed:
    settings = config.build(ModelSettings, described.model, "model")
    model = build_model(settings, described.seen_shape, described.outputs, "float32")
    _check_tensors(model, described, params, steps)
    model = _seeing(model, described)
    return Deployed(model, params, described.task, steps, described.columns).eval()


def _check_tensors(model: Model, described: Description, params: Params, steps: Params) -> None:
    """Every weight there, of its shape, and nothing else; statistics of batch norms may come along."""
    where = "cpu" if described.model.get("build") else "meta"  # shapes alone: nothing is drawn or held
    with torch.device(where):
        shapes = {name: tuple(leaf.shape) for name, leaf in model.strip(model.init(torch.Generator("cpu"))).items()}
    if model.statistics is not None:
        norms = [name for name in shapes if name.endswith(".bias") and name not in model.head]
        parts = [(name, name.replace(".bias", part)) for name in norms for part in (".running_mean", ".running_var")]
        shapes |= {part: shapes[name] for name, part in parts}
    found = {name: tuple(leaf.shape) for name, leaf in params.items()}
    width = described.shape[0] if len(described.shape) == 3 else described.seen_shape[-1]
    right = found == shapes and set(steps) == {"mean", "scale", "label"} and steps["label"].shape == (2,)
    right = right and all(steps[name].numel() in (1, width) and steps[name].ndim <= 3 for name in ("mean", "scale"))
    if not right or not all(leaf.is_floating_point() for leaf in (*params.values(), *steps.values())):
        raise UserError("its weights are not those of the model that it describes.")


def _seeing(model: Model, described: Description) -> Model:
    """The model, shown x as it was in training."""
    lens = torch.tensor(described.lens) if described.lens else None
    return seeing_through(seeing(model, described.view), lens, described.seen_shape)


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
