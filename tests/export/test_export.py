"""Models out: what is written, read back by the library that owns the format, answers as the run's own model does."""

import csv
import io
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.numpy
import torch
from PIL import Image

from perinvfl.cli import call
from perinvfl.export.formats import FORMATS, read_model
from perinvfl.export.predict import predict
from perinvfl.runs.loaded import open_run
from tests.commands import tiny_file
from tests.planted import FEATURES, SITES, planted_file, raw


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    assert call(["run", str(planted_file(folder)), "--out", str(folder / "runs")]) == 0
    return next((folder / "runs").rglob("events.jsonl")).parent


def recorded(run: Path, case: str, client: int, kind: str = "personal") -> float:
    return open_run(run).run.evaluations[-1][kind][case][client]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("client", ["Bern", "5"])
def test_an_exported_file_answers_as_the_run_recorded(form: str, client: str, run: Path, tmp_path: Path) -> None:
    file = tmp_path / f"model.{form}"
    assert call(["export", str(run), "--client", client, "--format", form, "-o", str(file)]) == 0
    predictor = read_model(file)
    i = SITES.index(client) if client in SITES else int(client) - 1
    assert predictor.description.features == FEATURES and predictor.description.client == SITES[i]
    opened = open_run(run)
    test = opened.federation.tests["night"]
    found = predict(predictor, raw(test.x[i]), chunk=50)  # raw: the standardisation is inside the file
    logits = opened.model.apply(opened.lead(i), test.x[i])[:, 0]
    torch.testing.assert_close(found["probability"][:, 1], torch.sigmoid(logits), atol=1e-5, rtol=1e-4)
    right = (found["prediction"] == test.y[i]).float().mean()
    assert float(right) == pytest.approx(recorded(run, "night", i), abs=1e-4)


def test_other_libraries_read_the_files(run: Path, tmp_path: Path) -> None:
    import onnxruntime
    from safetensors.torch import load_file

    for form in FORMATS:
        assert call(["export", str(run), "--client", "Chur", "-o", str(tmp_path / f"m.{form}")]) == 0
    opened = open_run(run)
    x = opened.federation.tests["night"].x[2]
    want = torch.sigmoid(opened.model.apply(opened.lead(2), x)[:, 0])
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert [part.name for part in session.get_outputs()] == ["prediction", "probability"]
    assert session.get_inputs()[0].shape[1] == len(FEATURES) and isinstance(session.get_inputs()[0].shape[0], str)
    onnx = torch.from_numpy(session.run(["probability"], {"x": raw(x).numpy()})[0])
    pt2 = torch.export.load(tmp_path / "m.pt2").module()(raw(x))[1]
    tensors = load_file(tmp_path / "m.safetensors")
    assert tensors["weights.0.weight"].shape == (8, 4), "the padding that only serves speed must not be exported"
    h = torch.relu(x @ tensors["weights.0.weight"].T + tensors["weights.0.bias"])
    plain = torch.sigmoid(h @ tensors["weights.1.weight"].T + tensors["weights.1.bias"])[:, 0]
    for found in (onnx[:, 1], pt2[:, 1], plain):
        torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-4)


def test_the_card_says_what_the_model_is(run: Path, tmp_path: Path) -> None:
    assert call(["export", str(run), "--client", "Davos", "-o", str(tmp_path / "m.pt2")]) == 0
    card = (tmp_path / "m.pt2.md").read_text()
    for word in (
        "Davos",
        "Ditto",
        "Li et al. 2021",
        "standardised inside",
        "`badge`",
        "0 = well, 1 = ill",
        "240 samples",
    ):
        assert word in card
    assert f"| night | {100 * recorded(run, 'night', 3):.2f} |" in card
    assert "last round" in card and "algorithm.pull" in card and "## Limits" in card


