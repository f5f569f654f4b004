"""How many samples models look at in one go when they are only measured."""

from types import SimpleNamespace

import pytest
import torch

from perinvfl.algorithms import FedAvg
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine import local_client
from perinvfl.engine.local_client import GPU_BYTES, GPU_SAMPLES, PIECE, samples_at_once
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training


def test_a_gpu_takes_more_images_the_fewer_models_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = 64 * PIECE * GPU_BYTES
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))
    gpu, image = torch.device("cuda"), PIECE // 16
    assert [samples_at_once(gpu, image, models) for models in (1, 4, 64, 1000)] == [GPU_SAMPLES, 256, 16, 16]
    assert samples_at_once(gpu, 4, 1) == samples_at_once(torch.device("cpu"), 4, 1) == PIECE // 4
    assert samples_at_once(torch.device("cpu"), image, 1) == 16
    assert samples_at_once(torch.device("cpu"), 2 * PIECE, 1) == 1


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_pieces_change_no_prediction(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation([FedAvg()], [random_federation()], [0], Training(executor=executor))  # type: ignore[arg-type]
    simulation.round()
    test = next(iter(simulation.tests.values()))
    params = simulation.models_of("global", simulation.everyone)
    whole = simulation.executor.predict(params, test.x)
    monkeypatch.setattr(local_client, "PIECE", 3 * test.x[0, 0, 0].numel())
    assert torch.allclose(whole, simulation.executor.predict(params, test.x), atol=1e-6)
