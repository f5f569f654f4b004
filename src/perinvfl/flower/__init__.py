"""The same algorithms across machines, on Flower: the only room that knows flwr.

`site` is what happens at a site and `rounds` what happens at the server; both know nothing of the network. `codec`
turns what they exchange into Flower messages and back, and looks at everything that comes in. `client_app` and
`server_app` are a plain Flower app. `node`, `link` and `submit` are the processes of `perinvfl federation`: a site, the
server, a run.
"""

import os

# Flower reads these when it is imported: no word to anybody about who runs what.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
