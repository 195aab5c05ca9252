"""Parcels: a session with its workspace as one archive, for nodes that share no directory with the batch.

The batch's machine keeps each session as it was between two processes. A process on a node gets a parcel of that, in
the same places of the node's own disk, and gives one back when it has ended. A parcel that came back takes effect as a
whole: it is unpacked beside, and from the rename of that directory on each start of the batch puts it in place. A
parcel that never came back leaves its mark, since nobody knows what its session has cost.
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
from state.keys import FOLDER, KEY_NAME, redaction_key, session_of
from state.locations import SessionPaths, make_private_dir
from state.lock import SessionLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STATE: Final = "state"
"""The state directory below the batch's own, on a node and in a parcel."""
_NAMES: Final = "names"


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
        path = self.work(parcel, "packed")
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
        unfinished = self.work(parcel, "new")
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
        came = self.work(parcel, "came")
        unfinished = f"{came}.new"
        _remove(unfinished)
        make_private_dir(unfinished)
        unpack(archive, unfinished, is_own=True)
        there = [name for name in self._came_places(unfinished, parcel) if _is_in(unfinished, name)]
        _check(unfinished, there)
        with open(os.path.join(unfinished, _NAMES), "w", encoding="ascii") as names:
            json.dump({"names": there, "parcel": list(parcel)}, names)
            names.flush()
            os.fsync(names.fileno())
        os.rename(unfinished, came)
        self._put_in_place(came)

    def finish(self, parcel: Parcel) -> None:
        """Put in place what had come back whole before the batch was killed, or the disk refused it. Raises OSError."""
        if os.path.lexists(came := self.work(parcel, "came")):
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

    def work(self, parcel: Parcel, name: str) -> str:
        """The path of a file of the task's among those of the work in progress."""
        return os.path.join(self.directory, "work", f"{parcel.key}.{name}")

    def _put_in_place(self, came: str) -> None:
        """Can be done again after a crash at any moment: what is in `names` and no longer in `came` is whole beside its
        place, or in it."""
        with open(os.path.join(came, _NAMES), encoding="ascii") as file:
            told = json.load(file)
        key, session_id, files, patch = told["parcel"]
        for name, place in self._came_places(came, Parcel(key, session_id, tuple(files), patch)).items():
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
    """What sessions may have cost in processes whose parcels never came back, which no record of theirs says; by the
    keys of tasks, kept in the batch's directory."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "work")

    def of(self, key: str) -> float:
        """The cost of the task's processes that were lost."""
        return self._read(key).get("lost", 0.0)

    def go_out(self, key: str, *, had: float, granted: float | None) -> None:
        """Before a process starts after which the task may have cost `granted`, when it `had` cost so much on record;
        without a limit nobody knows what a lost one has cost. Raises OSError."""
        lost = self.total(key)
        self._write(key, {"lost": lost, "out": 0.0 if granted is None else max(0.0, granted - max(had, lost))})

    def come_back(self, key: str) -> None:
        """The process has ended, and its session's records say what it has cost, or it was never started. Raises
        OSError."""
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


def open_private(path: str) -> IO[bytes]:
    """A new file that only its owner reads: it has what a session has on record. Raises OSError."""
    _remove(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _add(archive: tarfile.TarFile, place: str, name: str) -> None:
    """Add a file or a tree. What is special is left out, as what is gone when its turn comes, or has no path that the
    system takes; what its owner may not read is read all the same."""
    waiting = [(place, name)]
    opened: list[tuple[str, int]] = []
    while waiting:
        place, name = waiting.pop()
        try:
            info = archive.gettarinfo(place, name)
            if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            if (info.isreg() or info.isdir()) and not os.access(place, os.R_OK | (os.X_OK if info.isdir() else 0)):
                os.chmod(place, info.mode | (stat.S_IRWXU if info.isdir() else stat.S_IRUSR))
                opened.append((place, info.mode))
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
    for place, mode in reversed(opened):
        os.chmod(place, mode)


def _check(came: str, names: Iterable[str]) -> None:
    """Make the state that came durable. Raises TarError for links and the like where a session has files or a
    directory: in a workspace there may be any, and the workspace itself is a directory."""
    for name in names:
        top = os.path.join(came, name)
        is_state = name.startswith(_STATE + os.sep)
        parts = [top, *(os.path.join(at, one) for at, folders, files in os.walk(top) for one in (*folders, *files))]
        for place in parts if is_state else [top]:
            mode = os.lstat(place).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise tarfile.TarError(f"{name}: what came back is no file and no directory")
            if is_state and stat.S_ISREG(mode):
                _sync(place)


def _bring(source: str, place: str) -> None:
    """Have the source at a place where nothing is, whole from the moment on that it is gone at its own."""
    try:
        _rename(source, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if os.path.isdir(source):
            shutil.copytree(source, place, symlinks=True, copy_function=_copy_durably)
        else:
            _copy_durably(source, place)
        os.rename(source, f"{source}.gone")


def _copy_durably(source: str, place: str) -> None:
    shutil.copy2(source, place, follow_symlinks=False)
    if not os.path.islink(place):
        _sync(place)


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


def _remove(path: str) -> None:
    if os.path.lexists(path):
        remove_tree(path)


def _is_in(came: str, name: str) -> bool:
    return os.path.lexists(os.path.join(came, name))


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
