"""Aligned clients: each finds the view in which it sees what the first one sees, and its models carry that view."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import perinvfl as pf
from perinvfl.algorithms import FedAvg
from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.program_run import ProgramRun
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.export.formats import FORMATS, read_model
from perinvfl.export.predict import predict
from perinvfl.learning.shortcut import reference_answer, shortcut_log_odds
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model
from perinvfl.models.symmetry import Symmetry, seen, views_of
from perinvfl.preparation.alignment import in_views
from perinvfl.preparation.inferred_contexts import reference_algorithm
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import ContextSettings
from perinvfl.reproduce.command import main as reproduce_main
from perinvfl.runs.asked import trial_of
from perinvfl.runs.event_log import Writer
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.loaded import open_run
from perinvfl.runs.records import read_events
from perinvfl.runs.trial import GIVEN
from tests.prepared import prepared

LOOP = Training(executor="loop", device="cpu", batch_size=100)
MODEL = ModelSettings(hidden=(16,))
HOW = ContextSettings(infer="hard", use="discount", reference_rounds=30, reference_rate=0.01)
# Shapes that say the class, neither of them like itself in a mirror or turned.
SHAPES = torch.zeros(2, 6, 6)
SHAPES[0, 1, :3] = SHAPES[0, 2, 0] = 1
SHAPES[1, 4, 1:5] = SHAPES[1, 5, 4] = 1


def upright(clients: int, samples: int, agree: float, name: str) -> Split:
    """[N, M, 2, 6, 6] noisy bars in the first channel, the shortcut all over the second."""
    source = generator(0, name)
    y = (torch.rand(clients, samples, generator=source) < 0.5).float()
    bit = torch.where(torch.rand(clients, samples, generator=source) < agree, y, 1 - y)
    bars = SHAPES[y.long()] + 0.7 * torch.randn(clients, samples, 6, 6, generator=source)
    shortcut = (4 * bit - 2)[..., None, None].expand_as(bars)
    return Split(torch.stack([bars, shortcut], 2), y, torch.zeros(clients, samples, dtype=torch.int64))


def styled(data: Split, styles: list[int]) -> Split:
    return data._replace(x=torch.stack([seen(x, style) for x, style in zip(data.x, styles, strict=True)]))


def federation_in(styles: list[int]) -> tuple[Federation, Federation]:
    """As it would be if all saw alike, and with each client in its own style."""
    n = len(styles)
    parts = {name: upright(n, size, 0.9, name) for name, size in (("train", 300), ("validation", 50))}
    test = upright(n, 60, 0.1, "test")
    plain = Federation("bars", "binary", 1, 1, parts["train"], {"0.1": test}, ("0.1",), parts["validation"])
    return plain, dataclasses.replace(
        plain,
        train=styled(parts["train"], styles),
        validation=styled(parts["validation"], styles),
        tests={"0.1": styled(test, styles)},
    )


@pytest.mark.parametrize("use", ["judge", "balance", "discount"])
@pytest.mark.parametrize(
    ("symmetry", "styles"),
    [("rotations", [0, 2, 4, 6, 2]), ("flips", [0, 1, 1]), ("rotations and flips", [0, 1, 2, 3, 4, 5, 6, 7])],
)
def test_every_client_comes_to_see_alike(symmetry: Symmetry, styles: list[int], use: Any) -> None:
    plain, given = federation_in(styles)
    how = dataclasses.replace(HOW, use=use, align=symmetry)
    made = prepared(given, 3, how, MODEL, LOOP)
    assert torch.equal(made.train.x, plain.train.x) and torch.equal(made.tests["0.1"].x, plain.tests["0.1"].x)
    assert made.validation is not None and plain.validation is not None
    assert torch.equal(made.validation.x, plain.validation.x)
    assert made.inferred and all(data.x is made.validation.x for data in made.inferred.values())
    assert made.views[0] == 0 and made.notes["views"] == list(made.views)
    assert torch.equal(made.train.y, given.train.y) and made.split == use
    # All else is as without it: what the reference model is wrong about was found before anything was turned.
    without = prepared(given, 3, dataclasses.replace(how, align="nothing"), MODEL, LOOP)
    assert torch.equal(made.train.context, without.train.context) and made.contexts == without.contexts
    assert without.views == () and "views" not in without.notes


def test_the_view_is_the_one_that_a_slow_comparison_finds() -> None:
    _, given = federation_in([0, 2, 6, 4])
    how = dataclasses.replace(HOW, align="rotations", reference_rounds=3)  # so short that the choice is not clear
    found = prepared(given, 3, how, MODEL, LOOP).views
    split = prepared(given, 3, dataclasses.replace(how, align="nothing"), MODEL, LOOP)
    first = dataclasses.replace(split.share_of(0), tests={}, validation=None, inferred={})
    pilot = Simulation([reference_algorithm(how, FedAvg())], [first], [3], LOOP, MODEL)
    for _ in range(3):
        pilot.round()
    model = {name: leaf[0] for name, leaf in pilot.server.params.items()}

    def misfit(i: int, view: int) -> float:
        x, y, context = (part[i] for part in split.train)
        odds = shortcut_log_odds(y, context)
        total = 0.0
        logits = pilot.model.apply(model, seen(x, view))[:, 0]
        for z, label, answer in zip(logits.tolist(), y.tolist(), reference_answer(y, context).tolist(), strict=True):
            p = torch.sigmoid(torch.tensor(z + float(odds[int(answer)]), dtype=torch.float64))
            total -= float(torch.log(p if label else 1 - p))
        return total

    slow = [min(views_of("rotations"), key=lambda view: misfit(i, view)) for i in range(4)]
    assert list(found) == [0, *slow[1:]]


def test_the_first_client_stays_as_it_is_and_may_be_small() -> None:
    _, given = federation_in([2, 0, 6])
    short = given.train.context.clone()
    short[0, 60:] = -1  # fewer than a batch
    small = dataclasses.replace(given, train=given.train._replace(context=short))
    for rounds in (1, 30):
        made = prepared(small, 3, dataclasses.replace(HOW, align="rotations", reference_rounds=rounds), MODEL, LOOP)
        assert made.views[0] == 0


def test_tests_that_share_their_images_go_on_sharing_them() -> None:
    _, given = federation_in([0, 2])
    given = dataclasses.replace(given, tests={**given.tests, "again": given.tests["0.1"]})
    made = in_views(given, (0, 6))
    assert made.tests["again"].x is made.tests["0.1"].x and made.train.x is not made.tests["0.1"].x


@pytest.mark.parametrize(
    "data",
    [
        {"rotations": [0]},  # nothing to undo
        {"p_train": [0.5, 0.9, 0.85, 0.8]},  # the first client has no shortcut
        {"p_train": [0.95, 0.9, 0.85, 0.5]},  # another has none
        {"p_train": [0.7, 0.65, 0.6, 0.55]},  # the shortcut is weaker than the shape
    ],
)
def test_digits_are_not_turned_where_they_should_not_be(data: dict[str, Any]) -> None:
    digits = {"benchmark": "rc_mnist", "train_per_client": 5000, "test_per_client": 10, "holdout": 100, **data}
    table = {
        "data": digits,
        "contexts": {"infer": "hard", "use": "discount", "align": "rotations"},
        "model": {"hidden": [64]},
        "training": {"batch_size": 1000, "device": "cpu"},
        "algorithm": [{"name": "fedavg"}],
    }
    trial = build_experiment(table).trials[0]
    views = prepared(trial.federation(), trial.seed, trial.contexts, trial.model, trial.training).views
    assert views == ((0, 0, 0, 0) if "rotations" in data else (0, 6, 4, 2))


def test_views_make_a_group() -> None:
    image = torch.arange(9.0).view(1, 3, 3)
    for symmetry in ("rotations", "flips", "rotations and flips"):
        views = [seen(image, view) for view in views_of(symmetry)]
        assert torch.equal(views[0], image)
        for view in views:  # each is undone by one of them
            assert sum(torch.equal(seen(view, back), image) for back in views_of(symmetry)) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, four rotations: enough of them for the views to be clear."""
    folder = tmp_path_factory.mktemp("aligned")
    file = folder / "aligned.toml"
    file.write_text(
        'name = "aligned"\n[data]\nbenchmark = "rc_mnist"\ntrain_per_client = 3000\ntest_per_client = 200\n'
        'holdout = 100\n[contexts]\ninfer = "hard"\nuse = "discount"\nalign = "rotations"\n[model]\nhidden = [32]\n'
        '[training]\nrounds = 30\nbatch_size = 500\ndevice = "cpu"\n[[algorithm]]\nname = "perinvfl"\n'
        'server_optimizer = "adam"\npersonal_optimizer = "adam"\nlearning_rate = 1.0\nserver_learning_rate = 0.003\n'
        "personal_learning_rate = 0.001\npenalty_weight = 0.1\nwarmup_rounds = 0\nbeta = 0.1\n"
    )
    assert call(["run", str(file), "--quiet", "--out", str(folder / "runs")]) == 0
    return next((folder / "runs").rglob("events.jsonl")).parent


