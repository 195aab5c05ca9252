"""Runs `agent-host` and says on its last line of stderr how many bytes its state store wrote and how often it synced.

python -m benchmarks.children.counted run "Do it." --gateway http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

from agent_host.cli.main import main
from state.disk import Disk


class Counts:
    written = 0
    syncs = 0


def count() -> None:
    """Puts counters in front of the store's write and sync functions; everything it does on disk goes through them."""
    write, sync, sync_directory = Disk.write, Disk.sync, Disk.sync_directory

    def counted_write(disk: Disk, fd: int, data: bytes) -> None:
        Counts.written += len(data)
        write(disk, fd, data)

    def counted_sync(disk: Disk, fd: int) -> None:
        Counts.syncs += 1
        sync(disk, fd)

    def counted_directory(disk: Disk, path: str) -> None:
        Counts.syncs += 1
        sync_directory(disk, path)

    for name, counted in (("write", counted_write), ("sync", counted_sync), ("sync_directory", counted_directory)):
        setattr(Disk, name, counted)


if __name__ == "__main__":
    count()
    code = main()
    sys.stderr.write(f"\ncounted {Counts.written} {Counts.syncs}\n")
    sys.exit(code)
