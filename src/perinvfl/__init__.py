"""perinvfl: federated learning that is personal to each client and still works when the world shifts.

What `perinvfl.api` and `perinvfl.estimators` offer can be had from here; they are imported when first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perinvfl.api import Round, Session, algorithm, from_arrays, load, resume, start
    from perinvfl.estimators import PersonalInvariantClassifier, PersonalInvariantRegressor

__version__ = "0.2.0"
__all__ = [
    "PersonalInvariantClassifier",
    "PersonalInvariantRegressor",
    "Round",
    "Session",
    "algorithm",
    "from_arrays",
    "load",
    "resume",
    "start",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'perinvfl' has no attribute {name!r}")
    room = "perinvfl.estimators" if name.startswith("PersonalInvariant") else "perinvfl.api"
    return getattr(importlib.import_module(room), name)


def __dir__() -> list[str]:
    """The public names, also those not imported yet."""
    return sorted([*__all__, "__version__"])
