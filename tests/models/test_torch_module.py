"""A user's own torch.nn.Module: the same training as ours, and a sentence for each kind that cannot work."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perinvfl.algorithms import PerInvFL
from perinvfl.cli import call
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine.loop import Loop
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings, build_model, module
from perinvfl.models.torch_module import shapes_checksum
from tests.commands import called, perinvfl

ALGORITHM = PerInvFL(local_steps=2, beta=0.5, penalty_weight=10.0)


def small(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))


def own(build: Any, outputs: int = 1, precision: Any = "float32") -> Model:
    return module(build, (6,), outputs, precision)


def after(model: Model | ModelSettings, rounds: int = 3, **training: Any) -> Simulation:
    simulation = Simulation([ALGORITHM], [random_federation(clients=4)], [3], Training(**training), model)
    for _ in range(rounds):
        simulation.round()
    return simulation


class Ours(nn.Module):
    """Our own mlp 6-16-1, as anybody would write it."""

    w0: Tensor
    b0: Tensor
    w1: Tensor
    b1: Tensor

    def __init__(self) -> None:
        super().__init__()
        for layer, (rows, columns) in enumerate(((16, 6), (1, 16))):
            self.register_parameter(f"w{layer}", nn.Parameter(nn.init.xavier_uniform_(torch.empty(rows, columns))))
            self.register_parameter(f"b{layer}", nn.Parameter(torch.zeros(rows)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w0.T + self.b0) @ self.w1.T + self.b1


def test_a_module_trains_as_our_own_model_of_the_same_shape() -> None:
    mine, ours = own(Ours), build_model(ModelSettings(hidden=(16,)), (6,), 1, "float32")
    begin = mine.init(torch.Generator().manual_seed(5))
    names = {"w0": "0.weight", "b0": "0.bias", "w1": "1.weight", "b1": "1.bias"}
    started = ours._replace(init=lambda generator: {names[k]: v.clone() for k, v in begin.items()})
    one = after(mine._replace(init=lambda generator: {k: v.clone() for k, v in begin.items()}))
    other = after(started)
    for name, leaf in one.server.params.items():
        torch.testing.assert_close(leaf, other.server.params[names[name]])


def test_the_seed_decides_the_beginning_and_nothing_else_does() -> None:
    model = own(small)
    torch.manual_seed(99)
    first = model.init(torch.Generator().manual_seed(1))
    drawn = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(drawn, torch.rand(1))  # the global stream is left as it was
    again, other = (model.init(torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_executors_agree_and_threads_do_not_disturb_each_other() -> None:
    batched = after(own(small), executor="vmap")
    torch.set_num_threads(4)
    try:
        threaded = after(own(small), executor="loop")
        assert isinstance(threaded.executor, Loop) and threaded.executor.workers == 4
    finally:
        torch.set_num_threads(1)
    alone = after(own(small), executor="loop")
    for name, leaf in alone.server.params.items():
        assert torch.equal(leaf, threaded.server.params[name])
        torch.testing.assert_close(leaf, batched.server.params[name])
    assert after(own(small, precision="bfloat16"), precision="bfloat16").evaluate()


def test_a_function_may_take_nothing_or_be_a_class_and_one_output_may_lack_its_axis() -> None:
    class Flat(nn.Module):
        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(shape))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    assert own(lambda: nn.Linear(6, 1)).apply(
        {"weight": torch.ones(1, 6), "bias": torch.zeros(1)}, torch.ones(2, 6)
    ).shape == (2, 1)
    assert own(Flat).apply({"w": torch.ones(6)}, torch.ones(2, 6)).tolist() == [[6.0], [6.0]]


def test_frozen_parameters_and_constant_buffers_stay() -> None:
    def build() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        made[0].requires_grad_(False)
        made[0].register_buffer("steps", torch.arange(3))
        return made

    model = own(build)
    assert set(model.init(torch.Generator().manual_seed(0))) == {"2.weight", "2.bias"}
    assert after(model).rounds_done == 3


def test_images_kept_as_bytes_are_seen_between_0_and_1() -> None:
    model = own(lambda: nn.Linear(6, 1))
    params = {"weight": torch.ones(1, 6), "bias": torch.zeros(1)}
    assert model.apply(params, torch.full((2, 6), 255, dtype=torch.uint8)).tolist() == [[6.0], [6.0]]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x + torch.rand_like(x))


class Counting(Noisy):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.w(x)


class TwoFaced(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        return self.w(x) if self.training else 2 * self.w(x)


def failing() -> nn.Module:
    raise RuntimeError("no weights here")


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "layer 1 is a BatchNorm1d, whose"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1)), "layer 1 is a Dropout, and"),
        (Noisy, "draws random numbers"),
        (Counting, "the buffer seen changes"),
        (TwoFaced, "behaves differently in training and in evaluation"),
        (lambda: nn.Linear(6, 2), r"puts out shape \[4, 2\] for 4 samples of shape \[6\]; must be \[4, 1\]"),
        (lambda: nn.Linear(5, 1), r"fails on samples of shape \[6\] with RuntimeError"),
        (lambda: nn.Flatten(), "has no parameter to train"),
        (lambda: 3, "must return a torch.nn.Module, and returned int"),
        (lambda width: nn.Linear(6, 1), "asks for width"),
        (failing, "failed with RuntimeError: no weights here"),
        (3, "must be a function"),
    ],
)
def test_a_module_that_cannot_work_is_answered(build: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        own(build)


def test_batch_norm_without_running_statistics_is_admitted() -> None:
    norm = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))  # noqa: E731
    assert after(own(norm)).rounds_done == 3


class Branching(Noisy):
    """Looks at a number, which vmap does not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x) if float(self.w.bias.detach().sum()) < 1e9 else -self.w(x)


