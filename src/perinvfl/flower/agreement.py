"""What server and sites agree on when a run begins, and what holds until it ends."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from perinvfl.core.naming import LONGEST_NAME
from perinvfl.core.unpacking import parse_json
from perinvfl.data.federation import Task
from perinvfl.engine.problems import check_batch_size
from perinvfl.errors import UserError
from perinvfl.flower.codec import AGREED
from perinvfl.flower.limits import readable
from perinvfl.learning.training import Training


@dataclass(frozen=True)
class RunAgreement:
    run: str  # names the run at the sites
    shape: tuple[int, ...]
    task: Task
    outputs: int
    contexts: int
    tests: tuple[str, ...]
    cases: tuple[str, ...]  # by which models are scored: the tests, and what is held out
    spectrum: tuple[str, ...]
    groups: dict[str, Any] = dataclasses.field(default_factory=dict)  # counts by test case, where tests have groups
    fitted: dict[str, Any] | None = None  # what sites do with their tables' columns, where they fitted it together

    def dump(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def load(content: bytes) -> "RunAgreement":
        fields = parse_json(content)
        lists = {key: tuple(fields[key]) for key in ("shape", "tests", "cases", "spectrum")}
        return RunAgreement(**(fields | lists))


def agree(
    run: str,
    descriptions: list[dict[str, Any]],
    sites: list[str],
    training: Training,
    fitted: dict[str, Any] | None = None,
) -> RunAgreement:
    """From what every site tells about its data; refuses what does not fit together."""
    first = descriptions[0]
    for client, other in enumerate(descriptions):
        for key in AGREED:
            if other[key] != first[key]:
                here, there = (readable(site[key], LONGEST_NAME) for site in (first, other))
                raise UserError(
                    f"The sites do not fit together: {key} is {here} at {sites[0]} and {there} at {sites[client]}."
                )
        if _group_sizes(other) != _group_sizes(first):
            raise UserError(
                f"The sites do not fit together: the tests at {sites[client]} have other groups than at {sites[0]}."
            )
    check_batch_size(training, any(site["batch_fits"] for site in descriptions))
    lists = {key: tuple(first[key]) for key in ("shape", "tests", "cases", "spectrum")}
    contexts = max(site["contexts"] for site in descriptions)
    groups = stacked_groups(descriptions)
    return RunAgreement(
        run, task=first["task"], outputs=first["outputs"], contexts=contexts, groups=groups, fitted=fitted, **lists
    )


def _group_sizes(description: dict[str, Any]) -> dict[str, int] | None:
    """How many groups each test case has; None where tests have none."""
    groups = description.get("groups")
    return None if groups is None else {case: len(row) for case, row in groups["counts"].items()}


def stacked_groups(descriptions: list[dict[str, Any]]) -> dict[str, Any]:
    """As the simulator has them on record: {"counts": {case: per site}, "majority": per site}."""
    own = [site["groups"] for site in descriptions if "groups" in site]
    if len(own) < len(descriptions):
        return {}
    counts = {case: [site["counts"][case] for site in own] for case in own[0]["counts"]}
    return {"counts": counts, "majority": [site["majority"] for site in own]}
