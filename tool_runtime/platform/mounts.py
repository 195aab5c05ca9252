"""A sandboxed program's view of the disk: everything is read-only except its writable places, and hidden places are
covered by mounts. Uses the mount system calls of Linux 5.12."""

from __future__ import annotations

import os
import stat
import struct

from config.lean_typing import NamedTuple
from tool_runtime.platform import linux_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final

    from policy import SandboxLevel


class Namespaces(NamedTuple):
    """Namespaces in addition to mounts: users (without which only root can create any) and processes."""

    users: bool
    processes: bool


_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_AT_RECURSIVE: Final = 0x8000
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_CLONE_TREE: Final = 1
_CLOEXEC: Final = os.O_CLOEXEC
_FROM_DESCRIPTOR: Final = 0x4
_READ_ONLY: Final = 0x1
_NO_SET_USER_ID: Final = 0x2
_PRIVATE: Final = 1 << 18
_REMOUNTED_FLAGS: Final = 0x0E  # no set-user-id, no devices, no programs
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  semaphores and shared memory of programs are there, by POSIX
_TERMINALS: Final = "/dev/pts"
_OWN: Final = ("/proc", _SHARED_MEMORY, _TERMINALS)


class DiskView(NamedTuple):
    """A view, as absolute real paths. `writes` stay writable, except `guarded` within them; `hidden` are covered,
    except `writes` within them. Set-user-id programs below `writes` get no rights of their owner. The view always has
    its own shared memory and terminals, even if `writes` names them."""

    writes: tuple[str, ...]
    guarded: tuple[str, ...]
    hidden: tuple[str, ...]
    has_processes: bool = True


class SeenPlaces(NamedTuple):
    """The identities of the existing files at a view's paths. If they are all unchanged, a view made earlier equals one
    made now. `trees` (device, inode) are the mounted paths: writable places and the folders of guarded ones. `others`
    (device, inode, time of the inode's last change) are guarded and hidden places, which lose their mounts when another
    file gets their name. `granted` (device, inode) are paths of Landlock rules that are the same inside and outside of
    the view."""

    trees: dict[str, tuple[int, int]]
    others: tuple[tuple[int, int, int] | None, ...]
    granted: dict[str, tuple[int, int]]


def look_at(view: DiskView, granted: Iterable[str]) -> SeenPlaces:
    """Read the identities of the paths of `view` and of its Landlock rules, as seen by this process."""
    trees = (*_writable(view), *folders_between(view.writes, view.guarded)) if view.writes != ("/",) else ()
    others = map(_status, (*view.guarded, *view.hidden))
    return SeenPlaces(
        keys_of(trees),
        tuple(found and (found.st_dev, found.st_ino, found.st_ctime_ns) for found in others),
        keys_of(find_shared(view, granted)),
    )


def find_shared(view: DiskView, places: Iterable[str]) -> list[str]:
    """Return the places that are the same inside and outside of the view: not those that it covers or has its own
    instance of."""
    others = tuple(f"{one}/" for one in (*_OWN, *view.hidden))
    return [place for place in places if not f"{place}/".startswith(others)]


