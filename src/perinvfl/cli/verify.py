"""`perinvfl verify`: whether records, checkpoints and predictions are whole."""

from pathlib import Path
from typing import Annotated

import typer

from perinvfl.errors import UserError
from perinvfl.runs.verify import verify as verify_all
from perinvfl.terminal.console import wide_console


def verify(
    place: Annotated[Path, typer.Argument(help="Folder with runs, such as runs/demo, or a packed file.")],
) -> None:
    """Check the files of runs for damage: records, checkpoints, predictions. Nothing is changed."""
    findings = verify_all(place)
    if not findings:
        raise UserError(f"{place} holds no run; give a folder that does, such as runs/demo.")
    console = wide_console()
    for finding in findings:
        line = f"{finding.state}: {finding.place}: {finding.words}"
        console.print(line, soft_wrap=True)
    damaged = sum(finding.state == "damaged" for finding in findings)
    if damaged:
        raise UserError(f"{damaged} of {len(findings)} damaged; the lines above say what to do.")