def test_a_module_that_cannot_be_mapped_runs_one_client_after_another() -> None:
    model = own(Branching)
    assert "vmap" in model.unmapped
    with pytest.warns(UserWarning, match=r"cannot run for many clients at once .*: training.executor is loop"):
        fallen = after(model, executor="vmap")
    assert isinstance(fallen.executor, Loop)
    plain = after(model, executor="loop")
    for name, leaf in plain.server.params.items():
        assert torch.equal(leaf, fallen.server.params[name])


FILE = """
[data]
benchmark = "random"
[model]
kind = "module"
build = "{build}"
[training]
rounds = 2
executor = "{executor}"
[[algorithm]]
name = "ditto"
"""


def test_by_name_from_an_experiment_file(tmp_path: Path) -> None:
    code = """
    from torch import nn

    def build(shape, outputs):
        return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, outputs))

    class Branching(nn.Linear):
        def __init__(self):
            super().__init__(6, 1)

        def forward(self, x):
            return super().forward(x) if self.bias.detach().item() < 1e9 else x
    """
    (tmp_path / "here").mkdir()
    (tmp_path / "here/own_net.py").write_text(textwrap.dedent(code))
    file = tmp_path / "here/own.toml"
    file.write_text(FILE.format(build="own_net:build", executor="vmap"))
    done = called("run", file, "--out", tmp_path / "runs", cwd=tmp_path)  # the module lies beside the file
    assert done.returncode == 0, done.stderr
    start = json.loads(next((tmp_path / "runs").rglob("events.jsonl")).read_text().splitlines()[0])
    assert start["asked"]["model"] == {"kind": "module", "build": "own_net:build"}
    assert len(start["parameters"]) == 8
    again = called("run", file, "--out", tmp_path / "runs", cwd=tmp_path)
    assert "already done" in again.stdout
    (tmp_path / "here/own_net.py").write_text(textwrap.dedent(code).replace("5", "7"))
    changed = called("run", file, "--out", tmp_path / "runs", cwd=tmp_path)
    assert "already done" not in changed.stdout and len(list((tmp_path / "runs/own").iterdir())) == 2
    file.write_text(FILE.format(build="own_net:Branching", executor="vmap"))
    fallen = perinvfl("run", file, "--out", tmp_path / "runs", cwd=tmp_path)
    assert fallen.returncode == 0 and fallen.stderr.startswith("note: The model cannot run for many clients")
    file.write_text(FILE.format(build="own_net:missing", executor="auto"))
    refused = called("run", file, "--out", tmp_path / "runs", cwd=tmp_path)
    assert refused.returncode == 2 and "own_net has no missing" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        ("no_such_net:build", "there is no module no_such_net here"),
        ("own_net", "must be module:name"),
        ("", "go together"),
    ],
)
def test_a_name_that_cannot_be_meant_is_answered(
    build: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # the file's folder is added
    file = tmp_path / "own.toml"
    file.write_text(FILE.format(build=build, executor="auto"))
    assert call(["run", str(file), "--out", str(tmp_path / "runs")]) == 2
    assert sentence in capsys.readouterr().err


def test_runs_recorded_before_there_were_own_models_keep_their_names() -> None:
    from perinvfl.runs.experiment import build_experiment

    trial = build_experiment({"data": {"benchmark": "random"}, "algorithm": [{"name": "fedavg"}]}).trials[0]
    assert trial.asked()["model"] == {"kind": "mlp", "hidden": (390, 390)}
    assert trial.id == "737d2639176d648a"


def test_shapes_tell_models_apart() -> None:
    first = {"a": torch.zeros(2, 3)}
    assert (
        shapes_checksum(first) == shapes_checksum({"a": torch.ones(2, 3)}) != shapes_checksum({"a": torch.zeros(3, 2)})
    )
