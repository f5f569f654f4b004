"""What every command does: its mistakes in one sentence, Ctrl-C without a traceback."""

import sys
import warnings
from collections.abc import Callable

from perinvfl.errors import UserError

STOPPED = 130  # exit code after Ctrl-C


def guarded(work: Callable[[], int], resume: str = "") -> int:
    """Exit code of the work; a user's mistake is one sentence and code 2, a warning one sentence.

    resume: the command that would resume what was stopped.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: print(f"note: {message}", file=sys.stderr)
            return work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        how = f" The same command resumes from the last checkpoint:\n{resume}" if resume else ""
        print(f"\nStopped.{how}", file=sys.stderr)
        return STOPPED
