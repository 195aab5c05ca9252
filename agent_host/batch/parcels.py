"""Parcels: a session with its workspace as one archive, for nodes that share no directory with the batch.

The batch's machine keeps each session as it was between two processes. A process on a node gets a parcel of that, in
the same places of the node's own disk, and gives one back when it has ended. A parcel that came back takes effect as a
whole: it is unpacked into a directory of its own, and once that has its final name, the session is replaced by it, now
or after a crash. A parcel that is lost counts with all that its session was allowed to cost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tarfile
from typing import IO, TYPE_CHECKING, Final

import orjson

from agent_host.batch.workspaces import remove_tree, unpack
from config import json_text
from config.lean_typing import NamedTuple
from state.disk import LOCAL_DISK, replace_atomically
from state.keys import FOLDER, KEY_NAME, redaction_key, session_of
from state.locations import SessionPaths, make_private_dir
from state.lock import SessionLock

if TYPE_CHECKING:
    from collections.abc import Iterable

_STATE: Final = "state"
"""The state directory below the batch's own, on a node and in a parcel."""
_NAMES: Final = "names"


class Parcel(NamedTuple):
    """The session `session_id` with the workspace of the task `key`, the files that its process only reads, and the
    patch that it writes (absolute paths below the batch's directory). `risk` is what the process may cost."""

    key: str
    session_id: str
    files: tuple[str, ...]
    patch: str = ""
    risk: float = 0.0


