"""Models that predict, without the data they were trained on: what is left of a session when it is over."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perinvfl.core import config
from perinvfl.core.naming import client_named
from perinvfl.core.tree import Params
from perinvfl.data.encoding import encode, unread
from perinvfl.data.federation import Schema, Task
from perinvfl.data.own.inputs import raw_inputs
from perinvfl.data.own.readers import numbers_of
from perinvfl.errors import UserError
from perinvfl.models import Model, ModelSettings, Precision, build_model
from perinvfl.models.lens import seeing_through
from perinvfl.models.symmetry import seeing


@dataclass(frozen=True)
class FittedModels:
    """The models of some clients and the shared one. No row is in it; it pickles unless the model has no name."""

    label: str  # of the algorithm, for messages
    task: Task
    shape: tuple[int, ...]  # of one x
    width: int  # outputs of the model
    schema: Schema
    model: ModelSettings | Model
    precision: Precision
    personal: dict[str, Params]  # by client
    shared: Params | None  # None: the algorithm has no global model
    views: dict[str, int]  # of `models.symmetry`, by client; none: as it is
    lens: Tensor | None = None

    def outputs(self, x: Any, client: str | None = None) -> Tensor:
        """[n, outputs] of a client's model for inputs as they were in the file; without a client, the global one's."""
        params, inputs = self.parameters(client), self._prepared(x)
        made = self.model
        if isinstance(made, ModelSettings):
            made = build_model(made, self.shape, self.width, self.precision)
        model = seeing(made, 0 if client is None else self.views.get(client_named(client, self.views), 0))
        device = next(iter(params.values())).device
        with torch.no_grad():
            return seeing_through(model, self.lens, self.shape).apply(params, inputs.to(device)).cpu()

    def predict_proba(self, x: Any, client: str | None = None) -> Tensor:
        """[n, classes]"""
        if self.task == "regression":
            raise UserError("A regression has no classes; predict gives its values.")
        logits = self.outputs(x, client)
        if self.task == "multiclass":
            return torch.softmax(logits, 1)
        one = torch.sigmoid(logits[:, 0])
        return torch.stack([1 - one, one], 1)

    def predict(self, x: Any, client: str | None = None) -> list[str] | Tensor:
        """Names of classes, or the values of a regression in the label's own unit."""
        if self.task == "regression":
            return self.schema.label_mean + self.schema.label_scale * self.outputs(x, client)[:, 0].double()
        return [self.classes[place] for place in self.predict_proba(x, client).argmax(1).tolist()]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.schema.classes or tuple(str(place) for place in range(max(self.width, 2)))

    @property
    def unread(self) -> frozenset[str]:
        """Columns of which the models see nothing."""
        return unread(self.schema.encodings, [] if self.lens is None else self.lens.tolist())

    def parameters(self, client: str | None = None) -> Params:
        """What a client predicts with; without a client, the global model."""
        if client is None:
            if self.shared is None:
                raise UserError(f"{self.label} has no global model; name a client.")
            return self.shared
        name = client_named(client, self.personal)
        if name not in self.personal:
            raise UserError(f'"{client}" is not a client{config.suggest(client, list(self.personal))}')
        return self.personal[name]

    def _prepared(self, x: Any) -> Tensor:
        """Inputs as the model was trained on them."""
        encodings = self.schema.encodings
        shape = (len(encodings),) if encodings else self.shape
        inputs = raw_inputs(x, encodings, self.unread) if encodings else numbers_of("x", x)
        if tuple(inputs.shape[1:]) != shape:
            raise UserError(f"x has shape {list(inputs.shape)}; the model takes rows of shape {list(shape)}.")
        fine = torch.isfinite(inputs) | (inputs.isnan() & bool(encodings))
        wrong = (~fine.flatten(1).all(1)).nonzero()
        if len(wrong):
            raise UserError(f"x: row {int(wrong[0]) + 1} holds a value that is not a finite number.")
        if encodings:
            inputs = encode(inputs, encodings)
        if self.schema.mean:
            mean, scale = (torch.tensor(part, dtype=torch.float64) for part in (self.schema.mean, self.schema.scale))
            inputs = (inputs.double() - mean) / scale
        return inputs.float()
