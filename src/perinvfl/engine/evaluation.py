"""What is asked of the models when a run is over, some clients at a time."""

import torch
from torch import Tensor

from perinvfl.core.mapped import let_go
from perinvfl.data.federation import Split
from perinvfl.engine.simulation import CLIENT_CHUNK, Simulation

TRAINING_SAMPLES = 2048  # of each client, evenly spaced, to see how well its own model fits them


def predict_tests(simulation: Simulation) -> dict[str, dict[str, Tensor]]:
    """{"personal" | "global": {test context: [T, n, M, outputs]}} what the models say about the tests."""
    kinds = [kind for kind in ("personal", "global") if getattr(simulation.algorithms[0], f"has_{kind}")]
    found: dict[str, dict[str, list[Tensor]]] = {kind: {name: [] for name in simulation.tests} for kind in kinds}
    for ids in simulation.chunks(CLIENT_CHUNK):
        tests = dict(zip(simulation.tests, simulation.tests_of(ids), strict=True))
        for kind in kinds:
            params = simulation.models_of(kind, ids)
            inputs = {id(test.x): test.x for test in tests.values()}  # those that share them are predicted once
            outputs = {key: simulation.executor.predict(params, x).cpu() for key, x in inputs.items()}
            for name, test in tests.items():
                found[kind][name].append(outputs[id(test.x)])
    return {kind: {name: torch.cat(parts, 1) for name, parts in cases.items()} for kind, cases in found.items()}


def training_scores(simulation: Simulation) -> Tensor:
    """[T, n] how well the models that clients predict with do on (some of) what they were trained on; the mean over
    the classes where training makes them count alike."""
    samples = simulation.data.y.shape[-1]
    count = min(samples, TRAINING_SAMPLES)
    places = torch.arange(count, device=simulation.device) * samples // count
    kind = "personal" if simulation.algorithms[0].has_personal else "global"
    columns = []
    for ids in simulation.trained_clients.split(CLIENT_CHUNK, 1):
        own = Split(*(_picked(part, ids[0], places) for part in simulation.data))
        asked = _by_class(own) if simulation.problem.even_classes else [own]
        measured = simulation.executor.measure(simulation.models_of(kind, ids), asked)[..., 0]  # [T, n, asked]
        there = torch.stack([(part.context >= 0).any(-1) for part in asked], -1)  # a client may have one class alone
        columns.append(torch.where(there, measured, torch.nan).nanmean(-1).cpu())
        let_go()
    return torch.cat(columns, 1)


def _by_class(own: Split) -> list[Split]:
    """The samples of each class of a binary label."""
    return [own._replace(context=torch.where(own.y == label, own.context, -1)) for label in (0, 1)]


def _picked(part: Tensor, clients: Tensor, places: Tensor) -> Tensor:
    """[T, n, count, ...] of [T, N, M, ...]; trials that share their data go on doing so."""
    own = (part[:1] if part.stride(0) == 0 else part)[:, clients][:, :, places]
    return own.expand(part.shape[0], *own.shape[1:])