class Depot:
    """The places of parcels on a machine: the batch's `directory`, and the state directory, which on a node is a part
    of the first. Used from any thread."""

    def __init__(self, directory: str, state_dir: str | None = None) -> None:
        self.directory = directory
        self.state_dir = state_dir or os.path.join(directory, _STATE)
        self.costs = LostCosts(directory)

    def pack(self, parcel: Parcel, *, with_files: bool) -> str:
        """Make a parcel; the path of the archive, which the caller removes. Raises OSError, TarError."""
        path = self.work(parcel.key, "packed")
        make_private_dir(os.path.dirname(path))
        if with_files:
            make_private_dir(self.state_dir)
            redaction_key(self.state_dir)  # sessions go on with the placeholders that they had
        places = self._sent_places(parcel) if with_files else self._places(parcel)
        with open_private(path) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name, place in places.items():
                if os.path.lexists(place):
                    _add(archive, place, name)
        return path

    def unpack_here(self, parcel: Parcel, archive: str) -> None:
        """On a node: have the contents of a parcel, and nothing of an earlier one. Raises SessionLocked while a process
        of an earlier attempt is still there, OSError, TarError."""
        for session_id in self._ids_of_task(parcel):
            lock = SessionPaths(self.state_dir, session_id).lock
            make_private_dir(os.path.dirname(lock))
            SessionLock.acquire(lock, session_id).release(remove=True)
        self.clear(parcel)
        unfinished = self.work(parcel.key, "new")
        _remove(unfinished)
        make_private_dir(unfinished)
        unpack(archive, unfinished, is_own=True)
        for name, place in self._sent_places(parcel).items():
            if _is_in(unfinished, name):
                make_private_dir(os.path.dirname(place))
                _rename(os.path.join(unfinished, name), place)  # at once: other sessions may have the same file
        _remove(unfinished)
        make_private_dir(os.path.dirname(parcel.patch or archive))

    def clear(self, parcel: Parcel) -> None:
        """On a node: remove all of the parcel that no other process there may need. Raises OSError."""
        own = (file for file in parcel.files if os.path.basename(file).startswith(parcel.key))
        for place in (*self._places(parcel).values(), *own):
            _remove(place)

    def take_back(self, parcel: Parcel, archive: str) -> None:
        """On the batch's machine: replace the session by what came back. Raises OSError, TarError."""
        came = self.work(parcel.key, "came")
        unfinished = f"{came}.new"
        _remove(unfinished)
        make_private_dir(unfinished)
        unpack(archive, unfinished, is_own=True)
        there = [name for name in self._came_places(unfinished, parcel) if _is_in(unfinished, name)]
        _check(unfinished, there)
        with open(os.path.join(unfinished, _NAMES), "w", encoding="ascii") as names:
            json.dump({"names": there, "parcel": list(parcel)}, names)
        _sync_disks()
        os.rename(unfinished, came)
        LOCAL_DISK.sync_directory(os.path.dirname(came))
        self._put_in_place(came)

    def finish(self, key: str) -> None:
        """Put in place what came back whole before the batch was killed, or the disk refused it. Raises OSError."""
        if os.path.lexists(came := self.work(key, "came")):
            self._put_in_place(came)

    def finish_all(self) -> None:
        """As `finish`, for all; what cannot be done now is done before the task goes on."""
        folder = os.path.join(self.directory, "work")
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            with contextlib.suppress(OSError):
                if name.endswith(".came"):
                    self._put_in_place(os.path.join(folder, name))
                elif name.endswith((".came.gone", ".came.new", ".received", ".packed")):
                    remove_tree(os.path.join(folder, name))

    def work(self, key: str, name: str) -> str:
        """The path of a file of the task's among those of the work in progress."""
        return os.path.join(self.directory, "work", f"{key}.{name}")

    def _put_in_place(self, came: str) -> None:
        """Can be done again after a crash at any moment: what is in `names` and no longer in `came` was moved whole.
        It is beside its place or in it."""
        with open(os.path.join(came, _NAMES), encoding="ascii") as file:
            told = json.load(file)
        for name, place in self._came_places(came, Parcel(*told["parcel"])).items():
            new, old = f"{place}.came", f"{place}.gone"
            make_private_dir(os.path.dirname(place))
            if _is_in(came, name):
                _remove(new)
                _bring(os.path.join(came, name), new)
            if os.path.lexists(place) and (os.path.lexists(new) or name not in told["names"]):
                _remove(old)
                os.rename(place, old)
            if os.path.lexists(new):
                os.rename(new, place)
            _remove(old)
        os.rename(came, f"{came}.gone")
        remove_tree(f"{came}.gone")

    def _ids_of_task(self, parcel: Parcel) -> set[str]:
        """The ids of all sessions that work in the task's workspace."""
        whole = parcel.session_id.removesuffix("-setup").removesuffix("-check")
        ids = {whole, f"{whole}-setup", f"{whole}-check"}
        return ids | {session_of(self.state_dir, one) for one in ids}

    def _came_places(self, came: str, parcel: Parcel) -> dict[str, str]:
        """The places here of what came: the node may have learned which session the id stands for."""
        new = session_of(os.path.join(came, _STATE), parcel.session_id)
        return self._places(parcel, session_of(self.state_dir, parcel.session_id) if new == parcel.session_id else new)

    def _sent_places(self, parcel: Parcel) -> dict[str, str]:
        """As `_places`, with what a process only reads."""
        key = os.path.join(self.state_dir, KEY_NAME)
        files = {os.path.relpath(file, self.directory): file for file in parcel.files}
        return {**self._places(parcel), **files, os.path.join(_STATE, KEY_NAME): key}

    def _places(self, parcel: Parcel, session_id: str = "") -> dict[str, str]:
        """The names in a parcel of what a process changes, with their places on this machine."""
        named = parcel.session_id
        paths = SessionPaths(self.state_dir, session_id or session_of(self.state_dir, named))
        of_state = (*paths.checkpoint_files, paths.records, os.path.join(self.state_dir, FOLDER, f"{named}.json"))
        own = (os.path.join(self.directory, "workspaces", parcel.key), *filter(None, (parcel.patch,)))
        return {
            **{os.path.join(_STATE, os.path.relpath(place, self.state_dir)): place for place in of_state},
            **{os.path.relpath(place, self.directory): place for place in own},
        }


