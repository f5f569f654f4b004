"""Libraries of the `export` extra, imported when a format needs them."""

import importlib
from typing import Any

from perinvfl.core.extras import how_to_install
from perinvfl.errors import UserError


def extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name.partition(".")[0]:
            raise
        raise UserError(f"This format needs {missing.name}: {how_to_install('export')}.") from None
