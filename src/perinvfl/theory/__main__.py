"""`python -m perinvfl.theory experiments/theory/NAME.toml [--out DIR] [--redraw]`

Runs one theory experiment; writes its record (settings, numbers, verdict) and its figure. Without --out the record goes
to results/theory/NAME.json and the figure to docs/figures/theory-NAME.svg and .png. --redraw only makes the figure anew
from the record.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from perinvfl.core import config
from perinvfl.core.extras import how_to_install
from perinvfl.core.files import write_atomically
from perinvfl.core.saying import say
from perinvfl.core.toml_text import TomlError, read_toml
from perinvfl.core.unpacking import parse_json
from perinvfl.errors import UserError
from perinvfl.theory import convergence, information, personalized, remark
from perinvfl.theory.common import Record, Theory

THEORIES: dict[str, Theory] = {
    "convergence": convergence.THEORY,
    "personalized": personalized.THEORY,
    "information": information.THEORY,
    "remark": remark.THEORY,
}


def read(path: Path) -> tuple[str, Any]:
    """The experiment's name and its settings."""
    try:
        table = read_toml(path)
    except (OSError, TomlError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    name = table.pop("experiment", None)
    if name not in THEORIES:
        raise UserError(f'experiment = "{name}" is not known{config.suggest(str(name), list(THEORIES))}.')
    return name, config.build(THEORIES[name].settings, table, name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.theory", description="Run one theory experiment.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, help="folder for the record and the figure")
    parser.add_argument("--redraw", action="store_true", help="only make the figure anew from the record")
    asked = parser.parse_args(arguments)
    try:
        name, settings = read(asked.file)
        records = asked.out or Path("results/theory")
        figures = asked.out or Path("docs/figures")
        path = records / f"{asked.file.stem}.json"
        if asked.redraw:
            if not path.exists():
                raise UserError(f"{path} does not exist; run the experiment without --redraw first.")
            record = _on_record(path, name)
        else:
            record = run(name, settings)
            records.mkdir(parents=True, exist_ok=True)
            write_atomically(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
        draw(name, record, figures / f"theory-{asked.file.stem}")
    except UserError as error:
        say(error, stderr=True)
        return 2
    say(record["verdict"])
    return 0


def _on_record(path: Path, name: str) -> Record:
    try:
        record = parse_json(path.read_bytes())
        if not isinstance(record, dict) or record.get("experiment") != name or "verdict" not in record:
            raise ValueError("no record of this experiment")
    except ValueError:
        raise UserError(f"{path} is damaged; run the experiment without --redraw to make it anew.") from None
    return record


def run(name: str, settings: Any) -> Record:
    began = time.perf_counter()
    numbers = THEORIES[name].run(settings)
    seconds = round(time.perf_counter() - began)
    return {"experiment": name, "settings": dataclasses.asdict(settings), "seconds": seconds, **numbers}


def draw(name: str, record: Record, stem: Path) -> None:
    try:
        chart = THEORIES[name].draw(record)
    except ModuleNotFoundError as error:
        raise UserError(f"The figure needs {error.name}: {how_to_install('plot')}.") from None
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("svg", "png"):
        unfinished = stem.with_name(f".{stem.name}.{kind}")
        chart.save(str(unfinished), format=kind, **({"scale_factor": 2} if kind == "png" else {}))
        unfinished.replace(stem.with_name(f"{stem.name}.{kind}"))


if __name__ == "__main__":
    sys.exit(main())
