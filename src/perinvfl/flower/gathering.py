"""From the sites' answers in a round to one update: openly, or as a sum that shows no single one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

from perinvfl.algorithms.aggregation import Aggregation, Mean
from perinvfl.algorithms.messages import Combined, Upload
from perinvfl.core.tree import Params
from perinvfl.engine import draws
from perinvfl.flower import codec, limits, masked_vectors, privacy, secagg
from perinvfl.flower.adapter.messages import MessageType, RecordDict
from perinvfl.flower.codec import Rejected
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.flower.transport import Transport


@dataclass(frozen=True)
class Gathered:
    """What a round's answers come to."""

    combined: Combined
    risks: dict[int, float]  # by client; NaN where it stays unseen
    used: list[int]
    bytes_up: int
    far: dict[int, str] = field(default_factory=dict)  # whose update is far from the others', and how


@dataclass(frozen=True)
class Gatherer:
    transport: Transport
    settings: DeploymentSettings
    weights: str  # of clients in the mean: uniform, or by samples
    aggregation: Aggregation
    nu: Params  # what was sent
    control: Params = field(default_factory=dict)  # the shapes of what a method sends beside its update
    check: Callable[[Params], None] = lambda update: None  # raises Rejected for what cannot be an update

    def gather(
        self, round: int, questions: dict[int, RecordDict], heard: Callable[[int], None]
    ) -> tuple[Gathered | None, dict[int, Rejected]]:
        """None where nothing came that can be used; and whose answer was not believed."""
        if self.settings.secure_aggregation:
            return self._secretly(round, questions, heard)
        return self._openly(round, questions, heard)

    def _openly(
        self, round: int, questions: dict[int, RecordDict], heard: Callable[[int], None]
    ) -> tuple[Gathered | None, dict[int, Rejected]]:
        answers = self.transport.ask(MessageType.TRAIN, questions, round, self.settings.round_timeout, heard)
        uploads: dict[int, Upload] = {}
        samples: dict[int, int] = {}
        why: dict[int, Rejected] = {}
        bytes_up = 0
        asked_for = {"risk"} if not self.settings.private else set()
        asked_for |= {"samples"} if self.weights == "samples" else set()
        for client, answer in sorted(answers.items()):
            try:
                if isinstance(answer, Rejected):
                    raise answer
                bytes_up += codec.size(answer)
                upload, rest = codec.decode_upload(
                    answer, self.nu, self.settings.largest_update, asked_for, self.control
                )
                self.check(upload.update)
                uploads[client], samples[client] = upload, rest.get("samples", 1)
            except Rejected as rejected:
                why[client] = rejected
        if not uploads:
            return None, why
        shares = draws.shares(torch.tensor([samples[client] for client in uploads]), self.weights)
        gathering, controls = self.aggregation.begin(), Mean().begin()
        for share, upload in zip(shares.tolist(), uploads.values(), strict=True):  # in the order of the clients
            gathering.add(upload.update, share)
            controls.add(upload.control, share)
        risks = {client: float(upload.risk) for client, upload in uploads.items()}
        combined = Combined(gathering.result(shares), controls.result(shares))
        far = far_from_others({client: privacy.norm(upload.update) for client, upload in uploads.items()})
        return Gathered(combined, risks, list(uploads), bytes_up, far), why

    def _secretly(
        self, round: int, questions: dict[int, RecordDict], heard: Callable[[int], None]
    ) -> tuple[Gathered | None, dict[int, Rejected]]:
        size = sum(leaf.numel() for leaf in (*self.nu.values(), *self.control.values())) + 1
        settings = self.settings
        mean, rest, why = secagg.collect(
            self.transport, questions, round, settings.round_timeout, settings.clipping_range, size, heard
        )
        combined, risk = masked_vectors.unflatten(mean, self.nu, self.control)
        risks = {client: float(numbers.get("risk", risk)) for client, numbers in rest.items()}
        return Gathered(combined, risks, sorted(rest), 4 * size * len(rest)), why


def far_from_others(norms: dict[int, float]) -> dict[int, str]:
    """Whose update is much longer or shorter than the median of them; of two nobody knows which is the odd one.

    >>> far_from_others({0: 1.0, 1: 1.2, 2: 50.0})
    {2: 'norm 50, 41.7 times the median of all'}
    """
    if len(norms) < 3:
        return {}
    middle = median(norms.values())
    return {
        client: f"norm {norm:.3g}, {f'{norm / middle:.3g} times the' if middle else 'and 0 is the'} median of all"
        for client, norm in norms.items()
        if norm > limits.FAR * middle or norm * limits.FAR < middle
    }
