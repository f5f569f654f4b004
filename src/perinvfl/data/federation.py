"""What every data source is turned into: N clients, samples labelled with the context they came from."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from perinvfl.core.naming import client_names, counted, listed
from perinvfl.data.encoding import Encoding
from perinvfl.data.images import AS_IT_IS, Augmentation
from perinvfl.errors import UserError

Task = Literal["binary", "multiclass", "regression"]
# What inferred contexts are for. In all but "given", a training context is 2 · (given context) + (whether the
# reference model is wrong), or, inferred softly, the share by which a sample belongs to the wrong ones.
ContextUse = Literal["given", "balance", "discount", "judge"]


class Split(NamedTuple):
    """Samples of N clients, padded to the same length. The samples of one client have no leading axis."""

    x: Tensor  #: [N, M, ...]
    y: Tensor  #: [N, M] float for binary and regression, int64 for multiclass
    context: Tensor  #: [N, M] int64: which context a sample came from; -1 is padding, last in what is trained on


def real_length(context: Tensor) -> int:
    """Of one client's samples, up to the last real one: what comes after it is padding."""
    real = (context >= 0).nonzero()
    return int(real[-1]) + 1 if len(real) else 0


@dataclass(frozen=True)
class Schema:
    """What the numbers of a federation stand for. A field is empty where this is not known."""

    clients: tuple[str, ...] = ()  #: names, in the order of the client axis
    contexts: tuple[str, ...] = ()  #: names of the training contexts, by context number
    classes: tuple[str, ...] = ()  #: names of the classes, by number
    features: tuple[str, ...] = ()  #: names of the columns of a table, in the order of x's last axis
    mean: tuple[float, ...] = ()  #: what was subtracted from each column before training
    scale: tuple[float, ...] = ()  #: what each column was then divided by
    label_mean: float = 0.0  #: of a regression's label: a prediction is label_mean + label_scale * output
    label_scale: float = 1.0  #: see label_mean
    encodings: tuple[Encoding, ...] = ()  #: how features were made from a file's columns; empty: they are the columns

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a table's columns before they were encoded, as `predict` expects them."""
        return tuple(encoding.name for encoding in self.encodings) or self.features

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names that are known, for the record."""
        found = {key: getattr(self, key) for key in ("clients", "contexts", "classes", "features")}
        return {key: names for key, names in found.items() if names}


class Origin(NamedTuple):
    """What a federation was made from, so that it can be made again."""

    benchmark: str
    settings: Any
    seed: int


@dataclass(frozen=True)
class Federation:
    """The data of one federated problem.

    >>> from perinvfl.data.benchmarks.random import random_federation
    >>> federation = random_federation(clients=3, contexts=2, samples=10, shape=(4,))
    >>> federation.train.x.shape, federation.clients, federation.contexts
    (torch.Size([3, 10, 4]), 3, 2)
    """

    name: str
    task: Task
    outputs: int  #: logits the model must give: 1 for binary and regression
    contexts: int  #: K: training contexts are numbered from 0 to K - 1; a client need not have all
    train: Split
    tests: dict[str, Split]  #: the spectrum: test contexts by name, each [N, M_test, ...]
    spectrum: tuple[str, ...]  #: names of the out-of-distribution cases averaged in tables, in order
    validation: Split | None = None  #: held out from the clients' own training contexts
    notes: dict[str, object] = field(default_factory=dict)  #: facts for the record (constant predictor, ...)
    schema: Schema = field(default_factory=Schema)
    groups: tuple[str, ...] = ()  #: names of (class, context) pairs of a binary task's tests, by 2 · class + context
    augmentation: Augmentation = AS_IT_IS
    split: ContextUse = "given"
    answers: int = 0  #: how many different ones there are of what is discounted; 0: as many as classes
    even_classes: bool = False  #: class shares are taken off the logits in training
    views: tuple[int, ...] = ()  #: in which view of `models.symmetry` each client's images are here; empty: as they are
    lens: Tensor | None = None  #: of `models.lens`, through which x is seen here; None: as it is
    inferred: dict[str, Split] = field(default_factory=dict)  #: held-out data by inferred context, as further tests
    origin: Origin | None = None

    def __repr__(self) -> str:
        """A few lines: the numbers themselves are of no use to a reader.

        >>> from perinvfl.data.benchmarks.random import random_federation
        >>> random_federation(clients=3, contexts=2, samples=10, shape=(4,))
        Federation random: binary, inputs of shape [4]
          3 clients: Client 1, Client 2, Client 3
          26 training samples, 7 to 10 at each client
          2 training contexts
          tests: 0.1, 0.5
        """
        sizes = self.sizes.tolist()
        each = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
        contexts = f": {listed(self.schema.contexts)}" if self.schema.contexts else ""
        held = f", {int((self.validation.context >= 0).sum())} for validation" if self.validation is not None else ""
        return "\n".join(
            [
                f"Federation {self.name}: {self.task}, inputs of shape {list(self.shape)}",
                f"  {counted(self.clients, 'client')}: {listed(self.client_names)}",
                f"  {sum(sizes)} training samples, {each} at each client{held}",
                f"  {counted(self.contexts, 'training context')}{contexts}",
                f"  tests: {listed(self.tests) or 'none'}",
            ]
        )

    def check_tests(self) -> None:
        """A run ends with scores, so there must be something to score."""
        if not self.tests:
            raise UserError("No row is left to test on; name data.test_contexts, or make data.test_share larger.")

    @property
    def classes(self) -> int:
        return max(self.outputs, 2)

    @property
    def client_names(self) -> tuple[str, ...]:
        return tuple(client_names(self.schema.clients, self.clients))

    def view_of(self, client: int) -> int:
        return self.views[client] if self.views else 0

    @property
    def clients(self) -> int:
        return self.train.y.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[2:])

    @property
    def sizes(self) -> Tensor:
        """[N] samples each client really has."""
        return (self.train.context >= 0).sum(1)

    @property
    def contexts_per_client(self) -> list[int]:
        return [int(row[row >= 0].unique().numel()) for row in self.train.context]

    def with_inputs(self, change: Callable[[Tensor], Tensor], **further: Any) -> "Federation":
        """The same federation with all x [N, M, ...] changed; tests that share their inputs go on doing so."""
        made: dict[int, Tensor] = {}

        def changed(data: Split) -> Split:
            if id(data.x) not in made:
                made[id(data.x)] = change(data.x)
            return data._replace(x=made[id(data.x)])

        return dataclasses.replace(
            self,
            train=changed(self.train),
            tests={name: changed(data) for name, data in self.tests.items()},
            validation=self.validation and changed(self.validation),
            inferred={name: changed(data) for name, data in self.inferred.items()},
            **further,
        )

    def share_of(self, client: int) -> "Federation":
        """One client's part, in memory of its own, without padding: what a site would hold."""
        made: dict[int, Tensor] = {}  # tests that share their inputs go on doing so
        splits = [self.train, *self.tests.values(), *self.inferred.values()]
        splits += [] if self.validation is None else [self.validation]
        lengths: dict[int, int] = {}
        for split in splits:
            lengths[id(split.x)] = max(lengths.get(id(split.x), 0), real_length(split.context[client]))

        def own(split: Split) -> Split:
            length = lengths[id(split.x)]
            if id(split.x) not in made:
                made[id(split.x)] = split.x[client : client + 1, :length].clone()
            y, context = (part[client : client + 1, :length].clone() for part in (split.y, split.context))
            return Split(made[id(split.x)], y, context)

        return dataclasses.replace(
            self,
            train=own(self.train),
            tests={name: own(split) for name, split in self.tests.items()},
            validation=None if self.validation is None else own(self.validation),
            inferred={name: own(split) for name, split in self.inferred.items()},
            views=self.views[client : client + 1],
            schema=dataclasses.replace(self.schema, clients=self.schema.clients[client : client + 1]),
        )