class LostCosts:
    """The possible costs of processes whose parcels were lost, by the keys of tasks. No session has them on record, so
    the batch's directory has."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "work")

    def settle(self, key: str) -> None:
        """Before an attempt: whatever is still out is lost. Raises OSError."""
        self._write(key, self.total(key), 0.0)

    def go_out(self, key: str, risk: float) -> None:
        """Before a process starts that may cost so much. Raises OSError."""
        self._write(key, self._read(key)[0], risk)

    def come_back(self, key: str) -> None:
        """The process has ended, and its session has the costs on record; or it never started. Raises OSError."""
        self._write(key, self._read(key)[0], 0.0)

    def total(self, key: str) -> float:
        """The cost of the task's lost processes, with what is out: after a crash of the batch that is lost as well."""
        return sum(self._read(key))

    def _read(self, key: str) -> tuple[float, float]:
        with contextlib.suppress(FileNotFoundError), open(self._path(key), "rb") as file:
            lost, out = json_text.loads(file.read())
            return lost, out
        return 0.0, 0.0

    def _write(self, key: str, lost: float, out: float) -> None:
        if (lost, out) != self._read(key):
            replace_atomically(LOCAL_DISK, self._path(key), [orjson.dumps([lost, out])])

    def _path(self, key: str) -> str:
        return os.path.join(self._directory, f"{key}.cost")


def open_private(path: str) -> IO[bytes]:
    """A new file that only its owner can read, since sessions' records go through it. Raises OSError."""
    return os.fdopen(LOCAL_DISK.open_new(path), "wb")


def _add(archive: tarfile.TarFile, place: str, name: str) -> None:
    """Add a file or a tree, with files that their owner may not read. Left out is what is special, is gone when its
    turn comes, or has a path that is too long for the system."""
    waiting = [(place, name)]
    with contextlib.ExitStack() as closing:
        while waiting:
            place, name = waiting.pop()
            try:
                info = archive.gettarinfo(place, name)
                if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
                    continue
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                if (info.isreg() or info.isdir()) and not os.access(place, os.R_OK | (os.X_OK if info.isdir() else 0)):
                    closing.callback(os.chmod, place, info.mode)
                    os.chmod(place, info.mode | (stat.S_IRWXU if info.isdir() else stat.S_IRUSR))
                if info.isreg():
                    with open(place, "rb") as file:
                        archive.addfile(info, file)
                    continue
                archive.addfile(info)
                if info.isdir():
                    waiting += ((os.path.join(place, one), f"{name}/{one}") for one in os.listdir(place))
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise


def _check(came: str, names: Iterable[str]) -> None:
    """Raises TarError for links and the like in place of a session's files and directories, or of its workspace. Within
    a workspace there may be any."""
    for name in names:
        top = os.path.join(came, name)
        parts = [top]
        if name.startswith(_STATE + os.sep):
            parts += (os.path.join(at, one) for at, folders, files in os.walk(top) for one in (*folders, *files))
        for place in parts:
            mode = os.lstat(place).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise tarfile.TarError(f"{name}: what came back is no file and no directory")


def _bring(source: str, place: str) -> None:
    """Move the source to a free place, or copy it to one on another disk."""
    try:
        _rename(source, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if os.path.isdir(source):
            shutil.copytree(source, place, symlinks=True, copy_function=shutil.copy2)
        else:
            shutil.copy2(source, place)
        _sync_disks()


def _rename(source: str, place: str) -> None:
    """Rename, also a directory that its owner may not write in, which no move to another directory takes."""
    try:
        os.rename(source, place)
    except PermissionError:
        mode = os.lstat(source).st_mode
        if not stat.S_ISDIR(mode):
            raise
        os.chmod(source, mode | stat.S_IRWXU)
        os.rename(source, place)
        os.chmod(place, stat.S_IMODE(mode))


def _sync_disks() -> None:
    """Make a whole tree durable: one call, where each of its files would need one. Windows has no such call."""
    if hasattr(os, "sync"):
        os.sync()


def _remove(path: str) -> None:
    if os.path.lexists(path):
        remove_tree(path)


def _is_in(came: str, name: str) -> bool:
    return os.path.lexists(os.path.join(came, name))
