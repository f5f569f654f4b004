"""What processes use of their machine, and whether it grows."""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

MB = 2**20
# What may be added between the first third of the time and the last. Memory is given back to the system in large
# pieces; connections and the threads that serve them come and go.
ALLOWED = {"memory": 24 * MB, "descriptors": 8, "threads": 4, "disk": 64 * 2**10, "files": 2}
BEGIN = 0.1  # share of the time in which caches are filled
FEWEST = 6  # measurements below which nothing can be said


def measure(pid: int) -> dict[str, float]:
    """Of a process; {} if it is gone."""
    place = Path("/proc") / str(pid)
    try:
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        return {
            "memory": int(status["VmRSS"].split()[0]) * 1024,
            "descriptors": len(os.listdir(place / "fd")),
            "threads": int(status["Threads"]),
        }
    except (OSError, KeyError):
        return {}


def measure_files(paths: Iterable[Path]) -> dict[str, float]:
    sizes = []
    for path in paths:
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except OSError:
            continue  # it was removed meanwhile
    return {"disk": sum(sizes), "files": len(sizes)}


@dataclass
class Growth:
    """Measurements of things by name, in the order they were made."""

    found: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, name: str, measured: dict[str, float]) -> None:
        with self.lock:
            for what, value in measured.items():
                self.found.setdefault((name, what), []).append(value)

    def forget(self, name: str) -> None:
        """It begins anew: another process has taken its place."""
        with self.lock:
            self.found = {key: values for key, values in self.found.items() if key[0] != name}

    def complaints(self) -> list[str]:
        """One sentence for each thing that grew."""
        told = []
        for (name, what), values in sorted(self.found.items()):
            if len(values) >= FEWEST:
                early, late = ends(values)
                if late - early > ALLOWED[what]:
                    told.append(
                        f"The {what} of {name} grew from {shown(what, early)} to {shown(what, late)}; at most "
                        f"{shown(what, ALLOWED[what])} more is allowed."
                    )
        return told

    def table(self) -> list[str]:
        lines = [f"{'':<28} {'early':>10} {'late':>10} {'most':>10}  measured"]
        for (name, what), values in sorted(self.found.items()):
            early, late = ends(values)
            cells = " ".join(f"{shown(what, value):>10}" for value in (early, late, max(values)))
            lines.append(f"{f'{name}, {what}':<28} {cells}  {len(values)} times")
        return lines


def ends(values: list[float]) -> tuple[float, float]:
    """The medians of the first and the last third, the beginning aside.

    >>> ends([900, 1, 1, 1, 5, 5, 5, 9, 9, 9])
    (1, 9)
    """
    kept = values[max(1, int(BEGIN * len(values))) :] or values
    third = max(1, len(kept) // 3)
    return median(kept[:third]), median(kept[-third:])


def shown(what: str, value: float) -> str:
    if what in ("memory", "disk"):
        return f"{value / MB:.2f} MB"
    return f"{value:g}"
