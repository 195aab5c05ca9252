"""Several raylets on this machine, for batches on a cluster: `python -m tests.support.ray_cluster COUNT`, with an
interpreter that has Ray. The address comes as the first line of output; `kill` on standard input ends a node as a crash
of its machine would, and the end of standard input all of them. With a directory behind
COUNT the first node runs no task, and the others have an empty one in its place, as machines that share no disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ray.cluster_utils import Cluster

LOOPBACK = "127.0.0.2"
"""Ray takes 127.0.0.1 for the machine's own address elsewhere."""


def main(count: int, hidden: str = "") -> None:
    os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
    head = {"num_cpus": 0 if hidden else 2, "node_ip_address": LOOPBACK, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    near = [] if hidden else [cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK) for _ in range(count - 1)]
    far = [join(cluster.address, hidden) for _ in range(count - 1)] if hidden else []
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill" and near:
            cluster.remove_node(near.pop(), allow_graceful=False)
            print("killed", flush=True)
    for process in far:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    cluster.shutdown()


def join(address: str, hidden: str) -> subprocess.Popen[str]:
    """A node with a directory of its own in place of `hidden`, in a mount namespace; one that does not come up, as
    where another program was faster at a port, is started again."""
    ray = Path(sys.executable).with_name("ray")
    start = f'exec "{ray}" start --address={address} --num-cpus=3 --node-ip-address={LOOPBACK} --block'
    as_root = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    argv = [*as_root, "sh", "-c", f'mount -t tmpfs none "$0" && {start}', hidden]
    for _ in range(5):
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        if any("runtime started" in line for line in process.stdout) and process.poll() is None:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process
        process.wait()
    raise SystemExit("no node comes up")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
