"""The server's side as a Flower ServerApp, for those who run Flower already: `flwr run apps/flower`.

Run configuration: `experiment`, a file inside the app or on the server; `out`, the folder for the records; `resume`.
Each node says which client it is (see `client_app`); in a simulation the nodes are numbered.
"""

import sys
import time
from pathlib import Path

from perinvfl.core.plugins import importing_from
from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import Context, Grid, Message, RecordDict, ServerApp
from perinvfl.flower.codec import Rejected
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.settings import check_deployment, read_settings
from perinvfl.flower.transport import GridTransport
from perinvfl.runs.experiment import build_experiment, read_table
from perinvfl.runs.progress import Lines

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    file = find_experiment(str(config["experiment"]))
    table = read_table(file)
    with importing_from(file.parent):
        experiment, settings = build_experiment(table, file.stem), read_settings(table)
    clients = experiment.trials[0].data.clients
    for trial in experiment.trials:
        check_deployment(settings, trial, clients)
    post = GridTransport(grid, Introduced(grid, clients), settings.poll)
    sites = [f"client {client}" for client in range(clients)]
    out = Path(str(config.get("out", "runs"))) / experiment.name
    for order, trial in enumerate(experiment.trials):
        rounds = Rounds(trial, settings, sites, post, out, Lines(print), experiment.name, order)
        rounds.run(resume=bool(config.get("resume", False)))


class Introduced:
    """Which node is which client, from what the nodes say themselves."""

    def __init__(self, grid: Grid, clients: int, timeout: float = 60.0) -> None:
        self.grid, self.clients, self.timeout = grid, clients, timeout
        self.known: dict[int, int] = {}  # node -> client

    def __call__(self) -> dict[int, int]:
        online = list(self.grid.get_node_ids())
        strangers = [node for node in online if node not in self.known]
        if strangers:
            self._ask(strangers)
        return {self.known[node]: node for node in online if node in self.known}

    def _ask(self, strangers: list[int]) -> None:
        sent = {}
        for node in strangers:
            for id in self.grid.push_messages([Message(RecordDict(), node, "query.hello", ttl=self.timeout)]):
                sent[id] = node
        ends = time.monotonic() + self.timeout
        while sent and time.monotonic() < ends:
            for reply in self.grid.pull_messages(list(sent)):
                self._note(sent.pop(reply.metadata.reply_to_message_id), reply)
            time.sleep(0.1)

    def _note(self, node: int, reply: Message) -> None:
        try:
            client = None if reply.has_error() else codec.decode_table(reply.content).get("client")
        except Rejected:
            client = None
        if not isinstance(client, int) or not 0 <= client < self.clients:
            raise UserError(f"Node {node} did not say which of the {self.clients} clients it is; see --node-config.")
        if client in self.known.values():
            raise UserError(f"Two nodes say that they are client {client}; each node must be a different client.")
        self.known[node] = client


def find_experiment(name: str) -> Path:
    """A file on the server, or one that came with the app, whose folder Flower puts on the path."""
    for place in (Path(), *map(Path, sys.path)):
        if (place / name).is_file():
            return place / name
    raise UserError(f"{name} does not exist; give the experiment file in the run configuration.")
