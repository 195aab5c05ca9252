"""Workspaces of a batch: each session has its own copy, which is created atomically.

- A directory is copied with its uncommitted files, but without its `.git`: the copy gets its own repository with the
  same branches, index and HEAD, which borrows its objects from the original (`objects/info/alternates`). Nothing that a
  session does there, not even a stash, reaches the user's repository, as it would from a worktree. The configuration is
  not copied either, because the user's hooks, filters and aliases must not affect the session. Linked working trees
  inside the directory are copied without their links, and the directories of the batch and of the sessions' state are
  left out.
- An archive is unpacked with tarfile's `data` filter, within limits.
- A git URL is fetched once into a bare repository from which all its sessions borrow. git runs without hooks, filters,
  submodules, prompts and the machine's configuration, and only with the protocols https, ssh and, for a path, file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
import threading
import zlib
from collections import defaultdict
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from agent_host.display_text import one_line
from config import json_text
from config.lean_typing import NamedTuple
from state import SessionPaths, make_private_dir
from state.disk import LOCAL_DISK, SessionLock, replace_atomically
from state.keys import FOLDER, KEY_NAME, redaction_key, session_of
from tool_runtime.platform.environment import find_program

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent_host.batch import Source

_MOST_FILES: Final = 500_000
_MOST_BYTES: Final = 16 * 1024**3
_REASON_CHARS: Final = 500
_COPIED: Final = ("HEAD", "index", "packed-refs", "refs", "reftable", "shallow", "info/exclude", "info/sparse-checkout")
"""Files of a repository that record its branches and its index."""
_EXTENSIONS: Final = ("extensions.objectformat", "extensions.refstorage", "core.sparsecheckout")
_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes",
    "LC_ALL": "C",
}
_SETTINGS: Final = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.allow=never", "protocol.https.allow=always",
    "protocol.ssh.allow=always", "protocol.ext.allow=never", "protocol.file.allow=never", "protocol.git.allow=never",
    "protocol.http.allow=never", "submodule.recurse=false", "fetch.recurseSubmodules=false", "gc.auto=0",
    "maintenance.auto=false", "safe.directory=*", "credential.helper=", "advice.detachedHead=false",
)  # fmt: skip


UNUSABLE: Final = (
    OSError, shutil.Error, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, RecursionError,
)  # fmt: skip
"""Exceptions of copying a directory or unpacking an archive that is damaged or unusual."""


class WorkspaceUnavailable(Exception):
    """A workspace could not be created, for a reason unrelated to the model; `str()` is one line."""


class Workspaces:
    """The workspaces below `directory`, by task key; paths in `left_out` are not copied. Unless a repository `borrows`
    its objects, it contains all objects reachable from its refs and index. Thread-safe."""

    def __init__(self, directory: str, left_out: Iterable[str] = (), *, borrows: bool = True) -> None:
        self._directory = directory
        self._borrows = borrows
        self._left_out = frozenset(map(os.path.realpath, left_out))
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._fetched: set[tuple[str, str]] = set()

    def path_of(self, key: str) -> str:
        """Return the path of a task's workspace, which may not exist."""
        return os.path.join(self._directory, key)

    def make(self, key: str, source: Source) -> str:
        """Create the workspace and return its path; an existing one is removed first. Raises WorkspaceUnavailable."""
        path, unfinished = self.path_of(key), os.path.join(self._directory, f"{key}.new")
        try:
            self.remove(key)
            remove_tree(unfinished)
            os.makedirs(self._directory, exist_ok=True)
            if source.kind == "directory":
                _copy(source.place, unfinished, self._left_out)
            elif source.kind == "archive":
                unpack(source.place, unfinished)
            else:
                self._check_out(source, unfinished)
            lenders = os.path.join(unfinished, ".git", "objects", "info", "alternates")
            # An archive's repository has its own configuration, so git is not run in it.
            if not self._borrows and source.kind != "archive" and os.path.exists(lenders):
                _git(unfinished, "repack", "-a", "-d", "--quiet")
                os.unlink(lenders)
            os.rename(unfinished, path)
        except UNUSABLE as error:
            remove_tree(unfinished)
            message = "its directories nest too deep" if isinstance(error, RecursionError) else str(error)
            raise WorkspaceUnavailable(one_line(f"{source.place}: {message}", _REASON_CHARS)) from error
        except WorkspaceUnavailable:
            remove_tree(unfinished)
            raise
        return path

    def remove(self, key: str) -> None:
        """Remove the workspace, if it exists. Raises OSError."""
        path = self.path_of(key)
        if os.path.lexists(path):
            removed = f"{path}.gone"
            remove_tree(removed)
            os.rename(path, removed)
            remove_tree(removed)

    def _check_out(self, source: Source, path: str) -> None:
        store = os.path.join(self._directory, f"git-{hashlib.sha256(source.place.encode()).hexdigest()[:16]}")
        with self._lock:
            fetching = self._fetching[source.place]
        with fetching:
            if (source.place, source.revision) not in self._fetched:
                _fetch(source, store)
                self._fetched.add((source.place, source.revision))
        os.makedirs(path)
        kind = _setting(store, "extensions.objectformat") or "sha1"
        _git(path, "init", "--quiet", "--template=", f"--object-format={kind}")
        _borrow(os.path.join(path, ".git"), os.path.join(store, "objects"))
        found = _resolve(store, source.revision)
        _git(path, "checkout", "--quiet", "--detach", str(found))


