"""How often `recommended` leaves a column out where there is no shortcut, and how often it finds one where there is:
over many planted tables, without training. The numbers in docs/beyond.md: python scripts/count_false_alarms.py
"""

import dataclasses

import torch

from perinvfl.data.benchmarks.planted import PlantedSettings, planted_federation
from perinvfl.data.federation import Federation
from perinvfl.learning.slopes import client_sums, zero_sums
from perinvfl.learning.variation import Variation, find_variation
from perinvfl.preparation.columns import first_view

TABLES, FIRST_SEED = 400, 5000
NONE = PlantedSettings(shortcut="none", rows=300, test_rows=1)
SHARP = dataclasses.replace(NONE, shortcut="sharp")
CASES = {
    "no shortcut, two contexts": dataclasses.replace(NONE, p_train=((0.9, 0.9),) * 5),
    "no shortcut, one context": dataclasses.replace(NONE, p_train=(0.9,) * 5),
    "no shortcut, two contexts, three sites of 80 rows": dataclasses.replace(NONE, p_train=((0.9, 0.9),) * 3, rows=80),
    "right in 95 and 85 %, two contexts": dataclasses.replace(SHARP, p_train=((0.95, 0.85),) * 5),
    "the same, three sites of 120 rows": dataclasses.replace(SHARP, p_train=((0.95, 0.85),) * 3, rows=120),
    "the same, three sites of 240 rows": dataclasses.replace(SHARP, p_train=((0.95, 0.85),) * 3, rows=240),
}


def found_in(federation: Federation) -> Variation:
    total = zero_sums(federation.shape, 1, federation.contexts)
    for x, y, context in zip(*first_view(federation, {}).train, strict=True):
        own = client_sums("binary", 1, federation.contexts, x, y, context)
        total = {name: total[name] + own[name] for name in total}
    return find_variation(total, images=False)


def main() -> None:
    torch.set_num_threads(1)
    for name, settings in CASES.items():
        tables = [planted_federation(settings, FIRST_SEED + place) for place in range(TABLES)]
        removed = [bool(found.columns or found.directions) for found in map(found_in, tables)]
        print(f"{name}: something is left out in {sum(removed)} of {TABLES} tables", flush=True)


if __name__ == "__main__":
    main()
