"""A site with a file of its own: what it reads, what it refuses, and what it tells the server."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from perinvfl.data.federation import Federation
from perinvfl.data.own.files import FileSettings
from perinvfl.data.registry import build_federation
from perinvfl.errors import UserError
from perinvfl.flower.assignment import NEVER, Assignment
from perinvfl.flower.site import Site
from perinvfl.flower.site_data import UnusableData, load_site_data, read_own_arrays
from perinvfl.runs.experiment import build_experiment
from tests.flower.deployed import deploy
from tests.flower.inprocess import InProcess


def save_arrays(path: Path, **arrays: Any) -> None:
    numpy.savez(path, **arrays)


def own_data(path: Path, **settings: Any) -> Federation:
    """What a site has of a file of its own."""
    table = {"data": {"benchmark": "sites", **settings}, "algorithm": {"name": "fedavg"}, "seeds": [3]}
    return load_site_data(path, build_experiment(table).trials[0], 0)


def test_a_site_with_its_own_table_has_what_it_has_in_the_simulation(tmp_path: Path) -> None:
    header, rng = "hospital,year,a,b,ill", numpy.random.default_rng(0)
    rows = [
        f"h{i % 2},{2020 + i // 2 % 3},{a:.6f},{b:.6f},{i // 6 % 2}"
        for i, (a, b) in enumerate(rng.normal(size=(60, 2)))
    ]
    (tmp_path / "all.csv").write_text("\n".join([header, *rows]) + "\n")
    shared: dict[str, Any] = {"label": "ill", "context": "year", "test_contexts": (2022,), "mean": (0.1, 0.2)}
    shared |= {"scale": (1.0, 2.0), "classes": (0, 1)}
    whole = build_federation("file", FileSettings(path=str(tmp_path / "all.csv"), client="hospital", **shared), 3)
    settings = {"clients": 2, "client": "hospital", **shared}
    for client in range(2):
        own = tmp_path / f"h{client}.csv"
        own.write_text("\n".join([header, *(row for row in rows if row.startswith(f"h{client}"))]) + "\n")
        share, expected = own_data(own, **settings), whole.share_of(client)
        assert share.spectrum == whole.spectrum and share.tests.keys() == whole.tests.keys()
        for one, other in ((share.train, expected.train), (share.tests["2022"], expected.tests["2022"])):
            assert all(torch.equal(*parts) for parts in zip(one, other, strict=True))
    with pytest.raises(UserError, match="holds 2 clients"):
        own_data(tmp_path / "all.csv", **settings)


def test_arrays_bring_tests_or_hold_contexts_out(tmp_path: Path) -> None:
    x = numpy.random.default_rng(0).normal(size=(30, 6))
    arrays = {"x": x, "y": x[:, 0] > 0, "context": numpy.arange(30) % 2}
    save_arrays(tmp_path / "a.npz", **arrays, **{"test/later/x": x[:9], "test/later/y": x[:9, 0] > 0})
    with pytest.raises(UserError, match="has tests of its own"):
        own_data(tmp_path / "a.npz", clients=2, test_contexts=[1])


def test_a_site_with_its_own_file(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)), rng.integers(0, 2, 30)
    arrays = {"x": x, "y": y, "context": numpy.arange(30) % 2, "test/later/x": x[:9], "test/later/y": y[:9]}
    save_arrays(tmp_path / "a.npz", **arrays)
    share = read_own_arrays(tmp_path / "a.npz", "binary", 1, ())
    assert share.train.x.shape == (1, 30, 6) and share.train.x.dtype == torch.float32
    assert share.contexts == 2 and list(share.tests) == ["later"] and share.spectrum == ("later",)
    from safetensors.torch import save_file

    save_file({key: torch.from_numpy(value) for key, value in arrays.items()}, tmp_path / "a.safetensors")
    other = read_own_arrays(tmp_path / "a.safetensors", "binary", 1, ())
    assert torch.equal(other.train.x, share.train.x) and torch.equal(other.tests["later"].y, share.tests["later"].y)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": None}, "has no array y"),
        ({"y": numpy.arange(30)}, "y must be 0 or 1"),
        ({"x": numpy.zeros(30)}, "must be \\[samples, ...\\]"),
        ({"x": numpy.full((30, 6), numpy.nan)}, "must be finite"),
        ({"context": numpy.full(30, -1)}, "counted from 0"),
        ({"test/later/x": numpy.zeros((9, 5))}, "another shape"),
    ],
)
def test_a_file_that_will_not_do(change: dict[str, object], says: str, tmp_path: Path) -> None:
    arrays = {"x": numpy.zeros((30, 6)), "y": numpy.zeros(30), "test/later/x": numpy.zeros((9, 6)),
              "test/later/y": numpy.zeros(9)} | change  # fmt: skip
    save_arrays(tmp_path / "a.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(UserError, match=says):
        read_own_arrays(tmp_path / "a.npz", "binary", 1, ())
    for name, content in (("b.npz", b"not arrays"), ("b.safetensors", b"nor these"), ("b.csv", b"x,y")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_own_arrays(tmp_path / name, "binary", 1, ())
    with pytest.raises(UserError, match="does not exist"):
        read_own_arrays(tmp_path / "none.npz", "binary", 1, ())


def test_sites_with_their_own_files_train_together(tmp_path: Path) -> None:
    """Data that no experiment file describes: each site has its own, of its own size and contexts."""
    rng = numpy.random.default_rng(1)
    post = InProcess(tmp_path, 3)
    for client in range(3):
        x = rng.normal(size=(20 + client, 4))
        arrays = {"x": x, "y": x[:, 0] > 0, "context": numpy.arange(len(x)) % (1 + client)}
        arrays |= {"test/later/x": x[:9], "test/later/y": x[:9, 0] > 0}
        save_arrays(tmp_path / f"{client}.npz", **arrays)
        post.contexts[client].node_config["data"] = str(tmp_path / f"{client}.npz")
    table = {
        "data": {"benchmark": "sites", "clients": 3},
        "model": {"hidden": [5]},
        "training": {"rounds": 3, "batch_size": 8},
        "algorithm": {"name": "perinvfl", "learning_rate": 0.05, "personal_learning_rate": 0.05},
    }
    trial = build_experiment(table).trials[0]
    rounds = deploy(trial, tmp_path, transport=post)
    assert rounds.agreement.contexts == 3 and rounds.agreement.tests == ("later",) and rounds.done == 3
    with pytest.raises(UserError, match="federation run"):
        trial.federation()
    del post.contexts[1].node_config["data"]
    with pytest.raises(UserError, match=r"site-1 could not answer.*without --data"):
        deploy(trial, tmp_path / "again", transport=post)


def test_arrays_hold_out_contexts_as_on_one_machine(tmp_path: Path) -> None:
    x = numpy.random.default_rng(0).normal(size=(60, 3))
    path = tmp_path / "own.npz"
    save_arrays(path, x=x, y=x[:, 0] > 0, context=2019 + numpy.arange(60) % 3)
    own = own_data(path, test_contexts=[2021])
    assert own.contexts == 2 and own.tests["2021"].y.shape == (1, 20)
    with pytest.raises(UserError, match="counted from 0"):
        own_data(path)


def test_what_is_wrong_with_a_row_is_told_to_the_site_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    post = InProcess(tmp_path, 2)
    for client, cell in enumerate(("1.5", "Jane Doe")):
        path = tmp_path / f"{client}.csv"
        path.write_text("x,label,context\n" + "1,0,a\n2,1,b\n" * 9 + f"{cell},1,b\n")
        post.contexts[client].node_config["data"] = str(path)
    table = {
        "data": {"benchmark": "sites", "clients": 2},
        "training": {"rounds": 1},
        "algorithm": {"name": "fedavg"},
    }
    with pytest.raises(UserError, match="site-1 could not answer: its data cannot be used") as refused:
        deploy(build_experiment(table).trials[0], tmp_path, transport=post)
    assert "Doe" not in str(refused.value)
    assert 'line 20, column "x": "Jane Doe" is not a number' in capsys.readouterr().err


def test_so_it_is_with_a_file_that_the_experiment_names(tmp_path: Path) -> None:
    path, rows = tmp_path / "all.csv", "1,0,a,one\n2,1,b,one\n1,0,a,two\n2,1,b,two\n" * 9
    columns = {"label": "label", "client": "client", "context": "context"}
    table = {
        "data": {"benchmark": "file", "path": str(path), **columns},
        "training": {"rounds": 1},
        "algorithm": {"name": "fedavg"},
    }
    path.write_text(f"x,label,context,client\n{rows}")
    asked = build_experiment(table).trials[0].asked()
    asked["data"].pop("checksum", None)  # a server need not know the file
    path.write_text(f"x,label,context,client\n{rows}Jane Doe,1,b,two\n")
    with pytest.raises(UnusableData, match='"Jane Doe" is not a number'):
        Site(tmp_path).describe(Assignment("none", asked, 0, 2, 0, 0, 0, 0, NEVER), scores=False)
