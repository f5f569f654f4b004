"""What every command does: its mistakes in one sentence, Ctrl-C without a traceback."""

import sys
import warnings
from collections.abc import Callable

from perinvfl.core.naming import visible
from perinvfl.core.stopping import STOPPED
from perinvfl.errors import UserError


def guarded(work: Callable[[], int], resume: str = "") -> int:
    """Exit code of the work; a user's mistake is one sentence and code 2, a warning one sentence.

    resume: the command that would resume what was stopped.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: print(f"note: {visible(str(message))}", file=sys.stderr)
            return work()
    except UserError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        print(f"error: {visible(named)}{error.strerror or error}.", file=sys.stderr)
        return 2
    except MemoryError:
        print("error: There is not enough memory for this; smaller data or a smaller model may fit.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        how = f" The same command resumes from the last checkpoint:\n{resume}" if resume else ""
        print(f"\nStopped.{how}", file=sys.stderr)
        return STOPPED
