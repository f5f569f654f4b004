"""`recommended` sums up what clients see before it trains: a site whose sums cannot be is named and left out, and what
one site can do to sums that nobody sees apart does not end a run."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import Array, ArrayRecord
from perinvfl.flower.codec import Rejected
from perinvfl.flower.transport import Answer
from perinvfl.learning.border import find_reading
from perinvfl.learning.slopes import are_sums, client_sums, zero_sums
from perinvfl.learning.variation import find_answer, find_variation, is_leaned_on
from perinvfl.preparation.summing import sums_model, sums_received
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import read_run
from perinvfl.runs.trial import Trial
from tests.flower.deployed import SETTINGS, deploy
from tests.flower.inprocess import InProcess

ODD = 2
HOSTILE = {
    "negative": lambda flat: -flat,
    "far below zero": lambda flat: torch.full_like(flat, -100.0),
    "alike": lambda flat: torch.full_like(flat, 100.0),  # which can be
    "at random": lambda flat: 10 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(1)),
}
DATA: dict[str, dict[str, Any]] = {
    "table": {"benchmark": "random", "clients": 3, "contexts": 2, "samples": 60, "shape": [4]},
    "digits": {
        "benchmark": "rc_mnist",
        "p_train": [0.9, 0.8, 0.7],
        "train_per_client": 40,
        "holdout": 8,
        "test_per_client": 8,
    },
}


def trial_on(data: str) -> Trial:
    table = {
        "data": DATA[data],
        "model": {"hidden": [4]},
        "training": {"rounds": 4, "batch_size": 10, "executor": "loop"},
        "algorithm": {"name": "recommended"},
    }
    return build_experiment(table).trials[0]


class Hostile(InProcess):
    """One site whose first upload in every phase of one round is another one."""

    def __init__(self, folder: Path, how: str) -> None:
        super().__init__(folder, 3, self.change)
        self.how = how

    def change(self, kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == ODD and not isinstance(answer, Rejected) and round == 0:
            array = answer.array_records[codec.UPDATE][codec.FLAT]
            flat = HOSTILE[self.how](torch.frombuffer(bytearray(array.data), dtype=torch.float32)).contiguous()
            changed = Array("float32", (flat.numel(),), codec.RAW, flat.numpy().tobytes())
            answer[codec.UPDATE] = ArrayRecord({codec.FLAT: changed})
        return answer


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("how", HOSTILE)
def test_sums_that_cannot_be_are_left_out_and_the_others_go_on(how: str, data: str, tmp_path: Path) -> None:
    rounds = deploy(trial_on(data), tmp_path, SETTINGS, Hostile(tmp_path, how))
    run = read_run(rounds.folder)
    assert run is not None and run.finished and run.broken is None
    refused = [event for event in run.events if event["event"] == "left out"]
    assert {event["site"] for event in refused} == ({f"site-{ODD}"} if how != "alike" else set())
    assert all("sends sums that cannot be" in event["why"] for event in refused)


def honest(rows: int, seed: int) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 5, generator=source), torch.randint(2, (rows,), generator=source).float()
    return client_sums("binary", 1, 2, x + y[:, None], y, torch.arange(rows) % 2)


def test_honest_sums_are_believed_however_few_or_alike_the_rows_are() -> None:
    assert are_sums(zero_sums((5,), 1, 2))
    for rows in (1, 8, 17, 400):
        assert are_sums(honest(rows, rows))
    same = torch.ones(40, 5)
    assert are_sums(client_sums("binary", 1, 2, same, torch.arange(40) % 2, torch.zeros(40)))
    repeated = torch.randn(40, 1).repeat(1, 5) * torch.tensor([1e-3, 1.0, 1e3, 1e3, 1e3])
    assert are_sums(client_sums("multiclass", 3, 2, repeated, torch.arange(40) % 3, torch.arange(40) % 2))


def test_whatever_the_sums_over_all_clients_are_something_can_be_said() -> None:
    """Under secure aggregation nobody can tell whose sums these are."""
    source, zeros = torch.Generator().manual_seed(3), zero_sums((5,), 1, 2)
    model = sums_model(lambda: zeros)
    for trial in range(300):
        scale = 10.0 ** (trial % 9 - 3)
        sums = {name: leaf + scale * torch.randn(leaf.shape, generator=source) for name, leaf in honest(200, 0).items()}
        if trial % 3 == 0:
            sums = {name: -leaf for name, leaf in sums.items()}
        received = sums_received(zeros, partial(model.apply, sums), torch.zeros(1, 5))
        assert all(bool(torch.isfinite(leaf).all()) for leaf in received.values()) and are_sums(received)
        for images in (False, True):
            find_variation(received, images)
            find_answer(received, images)
        is_leaned_on(received)
        assert bool(torch.isfinite(find_reading(received)).all())
