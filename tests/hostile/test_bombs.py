"""Files that would fill the memory, with right checksums: one sentence, from a process that may take little."""

import gzip
import hashlib
import io
import json
import lzma
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy
import onnx
import pyarrow
import pyarrow.parquet
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file

from perinvfl.core import checkpoint
from perinvfl.core.patience import within
from perinvfl.data.benchmarks.album import read_album
from perinvfl.data.benchmarks.sources import read_idx
from perinvfl.errors import UserError
from perinvfl.export.formats import read_model
from perinvfl.models.resnet import parameter_shapes, read_weights
from perinvfl.runs.predictions import read_predictions
from perinvfl.runs.records import Run, find_runs
from tests.commands import check_refusal, command, environment
from tests.hostile import bombs
from tests.hostile.test_no_code_runs import DESCRIBED

LIMIT = 6 * 2**30  # of addresses: torch alone takes some 3 GB of them


def told(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command on the file, in a process that may not grow."""
    return subprocess.run(
        command(*arguments, path), capture_output=True, text=True, env=environment(), timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )  # fmt: skip


def checked(saved: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    return hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10**12, 2), (2**62, 2**62), (0, 2**62)])
def test_a_numpy_array_that_claims_to_be_huge(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(bombs.npz_that_claims(shape))
    done = told(path, "data", "check")
    check_refusal(done.returncode, done.stdout, done.stderr, "data.npz")


@pytest.mark.slow
def test_a_numpy_archive_that_unpacks_to_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(bombs.npz_bomb(3))
    done = told(path, "data", "check")
    check_refusal(done.returncode, done.stdout, done.stderr, "unpacked, would need 12.9 GB of memory")


@pytest.mark.slow
def test_a_parquet_table_of_millions_of_rows_in_a_few_bytes(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    values = pyarrow.array(numpy.zeros(2**24, "i1"))
    table = pyarrow.table({name: values for name in ("label", "client", "context", "x")})
    with pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(table)
    assert path.stat().st_size < 2_000_000
    done = told(path, "data", "check")
    check_refusal(done.returncode, done.stdout, done.stderr, "67,108,864 rows would need 17.2 GB of memory")


@pytest.mark.slow
def test_a_parquet_table_that_would_end_the_process() -> None:
    """Found by fuzzing: pyarrow 26 aborts where it is asked for the columns that this file describes."""
    path = Path(__file__).with_name("aborts.parquet")
    done = told(path, "data", "check")
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_photograph_of_ten_billion_pixels(tmp_path: Path) -> None:
    photo = tmp_path / "photos/a/2020/x/1.png"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(bombs.png_bomb(100_000))
    done = told(tmp_path / "photos", "data", "check")
    assert done.returncode == 2 and "cannot be read as a photograph" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_tensors_that_repeat_one_number(tmp_path: Path) -> None:
    huge = {"conv1.weight": torch.zeros(1).expand(2**40)}
    (tmp_path / "state.pt").write_bytes(checked(huge))
    (tmp_path / "weights.pth").write_bytes(checked(huge)[32:])
    (tmp_path / "pictures.album").write_bytes(checked({"shape": torch.tensor([2**40, 3, 8, 8]), "pieces": []}))
    before = peak()
    for read in (
        lambda: checkpoint.load(tmp_path / "state.pt"),
        lambda: read_weights(tmp_path / "weights.pth", parameter_shapes(1, 1)),
        lambda: read_album(tmp_path / "pictures.album"),
    ):
        with pytest.raises(UserError, match=r"larger than what fits|would need"):
            read()
    assert peak() < before + 200_000  # kB


def test_tensors_that_share_their_numbers_are_no_bomb(tmp_path: Path) -> None:
    """States of many clients may be one, seen many times."""
    one = torch.randn(50)
    given = {"a": one, "b": one, "c": one[:10], "d": one.expand(1000, 50), "e": one[::2]}
    checkpoint.save(tmp_path / "state.pt", given)
    assert (tmp_path / "state.pt").stat().st_size < 10_000
    found = checkpoint.load(tmp_path / "state.pt")
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_containers_that_hold_each_other_again_and_again(tmp_path: Path) -> None:
    """Sixty lists, each of which holds the one before it twice: nobody gets through 2**60 of them."""
    content = bombs.torch_file_of_lists_in_lists()
    (tmp_path / "state.pt").write_bytes(hashlib.sha256(content).digest() + content)
    (tmp_path / "pictures.album").write_bytes(hashlib.sha256(content).digest() + content)
    (tmp_path / "weights.pth").write_bytes(content)
    for read in (
        lambda: checkpoint.load(tmp_path / "state.pt"),
        lambda: read_weights(tmp_path / "weights.pth", parameter_shapes(1, 1)),
        lambda: read_album(tmp_path / "pictures.album"),
    ):
        with pytest.raises(UserError, match="hold each other again and again"):
            within(60, read)


def test_compressed_members_of_a_checkpoint(tmp_path: Path) -> None:
    content = checked({"a": torch.zeros(10)})[32:]
    packed = bombs.with_members(content, {"data/0": bytes(10**8)}, compressed=True)
    path = tmp_path / "state.pt"
    path.write_bytes(hashlib.sha256(packed).digest() + packed)
    assert path.stat().st_size < 200_000
    with pytest.raises(UserError, match="a member is compressed"):
        checkpoint.load(path)


def test_pieces_of_an_album_that_grow(tmp_path: Path) -> None:
    piece = torch.frombuffer(bytearray(zlib.compress(bytes(10**9), 9)), dtype=torch.uint8)
    saved = {"about": torch.frombuffer(bytearray(b"{}"), dtype=torch.uint8), "shape": torch.tensor([4, 3, 8, 8]),
             "pieces": [piece], "plan": [], "cases": []}  # fmt: skip
    path = tmp_path / "pictures.album"
    path.write_bytes(checked(saved))
    before = peak()
    with pytest.raises(UserError, match="unpacks to more than"):
        read_album(path)
    assert peak() < before + 200_000


@pytest.mark.slow
def test_gzip_and_xz_that_grow(tmp_path: Path) -> None:
    layer = io.BytesIO()
    with gzip.GzipFile(fileobj=layer, mode="wb", compresslevel=9) as file:
        for _ in range(2**10 + 1):
            file.write(bytes(2**20))
    (tmp_path / "predictions.json.gz").write_bytes(layer.getvalue())
    (tmp_path / "images.idx").write_bytes(layer.getvalue())
    packer = lzma.LZMACompressor(preset=0)
    packed = b"".join(packer.compress(b" " * 2**20) for _ in range(2**10 + 1)) + packer.flush()
    (tmp_path / "runs.jsonl.xz").write_bytes(packed)
    for read in (
        lambda: read_predictions(Run(tmp_path, [{"event": "start"}])),
        lambda: read_idx(tmp_path / "images.idx"),
        lambda: find_runs(tmp_path / "runs.jsonl.xz"),
    ):
        with pytest.raises(UserError, match="damaged"):
            read()


def test_json_that_is_nested_deeply(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/events.jsonl").write_bytes(bombs.deep_json())
    (tmp_path / "predictions.json.gz").write_bytes(gzip.compress(bombs.deep_json()))
    (tmp_path / "runs.jsonl.xz").write_bytes(lzma.compress(bombs.deep_json()))
    for read in (
        lambda: find_runs(tmp_path / "run"),
        lambda: read_predictions(Run(tmp_path, [{"event": "start"}])),
        lambda: find_runs(tmp_path / "runs.jsonl.xz"),
    ):
        with pytest.raises(UserError, match=r"damaged|is not a record"):
            read()


def onnx_file(*nodes: Any, **constants: Any) -> bytes:
    """A model that answers as it should, once these nodes have made `more`."""
    given = [numpy_helper.from_array(numpy.array(value), name) for name, value in constants.items()]
    last = [
        helper.make_node("ReduceSum", ["more"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["x", "axis"], ["one"], keepdims=0),
        helper.make_node("Add", ["one", "sum"], ["added"]),
        helper.make_node("Cast", ["added"], ["prediction"], to=TensorProto.INT64),
        helper.make_node("Identity", ["x"], ["probability"]),
    ]
    graph = helper.make_graph(
        [*nodes, *last], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("prediction", TensorProto.INT64, ["batch"]),
         helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", 2])],
        [*given, numpy_helper.from_array(numpy.array([1]), "axis")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.helper.set_model_props(proto, {"perinvfl": DESCRIBED.as_json()})
    return proto.SerializeToString()


def test_an_onnx_graph_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made = helper.make_node("ConstantOfShape", ["size"], ["more"])
    path.write_bytes(onnx_file(made, size=[4]))
    assert read_model(path)(torch.full((3, 2), 0.5))["prediction"].tolist() == [1, 1, 1]
    path.write_bytes(onnx_file(made, size=[2**36]))
    before = peak()
    with pytest.raises(UserError, match=r"cannot be run|is damaged"):
        read_model(path)(torch.ones(3, 2))
    assert peak() < before + 500_000


def test_an_onnx_graph_that_may_never_end_or_names_other_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    body = helper.make_graph([], "body", [], [])
    path.write_bytes(onnx_file(helper.make_node("Loop", ["n", ""], ["more"], body=body), n=2**62))
    with pytest.raises(UserError, match="it holds the operator Loop"):
        read_model(path)
    proto = onnx.load_model_from_string(onnx_file(helper.make_node("ConstantOfShape", ["size"], ["more"]), size=[4]))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match="it names other files"):
        read_model(path)


def test_an_onnx_graph_that_computes_for_years(tmp_path: Path) -> None:
    """A few lines multiply large matrices again and again; in a process of its own, whose patience is short."""
    path, table, times, side = tmp_path / "model.onnx", tmp_path / "new.csv", 1000, 3000
    table.write_text("age,dose\n1,2\n")
    ones = helper.make_node("ConstantOfShape", ["size"], ["m0"])
    products = [helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(times)]
    last = helper.make_node("Identity", [f"m{times}"], ["more"])
    path.write_bytes(onnx_file(ones, *products, last, size=[side, side]))
    code = (
        "import sys, perinvfl.export.readers as readers\nreaders.LONGEST_STEP = 2.0\n"
        f"sys.argv = ['perinvfl', 'predict', {str(path)!r}, {str(table)!r}]\n"
        "from perinvfl.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    check_refusal(done.returncode, done.stdout, done.stderr, "it takes longer than 2 s")


@pytest.mark.parametrize(("answer", "wrong"), [(7, "int64"), (-1, "int64"), (1, "int32"), (0.5, "float32")])
def test_answers_that_are_no_classes(answer: float, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = onnx.load_model_from_string(
        onnx_file(helper.make_node("Identity", ["extra"], ["more"]), extra=numpy.zeros(1, "f"))
    )
    kind = helper.np_dtype_to_tensor_dtype(numpy.dtype(wrong))
    proto.graph.node[-2].attribute[0].i = kind
    proto.graph.output[0].type.tensor_type.elem_type = kind
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match="does not answer as its description says"):
        read_model(path)(torch.full((3, 2), answer / 2))


def test_half_a_character_in_a_description(tmp_path: Path) -> None:
    described = json.loads(DESCRIBED.as_json()) | {"classes": ["\ud800", "b"]}
    path = tmp_path / "model.safetensors"
    save_file({"weights.w": torch.zeros(1)}, path, {"perinvfl": json.dumps(described)})
    with pytest.raises(UserError, match="its description cannot be read"):
        read_model(path)


def test_a_description_that_asks_for_a_huge_model(tmp_path: Path) -> None:
    described = json.loads(DESCRIBED.as_json()) | {"model": {"kind": "mlp", "hidden": [10**5, 10**3]}}
    path = tmp_path / "model.safetensors"
    save_file({"weights.0.weight": torch.zeros(1)}, path, {"perinvfl": json.dumps(described)})
    before = peak()
    with pytest.raises(UserError, match="not those of the model"):
        read_model(path)
    assert peak() < before + 200_000


def test_data_that_outgrow_the_memory_while_they_are_made(tmp_path: Path) -> None:
    """Found by fuzzing: the samples themselves would fit, but not what they are made from."""
    file = tmp_path / "large.toml"
    file.write_text(
        '[data]\nbenchmark = "structural"\nclients = 3\nsamples = 1_500_000\n[[algorithm]]\nname = "fedavg"\n'
    )
    done = told(file, "run", "--out", tmp_path / "runs")
    check_refusal(
        done.returncode, done.stdout, done.stderr, "structural makes by these settings would need more memory"
    )