def _fetch(source: Source, store: str) -> None:
    """Fetch the revision into the bare repository `store`, unless it is there."""
    is_path = os.path.isabs(source.place)
    if not os.path.isdir(store):
        kind = (is_path and _setting(source.place, "extensions.objectformat")) or "sha1"
        unfinished = f"{store}.new"
        if os.path.isdir(unfinished):
            remove_tree(unfinished)
        os.makedirs(unfinished)
        _git(unfinished, "init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
        os.rename(unfinished, store)
    if _resolve(store, source.revision) is not None:
        return
    # Remove locks of a killed git: the batch has exclusive use of its directory, and fetches from a source one at a
    # time.
    for folder, _, names in os.walk(store):
        for name in names:
            if name.endswith(".lock"):
                os.unlink(os.path.join(folder, name))
    allowed = ("-c", "protocol.file.allow=always") if is_path else ()
    fetch = (*allowed, "fetch", "--quiet", "--no-write-fetch-head", "--no-recurse-submodules")
    _git(store, *fetch, "--tags", "--force", "--", source.place, "+refs/heads/*:refs/heads/*")
    if _resolve(store, source.revision) is None:  # a commit that is on no branch
        _git(store, *fetch, "--", source.place, f"{source.revision}:refs/fetched/{source.revision}")
    if _resolve(store, source.revision) is None:
        raise WorkspaceUnavailable(one_line(f"{source.place}: there is no revision {source.revision}", _REASON_CHARS))


def _resolve(store: str, revision: str) -> str | None:
    for name in (revision, f"refs/fetched/{revision}"):
        with contextlib.suppress(WorkspaceUnavailable):
            return _git(store, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    return None


def _setting(directory: str, name: str, *file: str) -> str:
    """Return a value of a repository's configuration, or of a configuration file (`--file PATH`); "" for none."""
    with contextlib.suppress(WorkspaceUnavailable):
        return _git(directory, "config", *file, "--get", name).strip()
    return ""


def _git(directory: str, *arguments: str) -> str:
    """Run git and return its output. Raises WorkspaceUnavailable with git's error line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    words = [word for setting in _SETTINGS for word in ("-c", setting)]
    program = find_program("git", os.environ.get("PATH", os.defpath), (directory,))
    if program is None:
        raise WorkspaceUnavailable("git is not installed")
    try:
        done = subprocess.run(
            [program, *words, *arguments], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=1800.0, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkspaceUnavailable(one_line(f"git: {error}", _REASON_CHARS)) from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        reason = next((line for line in lines if line.startswith(("fatal:", "error:"))), f"exit code {done.returncode}")
        raise WorkspaceUnavailable(one_line(f"git: {reason}", _REASON_CHARS))
    return done.stdout.decode("utf-8", "replace")


def _borrow(git_directory: str, objects: str) -> None:
    os.makedirs(os.path.join(git_directory, "objects", "info"), exist_ok=True)
    with open(os.path.join(git_directory, "objects", "info", "alternates"), "w", encoding="utf-8") as file:
        file.write(f"{objects}\n")


def _copy(source: str, target: str, left_out: Collection[str]) -> None:
    """Copy a directory with its links as links; if it has a repository, the copy gets its own. A nested `.git` that
    only refers to another directory is left out, because git would work in the user's repository through it."""
    source = os.path.realpath(source)

    def skip(folder: str, names: list[str]) -> list[str]:
        paths = {name: os.path.join(folder, name) for name in names}
        # A pipe, a socket or a device cannot be copied.
        kept = (os.path.islink, os.path.isfile, os.path.isdir)
        skipped = [name for name, path in paths.items() if path in left_out or not any(one(path) for one in kept)]
        git = paths.get(".git")
        # The `.git` of a linked working tree or a submodule is a file; it may also be a link.
        if git is not None and (folder == source or os.path.islink(git) or os.path.isfile(git)):
            skipped.append(".git")
        return skipped

    shutil.copytree(source, target, symlinks=True, ignore=skip)
    git_directory = _git_directory_of(source)
    if git_directory is not None:
        _copy_repository(git_directory, os.path.join(target, ".git"))


def _git_directory_of(directory: str) -> str | None:
    """Return the git directory of a working tree, to which a `.git` file may refer; None if there is none."""
    path = os.path.join(directory, ".git")
    if os.path.isdir(path):
        return path
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        named = file.read(4096).removeprefix("gitdir:").strip()
    found = os.path.join(directory, named)
    return found if os.path.isdir(found) else None


def _copy_repository(source: str, target: str) -> None:
    """Create a repository with the branches, the index and the HEAD of another, which borrows its objects."""
    common = source
    with contextlib.suppress(OSError), open(os.path.join(source, "commondir"), encoding="utf-8") as file:
        common = os.path.realpath(os.path.join(source, file.read(4096).strip()))
    os.makedirs(os.path.join(target, "refs"))
    _borrow(target, os.path.join(os.path.realpath(common), "objects"))
    for place in dict.fromkeys((common, source)):  # a linked working tree's own files come second
        for name in _COPIED:
            found, to = os.path.join(place, name), os.path.join(target, name)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            if os.path.isdir(found):
                shutil.copytree(found, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("stash"))
            elif os.path.isfile(found):
                shutil.copyfile(found, to)
    in_file = ("--file", os.path.join(common, "config"))
    # Take only alphanumeric values.
    kept = {name: value for name in _EXTENSIONS if (value := _setting(os.sep, name, *in_file)).isalnum()}
    version = "1" if any(name.startswith("extensions.") for name in kept) else "0"
    with open(os.path.join(target, "config"), "w", encoding="utf-8") as file:
        file.write(f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n\tlogallrefupdates = true\n")
        for name, value in kept.items():
            section, _, key = name.partition(".")
            file.write(f"[{section}]\n\t{key} = {value}\n")


def unpack(path: str, target: str, *, is_own: bool = False) -> None:
    """Unpack an archive. Raises TarError for members outside the directory, for special files and for too much data,
    and errors of its compression. If `is_own`, the limits of size do not apply, the directory may exist, and modes are
    kept."""
    files = size = 0
    os.makedirs(target, exist_ok=is_own)

    def admitted(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        nonlocal files, size
        for member in archive:
            files, size = files + 1, size + member.size
            if (files > _MOST_FILES or size > _MOST_BYTES) and not is_own:
                raise tarfile.TarError(f"more than {_MOST_FILES:,} files, or {_MOST_BYTES // 1024**3} GiB")
            yield member

    with tarfile.open(path, "r:*") as archive:
        archive.extractall(target, admitted(archive), filter=_own_member if is_own else "data")  # noqa: S202  a filter
        # Read on to the end, where the checksum of the compressed data is; reading the tar archive stops before it.
        while archive.fileobj is not None and (piece := len(archive.fileobj.read(1 << 20))):
            size += piece
            if size > 2 * _MOST_BYTES:
                raise tarfile.TarError(f"more than {_MOST_BYTES // 1024**3} GiB after its last file")


def _unpack_own(path: str, target: str) -> str:
    _remove(target)
    make_private_dir(target)
    unpack(path, target, is_own=True)
    return target


def _own_member(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo:
    """Return a member as it was packed, without its owner: the unpacking user owns it."""
    no_owner: dict[str, Any] = dict.fromkeys(("uid", "gid", "uname", "gname"))
    return tarfile.tar_filter(member, target).replace(mode=member.mode & 0o777, deep=False, **no_owner)


def remove_tree(path: str) -> None:
    """Remove a tree, including directories without write permission."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
        return

    def open_up(_: object, failed: str, __: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(failed), 0o700)
            os.chmod(failed, 0o700)
        if os.path.isdir(failed) and not os.path.islink(failed):
            shutil.rmtree(failed, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(failed)

    shutil.rmtree(path, onerror=open_up)


# Parcels: archives of a session with its workspace, for nodes that share no directory with the batch.
#
# The batch's machine keeps each session in its state between two processes. A process on a node gets a parcel of it,
# unpacked in the corresponding places of the node's disk, and returns one when it has ended. A returned parcel takes
# effect atomically: it is unpacked into its own directory, and once that has its final name, it replaces the session,
# now or after a crash. For a lost parcel, everything that its session was allowed to cost counts as spent.

_STATE: Final = "state"
"""Name of the state directory below the batch's directory, on a node and in a parcel."""
_NAMES: Final = "names"


class Parcel(NamedTuple):
    """The session `session_id` with the workspace of the task `key`, the files that its process only reads, and the
    patch that it writes (absolute paths below the batch's directory). `risk` is the maximum cost of the process."""

    key: str
    session_id: str
    files: tuple[str, ...]
    patch: str = ""
    risk: float = 0.0


class Depot:
    """The places of parcels' contents in `directory` and in the state directory, which on a node is below `directory`.
    Thread-safe."""

    def __init__(self, directory: str, state_dir: str | None = None) -> None:
        self.directory = directory
        self.state_dir = state_dir or os.path.join(directory, _STATE)
        self.costs = LostCosts(directory)

    def pack(self, parcel: Parcel, *, with_files: bool) -> str:
        """Create a parcel and return the path of the archive, which the caller removes. Raises OSError, TarError."""
        path = self.work(parcel.key, "packed")
        make_private_dir(os.path.dirname(path))
        if with_files:
            make_private_dir(self.state_dir)
            redaction_key(self.state_dir)  # sessions continue with the same placeholders
        places = self._sent_places(parcel) if with_files else self._places(parcel)
        with open_private(path) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name, place in places.items():
                if os.path.lexists(place):
                    _add(archive, place, name)
        return path

    def unpack(self, parcel: Parcel, archive: str) -> None:
        """Unpack a parcel on a node, and remove an earlier one. Raises SessionLocked if a process of an earlier attempt
        is still running, OSError, TarError."""
        base_id = parcel.session_id.removesuffix("-setup").removesuffix("-check")
        ids = {base_id, f"{base_id}-setup", f"{base_id}-check"}  # of all sessions that work in the task's workspace
        for session_id in ids | {session_of(self.state_dir, one) for one in ids}:
            lock = SessionPaths(self.state_dir, session_id).lock
            make_private_dir(os.path.dirname(lock))
            SessionLock.acquire(lock, session_id).release(remove=True)
        self.clear(parcel)
        unfinished = _unpack_own(archive, self.work(parcel.key, "new"))
        for name, place in self._sent_places(parcel).items():
            if _is_in(unfinished, name):
                make_private_dir(os.path.dirname(place))
                _rename(os.path.join(unfinished, name), place)  # atomically: other sessions may use the same file
        _remove(unfinished)
        make_private_dir(os.path.dirname(parcel.patch or archive))

    def clear(self, parcel: Parcel) -> None:
        """Remove, on a node, the parts of the parcel that no other process there may need. Raises OSError."""
        own = (file for file in parcel.files if os.path.basename(file).startswith(parcel.key))
        for place in (*self._places(parcel).values(), *own):
            _remove(place)

    def take_back(self, parcel: Parcel, archive: str) -> None:
        """Replace the session, on the batch's machine, by the returned parcel. Raises OSError, TarError."""
        returned = self.work(parcel.key, "came")
        unfinished = _unpack_own(archive, f"{returned}.new")
        present = [name for name in self._returned_places(unfinished, parcel) if _is_in(unfinished, name)]
        _check(unfinished, present)
        with open(os.path.join(unfinished, _NAMES), "w", encoding="ascii") as names:
            json.dump({"names": present, "parcel": list(parcel)}, names)
        _sync_disks()
        os.rename(unfinished, returned)
        LOCAL_DISK.sync_directory(os.path.dirname(returned))
        self._put_in_place(returned)

    def finish(self, key: str) -> None:
        """Put a completely returned parcel in place if the batch was killed or the disk failed before that. Raises
        OSError."""
        if os.path.lexists(returned := self.work(key, "came")):
            self._put_in_place(returned)

    def finish_all(self) -> None:
        """Do as `finish` does, for all tasks, and remove leftovers. A parcel that cannot be put in place now is retried
        before its task continues."""
        folder = os.path.join(self.directory, "work")
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            with contextlib.suppress(OSError):
                if name.endswith(".came"):
                    self._put_in_place(os.path.join(folder, name))
                elif name.endswith((".came.gone", ".came.new", ".received", ".packed")):
                    remove_tree(os.path.join(folder, name))

    def work(self, key: str, name: str) -> str:
        """Return the path of a task's file in the `work` directory."""
        return os.path.join(self.directory, "work", f"{key}.{name}")

    def _put_in_place(self, returned: str) -> None:
        """Move the parcel's contents to their places. Repeatable after a crash: a name that is in `names` but not in
        `returned` was moved completely, to its place or next to it."""
        with open(os.path.join(returned, _NAMES), encoding="ascii") as file:
            manifest = json.load(file)
        for name, place in self._returned_places(returned, Parcel(*manifest["parcel"])).items():
            new, old = f"{place}.came", f"{place}.gone"
            make_private_dir(os.path.dirname(place))
            if _is_in(returned, name):
                _remove(new)
                _move(os.path.join(returned, name), new)
            if os.path.lexists(place) and (os.path.lexists(new) or name not in manifest["names"]):
                _remove(old)
                os.rename(place, old)
            if os.path.lexists(new):
                os.rename(new, place)
            _remove(old)
        os.rename(returned, f"{returned}.gone")
        remove_tree(f"{returned}.gone")

    def _returned_places(self, returned: str, parcel: Parcel) -> dict[str, str]:
        """Return the places here of a returned parcel's contents. The node may have recorded which session the id
        names."""
        new = session_of(os.path.join(returned, _STATE), parcel.session_id)
        return self._places(parcel, session_of(self.state_dir, parcel.session_id) if new == parcel.session_id else new)

    def _sent_places(self, parcel: Parcel) -> dict[str, str]:
        """Return `_places` and the files that a process only reads."""
        key = os.path.join(self.state_dir, KEY_NAME)
        files = {os.path.relpath(file, self.directory): file for file in parcel.files}
        return {**self._places(parcel), **files, os.path.join(_STATE, KEY_NAME): key}

    def _places(self, parcel: Parcel, session_id: str = "") -> dict[str, str]:
        """Return the names in a parcel of files that a process changes, with their places on this machine."""
        named = parcel.session_id
        paths = SessionPaths(self.state_dir, session_id or session_of(self.state_dir, named))
        of_state = (*paths.checkpoint_files, paths.records, os.path.join(self.state_dir, FOLDER, f"{named}.json"))
        own = (os.path.join(self.directory, "workspaces", parcel.key), *filter(None, (parcel.patch,)))
        return {
            **{os.path.join(_STATE, os.path.relpath(place, self.state_dir)): place for place in of_state},
            **{os.path.relpath(place, self.directory): place for place in own},
        }


class LostCosts:
    """The possible costs of processes whose parcels were lost, by task key: no session's record contains them."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "work")

    def settle(self, key: str) -> None:
        """Count a parcel that is still out as lost, before a new attempt. Raises OSError."""
        self._write(key, self.total(key), 0.0)

    def set_risk(self, key: str, risk: float) -> None:
        """Record the possible cost of a process; 0 once its actual cost is recorded, or if it never started. Raises
        OSError."""
        self._write(key, self._read(key)[0], risk)

    def total(self, key: str) -> float:
        """Return the cost of the task's lost processes and of a parcel that is out: after a crash of the batch, the
        latter is lost too."""
        return sum(self._read(key))

    def _read(self, key: str) -> tuple[float, float]:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._directory, f"{key}.cost"), "rb") as file:
            lost, out = json_text.loads(file.read())
            return lost, out
        return 0.0, 0.0

    def _write(self, key: str, lost: float, out: float) -> None:
        if (lost, out) != self._read(key):
            path = os.path.join(self._directory, f"{key}.cost")
            replace_atomically(LOCAL_DISK, path, [orjson.dumps([lost, out])])


def open_private(path: str) -> IO[bytes]:
    """Open a new file that only its owner can read, because it contains sessions' records. Raises OSError."""
    return os.fdopen(LOCAL_DISK.open_new(path), "wb")


def _add(archive: tarfile.TarFile, place: str, name: str) -> None:
    """Add a file or a tree, including files without read permission. Special files, files that vanish meanwhile, and
    paths that are too long for the system are left out."""
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


def _check(returned: str, names: Iterable[str]) -> None:
    """Raise TarError if a session's file, or its workspace's directory itself, is a link or a special file."""
    for name in names:
        top = os.path.join(returned, name)
        parts = [top]
        if name.startswith(_STATE + os.sep):
            parts += (os.path.join(at, one) for at, folders, files in os.walk(top) for one in (*folders, *files))
        for place in parts:
            mode = os.lstat(place).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise tarfile.TarError(f"{name}: the result is neither a file nor a directory")


def _move(source: str, place: str) -> None:
    """Move the source to an unused path, or copy it if that is on another disk."""
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
    """Rename a file or directory, including a directory without write permission, which cannot be moved to another
    parent as it is."""
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
    """Make a whole tree durable with one call instead of one per file. Windows has no such call."""
    if hasattr(os, "sync"):
        os.sync()


def _remove(path: str) -> None:
    if os.path.lexists(path):
        remove_tree(path)


def _is_in(returned: str, name: str) -> bool:
    return os.path.lexists(os.path.join(returned, name))
