"""A process that ends when it is told to stop, and only then."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, time
from perinvfl.core.stopping import on_stop
on_stop(lambda number: print("told", number, flush=True), grace=0.1)
signal.signal(signal.SIGALRM, lambda *_: print("timer", flush=True))
signal.setitimer(signal.ITIMER_REAL, 0.05)
end = time.monotonic() + 0.6
while time.monotonic() < end:
    time.sleep(0.05)
print("alive", flush=True)
time.sleep(60)
"""


def test_a_timer_does_not_stop_it_and_sigterm_does() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert [process.stdout.readline() for _ in range(2)] == ["timer\n", "alive\n"]
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == f"told {signal.SIGTERM.value}\n"
        assert process.wait(30) == 128 + signal.SIGTERM


GIVEN_UP = """
import atexit, sys, time
from contextlib import suppress
from perinvfl.core.patience import within
from perinvfl.core.stopping import end_process
atexit.register(print, "libraries put themselves away")
with suppress(TimeoutError):
    within({seconds}, lambda: time.sleep(0.3))
print("done")
end_process(2)
"""


@pytest.mark.parametrize(("seconds", "put_away"), [(0.01, False), (30.0, True)])
def test_where_a_thread_still_computes_libraries_are_not_put_away_under_it(seconds: float, put_away: bool) -> None:
    """An ONNX graph that was given up made the process end with a crash, once in a while."""
    program = GIVEN_UP.format(seconds=seconds)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout.startswith("done\n")
    assert ("put themselves away" in done.stdout) is put_away
