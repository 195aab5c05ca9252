"""Find sandbox denials in a command's output. They are found by the paths in its lines, and reported only if the scope
denies what the plain file permissions would allow. Pure: the disk is accessed only through `Disk`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from agent_host.contracts import Denial
from policy.paths import Places
from policy.rules.sandbox import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from policy import CommandScope

_REFUSED: Final = re.compile(
    r"permission denied|permissionerror|\beacces\b|errno 13\b|os error 13\b|access is denied|accessdenied(?:exception)?"
    r"|read-only file ?system|\berofs\b|os error 30\b|errno 30\b|cross-device link|\bexdev\b|os error 18\b|errno 18\b"
    r"|device or resource busy|\bebusy\b|os error 16\b|errno 16\b",
    re.IGNORECASE,
)
"""EACCES comes from Landlock, EROFS from namespaces, EBUSY from a path that is itself a mount, EXDEV from moving or
linking a file out of its place."""
_BUSY: Final = re.compile(r"resource busy|\bebusy\b|error 16\b|errno 16\b", re.IGNORECASE)
_CROSS_DEVICE: Final = re.compile(r"cross-device link|\bexdev\b|error 18\b|errno 18\b", re.IGNORECASE)
_REMOTE: Final = re.compile(
    r"\(publickey|\bHTTP/|\b(?:GET|PUT|POST|DELETE|HEAD) /|status(?: code)?:? 40[13]|\bs3://|\bgs://|\bssh:|\bscp:|\bsftp\b"
    r"|\bremote[: ]|operation not permitted|errno 1\b|@[\w.-]+:|\bsudo\b|\bjava\.security\b",
    re.IGNORECASE,
)
"""A denial by another machine or by a program, not by the sandbox."""
_QUOTED: Final = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`'\n]+)[`']|‘([^’\n]+)’|“([^”\n]+)”|\((/[^()\s]+)\)")
_LOOSE: Final = re.compile(r"(?<![\w:/.@~-])((?:~|\.{1,2})?/[^\s'\"`:,;()\[\]{}<>|]+|/)")
_PROGRAM: Final = re.compile(r"^\S+: (?:line \d+: |\d+: )?(.*)$")
_CHAINED: Final = re.compile(r"caused by|error|fail|could ?n[o']t|cannot|unable", re.IGNORECASE)
_VERB: Final = re.compile(
    r"^(?:cannot (?:create|open|access|touch|remove)|could not (?:write|lock) config file|open|create|mkdir) "
)
_UNIX_URL: Final = re.compile(r"unix://(/[^\s'\"]+)")
_SHELL_SCRIPT: Final = (".sh", ".py", ".pl", ".rb", ".bash", ".js")
_NOT_EXECUTABLE: Final = 126
_MAX_LINES: Final = 400
_MAX_LINE: Final = 2000
_MAX_BEFORE: Final = 3
_MAX_FOUND: Final = 20


class Disk:
    """File permissions of this process on this machine, without a sandbox."""

    def real(self, path: str) -> str:
        """Return the path with links resolved, as far as it exists."""
        return os.path.realpath(path)

    def may(self, path: str, *, write: bool) -> bool:
        """True if the path could be read or written; for writing, a missing path counts if it could be created."""
        if os.path.lexists(path):
            return os.access(path, os.W_OK if write else os.R_OK)
        return write and os.access(os.path.dirname(path), os.W_OK | os.X_OK)

    def is_plain_file(self, path: str) -> bool:
        """True if the path is a regular file that this process may not execute."""
        return os.path.isfile(path) and not os.access(path, os.X_OK)

    def is_there(self, path: str) -> bool:
        """True if the path exists, also as a dangling link."""
        return os.path.lexists(path)

    def same_device(self, one: str, other: str) -> bool:
        """True if both paths are, or would be created, on the same file system."""
        return _device(one) == _device(other)


def _device(path: str) -> int:
    try:
        return os.lstat(path if os.path.lexists(path) else os.path.dirname(path)).st_dev
    except OSError:
        return -1


def denials_in(
    output: str, exit_code: int, scope: CommandScope, cwd: str, disk: Disk, closed: Callable[[], Sequence[str]] = tuple
) -> list[Denial]:
    """Return the denials of `scope` found in the output of a command in `cwd`, each once, in the order of the lines;
    none if it succeeded. `closed` returns the writable directories in which the level lets nothing new be created."""
    if exit_code == 0:
        return []
    lines = [line[:_MAX_LINE] for line in output.splitlines() if line.strip()]
    found: dict[Denial, None] = {}
    for number in [number for number, line in enumerate(lines) if _REFUSED.search(line)][:_MAX_LINES]:
        line = lines[number]
        if _REMOTE.search(line):
            continue
        paths = list(_paths(line, cwd))
        back = number
        # In a chain of errors the path may be a few lines above the refusal.
        while not paths and back > max(0, number - _MAX_BEFORE):
            back -= 1
            paths = list(_paths(lines[back], cwd)) if any(map(_CHAINED.search, lines[back:number])) else []
        for denial in _claim(line, paths, exit_code, scope, disk, closed):
            found[denial] = None
        if len(found) >= _MAX_FOUND:
            break
    return list(found)


def _paths(line: str, cwd: str) -> Iterator[str]:
    """Yield the paths that a line may name, absolute and without `..`."""
    seen: set[str] = set()
    for one in _paths_in(line):
        text = os.path.expanduser(one) if one.startswith("~") else one
        path = os.path.normpath(os.path.join(cwd, text))
        if "\0" not in path and path not in seen:
            seen.add(path)
            yield path


def _paths_in(line: str) -> Iterator[str]:
    quoted = [next(filter(None, match.groups())) for match in _QUOTED.finditer(line)]
    yield from (one.removeprefix("file://") for one in quoted)
    yield from (match[1].rstrip(":.,") for match in _UNIX_URL.finditer(line))
    rest = _QUOTED.sub(" ", line)
    program = _PROGRAM.match(rest)
    if program is not None and _REFUSED.split(program[1], maxsplit=1)[0].strip(" :-(["):
        rest = program[1]
    yield from (match[1].rstrip(".") for match in _LOOSE.finditer(rest))
    if quoted:
        return
    # `program: line 3: path: Permission denied`, if the path has no slash or contains a space.
    before = _REFUSED.split(rest, maxsplit=1)[0].rstrip(" :-(")
    parts = [part.strip() for part in before.split(": ") if part.strip()]
    path = _VERB.sub("", parts[-1]) if parts else ""
    if parts and (program is not None or path != parts[-1]):
        yield path


def _claim(
    line: str, paths: list[str], exit_code: int, scope: CommandScope, disk: Disk, closed: Callable[[], Sequence[str]]
) -> Iterator[Denial]:
    real = [disk.real(path) for path in paths]
    if _CROSS_DEVICE.search(line):
        refused = [path for path in real if refusal(scope, path, "posix", write=True) is not None]
        if len(real) >= 2 and refused and len({*real}) > 1 and disk.same_device(real[0], real[1]):
            yield Denial("path", refused[0], refusal(scope, refused[0], "posix", write=True) or "writes", "write")
        return
    if _BUSY.search(line):
        # Guarded paths, and each folder on the way to one, are mounts, which can be neither moved nor replaced.
        busy = [path for path in real if any(Places((path,), "posix").contain(one) for one in scope.guarded)]
        yield from (Denial("path", path, "guarded", "write") for path in busy[:1] if disk.is_there(path))
        return
    for path in real:
        rule = refusal(scope, path, "posix", write=False)
        if rule is not None and disk.is_there(path):
            if disk.may(path, write=False):
                yield Denial("path", path, rule, "read")
                return
            continue
        rule = refusal(scope, path, "posix", write=True)
        if rule is not None and _is_write(path, exit_code, disk) and disk.may(path, write=True):
            yield Denial("path", path, rule, "write")
            return
        is_new = rule is None and not disk.is_there(path) and disk.may(path, write=True)
        if is_new and os.path.dirname(path) in closed():
            yield Denial("path", path, "beside", "write")
            return


def _is_write(path: str, exit_code: int, disk: Disk) -> bool:
    """True if the refusal may concern writing. Running a file that is not executable fails without a sandbox, too."""
    if disk.is_plain_file(path):
        return exit_code != _NOT_EXECUTABLE and not path.endswith(_SHELL_SCRIPT)
    # A missing name directly below the root is probably not a path on disk.
    return disk.is_there(path) or os.path.dirname(path) != "/"


# Select the socket denials that made a command fail, by its output.

_NO_SOCKET: Final = re.compile(r"not permitted|permission denied|EACCES|EPERM", re.IGNORECASE)
_NO_NAME: Final = re.compile(
    r"resolv|name resolution|no matching distribution|name or service|EAI_AGAIN|ENOTFOUND|unknown host|lookup"
    r"|getaddrinfo",
    re.IGNORECASE,
)
_HOST: Final = re.compile(
    r"(?:resolve host(?:name)?:? |EAI_AGAIN |ENOTFOUND |lookup |unknown host |resolve )['\"‘“]?((?:[\w-]+\.)+[\w-]+)",
    re.IGNORECASE,
)


LOOK_UP: Final = "look up names by"
"""The action of a denied name look-up; only the output names the host."""


def filter_denials(
    denials: Iterable[Denial],
    text: str,
    is_allowed: Callable[[str], bool] = lambda _: False,
    *,
    was_ended: bool = False,
) -> list[Denial]:
    """Return the denials that matter for a command that failed and printed `text`: all except denied sockets that the
    output does not mention. A denied look-up gets the host from the output. `is_allowed` tells if a host was reachable
    by the proxy. If the command `was_ended`, look-ups always count, because it may still have been retrying without
    having printed an error."""
    found = []
    for denial in denials:
        is_look_up = denial.action == LOOK_UP
        # Many programs try a socket and continue without it.
        is_missed = (_NO_NAME if is_look_up else _NO_SOCKET).search(text) or denial.action not in ("use", LOOK_UP)
        if denial.kind == "socket" and not is_missed and not (was_ended and is_look_up):
            continue
        host = _HOST.search(text) if is_look_up else None
        if host is None:
            found.append(denial)
        else:
            rule = "domains" if denial.rule == "proxy" and not is_allowed(host[1]) else denial.rule
            found.append(Denial("host", host[1], rule, "connect"))
    return found
