"""Where text leaves a process without a console: lines for a person, and content for another program.

A name in it may hold an escape sequence, which a terminal would obey. A test sees to it that no other module prints.
"""

import sys

from perinvfl.core.naming import visible


def say(text: object = "", stderr: bool = False, end: str = "\n") -> None:
    """For a person: characters that would steer a terminal are shown as escapes."""
    print(visible(str(text)), file=sys.stderr if stderr else sys.stdout, end=end, flush=True)


def hand_over(text: str, end: str = "\n") -> None:
    """For another program (CSV, JSON, a file's text): as it is, unless it is a terminal that gets it."""
    if getattr(sys.stdout, "isatty", bool)():  # there is none where the shell closed it
        text = visible(text)
    print(text, end=end, flush=True)