def raw(run: Path, case: str, client: int) -> tuple[Tensor, Tensor]:
    """Test images as the client has them."""
    data = dataclasses.replace(trial_of(open_run(run).run.asked), contexts=GIVEN).federation().tests[case]
    return data.x[client], data.y[client]


@pytest.mark.parametrize("client", [0, 1, 3])
def test_an_exported_model_takes_images_as_the_client_has_them(run: Path, client: int, tmp_path: Path) -> None:
    opened = open_run(run)
    assert opened.federation.views == (0, 6, 4, 2) == tuple(opened.run.found["views"])
    recorded = opened.run.evaluations[-1]["personal"]["0.1"][client]
    test = opened.federation.tests["0.1"]
    own = opened.predict(opened.lead(client), test.x[client])[:, 0]
    assert float(((own > 0) == (test.y[client] > 0.5)).float().mean()) == pytest.approx(recorded, abs=1e-4)
    x, y = raw(run, "0.1", client)
    for form in FORMATS:
        file = tmp_path / f"m.{form}"
        assert call(["export", str(run), "--client", str(client + 1), "--format", form, "-o", str(file)]) == 0
        predictor = read_model(file)
        assert predictor.description.view == opened.federation.views[client]
        found = predict(predictor, x.float(), chunk=70)
        torch.testing.assert_close(found["probability"][:, 1], torch.sigmoid(own), atol=1e-5, rtol=1e-4)
        assert float((found["prediction"] == y).float().mean()) == pytest.approx(recorded, abs=1e-4)
    card = (tmp_path / "m.pt2.md").read_text()
    assert ("turned by" in card) == (client > 0) and "contexts.align | `rotations`" in card


