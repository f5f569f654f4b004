"""Partitions: every sample goes to one client, as the kind says, and the same seed deals alike."""

import csv
from pathlib import Path
from typing import Any, get_args

import numpy
import pytest
import torch
from torch import Tensor

import perinvfl as pf
from perinvfl.core import config
from perinvfl.data.benchmarks.plain_digits import ALL, OWN
from perinvfl.data.benchmarks.sources import embedded_digits
from perinvfl.data.own.files import FileSettings
from perinvfl.data.own.survey import survey
from perinvfl.data.partition import Dealing, Kind, deal
from perinvfl.errors import UserError
from perinvfl.runs.experiment import build_experiment
from tests.commands import called

KINDS: tuple[Kind, ...] = get_args(Kind)


def labels_of(n: int = 3000, classes: int = 10) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(1))


def held(owner: Tensor, labels: Tensor, clients: int) -> Tensor:
    """[clients, classes] by counting."""
    return torch.stack([torch.bincount(labels[owner == i], minlength=10) for i in range(clients)])


@pytest.mark.parametrize("spread", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_deals_alike_and_another_differently(kind: Kind, spread: float) -> None:
    labels, how = labels_of(), Dealing(size_spread=spread)
    first, again, other = (deal(labels, 8, kind, how, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == labels.shape and first.unique().tolist() == list(range(8))


def test_an_even_partition_is_even_in_size_and_classes() -> None:
    labels = labels_of()
    counts = held(deal(labels, 5, "even"), labels, 5)
    assert counts.sum(1).tolist() == [600] * 5
    assert int(counts.min()) > 30


def test_a_pathological_client_holds_just_so_many_classes() -> None:
    labels = labels_of()
    for clients, each in ((10, 2), (7, 3), (5, 2), (20, 1)):
        counts = held(deal(labels, clients, "pathological", Dealing(classes_per_client=each)), labels, clients)
        assert ((counts > 0).sum(1) == each).all() and int(counts.sum()) == 3000
        holders = (counts > 0).sum(0)
        assert int(holders.max() - holders.min()) <= 1  # no class is left to nobody


def test_a_small_alpha_gives_classes_to_few_clients_and_a_large_one_to_all() -> None:
    labels = labels_of()
    concentration = []
    for alpha in (0.05, 0.5, 1000.0):
        counts = held(deal(labels, 10, "dirichlet", Dealing(alpha=alpha)), labels, 10).double()
        concentration.append(float((counts / counts.sum(0)).max(0).values.mean()))  # share of a class's largest holder
        assert int(counts.sum(1).min()) >= 10
    assert concentration[0] > 0.7 > concentration[1] > 0.3 and concentration[2] < 0.13


def test_similarity_deals_a_share_evenly_and_sorts_the_rest() -> None:
    labels = labels_of()
    apart = held(deal(labels, 10, "similarity", Dealing(similarity=0.0)), labels, 10)
    assert int((apart > 0).sum(1).max()) <= 3
    assert int((held(deal(labels, 10, "similarity", Dealing(similarity=0.5)), labels, 10) > 0).sum()) == 100
    assert deal(torch.rand(100), 4, "similarity", Dealing(similarity=0.0)).bincount().tolist() == [25] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_spread(kind: Kind) -> None:
    how = Dealing(size_spread=1.0, alpha=5.0, classes_per_client=5)
    sizes = deal(labels_of(), 6, kind, how).bincount()
    assert int(sizes.max()) > 2 * int(sizes.min()) and int(sizes.sum()) == 3000


@pytest.mark.parametrize(
    ("n", "clients", "kind", "how", "sentence"),
    [
        (5, 6, "even", {}, "5 samples cannot be dealt out to 6 clients"),
        (100, 3, "pathological", {"classes_per_client": 2}, "3 clients cannot hold all 10 classes"),
        (100, 3, "pathological", {"classes_per_client": 11}, "the labels are of 10 classes"),
        (40, 20, "dirichlet", {"alpha": 1e-4}, "use a larger alpha or fewer clients"),
        (100, 50, "even", {"size_spread": 5.0}, "without a sample; use fewer"),
    ],
)
def test_what_cannot_be_dealt_is_refused(n: int, clients: int, kind: Kind, how: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        deal(torch.arange(n) % 10, clients, kind, Dealing(**how))


# Plain digits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_plain_digits_deal_every_image_once(name: str) -> None:
    federation = pf.load(name, images=600, clients=4, partition="pathological", classes_per_client=5, test_images=50)
    own = [federation.train, federation.tests[OWN]]
    x = torch.cat([part.x[part.context >= 0] for part in own]).flatten(1)
    y = torch.cat([part.y[part.context >= 0] for part in own])
    digits = embedded_digits("mnist" if name == "mnist" else "fashion")
    known: dict[bytes, set[int]] = {}
    for image, label in zip(digits.images[:50000], digits.labels[:50000].tolist(), strict=True):
        known.setdefault(image.numpy().tobytes(), set()).add(label)
    found = [(image * 255).round().to(torch.uint8).numpy().tobytes() for image in x]
    assert len(found) == 600 and all(label in known[image] for image, label in zip(found, y.tolist(), strict=True))
    assert all(len(row.unique()) <= 5 for row in (y[c >= 0] for y, c in zip(*own[0][1:], strict=True)))
    everyone = federation.tests[ALL]
    assert everyone.x.shape == (4, 50, 1, 14, 14) and torch.equal(everyone.y[0], everyone.y[3])
    later = {image.numpy().tobytes() for image in digits.images[50000:]}
    assert all((image * 255).round().to(torch.uint8).numpy().tobytes() in later for image in everyone.x[0])


def test_a_run_on_plain_digits_beats_a_constant_on_all_classes() -> None:
    federation = pf.load("mnist", images=2000, clients=5, alpha=1.0, test_images=500)
    session = pf.start(federation, pf.algorithm("fedavg", local_steps=5, learning_rate=0.3), rounds=15,
                       model={"hidden": [32]})  # fmt: skip
    scores = session.run().evaluate()
    assert all(score is not None and score > 0.6 for score in scores[ALL].values())


# Own data ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "kind", "amount"])
        writer.writerows([a, b, "red" if a > 0.3 else "blue" if b > 0 else "green", a + b] for a, b in x)
    return path


def asked(path: Path, **further: Any) -> dict[str, Any]:
    return {"label": "kind", "client": "", "context": "", "ignore": ["amount"], "partition": "pathological",
            "partition_clients": 6, **further}  # fmt: skip


def test_a_table_without_clients_is_dealt_out(table: Path) -> None:
    settings = asked(table)
    federation = pf.load(table, **settings)
    assert federation.clients == 6 and federation.client_names == ("1", "2", "3", "4", "5", "6")
    assert all(sum(count > 0 for count in row) <= 2 for row in federation.notes["labels"])  # type: ignore[attr-defined]
    again, other = pf.load(table, **settings), pf.load(table, seed=1, **settings)
    assert torch.equal(federation.train.x, again.train.x)
    assert federation.train.x.shape != other.train.x.shape or not torch.equal(federation.train.x, other.train.x)
    pandas = pytest.importorskip("pandas")
    framed = pf.load(pandas.read_csv(table), **settings)
    assert torch.equal(federation.train.x, framed.train.x)


def test_arrays_are_dealt_out() -> None:
    labels = labels_of(200, 3)
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    federation = pf.from_arrays(x, labels, partition="even", partition_clients=4, test_share=0.0, holdout=0.0)
    assert federation.sizes.tolist() == [50] * 4
    with pytest.raises(UserError, match="these are of 3 clients already"):
        pf.from_arrays(x, labels, client=labels, partition="even")


def test_a_number_as_label_cannot_go_by_classes(table: Path) -> None:
    settings = asked(table, label="amount", ignore=["kind"], partition="dirichlet")
    with pytest.raises(UserError, match='the label is a number; use "similarity" or "even"'):
        pf.load(table, **settings)
    assert pf.load(table, **{**settings, "partition": "similarity"}).clients == 6


def test_an_experiment_counts_the_clients_it_deals_to(table: Path) -> None:
    data = {"benchmark": "file", "path": str(table), **asked(table)}
    trial = build_experiment({"data": data, "algorithm": {"name": "ditto", "pull": [1, 2, 3, 4, 5, 6]}}).trials[0]
    assert trial.data.clients == 6
    plain = {key: value for key, value in data.items() if not key.startswith("partition")}
    before = build_experiment({"data": plain, "algorithm": {"name": "fedavg"}}).trials[0]
    assert not [key for key in before.asked()["data"] if key.startswith(("partition", "alpha", "size_spread"))]


def test_data_check_shows_dealt_clients(table: Path) -> None:
    found = survey(config.build(FileSettings, {"path": str(table), **asked(table)}, "data"))
    assert len(found["clients"]) == 6 and not found["faults"]


def test_the_command_counts_and_draws(table: Path, tmp_path: Path) -> None:
    words = [f"--set={key}={value}" for key, value in {"images": 500, "clients": 3, "test_images": 0}.items()]
    done = called("data", "partition", "mnist", *words, "--out", str(tmp_path / "who.png"))
    assert done.returncode == 0 and "Training samples" in done.stdout
    assert (tmp_path / "who.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (tmp_path / "who.svg").read_text()
    federation = pf.load("mnist", images=500, clients=3, test_images=0)
    for row in federation.notes["labels"]:  # type: ignore[attr-defined]
        assert str(sum(row)) in done.stdout
    file = tmp_path / "own.toml"
    file.write_text('[data]\nbenchmark = "file"\npath = "rows.csv"\nlabel = "kind"\nclient = ""\ncontext = ""\n')
    done = called("data", "partition", str(file), "--set", "partition=even", "--set", "partition_clients=3")
    assert done.returncode == 0 and "green" in done.stdout
    guessed = called("data", "partition", str(table), "--label", "kind", "--set", "partition=even")
    assert guessed.returncode == 0, "with made-up clients, no column need name one"
    named = tmp_path / "named.csv"
    named.write_text("hospital,age,kind\n" + "north,1,a\nnorth,2,b\nsouth,3,a\nsouth,4,b\n" * 20)
    refused = called("data", "partition", str(named), "--label", "kind", "--set", "partition=even")
    assert refused.returncode == 2 and "these are of 2 clients already" in refused.stderr
    refused = called("data", "partition", str(file), "--set", "label=amount", "--out", str(tmp_path / "who"))
    assert refused.returncode == 2 and "the picture is one of classes" in refused.stderr


def test_of_a_regression_it_shows_how_large_the_labels_are(table: Path) -> None:
    words = ["--label", "amount", "--client", "", "--context", "", "--set", "partition=similarity"]
    done = called("data", "partition", str(table), *words, "--set", "partition_clients=3", "--set", "similarity=0")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in done.stdout.splitlines() if "│" in line]
    with open(table, newline="") as file:
        amounts = [float(row["amount"]) for row in csv.DictReader(file)]
    counts, means = [int(row[1]) for row in rows], [float(row[2]) for row in rows]
    assert len(rows) == 3 and sum(counts) <= len(amounts)
    assert min(amounts) < min(means) < max(means) < max(amounts), "sorted by label, clients differ in it"
    mean = sum(n * mean for n, mean in zip(counts, means, strict=True)) / sum(counts)
    assert mean == pytest.approx(sum(amounts) / len(amounts), rel=0.2)
