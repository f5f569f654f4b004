"""A process that ends when it is told to stop, and only then."""

import signal
import subprocess
import sys

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