def test_the_global_model_is_exported_as_the_first_client_sees(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "nu.safetensors"
    assert call(["export", str(run), "--global", "-o", str(file)]) == 0
    assert read_model(file).description.view == 0
    assert (
        "Predictions for clients that see their images as this model does: Client 1." in Path(f"{file}.md").read_text()
    )


def test_a_run_whose_views_come_out_otherwise_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    events = read_events(other / "events.jsonl")
    swapped = [json.loads(json.dumps(event).replace("[0, 6, 4, 2]", "[0, 2, 4, 6]")) for event in events]
    Writer(other).replace(swapped)
    checkpoint.save(other / "checkpoint.pt", checkpoint.load(other / "checkpoint.pt"))  # counts on no record
    assert call(["export", str(other), "--client", "1", "-o", str(tmp_path / "m.pt2")]) == 2
    assert "took the views [0, 2, 4, 6] of their images, here it would be [0, 6, 4, 2]" in capsys.readouterr().err


def test_a_session_takes_images_as_the_client_has_them() -> None:
    plain, given = federation_in([0, 2, 1])
    contexts = {"infer": "hard", "use": "discount", "align": "rotations and flips", "reference_rate": 0.01}
    session = pf.start(given, "ditto", rounds=2, model={"hidden": [8]}, contexts=contexts, batch_size=100, device="cpu")
    session.run()
    assert session.found["views"] == [0, 6, 1]
    model = build_model(ModelSettings(hidden=(8,)), given.shape, given.outputs, "float32")
    for i, name in enumerate(session.clients):
        want = model.apply(session.parameters(name), plain.tests["0.1"].x[i])
        torch.testing.assert_close(session.outputs(given.tests["0.1"].x[i], name), want)
    with pytest.raises(UserError, match="is not a client"):
        session.outputs(given.tests["0.1"].x[0], "nobody")


def test_what_cannot_be_aligned_is_refused_in_one_sentence() -> None:
    table = random_federation(clients=2, contexts=1, samples=20, shape=(4,))
    classes = random_federation(clients=2, contexts=1, samples=20, shape=(1, 4, 4), task="multiclass", outputs=3)
    how = dataclasses.replace(HOW, use="balance", align="rotations", reference_rounds=1)
    _, images = federation_in([0, 2])
    left_out = dataclasses.replace(images, tests={"left-out": images.tests["0.1"]})
    blind = ModelSettings(hidden=(4,), blind_to="rotations and flips")
    for federation, model, words in (
        (table, MODEL, "takes square images"),
        (classes, MODEL, "takes a binary label"),
        (left_out, MODEL, "takes no view"),
        (images, blind, "sees no difference"),
    ):
        with pytest.raises(UserError, match=f"contexts.align.*{words}"):
            prepared(federation, 0, how, model, LOOP)
    digits = {"benchmark": "rc_mnist", "train_per_client": 100, "holdout": 10}
    for data, contexts, words in (
        (digits, {"infer": "soft", "align": "flips"}, 'goes with infer = "hard"'),
        (digits, {"align": "flips"}, 'goes with infer = "hard"'),
        (digits, {"infer": "hard", "align": "turns"}, "contexts.align"),
    ):
        with pytest.raises(UserError, match=words):
            build_experiment({"data": data, "contexts": contexts, "algorithm": [{"name": "irm"}]})


def test_a_search_that_leaves_clients_out_is_refused_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "aligned.toml"
    file.write_text(
        '[data]\nbenchmark = "rc_mnist"\nholdout = 100\n[contexts]\ninfer = "hard"\nalign = "rotations"\n'
        '[[algorithm]]\nname = "irm"\n'
    )
    assert reproduce_main([str(file), "--out", str(tmp_path / "out")]) == 2
    assert "set search.leave_out = false" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_aligned_clients_infer_again_on_their_images_as_seen() -> None:
    """The global model is asked about images in the view that the client trains on, not as they came."""
    plain, given = federation_in([0, 2, 6])
    how = dataclasses.replace(HOW, align="rotations", every=2)
    training = dataclasses.replace(LOOP, batch_size=0)
    algorithm = FedAvg(learning_rate=0.5)
    run = ProgramRun(program_of(algorithm, training, how), [algorithm], {3: given}, [3], MODEL)
    for _ in range(2):
        run.round()
    model = {name: leaf[0].clone() for name, leaf in run.simulation.server.params.items()}
    run.round()
    for i in range(3):
        logits = run.simulation.model.apply(model, plain.train.x[i])[:, 0]  # as all would see, had they one style
        wrong = (logits > 0) != (plain.train.y[i] > 0.5)
        assert torch.equal(run.simulation.data.context[0, i], wrong.long())
