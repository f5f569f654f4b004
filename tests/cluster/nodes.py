"""A cluster of a head that only keeps the books and nodes of one core, on the loopback alone.

python nodes.py COUNT PORT: prints its address; at the port it takes clients from outside (ray://). A line with a number
on its input kills that node. Ends with its input. A process of its own, because Ray leaves files open.
"""

import os
import sys
from typing import Any

VARIABLES = {
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # else the server for clients from outside cannot start (grpcio 1.85)
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 is taken as it is
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_worker_niceness": "0",
}
SMALL: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}


def main() -> None:
    os.environ.update(VARIABLES)
    from ray.cluster_utils import Cluster

    count, port = map(int, sys.argv[1:])
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head | SMALL)
    nodes = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(count)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        cluster.remove_node(nodes[int(line)], allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
