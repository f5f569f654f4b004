"""All that this project uses of Flower (flwr 1.41), public and private: the only modules that import flwr.

A new version of Flower means reading these files. Each offers plain names, and wraps what it takes from inside Flower
in a small function or class that says so:

- `messages`: records, messages, the two apps; a message's own number, and its way over the wire.
- `grid`: the server's grid, with replies fetched part by part.
- `run`: the Control and Runtime API, as a run's process speaks them.
- `superlink`: the SuperLink as a web application.
- `site`: the Fleet API, as a site's process speaks it.
- `secagg`: keys, shares and stages of SecAgg+.

They are several files because Flower is slow to import, all of it takes about three seconds, and no process needs all:
a site has no use for the SuperLink, nor for Flower's command line.
"""

import os

# Flower reads these when it is imported, which only modules below this one do: no word to anybody about who runs what.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
