"""Several raylets on this machine, for batches on a cluster: `python -m tests.support.ray_cluster COUNT`, with an
interpreter that has Ray. The address comes as the first line of output; `kill` on standard input ends a node as a crash
of its machine would, and the end of standard input all of them."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

LOOPBACK = "127.0.0.2"
"""Ray takes 127.0.0.1 for the machine's own address elsewhere."""


def main(count: int) -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "node_ip_address": LOOPBACK, "include_dashboard": False},
    )
    others = [cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK) for _ in range(count - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill" and others:
            cluster.remove_node(others.pop(), allow_graceful=False)
            print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
