"""Sites that hold a table each, with gaps and categories: what they fit together, and that nothing single is told."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perinvfl.core import checkpoint
from perinvfl.core.config import build
from perinvfl.data.encoding import LEAST_ROWS
from perinvfl.data.own.division import divide
from perinvfl.data.own.files import FileSettings, array_rows, read_rows
from perinvfl.data.own.sums import CELLS, Plan, agree_columns, client_sums, fit_clients, offer, with_bounds
from perinvfl.data.registry import build_federation
from perinvfl.errors import UserError
from perinvfl.flower.server_run import AGREEMENT
from perinvfl.flower.server_state import CHECKPOINT as SERVER
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.flower.site import OwnCode, load_own
from perinvfl.flower.words import decode_sums, encode_sums
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import CHECKPOINT, read_run
from perinvfl.runs.trial import Trial
from tests.data.own.patients import HEADER, patients
from tests.data.own.small_table import write
from tests.flower.deployed import assert_equal, deploy, plain, simulate, simulated_state, site_state
from tests.flower.inprocess import InProcess

COLUMNS: dict[str, Any] = {"label": "ill", "client": "hospital", "context": "year", "test_contexts": [2022]}
COLUMNS |= {"categories": ["cp"], "classes": [0, 1]}
SECURE = DeploymentSettings(patience=1.0, round_timeout=1.0, secure_aggregation=True)


def trial_with(data: dict[str, Any], method: str = "ditto") -> Trial:
    settings = {} if method == "recommended" else {"learning_rate": 0.2, "local_steps": 2}
    table = {
        "data": data,
        "model": {"hidden": [5]},
        "training": {"rounds": 3, "batch_size": 16, "executor": "loop"},
        "algorithm": {"name": method, **settings},
    }
    return build_experiment(table).trials[0]


def at_sites(folder: Path, rows: list[list[Any]], method: str = "ditto", **more: Any) -> tuple[Trial, InProcess]:
    """A trial whose sites have a table each, in which columns stand in another order."""
    post = InProcess(folder, 3)
    for client in range(3):
        own = [row for row in rows if row[0] == f"h{client}"]
        turned = client == 1
        cells = [row[::-1] for row in own] if turned else own
        path = write(folder / f"h{client}.csv", cells, HEADER[::-1] if turned else HEADER)
        post.contexts[client].node_config["data"] = str(path)
    return trial_with({"benchmark": "sites", "clients": 3, **COLUMNS, **more}, method), post


def on_one_machine(folder: Path, rows: list[list[Any]], method: str = "ditto", **more: Any) -> Trial:
    path = write(folder / "all.csv", rows, HEADER)
    data = {"benchmark": "file", "path": str(path), "statistics": "summed", **COLUMNS, **more}
    return trial_with(data, method)


@pytest.mark.parametrize("method", ["ditto", "recommended"])
def test_deployed_tables_train_as_on_one_machine(tmp_path: Path, method: str) -> None:
    rows = patients()
    trial, post = at_sites(tmp_path, rows, method)
    rounds = deploy(trial, tmp_path, transport=post)
    alone = on_one_machine(tmp_path, rows, method)
    simulated = simulate(alone, tmp_path)
    theirs = checkpoint.load(simulated / CHECKPOINT)
    ours = checkpoint.load(rounds.folder / SERVER)
    server = {name: leaf for name, leaf in ours.items() if name.startswith("server")}
    assert_equal(server, {name: theirs[name][0] for name in server})
    for client in range(3):
        assert_equal(site_state(rounds, tmp_path, client), simulated_state(theirs, alone, client))
    run, other = read_run(rounds.folder), read_run(simulated)
    assert run is not None and other is not None
    assert plain(run.events) == plain(other.events), "predictions at sites are scored as on one machine"
    assert run.start["schema"]["features"] == list(alone.federation().schema.features)
    training = [row for row in rows if row[1] != 2022]
    assert 0 < run.notes["encoding"]["missing"]["chol"] <= sum(row[3] == "" for row in training)
    assert run.notes["encoding"]["levels"] == {"cp": ["1", "2", "3"], "unit": ["north", "south"]}


def test_a_site_sees_its_rows_as_on_one_machine(tmp_path: Path) -> None:
    rows = patients()
    trial, post = at_sites(tmp_path, rows)
    rounds = deploy(trial, tmp_path, transport=post)
    alone = on_one_machine(tmp_path, rows)
    whole = build_federation("file", alone.data, alone.seed)
    for client in range(3):
        text = json.dumps([trial.asked(), client, 2, {}, json.loads((rounds.folder / AGREEMENT).read_text())["fitted"]])
        own, share = load_own(tmp_path / f"h{client}.csv", text, OwnCode()), whole.share_of(client)
        assert own.schema.encodings == share.schema.encodings and own.schema.mean == share.schema.mean
        for one, other in ((own.train, share.train), (own.tests["2022"], share.tests["2022"])):
            assert all(torch.equal(*parts) for parts in zip(one, other, strict=True))


def test_secure_aggregation_changes_no_bit_of_what_is_fitted(tmp_path: Path) -> None:
    rows = patients()
    fitted = []
    for name, settings in (("open", DeploymentSettings(patience=1.0, round_timeout=1.0)), ("secret", SECURE)):
        (tmp_path / name).mkdir()
        trial, post = at_sites(tmp_path / name, rows)
        fitted.append(deploy(trial, tmp_path / name, settings, post).agreement.fitted)
    assert fitted[0] == fitted[1] and fitted[0] is not None


def test_a_label_is_standardised_over_all_sites(tmp_path: Path) -> None:
    rows = [[*row[:6], 3.5 * row[2] + number % 7] for number, row in enumerate(patients())]
    more: dict[str, Any] = {"task": "regression", "classes": []}
    trial, post = at_sites(tmp_path, rows, **more)
    rounds = deploy(trial, tmp_path, transport=post)
    alone = on_one_machine(tmp_path, rows, **more).federation().schema
    assert rounds.agreement.fitted is not None
    assert rounds.agreement.fitted["label_mean"] == alone.label_mean and alone.label_mean > 100
    y = torch.tensor([row[6] for row in rows if row[1] != 2022], dtype=torch.float64)
    assert alone.label_scale == pytest.approx(float(y.std()), rel=0.1)


def test_sums_are_near_what_all_rows_give(tmp_path: Path) -> None:
    rows = patients(each=150)
    alone = on_one_machine(tmp_path, rows)
    summed = alone.federation().schema
    exact = trial_with({"benchmark": "file", "path": str(tmp_path / "all.csv"), **COLUMNS}).federation().schema
    assert set(exact.features) - set(summed.features) == {"unit=other"}, "of rare levels no site has enough to tell"
    for name, mean, scale in zip(summed.features, summed.mean, summed.scale, strict=True):
        place = exact.features.index(name)
        assert mean == pytest.approx(exact.mean[place], abs=0.1 * exact.scale[place])
        assert scale == pytest.approx(exact.scale[place], rel=0.1)
    medians = [(one.median, two.median) for one, two in zip(summed.encodings, exact.encodings, strict=True)]
    assert all(abs(one - two) < 0.05 * max(two, 1) for one, two in medians)


@given(st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, float("nan")]), min_size=1, max_size=60))
def test_no_count_is_of_few_rows(values: list[float]) -> None:
    x = numpy.array([[value, float(number % 5)] for number, value in enumerate(values * 2)])
    rows = array_rows(x, [number % 2 for number in range(len(x))], categories=["x1"])
    there = int((~numpy.isnan(x[:, 0])).sum())
    if not there:
        return
    plan = agree_columns([offer(rows)], ["a"])
    counts = client_sums(rows, plan)
    assert len(counts) == plan.size and all(count == 0 or count >= LEAST_ROWS for count in counts.tolist())
    if there < LEAST_ROWS:
        with pytest.raises(UserError, match="too few to sum"):
            with_bounds(plan, counts)
        return
    bounded = with_bounds(plan, counts)
    number, _, _, *cells = client_sums(rows, bounded).tolist()
    assert number == sum(cells) == there and len(cells) == CELLS
    assert all(count == 0 or count >= LEAST_ROWS for count in cells)


def test_an_outlier_is_not_told() -> None:
    """One patient's value changes bounds, sums and so the scale by no more than any other large value would."""
    values = [[float(50 + number % 20)] for number in range(40)]
    fitted = [fit_clients(array_rows([*values, [odd]], [n % 2 for n in range(41)]))[0] for odd in (200.0, 1e9)]
    assert fitted[0] == fitted[1]


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=3, max_size=3), min_size=1, max_size=60))
def test_whole_numbers_travel_without_a_loss(sent: list[list[int]]) -> None:
    parts = [encode_sums(torch.tensor(row))["words"] for row in sent]
    mean = sum(part / len(parts) for part in parts)
    assert decode_sums({"words": torch.as_tensor(mean)}, len(parts)).tolist() == [
        sum(c) for c in zip(*sent, strict=True)
    ]


