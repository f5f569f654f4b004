"""What is written from the published records says what they say: tables in the documentation, and presets."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tables_in_the_documentation_are_those_of_the_records() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_doc_tables.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_presets_are_those_of_the_records(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, 'scripts'); import make_presets; from pathlib import Path; "
    code += f"make_presets.PRESETS = Path({str(tmp_path)!r}); make_presets.main()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.toml")}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "src/perinvfl/runs/presets").glob("*.toml")}
    assert made and made == kept
