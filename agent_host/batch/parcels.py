"""Parcels: a session with its workspace as one archive, for nodes that share no directory with the batch.

The batch's machine keeps each session as it was between two processes. A process on a node gets a parcel of that, in
the same places of the node's own disk, and gives one back when it has ended. A parcel that came back takes effect as a
whole: it is unpacked beside, and from the rename of that directory on each start of the batch puts it in place. A
parcel that never came back leaves its mark, since nobody knows what its session has cost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from typing import TYPE_CHECKING, Final

import orjson

from agent_host.batch.workspaces import remove_tree, unpack
from config import json_text
from config.lean_typing import NamedTuple
from state.keys import FOLDER, KEY_NAME, redaction_key, session_of
from state.locations import SessionPaths, make_private_dir
from state.lock import SessionLock

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATE: Final = "state"
"""The state directory below the batch's own, on a node and in a parcel."""
_NAMES: Final = "names"
_ARCHIVE: Final = "packed"


class Parcel(NamedTuple):
    """What a process needs of the batch and leaves there: the session `session_id` with the workspace of the task
    `key`, the files that it is told by, and the patch that it writes (absolute paths below the batch's directory)."""

    key: str
    session_id: str
    files: tuple[str, ...]
    patch: str = ""


class Depot:
    """Where a machine has the parts of parcels: the batch's `directory`, and the state directory, which on a node is a
    part of the first. Used from any thread."""

    def __init__(self, directory: str, state_dir: str | None = None) -> None:
        self.directory = directory
        self.state_dir = state_dir or os.path.join(directory, _STATE)

    def pack(self, parcel: Parcel, *, with_files: bool) -> str:
        """Make a parcel; the path of the archive, which the caller removes. Raises OSError, TarError."""
        path = self._work(parcel.key, _ARCHIVE)
        make_private_dir(os.path.dirname(path))
        if with_files:
            make_private_dir(self.state_dir)
            redaction_key(self.state_dir)  # sessions go on with the placeholders that they had
        places = self._sent_places(parcel) if with_files else self._places(parcel)
        with tarfile.open(path, "w") as archive:
            for name, place in places.items():
                if os.path.lexists(place):
                    _add(archive, place, name)
        return path

    def unpack_here(self, parcel: Parcel, archive: str) -> None:
        """On a node: have the contents of a parcel, and nothing of an earlier one. Raises SessionLocked while a process
        of an earlier attempt is still there, OSError, TarError."""
        lock = SessionPaths(self.state_dir, parcel.session_id).lock
        make_private_dir(os.path.dirname(lock))
        SessionLock.acquire(lock, parcel.session_id).release(remove=True)
        self.clear(parcel)
        unfinished = self._work(parcel.key, "new")
        if os.path.lexists(unfinished):
            remove_tree(unfinished)
        unpack(archive, unfinished, is_own=True)
        for name, place in self._sent_places(parcel).items():
            if _is_in(unfinished, name):
                make_private_dir(os.path.dirname(place))
                os.rename(os.path.join(unfinished, name), place)  # at once: other sessions may have the same file
        remove_tree(unfinished)
        make_private_dir(os.path.dirname(parcel.patch or archive))

    def clear(self, parcel: Parcel) -> None:
        """On a node: remove all of the parcel that no other process there may need. Raises OSError."""
        own = (file for file in parcel.files if os.path.basename(file).startswith(parcel.key))
        for place in (*self._places(parcel).values(), *own):
            if os.path.lexists(place):
                remove_tree(place)

    def take_back(self, parcel: Parcel, archive: str) -> None:
        """On the batch's machine: replace the session by what came back. Raises OSError, TarError."""
        came = self._work(parcel.key, "came")
        unfinished = f"{came}.new"
        if os.path.lexists(unfinished):
            remove_tree(unfinished)
        unpack(archive, unfinished, is_own=True)
        for folder, _, files in os.walk(os.path.join(unfinished, _STATE)):
            for file in files:
                _sync(os.path.join(folder, file))
        there = [name for name in self._came_places(unfinished, parcel) if _is_in(unfinished, name)]
        with open(os.path.join(unfinished, _NAMES), "wb") as names:
            names.write(orjson.dumps({"names": there, "parcel": list(parcel)}))
            names.flush()
            os.fsync(names.fileno())
        os.rename(unfinished, came)
        self._put_in_place(came)

    def finish(self) -> None:
        """Put in place what had come back whole when the batch was killed. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(os.path.join(self.directory, "work")):
                if name.endswith(".came"):
                    self._put_in_place(os.path.join(self.directory, "work", name))

    def _put_in_place(self, came: str) -> None:
        """Can be done again after a crash: what is no longer in `came` is in its place if `names` has it."""
        with open(os.path.join(came, _NAMES), "rb") as file:
            told = json_text.loads(file.read())
        parcel = Parcel(*told["parcel"])
        for name, place in self._came_places(came, parcel).items():
            is_there = _is_in(came, name)
            if (is_there or name not in told["names"]) and os.path.lexists(place):
                remove_tree(place)
            if is_there:
                make_private_dir(os.path.dirname(place))
                shutil.move(os.path.join(came, name), place)
        remove_tree(came)

    def _came_places(self, came: str, parcel: Parcel) -> dict[str, str]:
        """The places here of what came: the node may have learned which session the id stands for."""
        return self._places(parcel, session_of(os.path.join(came, _STATE), parcel.session_id))

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

    def _work(self, key: str, name: str) -> str:
        return os.path.join(self.directory, "work", f"{key}.{name}")


class LostCosts:
    """What sessions may have cost in processes whose parcels never came back, which no record of theirs says; by the
    keys of tasks, kept in the batch's directory."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "work")

    def of(self, key: str) -> float:
        """The cost of the task's processes that were lost."""
        return self._read(key).get("lost", 0.0)

    def go_out(self, key: str, *, had: float, granted: float) -> None:
        """Before a process starts after which the task may have cost `granted`, when it `had` cost so much on record.
        Raises OSError."""
        lost = self.total(key)
        self._write(key, {"lost": lost, "out": max(0.0, granted - max(had, lost))})

    def come_back(self, key: str) -> None:
        """The process has ended, and its session's records say what it has cost. Raises OSError."""
        if self._read(key):
            self._write(key, {"lost": self.of(key)})

    def total(self, key: str) -> float:
        """As `of`, with what is out: after a crash of the batch that is lost as well."""
        return sum(self._read(key).values())

    def _read(self, key: str) -> Mapping[str, float]:
        with contextlib.suppress(OSError), open(self._path(key), "rb") as file:
            known: Mapping[str, float] = json_text.loads(file.read())
            return known
        return {}

    def _write(self, key: str, value: Mapping[str, float]) -> None:
        with open(f"{self._path(key)}.new", "wb") as file:
            file.write(orjson.dumps(value))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{self._path(key)}.new", self._path(key))

    def _path(self, key: str) -> str:
        return os.path.join(self._directory, f"{key}.cost")


def _add(archive: tarfile.TarFile, place: str, name: str) -> None:
    """Add a file or a tree. What is special is left out; what its owner may not read is read all the same."""
    info = archive.gettarinfo(place, name)
    if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        return
    if (info.isreg() or info.isdir()) and not os.access(place, os.R_OK | (os.X_OK if info.isdir() else 0)):
        os.chmod(place, info.mode | (stat.S_IRWXU if info.isdir() else stat.S_IRUSR))
    if info.isreg():
        with open(place, "rb") as file:
            archive.addfile(info, file)
        return
    archive.addfile(info)
    if info.isdir():
        for one in sorted(os.listdir(place)):
            _add(archive, os.path.join(place, one), f"{name}/{one}")


def _is_in(came: str, name: str) -> bool:
    return os.path.lexists(os.path.join(came, name))


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
