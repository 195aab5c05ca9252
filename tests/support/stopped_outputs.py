"""`agent-host` that is stopped while it writes the files of a pipeline: `python -m tests.support.stopped_outputs`.

The variable STOP_AT names how and at which of the steps, counted from 1: `kill 3`, `term 3`, or `full 3`, from which on
the disk is full. A file has the five steps of STEPS.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import IO, Any

from agent_host.cli import outputs

STEPS = ("made", "half written", "durable", "to be named", "named")


class SteppedOs:
    """`os` for the module of outputs; what it does to a new file are steps."""

    def __init__(self, plan: str) -> None:
        self._how, number = plan.split()
        self._left = int(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def step(self) -> None:
        """One more; does what the plan says."""
        self._left -= 1
        if self._how == "full" and self._left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL if self._how == "kill" else signal.SIGTERM)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """See os."""
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT and self._how != "full":
            self.step()
        return fd

    def fdopen(self, fd: int, mode: str) -> Any:
        """See os."""
        return _Halved(os.fdopen(fd, mode), self)

    def fsync(self, fd: int) -> None:
        """See os."""
        os.fsync(fd)
        self.step()

    def replace(self, source: str, target: str, **folders: Any) -> None:
        """See os."""
        self.step()
        os.replace(source, target, **folders)
        if self._how != "full":
            self.step()


class _Halved:
    def __init__(self, handle: IO[bytes], stepped: SteppedOs) -> None:
        self._handle, self._stepped = handle, stepped

    def __enter__(self) -> _Halved:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def write(self, data: bytes) -> None:
        self._handle.write(data[: len(data) // 2])
        self._handle.flush()
        self._stepped.step()
        self._handle.write(data[len(data) // 2 :])


if __name__ == "__main__":
    from agent_host.cli.main import main

    setattr(outputs, "os", SteppedOs(os.environ.pop("STOP_AT")))  # noqa: B010  the module's one way to the disk
    sys.exit(main(sys.argv[1:]))
