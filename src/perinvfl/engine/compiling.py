"""Whether the steps of clients are compiled, and what happens where they cannot be."""

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

from perinvfl.core.products import MKL_IS_SLOW, WORTH
from perinvfl.engine.devices import pick_device
from perinvfl.errors import UserError
from perinvfl.learning.problem import Step, compiled_descent, descend
from perinvfl.learning.training import Training
from perinvfl.models import Model


def compiles(training: Training, batched: bool, model: Model) -> bool:
    """Whether steps are compiled here; `auto` that does not pay has become false before, by `program_of`."""
    if not training.compile or (not batched and fast_as_they_are(training, model)):
        return False
    if training.compile == "auto":
        return not batched and pick_device(training.device).type == "cpu" and _has_compiler()
    return True


def fast_as_they_are(training: Training, model: Model) -> bool:
    """Whether the steps of a model lose by being compiled here: the compiler leaves their products to MKL."""
    large = (training.batch_size or 256) * model.size >= 4 * WORTH
    plain = model.direct is not None and training.precision == "float32"
    return MKL_IS_SLOW and large and plain and pick_device(training.device).type == "cpu"


def pick_descent(training: Training, batched: bool, model: Model) -> Callable[..., Step]:
    """A step as it is, or compiled."""
    if not compiles(training, batched, model):
        if training.compile is True:
            warnings.warn("Steps are not compiled: on this processor they are faster as they are.", stacklevel=3)
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
