"""Runs `agent-host` and says on its last line of stderr how many bytes its state store wrote and how often it synced.

python benchmarks/counted.py run "Do it." --gateway http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

from agent_host.cli.main import main
from state import files


class Counts:
    written = 0
    syncs = 0


def count() -> None:
    """Puts counters in front of the store's write and sync functions; everything it does on disk goes through them."""
    write_all, sync_data, sync_directory = files.write_all, files.sync_data, files.sync_directory

    def counted_write(fd: int, data: bytes) -> None:
        Counts.written += len(data)
        write_all(fd, data)

    def counted_sync(fd: int) -> None:
        Counts.syncs += 1
        sync_data(fd)

    def counted_directory(path: str) -> None:
        Counts.syncs += 1
        sync_directory(path)

    files.write_all, files.sync_data, files.sync_directory = counted_write, counted_sync, counted_directory


if __name__ == "__main__":
    count()
    code = main()
    sys.stderr.write(f"\ncounted {Counts.written} {Counts.syncs}\n")
    sys.exit(code)
