"""One client and its own data: what the simulator's loop and a deployed site both run."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.messages import Broadcast, ClientState, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.federation import Split, real_length
from perinvfl.learning import risks
from perinvfl.learning.problem import Problem

PIECE = 2**20  # most numbers that one model looks at in one go when it is only measured
# On a GPU, where small pieces are mostly waiting, more: one number in one go for so many bytes of its memory, for all
# models together, and up to so many samples for each.
GPU_BYTES, GPU_SAMPLES = 1536, 512
STATISTICS_SAMPLES = 256  # of a client's training data, to measure what a batch norm predicts with


@dataclass(frozen=True)
class LocalClient:
    algorithm: Algorithm  # as this client knows it
    problem: Problem
    data: Split  # [M, ...] its own samples without padding, where it trains

    def round(
        self, broadcast: Broadcast, state: ClientState, indices: Tensor | None
    ) -> tuple[Upload, ClientState]:  # indices: [steps, B], or all of its data at every step
        batches = self.problem.batches(self.data, indices)
        return self.algorithm.at(int(broadcast.round)).client_round(self.problem, _laid_out(broadcast), state, batches)

    def personal(self, broadcast: Broadcast, state: ClientState, indices: Tensor | None) -> Params:
        """What it predicts with."""
        batches = self.problem.batches(self.data, indices)
        return self.algorithm.personal(self.problem, _laid_out(broadcast), state, batches)

    def statistics(self, params: Params) -> Params:
        """Of a model that normalises by its batch: measured on evenly spaced samples."""
        assert self.problem.model.statistics is not None
        return self.problem.model.statistics(params, evenly_spaced(self.data.x))


def _laid_out(broadcast: Broadcast) -> Broadcast:
    """With weights of convolutions laid out in memory as these like them, channels last, wherever they come from: how a
    convolution rounds depends on it."""

    def laid_out(leaf: Tensor) -> Tensor:
        if leaf.ndim != 4:
            return leaf
        return leaf.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)

    return broadcast._replace(
        params=tree.map(laid_out, broadcast.params), control=tree.map(laid_out, broadcast.control)
    )


def evenly_spaced(x: Tensor) -> Tensor:
    """[STATISTICS_SAMPLES, ...] of one client's samples."""
    places = torch.arange(STATISTICS_SAMPLES, device=x.device) * x.shape[0] // STATISTICS_SAMPLES
    return x[places]


def without_padding(split: Split) -> Split:
    """One client's samples up to its last real one."""
    return Split(*(part[: real_length(split.context)] for part in split))


def predict(problem: Problem, params: Params, x: Tensor, models: int = 1) -> Tensor:
    """[M, outputs] logits of one model, in pieces where the samples are large: so many models do this at once."""
    if not len(x):
        return x.new_zeros((0, 1), dtype=torch.float32)
    piece = samples_at_once(x.device, x[0].numel(), models)
    return torch.cat([problem.logits(params, part) for part in x.split(piece)])


def samples_at_once(device: torch.device, numbers: int, models: int) -> int:
    """How many samples of so many numbers each of the models looks at in one go."""
    least = max(1, PIECE // numbers)
    if device.type != "cuda":
        return least
    room = torch.cuda.get_device_properties(device).total_memory // GPU_BYTES
    return max(least, min(GPU_SAMPLES, room // (models * numbers)))


def measure(problem: Problem, params: Params, tests: list[Split]) -> Tensor:
    """[number of tests, 1 + groups] of one model; tests that share their inputs are predicted once."""
    inputs = {id(test.x): test.x for test in tests}
    lengths = dict.fromkeys(inputs, 0)
    for test in tests:
        lengths[id(test.x)] = max(lengths[id(test.x)], real_length(test.context))
    logits = {key: predict(problem, params, x[: lengths[key]]) for key, x in inputs.items()}
    scores = []
    for test in tests:
        length = lengths[id(test.x)]
        scores.append(measure_logits(problem, logits[id(test.x)], test.y[:length], test.context[:length]))
    return torch.stack(scores)


def measure_logits(problem: Problem, logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
    return risks.measure(problem.task, logits, y, context, problem.groups)


def for_client(algorithm: Algorithm, client: int) -> Algorithm:
    """The algorithm as one client knows it: a list of settings gives it its own entry."""
    lists = {
        field.name: getattr(algorithm, field.name)
        for field in dataclasses.fields(algorithm)
        if isinstance(getattr(algorithm, field.name), tuple)
    }
    return with_settings(algorithm, {name: value[client] for name, value in lists.items()})


def with_settings(algorithm: Algorithm, settings: dict[str, object]) -> Algorithm:
    return dataclasses.replace(algorithm, **settings) if settings else algorithm  # type: ignore[arg-type]
