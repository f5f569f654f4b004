"""Records of runs whose evaluations look at some of the clients: they are about those, and say how many there are."""

from typing import Any

from torch import Tensor

from perinvfl.data.federation import Federation
from perinvfl.engine.draws import evaluated_clients
from perinvfl.learning.training import Training

BY_CLIENT = ("sizes", "labels", "contexts", "rho", "owned", "personal_invariant")  # notes that are lists by client
BY_CASE = ("constant", "noise_variance")  # and by test case, then by client


def about_evaluated(federation: Federation, training: Training) -> dict[str, Any]:
    """The fields of a start event that go by clients."""
    chosen = evaluated_clients(federation.clients, training.evaluate_clients)
    notes, names = dict(federation.notes), dict(federation.schema.names)
    if chosen is None:
        return {"clients": federation.clients, "notes": notes, "schema": names}
    all_names = federation.client_names
    names["clients"] = tuple(all_names[i] for i in chosen.tolist())
    return {
        "clients": len(chosen),
        "all_clients": federation.clients,
        "notes": notes_about(notes, chosen),
        "schema": names,
    }


def notes_about(notes: dict[str, Any], chosen: Tensor | None) -> dict[str, Any]:
    """A federation's notes with these clients alone."""
    if chosen is None:
        return notes
    ids = chosen.tolist()

    def those(rows: Any) -> list[Any]:
        return [rows[i] for i in ids]

    made = dict(notes)
    made |= {key: those(notes[key]) for key in BY_CLIENT if key in notes}
    made |= {key: {case: those(rows) for case, rows in notes[key].items()} for key in BY_CASE if key in notes}
    if "groups" in notes:
        counts = {case: those(rows) for case, rows in notes["groups"]["counts"].items()}
        made["groups"] = {**notes["groups"], "counts": counts, "majority": those(notes["groups"]["majority"])}
    return made
