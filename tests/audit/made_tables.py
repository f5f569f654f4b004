"""Tables for audits, with what is to be found in them known beforehand."""

import csv
import random
from collections.abc import Callable
from pathlib import Path

from perinvfl.audit import Audit, audit_table
from perinvfl.data.benchmarks.planted import PlantedSettings, planted_federation
from perinvfl.data.own.files import FileSettings

CONTEXTS = ((0.95, 0.8),) * 4


def planted_csv(path: Path, seed: int = 0, **settings: object) -> Path:
    """The benchmark `planted` as a file. Columns: x1 to x4 inform, x5 and x6 are useless, x7 is the shortcut."""
    given = {"p_train": CONTEXTS, "rows": 400, **settings}
    federation = planted_federation(PlantedSettings(**given), seed)  # type: ignore[arg-type]
    names = [f"x{number + 1}" for number in range(federation.shape[0])]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "year", *names, "ill"])
        for client in range(federation.clients):
            for x, y, context in zip(*(part[client].tolist() for part in federation.train), strict=True):
                label = f"class {int(y)}" if federation.task != "regression" else y
                writer.writerow([f"site {client + 1}", 2020 + int(context), *x, label])
    return path


def made_csv(path: Path, row: Callable[[random.Random, str, bool], dict[str, object]], sites: dict[str, float]) -> Path:
    """300 rows per site; sites: name -> share of the ill; row: the columns of one patient."""
    rng = random.Random(0)
    rows = []
    for site, share in sites.items():
        for _ in range(300):
            ill = rng.random() < share
            rows.append({"site": site, **row(rng, site, ill), "ill": "yes" if ill else "no"})
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def audited(path: Path, context: str = "year", held_out: tuple[str, ...] = (), label: str = "ill") -> Audit:
    return audit_table(
        FileSettings(path=str(path), label=label, client="site", context=context, test_contexts=held_out)
    )


def advice_of(audit: Audit) -> dict[str, str]:
    return {column.name: column.verdict.advice for column in audit.columns}


def reason_of(audit: Audit, name: str) -> str:
    return next(column.verdict.reason for column in audit.columns if column.name == name)
