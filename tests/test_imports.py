"""What trains needs torch and the standard library only."""

import subprocess
import sys
from pathlib import Path

from tests.commands import tiny_file

BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"typer", "rich", "click", "numpy", "pydantic", "safetensors", "flwr", "jinja2"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from perinvfl.runs.train import main
code = main(sys.argv[1:])
outside = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print("imported:", sorted(outside & {"typer", "rich", "click", "numpy", "pydantic", "safetensors"}))
sys.exit(code)
"""


def test_training_runs_where_nothing_but_torch_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK, str(tiny_file(tmp_path)), "--out", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout
    assert list((tmp_path / "runs").rglob("checkpoint.pt"))
