"""Libraries that only some files call for: imported when such a file is read, and asked for by name if absent."""

import importlib
from typing import Any

from perinvfl.core.extras import how_to_install
from perinvfl.errors import UserError


def need(module: str, extra: str, reason: str) -> Any:
    """A library that only some files call for."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        library = module.partition(".")[0]
        raise UserError(f"{reason} needs {library}, which is not installed: {how_to_install(extra)}.") from None
