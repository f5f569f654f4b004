"""No file that is read runs anything: each carries a pickle or a program that would create a file or a folder."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from perinvfl.core import checkpoint
from perinvfl.data.benchmarks.album import read_album
from perinvfl.errors import UserError
from perinvfl.export.formats import FORMATS, read_model, write_model
from perinvfl.export.module import Deployed, Description
from perinvfl.models import ModelSettings, build_model
from perinvfl.models.resnet import parameter_shapes, read_weights
from tests.commands import called, check_refusal
from tests.hostile import bombs

DESCRIBED = Description(
    "binary", (2,), 1, (), ("age", "dose"), "Bern", True, "r", {"kind": "mlp", "hidden": [3]}, "float32"
)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """A sound model file of a form."""

    def write(form: str) -> Path:
        built = build_model(ModelSettings(hidden=(3,)), (2,), 1, "float32")
        params = built.strip(built.init(torch.Generator().manual_seed(0)))
        steps = {"mean": torch.zeros(2), "scale": torch.ones(2), "label": torch.tensor([0.0, 1.0])}
        path = tmp_path / f"model.{form}"
        write_model(Deployed(built, params, "binary", steps).eval(), DESCRIBED, form, path)
        return path

    return write


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text("age,dose\n1,2\n3,4\n")
    return path


def test_the_pickle_of_these_tests_does_run_where_it_is_let(tmp_path: Path) -> None:
    torch.load(io.BytesIO(bombs.evil_torch_file(tmp_path / "mark")), weights_only=False)
    assert (tmp_path / "mark").exists(), "else nothing here could fail"


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/constants/model_constants_config.json"])
def test_a_pickle_in_a_pt2_is_not_run(member: str, model: Callable[[str], Path], table: Path, tmp_path: Path) -> None:
    path, mark = model("pt2"), tmp_path / "mark"
    evil = path.with_name("evil.pt2")
    evil.write_bytes(bombs.with_members(path.read_bytes(), {member: bombs.evil_torch_file(mark)}))
    done = called("predict", evil, table)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3, "what carries the code is never opened"
    assert done.stdout == called("predict", path, table).stdout and not mark.exists()


def test_torch_itself_would_run_it(model: Callable[[str], Path], tmp_path: Path) -> None:
    """The reason why torch never opens a .pt2 here; in a process of its own, for it may take the process along."""
    mark, evil = tmp_path / "mark", tmp_path / "evil.pt2"
    evil.write_bytes(
        bombs.with_members(model("pt2").read_bytes(), {"data/sample_inputs/model.pt": bombs.evil_torch_file(mark)})
    )
    code = f"import torch\ntry:\n  torch.export.load({str(evil)!r})\nexcept Exception: pass"
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert mark.exists(), "torch no longer runs it: is the check still needed?"


def test_weights_of_a_pt2_that_are_pickled_are_refused(model: Callable[[str], Path], tmp_path: Path) -> None:
    path, mark = model("pt2"), tmp_path / "mark"
    config = "data/weights/model_weights_config.json"
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        weights = json.loads(archive.read(f"{root}/{config}"))
    for entry in weights["config"].values():
        entry["use_pickle"] = True
    changed = {config: json.dumps(weights).encode(), "data/weights/weight_0": bombs.evil_torch_file(mark)}
    path.write_bytes(bombs.with_members(path.read_bytes(), changed))
    with pytest.raises(UserError, match="not stored as plain"):
        read_model(path)
    assert not mark.exists()


def test_code_that_a_model_file_names_is_not_run(tmp_path: Path, table: Path) -> None:
    """The description of a model of one's own names the code that builds it; os:abort would end the process."""
    described = json.loads(DESCRIBED.as_json()) | {"model": {"kind": "module", "build": "os:abort"}}
    path = tmp_path / "model.safetensors"
    save_file({"weights.w": torch.zeros(1)}, path, {"perinvfl": json.dumps(described)})
    done = called("predict", path, table)
    check_refusal(done.returncode, done.stdout, done.stderr, "No code that a file names is run unasked")


def test_a_file_of_its_own_that_a_model_names_is_not_read(tmp_path: Path, table: Path) -> None:
    described = json.loads(DESCRIBED.as_json()) | {"model": {"kind": "resnet18", "weights": "/dev/zero"}}
    path = tmp_path / "model.safetensors"
    save_file({"weights.w": torch.zeros(1)}, path, {"perinvfl": json.dumps(described)})
    done = called("predict", path, table)
    check_refusal(done.returncode, done.stdout, done.stderr, "its description cannot be read")


@pytest.mark.parametrize("evil", [bombs.evil_torch_file, bombs.evil_pickle])
def test_pickles_in_checkpoints_weights_and_albums(evil: Callable[[Path], bytes], tmp_path: Path) -> None:
    mark, content = tmp_path / "mark", evil(tmp_path / "mark")
    checked = hashlib.sha256(content).digest() + content
    (tmp_path / "state.pt").write_bytes(checked)
    (tmp_path / "pictures.album").write_bytes(checked)
    (tmp_path / "weights.pth").write_bytes(content)
    for read in (
        lambda: checkpoint.load(tmp_path / "state.pt"),
        lambda: read_album(tmp_path / "pictures.album"),
        lambda: read_weights(tmp_path / "weights.pth", parameter_shapes(1, 1)),
    ):
        with pytest.raises(UserError, match=r"damaged|holds no weights"):
            read()
    assert not mark.exists()


@pytest.mark.parametrize("command", ["data check", "audit", "predict"])
def test_pickles_in_a_numpy_archive(command: str, model: Callable[[str], Path], tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "data.npz"
    path.write_bytes(bombs.evil_npz(mark))
    before = [model("safetensors")] if command == "predict" else []
    done = called(*command.split(), *before, path)
    check_refusal(done.returncode, done.stdout, done.stderr, "not a NumPy archive of plain arrays")
    assert not mark.exists()


def test_postscript_under_the_name_of_a_photograph(tmp_path: Path) -> None:
    mark, photo = tmp_path / "mark", tmp_path / "photos/a/2020/x/1.png"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(bombs.postscript(mark))
    done = called("data", "check", tmp_path / "photos")
    assert done.returncode == 2 and "cannot be read as a photograph" in done.stdout and not mark.exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_sound_file_is_read(form: str, model: Callable[[str], Path], table: Path) -> None:
    done = called("predict", model(form), table)
    assert done.returncode == 0 and done.stdout.startswith("prediction,probability 0,probability 1\n")
