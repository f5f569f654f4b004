"""Put on PYTHONPATH: Ctrl-C when a run writes the record of its n-th evaluation.

INTERRUPT_AT says which; the start is recorded first. The file is open but nothing is written to it yet.
"""

import os
import signal
import sys

_left = int(os.environ.get("INTERRUPT_AT", "-1")) + 1


def _interrupt(event: str, arguments: tuple[object, ...]) -> None:
    global _left
    if event == "open" and str(arguments[0]).endswith("events.jsonl") and arguments[1] == "a":
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGINT)


if _left > 0:
    sys.addaudithook(_interrupt)
