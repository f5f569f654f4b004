"""Precision and evaluation."""

import pytest
import torch

from perinvfl.algorithms import Alone, FedAvg, PerInvFL
from perinvfl.algorithms.base import Algorithm
from tests import reference
from tests.algorithms.small_runs import ALL, EXECUTORS, personal, same_bits, simulate, small_federation


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["fedavg", "irm", "perinvfl_irm", "perinvfl_groupdro"])
def test_bfloat16_stays_near_float32(name: str, executor: str) -> None:
    exact, rough = (simulate(ALL[name], 5, executor, precision=precision) for precision in ("float32", "bfloat16"))
    assert rough.server.params["0.weight"].dtype == torch.float32
    assert rough.broken.tolist() == [-1]
    for a, b in ((exact.server.params, rough.server.params), (personal(exact), personal(rough))):
        assert not same_bits(a, b)
        for leaf in a:
            torch.testing.assert_close(a[leaf], b[leaf], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_evaluate_measures_each_client_on_each_test(executor: str) -> None:
    algorithms: list[Algorithm] = [PerInvFL(), PerInvFL(beta=0.1)]
    simulation = simulate(algorithms, 3, executor, federation=small_federation(holdout=8))
    measured = simulation.evaluate()
    assert list(measured) == ["personal", "global"]
    chunked = simulation.evaluate(client_chunk=3)
    tests = {**simulation.federation.tests, "validation": simulation.federation.validation}
    models = personal(simulation)
    for trial in range(2):
        for i in range(4):
            own = {name: leaf[trial, i] for name, leaf in models.items()}
            shared = {name: leaf[trial] for name, leaf in simulation.model.strip(simulation.server.params).items()}
            for case, split in tests.items():
                assert split is not None
                real = split.context[i] >= 0
                for kind, params in (("personal", own), ("global", shared)):
                    logits = reference.network(params)(split.x[i][real].double())[:, 0]
                    right = ((logits > 0) == (split.y[i][real] > 0.5)).double().mean().item()
                    assert measured[kind][case][trial, i].item() == pytest.approx(right)
                    assert chunked[kind][case][trial, i].item() == pytest.approx(right)
    assert list(simulate(FedAvg(), 1, executor).evaluate()) == ["global"]
    assert list(simulate(Alone(), 1, executor).evaluate()) == ["personal"]