def test_the_shared_model_differs_from_the_personal_one(run: Path, tmp_path: Path) -> None:
    assert call(["export", str(run), "--global", "-o", str(tmp_path / "g.safetensors")]) == 0
    predictor = read_model(tmp_path / "g.safetensors")
    assert not predictor.description.personal
    test = open_run(run).federation.tests["night"]
    right = (predict(predictor, raw(test.x[0]))["prediction"] == test.y[0]).float().mean()
    assert float(right) == pytest.approx(recorded(run, "night", 0, "global"), abs=1e-4)
    assert recorded(run, "night", 0, "global") != recorded(run, "night", 0)


def test_predict_from_a_file_and_from_a_run_agree(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = raw(open_run(run).federation.tests["night"].x[1])
    table = tmp_path / "in.csv"
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *reversed(FEATURES)])  # another order, and a column the model does not know
        writer.writerows([f"p{n}", *reversed(row)] for n, row in enumerate(x.tolist()))
    numpy.savez(tmp_path / "in.npz", x=x.numpy())
    model = tmp_path / "m.onnx"
    assert call(["export", str(run), "--client", "Bern", "-o", str(model)]) == 0
    capsys.readouterr()
    assert call(["predict", str(model), str(table)]) == 0
    shown = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert call(["predict", str(run), str(tmp_path / "in.npz"), "--client", "Bern", "-o", str(tmp_path / "o.npz")]) == 0
    with numpy.load(tmp_path / "o.npz") as found:
        assert [row["prediction"] for row in shown] == [("well", "ill")[k] for k in found["prediction"]]
        printed = [float(row["probability ill"]) for row in shown]
        assert printed == pytest.approx(found["probability"][:, 1].tolist(), abs=1e-5)
    assert len(set(printed)) > 50


def test_images_and_several_classes_and_regression(tmp_path: Path) -> None:
    shapes = {"binary": (1, "[2, 3, 3]"), "multiclass": (3, "[5]"), "regression": (1, "[5]")}
    for task, (outputs, shape) in shapes.items():
        out = tmp_path / task
        settings = [
            f"data.task={task}",
            f"data.outputs={outputs}",
            f"data.shape={shape}",
            "data.clients=2",
            "algorithm.penalty_weight=0.1",
        ]
        options = [part for setting in settings for part in ("--set", setting)]
        assert call(["run", str(tiny_file(tmp_path)), "--out", str(out), *options]) == 0
        folder = next(out.rglob("events.jsonl")).parent
        opened = open_run(folder)
        x = opened.federation.tests["0.1"].x[1]
        logits = opened.model.apply(opened.lead(1), x)
        for form in FORMATS:
            assert call(["export", str(folder), "--client", "2", "-o", str(out / f"m.{form}")]) == 0
            found = read_model(out / f"m.{form}")(x)
            if task == "regression":
                torch.testing.assert_close(found["prediction"], logits[:, 0], atol=1e-5, rtol=1e-4)
            else:
                want = torch.softmax(logits if outputs > 1 else torch.cat([0 * logits, logits], 1), 1)
                torch.testing.assert_close(found["probability"], want, atol=1e-5, rtol=1e-4)