def keys_of(places: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return device and inode of each place that exists."""
    found = {place: _status(place) for place in places}
    return {place: (one.st_dev, one.st_ino) for place, one in found.items() if one is not None}


def _writable(view: DiskView) -> list[str]:
    return [place for place in view.writes if not f"{place}/".startswith(tuple(f"{one}/" for one in _OWN))]


def _status(place: str) -> os.stat_result | None:
    try:
        return os.lstat(place)
    except OSError:
        return None


def is_settled(changed_ns: int, now_ns: int) -> bool:
    """True if a further change would get a different time. File times have a granularity of milliseconds, or of seconds
    on some file systems."""
    return changed_ns < now_ns - (50_000_000 if changed_ns % 1_000_000_000 else 2_500_000_000)


def make(view: DiskView, known: linux_calls.Numbers) -> dict[str, tuple[int, int]]:
    """Give this process, which must have its own mount namespace, the view; missing places are skipped. Returns the
    identities of the files mounted as writable places and as folders of guarded ones. Raises OSError."""
    _attributes(b"/", propagation=_PRIVATE)
    uncovered = _copy_trees([place for place in _writable(view) if any(_is_below(place, one) for one in view.hidden)])
    is_open = "/" in view.writes  # nothing can be mounted over the root that programs see
    writes = [] if is_open else _copy_trees(sorted(_writable(view), key=len))
    trees = {place: _key(tree) for place, tree in writes}
    _attributes(b"/", set_=_NO_SET_USER_ID if is_open else _READ_ONLY)
    if view.has_processes:
        linux_calls.call(known.mount, b"proc", b"/proc", b"proc", _REMOUNTED_FLAGS | _READ_ONLY, b"")
    if os.path.isdir(_SHARED_MEMORY):
        linux_calls.call(known.mount, b"tmpfs", _SHARED_MEMORY.encode(), b"tmpfs", _REMOUNTED_FLAGS, b"mode=1777")
    if os.path.isdir(_TERMINALS):
        own = b"newinstance,ptmxmode=0666,mode=620"
        linux_calls.call(known.mount, b"devpts", _TERMINALS.encode(), b"devpts", 0x0A, own)
    for place, tree in writes:
        _attributes(b"", tree, set_=_NO_SET_USER_ID)
        _move(tree, place)
    # A folder that is a mount cannot be renamed, so a folder with guarded files cannot be replaced by another one.
    for place, tree in _copy_trees(sorted(folders_between(view.writes, view.guarded), key=len)):
        trees[place] = _key(tree)
        _move(tree, place)
    guarded = _copy_trees(sorted(view.guarded, key=len))
    for place, tree in guarded:
        _attributes(b"", tree, set_=_READ_ONLY)
        _move(tree, place)
    _cover(known, [place for place in view.hidden if os.path.lexists(place)], uncovered)
    return trees


def _key(tree: int) -> tuple[int, int]:
    found = os.fstat(tree)
    return found.st_dev, found.st_ino


def _is_below(place: str, root: str) -> bool:
    return place.startswith(root.rstrip("/") + "/")


def folders_between(writes: Sequence[str], guarded: Sequence[str]) -> set[str]:
    """Return the folders between writable places and the guarded places inside of them."""
    found: set[str] = set()
    tops = set(writes)
    for place in guarded:
        folder = place.rpartition("/")[0]
        if folder in tops:  # the usual case
            continue
        roots = [root for root in writes if _is_below(place, root)]
        if roots:
            while len(folder) > len(max(roots, key=len)):
                found.add(folder)
                folder = os.path.dirname(folder)
    return found


def _cover(known: linux_calls.Numbers, hidden: Sequence[str], uncovered: Sequence[tuple[str, int]]) -> None:
    """Mount empty, unreadable entries over the hidden places, inner ones first, because a cover hides everything below
    it. `uncovered` are trees inside of hidden places that remain visible."""
    if not hidden:
        return
    blank = b"/dev/shm"
    # Temporarily, over the shared memory of the program; unmounted at the end.
    linux_calls.call(known.mount, b"tmpfs", blank, b"tmpfs", _REMOUNTED_FLAGS, b"mode=755")
    file, folder = (os.path.join(blank, name) for name in (b"file", b"folder"))
    # A device file on a mount without devices: even root, who may read any file, cannot open it.
    os.mknod(file, stat.S_IFCHR, os.makedev(0, 0))
    os.mkdir(folder, 0)
    for place in sorted(hidden, key=len, reverse=True):
        if os.path.islink(place):
            continue
        within = [(inner, tree) for inner, tree in uncovered if _is_below(inner, place)]
        if within:
            _cover_around(known, place, within)
            continue
        tree = _clone(folder if os.path.isdir(place) else file)
        _attributes(b"", tree, set_=_READ_ONLY)
        _move(tree, place)
    linux_calls.call(known.umount2, blank, 2)


def _cover_around(known: linux_calls.Numbers, place: str, within: Sequence[tuple[str, int]]) -> None:
    """Mount a cover that contains only the path to the trees `within`."""
    is_directory = {inner: os.path.isdir(inner) for inner, _ in within}
    linux_calls.call(known.mount, b"tmpfs", os.fsencode(place), b"tmpfs", _REMOUNTED_FLAGS, b"mode=711")
    for inner, _ in within:
        os.makedirs(inner if is_directory[inner] else os.path.dirname(inner), mode=0o711, exist_ok=True)
        if not is_directory[inner]:
            os.close(os.open(inner, os.O_CREAT | os.O_WRONLY, 0o600))
    _attributes(os.fsencode(place), set_=_READ_ONLY)
    for inner, tree in within:
        _move(tree, inner)


def _copy_trees(places: Sequence[str]) -> list[tuple[str, int]]:
    """Copy the current mount tree of each place."""
    found = []
    for place in places:
        try:
            found.append((place, _clone(os.fsencode(place))))
        except OSError:  # it is missing or unreachable
            continue
    return found


def _clone(path: bytes) -> int:
    flags = _CLONE_TREE | _CLOEXEC | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
    return linux_calls.call(_OPEN_TREE, _AT_FDCWD, path, flags)


def _move(tree: int, place: str) -> None:
    try:
        linux_calls.call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(place), _FROM_DESCRIPTOR)
    finally:
        os.close(tree)


def _attributes(path: bytes, descriptor: int = _AT_FDCWD, *, set_: int = 0, propagation: int = 0) -> None:
    flags = _AT_RECURSIVE | (_AT_EMPTY_PATH if not path else 0)
    wanted = struct.pack("=4Q", set_, 0, propagation, 0)
    linux_calls.call(_MOUNT_SETATTR, descriptor, path, flags, wanted, len(wanted))


class LevelFinding(NamedTuple):
    """The result of trying one level on this machine. `problem` is the reason if it does not work. `abi` is Landlock's
    version, 0 for none. With `is_supervised` connections are judged one by one; without, there are none, unless the
    scope allows any host. `unheld` lists what the level cannot enforce. `namespaces` are those that a program gets at
    this level. `is_passing` means that the trial itself failed, for lack of a file, memory or time for example, so the
    level may still work."""

    level: SandboxLevel
    works: bool
    problem: str = ""
    abi: int = 0
    is_supervised: bool = False
    unheld: tuple[str, ...] = ()
    namespaces: Namespaces = Namespaces(users=True, processes=True)
    is_passing: bool = False
