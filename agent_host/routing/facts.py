"""From a call's arguments to the facts that policy judges (AH 8.2): the one place that looks at the disk for it."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, PathFacts, ShellName, UrlFacts
from policy.paths import nested_parts, nested_path, normalize
from policy.rules.repository_paths import repositories_by_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec
    from policy.bundle.model import PolicyBundle


class Environment(NamedTuple):
    """What relative things are relative to. All paths are real, absolute strings."""

    workspace: str
    home: str | None
    os_family: OsFamily
    shell: ShellName
    environment: Mapping[str, str] | None = None
    """What a command is given for its environment; None where nobody says."""


_OS_FAMILY: OsFamily = "windows" if os.name == "nt" else "posix"
_PROC = "/proc"
_MAX_FOLLOWED = 400
_MAY_BE_SECRET = re.compile(r"[^\s/.:-]{12}")


class UnusableArguments(Exception):
    """The arguments do not say on what the call acts; the call is answered with INVALID_REQUEST and never runs."""


class World(Protocol):
    """Where facts come from: this disk, or what somebody states about another one."""

    def path(self, spelled: str, where: Environment, new_size_bytes: int | None) -> PathFacts | None:
        """The facts of a path as a call spells it; None for one that is not absolute."""
        ...

    def directory(self, spelled: str, where: Environment) -> str:
        """The real directory that a command begins in."""
        ...

    def real(self, path: str, where: Environment) -> str:
        """Where an absolute path of a command line leads."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """The addresses of a URL's host, where they are known already."""
        ...


def gather(spec: ToolSpec, arguments: Mapping[str, Any], where: Environment, world: World | None = None) -> ActionFacts:
    """The facts about one call, from this disk where no other `world` is given. Raises UnusableArguments."""
    kind, argument, by_name = spec.subject
    if kind == "name" or (by_name and argument not in arguments and spec.content in arguments):
        return NamedToolFacts(spec.name)
    if by_name and spec.content in arguments:
        raise UnusableArguments(f"give {argument!r} or {spec.content!r}, not both")
    subject = arguments.get(argument)
    if not isinstance(subject, str) or not subject:
        raise UnusableArguments(f"argument {argument!r} must be a non-empty string")
    if "\0" in subject:
        raise UnusableArguments(f"argument {argument!r} must not contain a null byte")
    world = world or _DISK
    if kind == "command":
        return _command(subject, arguments, where, world)
    return _url(subject, arguments, world) if kind == "url" else _path(spec, subject, arguments, where, world)


def _path(spec: ToolSpec, subject: str, arguments: Mapping[str, Any], where: Environment, world: World) -> PathFacts:
    content = arguments.get(spec.content) if spec.content else None
    new_size_bytes = len(content.encode("utf-8", "replace")) if isinstance(content, str) else None
    facts = world.path(subject, where, new_size_bytes)
    if facts is None:
        raise UnusableArguments(f"argument {spec.subject.argument!r} must be an absolute path, not {subject!r}")
    if spec.changes_file and not _is_text(facts.real_path):  # what changes goes on record by this name
        raise UnusableArguments(f"{subject!r} leads to a name that is not UTF-8; files of such names are not changed")
    return facts._replace(tool_name=spec.name) if spec.subject.by_name else facts


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # the bytes of a name that is no UTF-8 are lone surrogates here
        return False
    return True


def path_facts(requested: str, absolute: str, *, new_size_bytes: int | None = None) -> PathFacts:
    """Facts about the absolute path `absolute`, which was asked for as `requested`. Touches the disk, opens nothing.

    `..` goes by the spelling and not by where a link leads, which is how the file tools read it (AH 8.3)."""
    absolute = os.path.normpath(absolute)
    real = os.path.realpath(absolute)
    steers = _in_repository(absolute) or (real != absolute and _in_repository(real))
    try:
        found = os.stat(real, follow_symlinks=False)
    except (OSError, ValueError):
        return PathFacts(requested, absolute, real, "missing", new_size_bytes=new_size_bytes, in_repository=steers)
    is_file = stat.S_ISREG(found.st_mode)
    return PathFacts(
        requested,
        absolute,
        real,
        "file" if is_file else "directory" if stat.S_ISDIR(found.st_mode) else "other",
        is_symlink=os.path.islink(absolute),
        size_bytes=found.st_size if is_file else None,
        new_size_bytes=new_size_bytes,
        in_repository=steers,
    )


def _in_repository(path: str) -> bool:
    """Whether a directory of which `path` would be a hook or the like is laid out like a repository, as git takes it:
    with its objects and refs, or with the name of the directory that has them."""

    def has(directory: str, *names: str) -> bool:
        return all(os.path.lexists(os.path.join(directory, name)) for name in names)

    directories = repositories_by_shape(normalize(path, _OS_FAMILY), _OS_FAMILY)
    return any(has(one, "HEAD") and (has(one, "objects", "refs") or has(one, "commondir")) for one, _ in directories)


