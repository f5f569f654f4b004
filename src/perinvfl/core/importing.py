"""Importing many modules at once, as a command does when it starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """No search for garbage while modules are imported, nor ever again among what they hold.

    Modules live as long as the process. Searching them is a seventh of the time that importing torch takes.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was:
            gc.enable()
