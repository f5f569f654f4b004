"""Whether the steps of clients are compiled, and what happens where they cannot be."""

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

from perinvfl.engine.devices import pick_device
from perinvfl.errors import UserError
from perinvfl.learning.problem import Step, compiled_descent, descend
from perinvfl.learning.training import Training


def compiles(training: Training, batched: bool) -> bool:
    """Whether steps are compiled here; `auto` that does not pay has become false before, by `program_of`."""
    if training.compile == "auto":
        return not batched and pick_device(training.device).type == "cpu" and _has_compiler()
    return training.compile


def pick_descent(training: Training, batched: bool) -> Callable[..., Step]:
    """A step as it is, or compiled."""
    if not compiles(training, batched):
        return descend
    if batched:
        raise UserError('training.compile = true goes with training.executor = "loop".')
    if not _has_compiler():
        raise UserError("training.compile = true needs a C++ compiler (g++ or clang++), and none is installed here.")
    return IfItCompiles(compiled_descent()) if training.compile == "auto" else compiled_descent()


class IfItCompiles:
    """A compiled step; the plain one from the moment at which the compiler fails."""

    def __init__(self, compiled: Callable[..., Step]) -> None:
        self.step = compiled

    def __call__(self, *given: Any) -> Step:
        if self.step is descend:
            return descend(*given)
        try:
            return self.step(*given)
        except RuntimeError as error:  # all failures of the compiler are some kind of it
            self.step = descend
            done = descend(*given)  # what is wrong with the step itself is said as without a compiler
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(f"Steps could not be compiled ({said}): they are taken as they are.", stacklevel=2)
            return done


def _has_compiler() -> bool:
    return any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++")))
