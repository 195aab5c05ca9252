"""A disk in memory that keeps no more than it must, for tests of what a power loss leaves.

    disk = SimulatedDisk(Faults(cut_before=12))
    with pytest.raises(PowerCut):
        use(FileCheckpointStore("/state", disk))
    for seed in range(100):
        check(FileCheckpointStore("/state", disk.crash(Chosen(random.Random(seed).randrange))))

What no sync has covered may be there after `crash`, or not, or in part, in any order; `EXTREMES` has the plain cases. A
sync that failed has dropped what it was to make durable: a later one succeeds without it, as on Linux.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_host.faults.disk_content import Directory, Inode, Names
from agent_host.faults.disk_faults import NO_FAULTS, Calls, Faults
from state.disk import FileStatus
from state.errors import SessionLocked, WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.faults.disk_content import Outcome


@dataclass(slots=True)
class _Descriptor:
    path: str
    inode: Inode
    position: int | None  # None: it writes to the end of the file
    sync_failed: bool = False


class SimulatedDisk:
    """A `state.disk.Disk` in memory, as one process sees it. `misuses`: uses of a descriptor whose sync had failed."""

    def __init__(self, faults: Faults = NO_FAULTS, *, names: Names | None = None, boot: int = 1) -> None:
        self.calls = Calls(faults)
        self.misuses: list[str] = []
        self._names = Names() if names is None else names
        self._boot = boot
        self._descriptors: dict[int, _Descriptor] = {}
        self._locks: dict[str, int] = {}
        self._next_fd = 3
        self._pid = 1000

    def crash(self, outcome: Outcome, faults: Faults = NO_FAULTS) -> SimulatedDisk:
        """The disk that the machine finds at its next boot, after it lost its power now. This one stays as it is, so
        that other outcomes of the same power loss can be had from it."""
        made = SimulatedDisk(faults, names=self._names.after_power_loss(outcome), boot=self._boot + 1)
        made.calls.log = [*self.calls.log, f"---- power lost in boot {self._boot} ----"]
        return made

    def kill(self, faults: Faults = NO_FAULTS) -> SimulatedDisk:
        """The disk as the next process finds it: all that was written is there, durable or not. This one stays too."""
        made = SimulatedDisk(faults, names=self._names.copy(), boot=self._boot)
        made.calls.log = [*self.calls.log, "---- process killed ----"]
        return made

    def explain(self) -> str:
        """Every call so far, those before a crash included, for the message of a failed test."""
        return "\n".join(self.calls.log)

    def contents(self) -> dict[str, bytes]:
        """Every file by its path, as a reader sees it now."""
        found = ((path, self._names.get(path)) for path in self._names.by_path)
        return {path: entry.now for path, entry in found if isinstance(entry, Inode)}

    def make_private_dir(self, path: str) -> None:
        """See Disk."""
        with _Call(self, f"make_private_dir({path})"):
            missing = []
            while self._names.get(path) is None:
                missing.append(path)
                path = os.path.dirname(path)
            if not isinstance(self._names.get(path), Directory):
                raise _error(errno.ENOTDIR, path)
            for directory in reversed(missing):
                self._names.set(directory, Directory())

    def open_new(self, path: str) -> int:
        """See Disk."""
        with _Call(self, f"open_new({path})"):
            self._check_parent(path)
            self._take_away(path)
            inode = Inode(modified=time.time())
            self._names.set(path, inode)
            return self._open(_Descriptor(path, inode, 0))

    def open_append(self, path: str) -> int:
        """See Disk."""
        with _Call(self, f"open_append({path})"):
            return self._open(_Descriptor(path, self._file(path), None))

    def write(self, fd: int, data: bytes) -> None:
        """See Disk. A failing one writes the share of `data` that the plan names."""
        call = self._on(fd, f"write({{}}, {len(data)} bytes)")
        call.instead = lambda: self._write(fd, data[: int(len(data) * self.calls.faults.written)])
        with call:
            self._write(fd, data)

    def sync(self, fd: int) -> None:
        """See Disk. One that fails drops what it was to make durable, though readers still see it."""
        call = self._on(fd, "sync({})")
        call.instead = lambda: self._fail_to_sync(fd)
        with call:
            self._descriptor(fd).inode.sync()

    def close(self, fd: int) -> None:
        """See Disk. One that fails has closed all the same, as on Linux."""
        path = self._descriptors[fd].path if fd in self._descriptors else fd
        call = _Call(self, f"close({path})")
        call.instead = lambda: self._close(fd)
        with call:
            self._close(fd)

    def is_named(self, fd: int, path: str) -> bool:
        """See Disk."""
        with self._on(fd, "is_named({})", reads=True):
            return self._names.get(path) is self._descriptor(fd).inode

    def read(self, path: str) -> bytes:
        """See Disk."""
        with _Call(self, f"read({path})", reads=True):
            if isinstance(self._names.get(path), Directory):
                raise _error(errno.EINVAL, path)
            return self._file(path).now

    def status(self, path: str) -> FileStatus | None:
        """See Disk."""
        with _Call(self, f"status({path})", reads=True):
            entry = self._names.get(path)
            if entry is None:
                return None
            private = {"foreign": False, "exposed": False, "readable": False}
            if isinstance(entry, Directory):
                return FileStatus("directory", 0, 0.0, 2, **private)
            return FileStatus("file", len(entry.now), entry.modified, 1, **private)

    def names(self, path: str) -> list[str]:
        """See Disk."""
        with _Call(self, f"names({path})", reads=True):
            return self._names.inside(path)

    def replace(self, source: str, target: str) -> None:
        """See Disk."""
        with _Call(self, f"replace({source}, {target})"):
            self._file(source)
            self._check_parent(target)
            if isinstance(self._names.get(target), Directory):
                raise _error(errno.EISDIR, target)
            self._names.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """See Disk."""
        with _Call(self, f"link({source}, {target})"):
            self._check_parent(target)
            if self._names.get(target) is not None:
                raise _error(errno.EEXIST, target)
            self._names.set(target, self._file(source))

    def remove(self, path: str) -> None:
        """See Disk."""
        with _Call(self, f"remove({path})"):
            self._take_away(path)

    def sync_directory(self, path: str) -> None:
        """See Disk."""
        with _Call(self, f"sync_directory({path})"):
            if not isinstance(self._names.get(path), Directory):
                raise _error(errno.ENOENT, path)
            self._names.sync(path)

    def lock(self, path: str, session_id: str) -> _SimulatedLock:
        """See Disk."""
        try:
            with _Call(self, f"lock({path})"):
                if path in self._locks:
                    raise SessionLocked(session_id, self._locks[path])
                self._check_parent(path)
                if self._names.get(path) is None:
                    self._names.set(path, Inode(modified=time.time()))
                inode = self._file(path)
                self._change(inode, 0, b"%d\n" % self._pid)
                inode.sync()  # nobody cares for a dead lock's content; so the writes in question are the store's
        except OSError as error:
            raise WriteFailed(f"the lock {path} cannot be opened: {error.strerror}") from error
        self._locks[path] = self._pid
        return _SimulatedLock(self, path)

    def holder(self, path: str) -> int | None:
        """See Disk."""
        with _Call(self, f"holder({path})", reads=True):
            return self._locks.get(path)

    def boot_id(self) -> str | None:
        """See Disk."""
        return f"boot-{self._boot}"

    def _release(self, path: str, *, remove: bool) -> None:
        failure = self.calls.begin(f"release({path}, remove={remove})")
        self._locks.pop(path, None)
        if remove and failure is None:
            self._take_away(path)
        self.calls.end()

    def _on(self, fd: int, text: str, *, reads: bool = False) -> _Call:
        descriptor = self._descriptors.get(fd)
        text = text.format(descriptor.path if descriptor else fd)
        if descriptor is not None and descriptor.sync_failed and not reads:
            self.misuses.append(f"{text} after its sync had failed")
        return _Call(self, text, reads=reads)

    def _open(self, descriptor: _Descriptor) -> int:
        self._next_fd += 1
        self._descriptors[self._next_fd] = descriptor
        return self._next_fd

    def _close(self, fd: int) -> None:
        self._descriptor(fd)
        del self._descriptors[fd]

    def _write(self, fd: int, data: bytes) -> None:
        descriptor = self._descriptor(fd)
        start = len(descriptor.inode.now) if descriptor.position is None else descriptor.position
        if descriptor.position is not None:
            descriptor.position = start + len(data)
        if data:
            self._change(descriptor.inode, start, data)

    def _change(self, inode: Inode, offset: int, data: bytes) -> None:
        self._names.changes += 1
        inode.change(self._names.changes, offset, data)
        inode.modified = time.time()

    def _fail_to_sync(self, fd: int) -> None:
        descriptor = self._descriptor(fd)
        descriptor.sync_failed = True
        descriptor.inode.fail_to_sync()

    def _descriptor(self, fd: int) -> _Descriptor:
        if fd not in self._descriptors:
            raise _error(errno.EBADF, str(fd))
        return self._descriptors[fd]

    def _file(self, path: str) -> Inode:
        entry = self._names.get(path)
        if not isinstance(entry, Inode):
            raise _error(errno.ENOENT if entry is None else errno.EISDIR, path)
        return entry

    def _take_away(self, path: str) -> None:
        entry = self._names.get(path)
        if isinstance(entry, Directory):
            raise _error(errno.EISDIR, path)
        if entry is not None:
            self._names.set(path, None)

    def _check_parent(self, path: str) -> None:
        if not isinstance(self._names.get(os.path.dirname(path)), Directory):
            raise _error(errno.ENOENT, path)


class _SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk: SimulatedDisk | None = disk
        self._path = path

    def still_held(self) -> bool:
        """See state.disk.Lock."""
        return self._disk is not None and self._disk.status(self._path) is not None

    def release(self, *, remove: bool, untouched: bool = False) -> None:  # noqa: ARG002  its file holds nothing
        """See state.disk.Lock."""
        disk, self._disk = self._disk, None
        if disk is not None:
            disk._release(self._path, remove=remove)  # noqa: SLF001  the other half of the disk's lock


class _Call:
    """One call: counted and logged as it begins, failed where the plan says so, with what it does `instead` then."""

    def __init__(self, disk: SimulatedDisk, text: str, *, reads: bool = False) -> None:
        self._calls = disk.calls
        self._text = text
        self._reads = reads
        self.instead: Callable[[], object] | None = None

    def __enter__(self) -> None:
        failure = self._calls.begin(self._text, reads=self._reads)
        if failure is not None:
            if self.instead is not None:
                self.instead()
            raise failure

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._reads:
            self._calls.end()


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