def on_this_disk(bundle: PolicyBundle, where: Environment) -> PolicyBundle:
    """The bundle with where the entries of its path lists really lead. For an allowed path no link inside the workspace
    is followed: a change there would choose what is allowed."""
    allowed = {path for entry in bundle.capabilities for path in entry.allowed_paths or ()}
    blocked = {path for entry in bundle.capabilities for path in entry.blocked_paths or ()}
    outside = {path: _real_outside_of(path, where.workspace) for path in filter(_is_followed, allowed)}
    anywhere: dict[str, str] = {}
    for path in filter(_is_followed, blocked):
        nested = nested_parts(normalize(path, where.os_family), where.os_family)
        if nested is None:
            anywhere[path] = os.path.realpath(path)
            continue
        # Never as it is spelled: something might be called `**`.
        root, name = nested
        anywhere[path] = nested_path(os.path.realpath(root), name, where.os_family)
        direct = os.path.join(root, name)
        anywhere[direct] = os.path.realpath(direct)
    found = {"allowed": _moved(outside), "blocked": _moved(anywhere)}
    return bundle.on_disk(found) if any(found.values()) else bundle


def _is_followed(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path


def _moved(places: Mapping[str, str]) -> dict[str, str]:
    return {path: real for path, real in places.items() if real != os.path.normpath(path)}


def _real_outside_of(path: str, workspace: str) -> str:
    """Where `path` leads, with no link followed from the real `workspace` on."""
    parts = os.path.normpath(path).split(os.sep)
    for count in range(2, len(parts) + 1):
        real = os.path.realpath(os.sep.join(parts[:count]))
        if real == workspace or real.startswith(workspace.rstrip(os.sep) + os.sep):
            return os.path.join(real, *parts[count:])
    return os.path.realpath(path)


def _command(subject: str, arguments: Mapping[str, Any], where: Environment, world: World) -> CommandFacts:
    # The grammar is imported with the first command, not with the program.
    from policy.shell.commands import parsed_line, referenced_paths

    asked = arguments.get("cwd") or where.workspace
    if not isinstance(asked, str):
        raise UnusableArguments("argument 'cwd' must be a string")
    if "\0" in asked:
        raise UnusableArguments("argument 'cwd' must not contain a null byte")
    cwd = world.directory(asked, where)
    facts = CommandFacts(subject, cwd, where.shell, where.home, environment=read_from(where.environment, subject))
    paths = referenced_paths(parsed_line(facts), cwd, where.home)
    return facts._replace(real_paths={path: world.real(path, where) for path in paths})


def read_from(environment: Mapping[str, str] | None, command: str) -> dict[str, str]:
    """What the variables hold that a line reads; one that is not set holds nothing. A value that looks secret is
    left out."""
    if environment is None or "$" not in command:
        return {}
    from policy.shell.variables import names_read

    read = {name: environment.get(name, "") for name in names_read(command)}
    return {name: value for name, value in read.items() if not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    if not _MAY_BE_SECRET.search(value):
        return False
    from policy.detectors.redaction import Redaction

    text = f"{name}={value}"
    return Redaction((), key=lambda: b"", detectors=True).text(text) != text


def _real_for_child(path: str) -> str:
    """Where `path` leads for a command. What passes through /proc means another thing in another process (its own
    directory, its own descriptors), so it is not followed: policy gets to see the /proc in it."""
    real = os.path.realpath(path)
    if real == os.path.normpath(path):
        return real
    return _first_in_proc(path) or real


def _first_in_proc(path: str) -> str | None:
    """The place in /proc that following `path` comes through first, with what is left to follow; None when none."""
    followed, rest = "/", [part for part in path.split("/") if part]
    for _ in range(_MAX_FOLLOWED):
        if not rest:
            return None
        part = rest.pop(0)
        if part in (".", ".."):
            followed = os.path.normpath(os.path.join(followed, part))
            continue
        step = os.path.join(followed, part)
        if step == _PROC:
            return os.path.join(step, *rest)
        try:
            target = os.readlink(step)
        except (OSError, ValueError):
            followed = step
            continue
        if target.startswith("/"):
            followed = "/"
        rest = [part for part in target.split("/") if part] + rest
    return _PROC  # links without an end: what cannot be followed is refused like it


def _url(subject: str, arguments: Mapping[str, Any], world: World) -> UrlFacts:
    method = arguments.get("method") or "GET"
    if not isinstance(method, str):
        raise UnusableArguments("argument 'method' must be a string")
    return UrlFacts(subject, method.upper(), world.addresses())


def _expand_home(path: str, home: str | None) -> str:
    """`~` and `~/...` only: another user's home is nobody's business here."""
    if home is not None and (path == "~" or path.startswith(("~/", "~" + os.sep))):
        return home + path[1:]
    return path


class _Disk:
    """This machine, as it is now."""

    def path(self, spelled: str, where: Environment, new_size_bytes: int | None) -> PathFacts | None:
        expanded = _expand_home(spelled, where.home)
        return path_facts(spelled, expanded, new_size_bytes=new_size_bytes) if os.path.isabs(expanded) else None

    def directory(self, spelled: str, where: Environment) -> str:
        return os.path.realpath(normalize(spelled, where.os_family, where.workspace, where.home))

    def real(self, path: str, _where: Environment) -> str:
        return _real_for_child(path)

    def addresses(self) -> tuple[str, ...]:
        return ()


_DISK = _Disk()
