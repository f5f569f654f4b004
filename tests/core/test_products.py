"""Products by either library are the same to rounding, and which one computes is settled by the shapes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perinvfl.algorithms import FedAvg
from perinvfl.core import products
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine import compiling
from perinvfl.engine.compiling import compiles, fast_as_they_are, pick_descent
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.direct import direct_gradient
from perinvfl.learning.problem import Batch, autograd_gradient, descend
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model

LARGE = (64, 200, 208)  # samples, inputs, units: enough for oneDNN


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """As on a processor that oneDNN is faster on; the shapes that it was given."""
    seen: list[tuple[int, ...]] = []
    real = products.by_onednn

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append((*x.shape, weight.shape[0]))
        return real(x, weight, bias)

    monkeypatch.setattr(products, "MKL_IS_SLOW", True)
    monkeypatch.setattr(compiling, "MKL_IS_SLOW", True)
    monkeypatch.setattr(products, "by_onednn", counted)
    return seen


def test_linear_layers_are_the_same_to_rounding(onednn: list[tuple[int, ...]]) -> None:
    samples, inputs, units = LARGE
    x, weight, bias = torch.randn(samples, inputs), torch.randn(units, inputs), torch.randn(units)
    exact = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(products.linear(x, weight, bias).double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        products.linear(x, weight, None, relu=True).double(), (exact - bias).relu(), rtol=1e-5, atol=1e-4
    )
    assert onednn == [LARGE, LARGE]


def test_products_take_matrices_that_lie_transposed(onednn: list[tuple[int, ...]]) -> None:
    samples, inputs, units = LARGE
    x, slope, weight = torch.randn(samples, inputs), torch.randn(samples, units), torch.randn(units, inputs)
    for a, b in ((slope.t(), x), (slope, weight), (x.t(), slope), (x, weight.t())):
        torch.testing.assert_close(products.product(a, b).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)
    assert len(onednn) == 4


def test_small_products_and_other_numbers_stay_where_they_were(onednn: list[tuple[int, ...]]) -> None:
    a, b = torch.randn(8, 200), torch.randn(200, 208)
    assert torch.equal(products.product(a, b), torch.mm(a, b))
    assert torch.equal(products.linear(a, b.t(), None), F.linear(a, b.t()))
    rough = torch.randn(LARGE[:2]).bfloat16(), torch.randn(LARGE[1:]).bfloat16()
    assert torch.equal(products.product(*rough), torch.mm(*rough))
    assert not onednn


def test_numbers_that_are_none_stay_so(onednn: list[tuple[int, ...]]) -> None:
    """A ReLU that makes zeros of them would hide that a run has broken."""
    samples, inputs, units = LARGE
    weight = torch.randn(units, inputs)
    weight[3], weight[4] = torch.nan, torch.inf
    found = products.linear(torch.rand(samples, inputs), weight, None, relu=True)
    assert onednn and found[:, 3].isnan().all() and found[:, 4].isinf().all() and found[:, :3].isfinite().all()


def test_the_gradient_is_autograds(onednn: list[tuple[int, ...]]) -> None:
    model = build_model(ModelSettings(hidden=(208, 208)), (200,), 1, "float32")
    params = model.init(torch.Generator().manual_seed(0))
    batch = Batch(torch.randn(64, 200), torch.randint(2, (64,)).float(), torch.zeros(64, dtype=torch.long))

    def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], y)
        return loss, loss

    mine, risk = direct_gradient(model, objective, params, batch)
    theirs, same = autograd_gradient(model, objective, params, batch)
    assert len(onednn) == 5  # two layers forward, one slope, two gradients; the last layer is small
    torch.testing.assert_close(risk, same, rtol=1e-5, atol=1e-6)
    for name, leaf in theirs.items():
        torch.testing.assert_close(mine[name], leaf, rtol=1e-4, atol=1e-6)


def test_a_run_has_the_same_bits_again(onednn: list[tuple[int, ...]]) -> None:
    federation = random_federation(clients=3, samples=80, shape=(200,))
    training = Training(batch_size=64, executor="loop", device="cpu")
    once, again = (
        Simulation([FedAvg(local_steps=3)], [federation], [0], training, ModelSettings(hidden=(208, 208)))
        for _ in range(2)
    )
    for _ in range(2):
        assert torch.equal(once.round(), again.round())
    assert onednn and all(torch.equal(leaf, again.server.params[name]) for name, leaf in once.server.params.items())


def test_steps_that_are_fast_as_they_are_are_not_compiled(onednn: list[tuple[int, ...]]) -> None:
    large = build_model(ModelSettings(hidden=(390, 390)), (392,), 1, "float32")
    small = build_model(ModelSettings(hidden=(5,)), (4,), 1, "float32")
    training = Training(batch_size=64, executor="loop", device="cpu", compile=True)
    assert fast_as_they_are(training, large) and not compiles(training, False, large)
    assert not fast_as_they_are(training, small) and compiles(training, False, small)
    with pytest.warns(UserWarning, match="faster as they are"):
        assert pick_descent(training, False, large) is descend


@pytest.mark.parametrize(
    ("text", "maker"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "AuthenticAMD"),
        ("processor : 0\nBogoMIPS : 5\n", ""),
        (None, ""),
    ],
)
def test_the_maker_of_the_processor(
    text: str | None, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(products, "Path", lambda place: file)
    assert products.maker_of_processor() == maker
