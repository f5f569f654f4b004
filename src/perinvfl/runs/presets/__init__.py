"""Named presets: the settings found for a published table, as experiment files inside the package.

`scripts/make_presets.py` writes them from the records in results/; each names the rule that chose it and its result.
"""

from importlib.resources import files
from pathlib import Path

from perinvfl.core.config import suggest
from perinvfl.core.shipped import shipped
from perinvfl.errors import UserError

FORMER_NAMES = {"recommended-rc_mnist_blind": "discounted-rc_mnist_blind"}


def preset_names() -> list[str]:
    """
    >>> "perinvfl-rc_mnist" in preset_names()
    True
    """
    return sorted(
        entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml")
    )


def preset_file(name: str) -> Path:
    """The experiment file of a preset."""
    name = FORMER_NAMES.get(name, name)
    if name not in preset_names():
        raise UserError(f"--preset {name} is not known{suggest(name, preset_names())}")
    return Path(str(files(__name__) / f"{name}.toml"))


def demo_file() -> Path:
    """The experiment file of `perinvfl demo`."""
    return shipped("experiments/demo.toml")


def preset_line(name: str) -> str:
    """What the first comment of a preset says."""
    return preset_file(name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
