"""This project's side: the data, and its own runs."""

from pathlib import Path

import numpy
import torch

import perinvfl as pf
from benchmarks.parity.files import Arrays, data_file, jobs, read_data, write_score
from benchmarks.parity.plan import ALPHA, CLASSES, CLIENTS, HIDDEN, PIXELS, REGIMES, TEST, TRAIN
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.sources import embedded_digits
from perinvfl.data.partition import Dealing, deal
from perinvfl.models import mlp

IMAGES = 50_000  # as for the benchmark mnist: the others are for tests of all classes


def export(folder: Path) -> None:
    """A Dirichlet partition of MNIST for each seed, of which every client keeps as many images, drawn at random."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = embedded_digits("mnist")
    labels = digits.labels[:IMAGES].long()
    for seed in sorted({seed for regime in REGIMES.values() for seed in regime.seeds}):
        owner = deal(labels, CLIENTS, "dirichlet", Dealing(alpha=ALPHA), seed)
        kept = []
        for client in range(CLIENTS):
            mine = (owner == client).nonzero().flatten()
            assert len(mine) >= TRAIN + TEST, f"seed {seed}: client {client} has {len(mine)} images only"
            kept.append(mine[torch.randperm(len(mine), generator=generator(seed, "parity", client))[: TRAIN + TEST]])
        places = torch.cat(kept)
        weights = mlp((PIXELS, HIDDEN, CLASSES), True, "float32").init(generator(seed, "weights"))
        arrays: Arrays = {
            "x": (digits.images[places].unsqueeze(1) / 255).numpy(),
            "y": labels[places].numpy(),
            "client": numpy.repeat(numpy.arange(CLIENTS), TRAIN + TEST),
            "test": numpy.tile(numpy.arange(TRAIN + TEST) >= TRAIN, CLIENTS),
            **{name: leaf.numpy() for name, leaf in weights.items()},
        }
        numpy.savez(data_file(folder, seed), **arrays)
        print(data_file(folder, seed))


def run(folder: Path) -> None:
    for regime, _, method, seed, path in jobs(folder, "perinvfl"):
        if method.mended:
            continue
        data = read_data(folder, seed)
        federation = pf.from_arrays(
            data["x"],
            data["y"],
            client=data["client"],
            context=numpy.where(data["test"], "test", "train"),
            test_contexts=["test"],
            test_share=0,
            holdout=0,
            standardise=False,
            seed=seed,
        )
        session = pf.start(
            federation,
            pf.algorithm(method.algorithm, **method.ours),
            rounds=regime.rounds,
            seed=seed,
            model={"hidden": [HIDDEN]},
            batch_size=0 if regime.batch == TRAIN else regime.batch,
        )
        if method.algorithm == "fedavg":  # all begin with the same weights
            assert all(numpy.array_equal(first.numpy(), data[name]) for name, first in session.parameters().items())
        session.run()
        trained = session.trial.algorithm
        kinds = [kind for kind in ("personal", "global") if getattr(trained, f"has_{kind}")]
        scores = {kind: session.evaluate(kind)["test"].values() for kind in kinds}
        accuracy = {kind: sum(filter(None, found)) / CLIENTS for kind, found in scores.items()}
        model = {name: leaf.numpy() for name, leaf in session.parameters().items()} if trained.has_global else None
        write_score(path, accuracy, model)