def test_a_quantity_comes_out_in_its_own_units(tmp_path: Path) -> None:
    file = planted_file(tmp_path, rounds=5, data='task = "regression"', settings="personal_learning_rate = 0.05")
    options = ["--set", "algorithm.learning_rate=0.05", "--out", str(tmp_path / "runs")]
    assert call(["run", str(file), *options]) == 0
    folder = next((tmp_path / "runs").rglob("events.jsonl")).parent
    opened = open_run(folder)
    x = opened.federation.tests["night"].x[3]
    want = 100 + 7 * opened.model.apply(opened.lead(3), x)[:, 0]
    for form in FORMATS:
        assert call(["export", str(folder), "--client", "Davos", "-o", str(tmp_path / f"m.{form}")]) == 0
        found = read_model(tmp_path / f"m.{form}")(raw(x))
        torch.testing.assert_close(found["prediction"], want, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["ftfa", "alone", "fedavg"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_every_kind_of_method_opens_as_it_was_measured(algorithm: str, executor: str, tmp_path: Path) -> None:
    file = planted_file(tmp_path, algorithm, 5)
    options = ["--set", f"training.executor={executor}", "--set", "training.batch_size=20"]
    options += ["--set", "training.fraction=0.6"]
    if executor == "loop":
        options += ["--set", "training.at_rest=disk"]
    assert call(["run", str(file), "--out", str(tmp_path / "runs"), *options]) == 0
    folder = next((tmp_path / "runs").rglob("events.jsonl")).parent
    opened = open_run(folder)
    kind = "global" if algorithm == "fedavg" else "personal"
    test = opened.federation.tests["night"]
    for i in range(5):
        right = ((opened.model.apply(opened.lead(i), test.x[i])[:, 0] > 0) == (test.y[i] > 0.5)).float().mean()
        assert float(right) == pytest.approx(opened.run.evaluations[-1][kind]["night"][i], abs=1e-4)


def test_mistakes_are_one_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, table = tmp_path / "m.safetensors", tmp_path / "in.csv"
    assert call(["export", str(run), "--client", "1", "-o", str(model)]) == 0
    table.write_text("age,dose,badge,noise\n1,2,x,4\n")
    short = tmp_path / "short.csv"
    short.write_text("age,dose\n1,2\n")
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(b"nothing")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("größe\n1\n".encode("latin-1"))
    numpy.savez(tmp_path / "wide.npz", x=numpy.zeros((2, 5), "float32"))
    cases = {
        "--client is missing; clients are Aarau": ["export", run],
        "--client Zug is not one of the 5 clients: Aarau, Bern": ["export", run, "--client", "Zug"],
        'in.csv: line 2, column "badge": "x" is not a number': ["predict", model, table],
        "has no column badge": ["predict", model, short],
        "x has shape (2, 5); the model takes (any, 4)": ["predict", model, tmp_path / "wide.npz"],
        "is damaged or no ONNX file": ["predict", torn, table],
        "latin.csv is not UTF-8 text": ["predict", model, latin],
        "is a folder, and the model takes (4), no photographs": ["predict", model, tmp_path],
        "in the format pt2 must end in .pt2": ["export", run, "--client", "1", "--format", "pt2", "-o", "m.onnx"],
        "--client and --global exclude each other": ["export", run, "--client", "1", "--global"],
        "holds no run": ["export", tmp_path, "--client", "1"],
        "--method and --seed go with a folder of runs": ["predict", model, table, "--client", "1"],
    }
    for sentence, arguments in cases.items():
        capsys.readouterr()
        assert call(list(map(str, arguments))) == 2, sentence
        printed = capsys.readouterr().err
        assert sentence in printed and printed.startswith("error: ") and printed.count("\n") == 1


def test_predict_reads_every_form_of_own_data(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.safetensors"
    assert call(["export", str(run), "--client", "1", "-o", str(model)]) == 0
    columns = ("age", "dose", "badge", "noise")
    x = numpy.array([[30.0, 1.5, 1.0, 0.0], [60.0, 0.5, 0.0, 2.0]], "float32")
    rows = [[*map(str, row), "seen"] for row in x.tolist()]
    for name, mark in (("a.csv", ","), ("b.csv", ";"), ("c.tsv", "\t")):
        (tmp_path / name).write_text("\n".join(mark.join(row) for row in [[*columns, "note"], *rows]) + "\n")
    numpy.savez(tmp_path / "d.npz", x=x)
    safetensors.numpy.save_file({"x": x}, tmp_path / "e.safetensors")
    table = {name: x[:, at] for at, name in enumerate(columns)}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "f.parquet")
    answers = set()
    for path in sorted(tmp_path.glob("[a-f].*")):
        capsys.readouterr()
        assert call(["predict", str(model), str(path)]) == 0
        answers.add(capsys.readouterr().out)
    assert len(answers) == 1


def test_predict_names_the_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (client, kind) in enumerate((c, k) for c in "ab" for k in ("car", "ship") for _ in range(6)):
        place = tmp_path / "photos" / client / "day" / kind
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 8), (200, 0, 0) if kind == "car" else (0, 0, 200)).save(place / f"{number}.png")
    file = tmp_path / "x.toml"
    file.write_text(
        f'name = "x"\n[data]\nbenchmark = "file"\npath = "{tmp_path / "photos"}"\nimage_size = 4\n'
        '[model]\nhidden = [4]\n[training]\nrounds = 30\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.5\n'
    )
    assert call(["run", str(file), "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    model = tmp_path / "m.pt2"
    assert call(["export", str(next((tmp_path / "runs/x").iterdir())), "--global", "-o", str(model)]) == 0
    capsys.readouterr()
    assert call(["predict", str(model), str(tmp_path / "photos")]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 24 and all(row["file"].split("/")[2] == row["prediction"] for row in rows)
    assert call(["predict", str(model), str(tmp_path / "photos"), "-o", str(tmp_path / "out.npz")]) == 0
    assert numpy.load(tmp_path / "out.npz")["files"].tolist() == [row["file"] for row in rows]


def test_a_folder_without_its_checkpoint_is_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/events.jsonl").write_bytes((run / "events.jsonl").read_bytes())
    capsys.readouterr()
    assert call(["export", str(tmp_path / "copy"), "--client", "1"]) == 2
    assert "has no checkpoint.pt" in capsys.readouterr().err


@pytest.mark.parametrize("norm, forms", [("group", tuple(FORMATS)), ("batch", ("pt2",))])
def test_pictures_go_in_as_they_are(
    norm: str, forms: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """uint8 pictures, scaled inside the graph; statistics of a batch norm, measured, inside it too."""
    file = tmp_path / "birds.toml"
    file.write_text(
        'name = "birds"\ndata = {benchmark = "drawn_birds", train_per_client = 12, test_per_client = 8, left_over = 0, '
        f'size = 16, birds = 40}}\nmodel = {{kind = "resnet18", width = 2, stem = "small", norm = "{norm}"}}\n'
        'training = {rounds = 1, executor = "loop"}\n[[algorithm]]\nname = "ditto"\nlearning_rate = 0.01\n'
    )
    assert call(["run", str(file), "--quiet", "--out", str(tmp_path / "runs")]) == 0
    folder = next((tmp_path / "runs").rglob("events.jsonl")).parent
    opened = open_run(folder)
    test = opened.federation.tests["0.1"]
    real = test.context[1] >= 0
    x, y = test.x[1][real], test.y[1][real]
    assert x.dtype == torch.uint8
    want = torch.sigmoid(opened.predict(opened.lead(1), x)[:, 0])
    for form in forms:
        assert call(["export", str(folder), "--client", "2", "-o", str(tmp_path / f"m.{form}")]) == 0
        found = predict(read_model(tmp_path / f"m.{form}"), x, chunk=3)
        torch.testing.assert_close(found["probability"][:, 1], want, atol=1e-4, rtol=1e-3)
        right = float((found["prediction"] == y).float().mean())
        assert right == pytest.approx(recorded(folder, "0.1", 1), abs=1e-4)
    assert "uint8" in (tmp_path / "m.pt2.md").read_text()
    numpy.savez(tmp_path / "float.npz", x=x.float().numpy())
    capsys.readouterr()
    assert call(["predict", str(tmp_path / "m.pt2"), str(tmp_path / "float.npz")]) == 2
    assert "takes pictures as uint8" in capsys.readouterr().err


def test_a_run_with_inferred_contexts_opens_with_the_given_ones(tmp_path: Path) -> None:
    file = planted_file(tmp_path, rounds=5)
    options = ["contexts.infer=hard", "contexts.use=discount", "contexts.reference_rounds=5"]
    settings = [word for option in options for word in ("--set", option)]
    assert call(["run", str(file), *settings, "--out", str(tmp_path / "runs")]) == 0
    folder = next((tmp_path / "runs").rglob("events.jsonl")).parent
    opened = open_run(folder)
    assert opened.federation.contexts == 2 and int(opened.federation.train.context.max()) == 1
    test = opened.federation.tests["night"]
    right = ((opened.predict(opened.lead(0), test.x[0])[:, 0] > 0) == (test.y[0] > 0.5)).float().mean()
    assert float(right) == pytest.approx(recorded(folder, "night", 0), abs=1e-4)
