"""A server and four sites as processes of their own on this machine's loopback, TLS and authentication on.

`python -m scripts.federation_demo [FILE.toml]` makes a federation in a temporary folder, starts it, trains, shows the
table and ends every process it started.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SITES = ("a", "b", "c", "d")
FILE = Path("experiments/federation.toml")


# Six processes share this machine: more threads each would only wait for one another.
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "perinvfl", "federation", *map(str, arguments)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(file: Path) -> int:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "federation"
        port = free_port()
        made = command("init", folder, "--sites", ",".join(SITES), "--host", "localhost", "--port", port)
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        started = []
        try:
            with open(Path(root) / "up.log", "w") as log:
                line = command("up", folder, "--bind", "127.0.0.1")
                started.append(subprocess.Popen(line, stdout=log, stderr=log, env=ALONE))
            wait_for(folder / "server" / "control.key", started[0])
            for site in SITES:
                with open(Path(root) / f"{site}.log", "w") as log:
                    line = command("join", folder / f"site-{site}", "--poll", "0.2")
                    started.append(subprocess.Popen(line, stdout=log, stderr=log, env=ALONE))
            print(f"A server on localhost:{port} and the sites {', '.join(SITES)} are starting.", flush=True)
            code = subprocess.run(command("run", folder, file, "--out", "runs"), env=ALONE).returncode
            if code == 0:
                print(
                    "Ten rounds show that it works across processes, not how well: `perinvfl table beyond` does that."
                )
            return code
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    while not path.exists():
        if process.poll() is not None:
            sys.exit("The server did not start.")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE))
