"""What every command does: its mistakes in one sentence, Ctrl-C without a traceback."""

import warnings
from collections.abc import Callable

from perinvfl.core.saying import say
from perinvfl.core.stopping import STOPPED
from perinvfl.errors import UserError


def guarded(work: Callable[[], int], resume: str = "") -> int:
    """Exit code of the work; a user's mistake is one sentence and code 2, a warning one sentence.

    resume: the command that would resume what was stopped.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: say(f"note: {message}", stderr=True)
            return work()
    except UserError as error:
        say(f"error: {error}", stderr=True)
        return 2
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        say(f"error: {named}{error.strerror or error}.", stderr=True)
        return 2
    except MemoryError:
        say("error: There is not enough memory for this; smaller data or a smaller model may fit.", stderr=True)
        return 2
    except KeyboardInterrupt:
        how = f" The same command resumes from the last checkpoint:\n{resume}" if resume else ""
        say(f"\nStopped.{how}", stderr=True)
        return STOPPED