def test_sites_that_do_not_fit_together_are_told(tmp_path: Path) -> None:
    rows = patients()
    trial, post = at_sites(tmp_path, [row if row[0] != "h2" else [*row[:3], "low", *row[4:]] for row in rows])
    with pytest.raises(UserError, match='"chol" holds numbers at site-1 and text at site-2'):
        deploy(trial, tmp_path, transport=post)
    trial, post = at_sites(tmp_path, rows)
    own = [row for row in rows if row[0] == "h1"]
    write(tmp_path / "h1.csv", [[*row, 1] for row in own], [*HEADER, "extra"])
    with pytest.raises(UserError, match='site-0 and site-1 differ: only one of them has a column "extra"'):
        deploy(trial, tmp_path, transport=post)
    numpy.savez(tmp_path / "h1.npz", x=numpy.zeros((9, 4)), y=numpy.arange(9) % 2)
    trial, post = at_sites(tmp_path, rows, test_contexts=[])
    post.contexts[1].node_config["data"] = str(tmp_path / "h1.npz")
    with pytest.raises(UserError, match="site-0 has a table, and site-1 has none"):
        deploy(trial, tmp_path, transport=post)
    trial, post = at_sites(tmp_path, rows, mean=[0.0] * 4, scale=[1.0] * 4)
    with pytest.raises(UserError, match="its data cannot be used"):
        deploy(trial, tmp_path, transport=post)
    trial, post = at_sites(tmp_path, rows)
    private = DeploymentSettings(patience=1.0, round_timeout=1.0, noise_multiplier=1.0)
    with pytest.raises(UserError, match=r"noise on updates does not cover; give data\.mean"):
        deploy(trial, tmp_path, private, post)


def test_a_plan_is_the_same_for_rows_of_one_machine(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", patients(), HEADER)
    settings = build(FileSettings, {"path": str(path), **COLUMNS}, "data")
    rows = read_rows(settings)
    training = rows.take(divide(rows, settings, 0)[0])
    each = [training.take(training.client == client) for client in range(3)]
    plan = agree_columns([offer(own) for own in each], rows.clients)
    assert isinstance(plan, Plan) and [column.kind for column in plan.columns] == [
        "number", "number", "category", "category"
    ]  # fmt: skip
    assert plan.columns[3].levels == ("north", "south"), "a level that no site has eight rows of is not named"
