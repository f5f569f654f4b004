"""This project's side: the data, and its own runs."""

from collections.abc import Collection
from pathlib import Path
from unittest.mock import patch

import numpy
import torch

import perinvfl as pf
from benchmarks.parity.files import Arrays, batches_file, data_file, jobs, planned, read_data, write_score
from benchmarks.parity.plan import ALPHA, CLASSES, CLIENTS, HIDDEN, PIXELS, TEST, TRAIN, Method, Regime, name_here
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.sources import embedded_digits
from perinvfl.data.images import Augmentation
from perinvfl.data.partition import Dealing, deal
from perinvfl.engine import draws
from perinvfl.engine.draws import sample_indices
from perinvfl.models import mlp

IMAGES = 50_000  # as for the benchmark mnist: the others are for tests of all classes


def export(folder: Path) -> None:
    """A Dirichlet partition of MNIST for each seed, of which every client keeps as many images, drawn at random."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = embedded_digits("mnist")
    labels = digits.labels[:IMAGES].long()
    for seed in sorted({seed for *_, method, seed in planned() if method.partition is None}):
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
    for regime, name, method, seed in planned():
        if method.same_batches:
            export_batches(batches_file(folder, name, seed), regime, method, seed)


def export_batches(path: Path, regime: Regime, method: Method, seed: int) -> None:
    """The places that a run draws here, for another project to take the same images in the same steps."""
    shape = (pf.algorithm(method.algorithm, **method.ours).batches_per_round(), regime.batch)
    drawn = [
        [sample_indices(seed, i, t, "batches", TRAIN, shape, Augmentation(), TRAIN).numpy() for i in range(CLIENTS)]
        for t in range(regime.rounds)
    ]
    path.parent.mkdir(exist_ok=True)
    numpy.save(path, numpy.array(drawn, dtype=numpy.int16))
    print(path)


def run(folder: Path, only: Collection[str] = ()) -> None:
    for regime, _, method, seed, path in jobs(folder, "perinvfl", {name_here(name) for name in only}):
        if not method.runs_here:
            continue
        partition = seed if method.partition is None else method.partition
        data = read_data(folder, partition)
        federation = pf.from_arrays(
            data["x"],
            data["y"],
            client=data["client"],
            context=numpy.where(data["test"], "test", "train"),
            test_contexts=["test"],
            test_share=0,
            holdout=0,
            standardise=False,
            seed=partition,
        )
        session = pf.start(
            federation,
            pf.algorithm(method.algorithm, **method.ours),
            rounds=regime.rounds,
            seed=partition,
            model={"hidden": [HIDDEN]},
            batch_size=0 if regime.batch == TRAIN else regime.batch,
        )
        if method.algorithm == "fedavg":  # all begin with the same weights
            assert all(numpy.array_equal(first.numpy(), data[name]) for name, first in session.parameters().items())
        with patch.object(draws, "sample_indices", lambda _, *rest, seed=seed: sample_indices(seed, *rest)):
            session.step()
            first = _shared(session)
            session.run()
        trained = session.trial.algorithm
        kinds = [kind for kind in ("personal", "global") if getattr(trained, f"has_{kind}")]
        scores = {kind: session.evaluate(kind)["test"].values() for kind in kinds}
        accuracy = {kind: sum(filter(None, found)) / CLIENTS for kind, found in scores.items()}
        write_score(path, accuracy, _shared(session), first)


def _shared(session: pf.Session) -> Arrays | None:
    """The global model now, of methods that have one."""
    if not session.trial.algorithm.has_global:
        return None
    return {name: leaf.numpy().copy() for name, leaf in session.parameters().items()}
