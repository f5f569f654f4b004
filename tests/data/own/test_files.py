"""A federation from a file: how it is divided, and that held-out rows influence nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perinvfl.cli import call
from perinvfl.data.own.files import SAME
from perinvfl.data.own.survey import survey
from perinvfl.errors import UserError
from perinvfl.runs.experiment import build_experiment
from tests.data.own.small_table import HEADER, read, refused, replaced, rows_of, settings_for, write


def test_what_a_federation_holds(tmp_path: Path) -> None:
    rows = rows_of(each=10)
    federation = read(write(tmp_path / "t.csv", rows), test_contexts=["2022"], test_share=0.2, holdout=0.1)
    assert (federation.task, federation.outputs, federation.contexts, federation.clients) == ("binary", 1, 2, 3)
    assert federation.sizes.tolist() == [14, 14, 14]  # of 20 in two contexts, 4 test and 2 validate
    assert federation.spectrum == ("2022",) and list(federation.tests) == ["2022", SAME]
    assert federation.tests["2022"].y.shape == (3, 10) and federation.tests[SAME].y.shape == (3, 4)
    assert federation.validation is not None and federation.validation.y.shape == (3, 2)
    assert federation.schema.clients == ("s0", "s1", "s2") and federation.schema.contexts == ("2020", "2021")
    assert federation.schema.classes == ("0", "1") and federation.schema.features == ("a", "b")
    x = federation.train.x.flatten(0, 1)
    assert torch.allclose(x.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(x.std(0, correction=0), torch.ones(2), atol=1e-5)
    # Every row is used once, and its own numbers come back from what was taken off.
    mean, scale = torch.tensor(federation.schema.mean), torch.tensor(federation.schema.scale)
    parts = [federation.train, federation.validation, *federation.tests.values()]
    back = torch.cat([(part.x[part.context >= 0] * scale + mean) for part in parts])
    known = torch.tensor([row[2:4] for row in rows], dtype=torch.float32)
    assert torch.allclose(back.sort(0).values, known.sort(0).values, atol=1e-4)


@given(held_rows=st.lists(st.integers(0, 29), min_size=1, max_size=5), factor=st.floats(-1e3, 1e3))
@settings(max_examples=15, deadline=None)
def test_held_out_contexts_influence_nothing(
    tmp_path_factory: pytest.TempPathFactory, held_rows: list[int], factor: float
) -> None:
    folder = tmp_path_factory.mktemp("held")
    rows = rows_of()
    before = read(write(folder / "a.csv", rows), test_contexts=["2022"])
    held = [i for i, row in enumerate(rows) if row[1] == 2022]
    for i in held_rows:
        rows[held[i]] = [*rows[held[i]][:2], factor, factor, 1 - rows[held[i]][4]]
    after = read(write(folder / "b.csv", rows), test_contexts=["2022"])
    assert all(torch.equal(a, b) for a, b in zip(before.train, after.train, strict=True))
    assert before.schema == after.schema


def test_rows_kept_for_tests_and_validation_do_not_enter_the_statistics(tmp_path: Path) -> None:
    rows = rows_of()
    path = write(tmp_path / "t.csv", rows)
    raw = read(path, standardise=False)
    real = raw.train.context >= 0
    scaled = read(path)
    assert torch.allclose(torch.tensor(scaled.schema.mean), raw.train.x[real].mean(0), atol=1e-5)
    assert torch.allclose(torch.tensor(scaled.schema.scale), raw.train.x[real].std(0, correction=0), atol=1e-5)


def test_the_seed_draws_what_is_kept_and_another_client_changes_nothing(tmp_path: Path) -> None:
    rows = rows_of()
    path = write(tmp_path / "t.csv", rows)
    one, other = read(path, standardise=False), read(path, seed=1, standardise=False)
    assert not torch.equal(one.train.x, other.train.x)
    more = write(tmp_path / "more.csv", [["s00", 2020, 1.0, 2.0, 0]] * 4 + rows)
    grown = read(more, standardise=False)
    assert grown.schema.clients == ("s0", "s00", "s1", "s2")
    assert torch.equal(grown.train.x[[0, 2, 3]], one.train.x)


def test_divisions_that_cannot_work(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows_of())
    assert 'test_contexts names "2030", no context of these data; did you mean 2020?' in refused(
        path, test_contexts=[2030]
    )
    assert "no context may be named twice" in refused(path, test_contexts=[2020, 2020])
    assert "leave nothing to train on" in refused(path, test_share=0.5, holdout=0.5)
    assert "Nothing is left to train on once 2020, 2021, 2022 are held out" in refused(
        path, test_contexts=[2020, 2021, 2022]
    )
    lonely = write(tmp_path / "lonely.csv", [*rows_of(), *[["new", 2022, 1.0, 1.0, i % 2] for i in range(4)]])
    gone = refused(lonely, test_contexts=[2022])
    assert 'Client "new" has rows only in 2022, so nothing to train on once 2022 is held out' in gone
    assert 'data.exclude_clients = ["new"]' in gone
    assert read(lonely, test_contexts=[2022], exclude_clients=["new"]).clients == 3
    assert "no client; did you mean new?" in refused(lonely, exclude_clients=["neww"])
    alike = write(tmp_path / "alike.csv", [[*row[:4], int(row[1] == 2022)] for row in rows_of()])
    assert "All training rows have the same label" in refused(alike, test_contexts=[2022])


@pytest.mark.parametrize("quantity", [False, True])
def test_a_site_with_its_rows_alone_has_what_it_has_in_the_simulation(tmp_path: Path, quantity: bool) -> None:
    rows = rows_of(label=lambda i: 0.5 + i if quantity else "no" if i % 2 else "yes")
    path = write(tmp_path / "all.csv", rows)
    whole = read(path, test_contexts=[2022])
    shared = survey(settings_for(path, test_contexts=[2022]))["statistics"]
    assert ("label_mean" in shared) == quantity
    for number, name in enumerate(whole.schema.clients):
        mine = write(tmp_path / f"{name}.csv", [row for row in rows if row[0] == name])
        classes: dict[str, Any] = {} if quantity else {"classes": ["no", "yes"]}
        alone = read(mine, test_contexts=[2022], **shared, **classes)
        for split in ("2022", SAME):
            for one, other in zip(alone.tests[split], whole.tests[split], strict=True):
                assert torch.equal(one[0], other[number])
        assert all(torch.equal(a[0], b[number]) for a, b in zip(alone.train, whole.train, strict=True))
    assert "entries for 2 features" in refused(path, mean=[1.0], scale=[1.0])
    assert "both of them" in refused(path, mean=[1.0])


def test_no_client_and_no_context_is_said_on_purpose(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [row[2:] for row in rows_of()], HEADER[2:])
    federation = read(path, client="", context="")
    assert federation.schema.clients == federation.schema.contexts == ("all",)
    assert federation.spectrum == (SAME,)  # nothing is held out, so the only test is in distribution


def test_a_changed_file_is_another_run_and_a_moved_one_is_not(tmp_path: Path) -> None:
    def trial(path: Path, **more: Any) -> Any:
        data = {"benchmark": "file", "path": str(path), "label": "y", "client": "site", "context": "year", **more}
        return build_experiment({"data": data, "algorithm": [{"name": "fedavg"}]}).trials[0]

    path = write(tmp_path / "t.csv", rows_of())
    first = trial(path)
    assert first.asked()["data"]["checksum"]
    moved = write(tmp_path / "elsewhere.csv", rows_of())
    assert trial(moved).id == first.id
    write(path, replaced(7, 2, 1.25))
    assert trial(path).id != first.id
    with pytest.raises(UserError, match="has changed since it was used"):
        trial(path, checksum=first.asked()["data"]["checksum"])
    assert trial(path, standardise=False).id != trial(path).id


def test_clients_without_a_held_out_row_have_no_score(tmp_path: Path) -> None:
    rows = [row for row in rows_of() if not (row[0] == "s1" and row[1] == 2022)]
    write(tmp_path / "t.csv", rows)
    (tmp_path / "t.toml").write_text(
        '[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "y"\nclient = "site"\ncontext = "year"\n'
        'test_contexts = [2022]\n[model]\nhidden = [4]\n[training]\nrounds = 2\n[[algorithm]]\nname = "ditto"\n'
    )
    assert call(["run", str(tmp_path / "t.toml"), "--out", str(tmp_path / "runs")]) == 0
    events = [json.loads(line) for line in next(tmp_path.rglob("events.jsonl")).read_text().splitlines()]
    scores = events[-2]["personal"]["2022"]
    assert scores[1] is None and None not in (scores[0], scores[2])
    assert events[0]["notes"]["constant"]["2022"][1] is None
    notes = survey(settings_for(tmp_path / "t.csv", test_contexts=[2022]))["warnings"]
    assert any('"s1" has no row in the held-out context 2022' in note for note in notes)


def test_leaving_each_context_out_makes_a_run_each_and_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t.csv", rows_of())
    (tmp_path / "t.toml").write_text(
        'seeds = [0, 1]\n[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "y"\nclient = "site"\ncontext = "year"\n'
        "leave_one_context_out = true\n[model]\nhidden = [4]\n[training]\nrounds = 2\n"
        '[[algorithm]]\nname = "ditto"\n[[algorithm]]\nname = "fedavg"\n'
    )
    assert call(["run", str(tmp_path / "t.toml"), "--out", str(tmp_path / "runs")]) == 0
    assert len(list((tmp_path / "runs/t").iterdir())) == 12
    capsys.readouterr()
    assert call(["table", str(tmp_path / "runs/t"), "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in table["rows"]] == ["Constant", "Ditto", "FedAvg"] and table["seeds"] == 2
    assert {"2020", "2021", "2022", SAME} == set(table["rows"][1]["cases"])
    # Each column is from the run that held its context out.
    scores = []
    for events in sorted((tmp_path / "runs/t").glob("ditto-without-2021-*/events.jsonl")):
        last = [json.loads(line) for line in events.read_text().splitlines()][-2]
        assert set(last["personal"]) == {"2021", SAME, "validation"}
        scores.append(100 * sum(last["personal"]["2021"]) / 3)
    assert table["rows"][1]["cases"]["2021"]["mean"] == pytest.approx(sum(scores) / 2)
