"""Tables are made at once: what only reads records does not wait for torch."""

import pkgutil
import subprocess
import sys

from perinvfl import results

READERS = [f"perinvfl.results.{module.name}" for module in pkgutil.iter_modules(results.__path__)]


def test_reading_records_does_not_import_torch() -> None:
    assert "perinvfl.results.table" in READERS
    code = "import importlib, sys\n"
    code += "".join(f"importlib.import_module({name!r})\n" for name in [*READERS, "perinvfl.runs.records"])
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
