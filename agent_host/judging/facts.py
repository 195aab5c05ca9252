"""From a call's arguments to the facts that policy judges (AH 8.2): the one place that looks at the disk for it."""

from __future__ import annotations

import os
import re
import shutil
import stat
from typing import TYPE_CHECKING, Any, Protocol

from agent_host.contracts import ToolError
from agent_host.errors import ErrorCode
from agent_host.safe_open import O_PATH, intended_path, open_exact, steps
from config.json_text import encodable
from policy import CapabilityName
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, PathFacts, PathKind, ScriptFacts, UrlFacts
from policy.paths import ANY_DEPTH, finds_name, is_pattern, normalize, split_nested
from policy.redaction import Redaction
from policy.rules.native_exec import places_of
from policy.rules.protected_paths import SHAPE, STEERING, is_laid_out, repositories_by_shape
from policy.shell import BadArgv, argv_of, line_of, parse_line, paths_in_line, variables_of, words_of
from policy.shell.variables import names_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent_host.contracts import ToolSpec
    from agent_host.judging import Environment
    from policy.bundle import PolicyBundle
    from policy.facts import ShellName

_OS_FAMILY: OsFamily = "windows" if os.name == "nt" else "posix"
_PROC = "/proc"
_SLASHES = ("/", "\\") if os.name == "nt" else ("/",)
_KINDS: Mapping[int, PathKind] = {stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_MOST_LOOKED_THROUGH = 300_000
_MAY_BE_SECRET = re.compile(r"[^\s/.:-]{12}")


class UnusableArguments(Exception):
    """The arguments do not determine what the call acts on; the call fails with `code` and never runs."""

    def __init__(self, message: str, code: str = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


def gather(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    environment: Environment,
    world: World | None = None,
    scripts: Scripts | None = None,
    bundle: PolicyBundle | None = None,
) -> ActionFacts:
    """The facts about one call, by default from this disk, else from `world`; `scripts` are those of the skills on it.
    Under a `bundle` without a sandbox for commands, a shell line's trees and globs are searched. Raises
    UnusableArguments."""
    kind, argument, by_name = spec.subject[:3]
    arguments = spec.complete(arguments, environment.workspace)
    if kind == "name" or (by_name and argument not in arguments and spec.content in arguments):
        others = spec.needs(arguments) if kind == "name" else ()
        # The facts by which a tool of this machine would be judged, in whose place another one runs elsewhere.
        local = ((need.capability, spec._replace(subject=need.subject, also=())) for need in others)
        also = ((needed, gather(one, arguments, environment, world)) for needed, one in local)
        return NamedToolFacts(spec.name, also=tuple(also))
    if by_name and spec.content in arguments:
        raise UnusableArguments(f"give {argument!r} or {spec.content!r}, not both")
    is_here = world is None
    world = world or THIS_DISK
    subject = _subject(argument, arguments)
    if kind == "command":
        command = _command(subject, arguments, environment, world)
        return _add_trees(command, bundle) if bundle is not None and is_here and not bundle.sandboxed else command
    if kind == "program":
        return program_facts(arguments, environment, world)
    if kind == "script":
        return script_facts(_subject("skill", arguments), subject, arguments, environment, world, scripts)
    if kind == "url":
        method = arguments.get("method") or "GET"
        if not isinstance(method, str):
            raise UnusableArguments("argument 'method' must be a string")
        found = UrlFacts(subject, method.upper(), world.addresses())
        files = ((need.capability, need.subject.argument) for need in spec.needs(arguments))
        return found._replace(
            also=tuple(
                (needed, _path(spec, name, arguments, environment, world, reads=needed == CapabilityName.FILE_READ))
                for needed, name in files
            )
        )
    facts = _path(spec, argument, arguments, environment, world, reads=spec.effect == "none")
    if spec.subject.tree_flag and arguments.get(spec.subject.tree_flag) is True:
        facts = facts._replace(tree=facts.kind == "directory")
    if by_name:
        facts = facts._replace(tool_name=spec.name)
    return _add_others(facts, spec, arguments, environment, world) if spec.also else facts


def _subject(argument: str, arguments: Mapping[str, Any]) -> str:
    subject = arguments.get(argument)
    if not isinstance(subject, str) or not subject:
        raise UnusableArguments(f"argument {argument!r} must be a non-empty string")
    if "\0" in subject:
        raise UnusableArguments(f"argument {argument!r} must not contain a null byte")
    return subject


def _path(
    spec: ToolSpec,
    argument: str,
    arguments: Mapping[str, Any],
    environment: Environment,
    world: World,
    *,
    reads: bool = False,
) -> PathFacts:
    """The facts of the path in `argument`, with its size by the call's content. `reads`: it is only read."""
    subject = _subject(argument, arguments)
    content = arguments.get(spec.content) if spec.content else None
    new_size_bytes = len(content.encode("utf-8", "replace")) if isinstance(content, str) else None
    acts_on_name = spec.effect in ("delete", "move")
    acts_on_tree = bool(spec.subject.tree_flag) and arguments.get(spec.subject.tree_flag) is True
    is_subject = argument == spec.subject.argument
    facts = world.path(
        subject, environment, new_size_bytes, is_subject=is_subject, follow=not acts_on_name, looks=reads
    )
    if facts is None:
        raise UnusableArguments(
            f"argument {argument!r} must be a path in the workspace or an absolute one, not {subject!r}"
        )
    if subject.endswith(_SLASHES) and (facts.kind == "file" or (not reads and not acts_on_tree)):
        raise UnusableArguments(f"argument {argument!r} ends in a slash, so it names a directory: {subject!r}")
    # Changes are recorded by name; bytes that are not UTF-8 are lone surrogates in it.
    if spec.changes_file and encodable(facts.real_path) != facts.real_path:
        raise UnusableArguments(f"{subject!r} leads to a name that is not UTF-8; files of such names are not changed")
    return facts


def _add_others(
    facts: PathFacts, spec: ToolSpec, arguments: Mapping[str, Any], environment: Environment, world: World
) -> PathFacts:
    """`facts` with those for the call's further capabilities; a moved file keeps its size."""
    others: list[tuple[str, PathFacts]] = []
    for need in spec.also:
        argument = need.subject.argument
        if argument == spec.subject.argument:
            others.append((need.capability, facts))
            continue
        other = _path(spec, argument, arguments, environment, world)
        if spec.effect == "move":
            other = other._replace(new_size_bytes=facts.size_bytes)
        others.append((need.capability, other))
    return facts._replace(also=tuple(others))


def path_facts(requested: str, absolute: str, *, new_size_bytes: int | None = None, follow: bool = True) -> PathFacts:
    """Facts about the absolute path `absolute`, spelled `requested` by the call. Accesses the disk, but reads no file.
    Without `follow` they are about a link at its end itself. `..` removes the previous component of the spelling, not
    of a link's target, as in the file tools (AH 8.3)."""
    absolute = os.path.normpath(absolute)
    real, found = _found_at(absolute) if follow else _stat_name(absolute)
    steers = _is_in_repository(absolute) or (real != absolute and _is_in_repository(real))
    makes = _repository_made(real)
    if found is None:
        return PathFacts(
            requested, absolute, real, "missing",
            new_size_bytes=new_size_bytes, in_repository=steers, makes_repository=makes,
        )  # fmt: skip
    is_file = stat.S_ISREG(found.st_mode)
    return PathFacts(
        requested,
        absolute,
        real,
        "file" if is_file else _KINDS.get(stat.S_IFMT(found.st_mode), "other"),
        is_symlink=stat.S_ISLNK(found.st_mode) or (real != absolute and os.path.islink(absolute)),
        size_bytes=found.st_size if is_file else None,
        new_size_bytes=new_size_bytes,
        in_repository=steers,
        makes_repository=makes,
    )


def _found_at(absolute: str) -> tuple[str, os.stat_result | None]:
    """The real path, and its status; if possible, one system call shows that there is no link on the way."""
    fd = open_exact(absolute, O_PATH)
    if fd is not None:
        try:
            return absolute, os.fstat(fd)
        finally:
            os.close(fd)
    real = os.path.realpath(absolute)
    try:
        return real, os.stat(real, follow_symlinks=False)
    except (OSError, ValueError):
        return real, None


def _stat_name(absolute: str) -> tuple[str, os.stat_result | None]:
    """The real path of the directory plus the last name of the path, and the status of that name."""
    parent, name = os.path.split(absolute)
    real = os.path.join(os.path.realpath(parent), name)
    try:
        return real, os.stat(real, follow_symlinks=False)
    except (OSError, ValueError):
        return real, None


def _is_in_repository(path: str) -> bool:
    """True if a directory of which `path` would be a hook or the like is laid out like a repository, as git takes it:
    with its objects and refs, or with the name of the directory that has them."""

    def has(directory: str, *names: str) -> bool:
        return all(os.path.lexists(os.path.join(directory, name)) for name in names)

    directories = repositories_by_shape(normalize(path, _OS_FAMILY), _OS_FAMILY)
    return any(has(one, "HEAD") and (has(one, "objects", "refs") or has(one, "commondir")) for one, _ in directories)


def _repository_made(path: str) -> str | None:
    """The directory that `path` would make a git directory, with names that start programs in it; else None."""
    for directory, part in repositories_by_shape(normalize(path, _OS_FAMILY), _OS_FAMILY, SHAPE):
        try:
            names = os.listdir(directory)
        except (OSError, ValueError):
            continue
        if not is_laid_out(names) and is_laid_out((*names, part)) and not STEERING.isdisjoint(map(str.lower, names)):
            return directory
    return None


def _command(subject: str, arguments: Mapping[str, Any], environment: Environment, world: World) -> CommandFacts:
    asked = arguments.get("cwd") or environment.workspace
    if not isinstance(asked, str):
        raise UnusableArguments("argument 'cwd' must be a string")
    if "\0" in asked:
        raise UnusableArguments("argument 'cwd' must not contain a null byte")
    cwd, read = world.directory(asked, environment), read_from(environment.environment, subject)
    facts = CommandFacts(subject, cwd, environment.shell, environment.home, environment=read)
    return _add_real_paths(facts, environment, world)


def _add_real_paths(
    facts: CommandFacts, environment: Environment, world: World, others: Iterable[str] = ()
) -> CommandFacts:
    paths = {*paths_in_line(parse_line(facts), facts.cwd, environment.home), *others}
    return facts._replace(real_paths={path: world.real(path, environment) for path in sorted(paths)})


def _add_trees(facts: CommandFacts, bundle: PolicyBundle) -> CommandFacts:
    """Add the names that the bundle blocks at any depth and that are below directories on which a line acts as a whole.
    Costs a walk through these, and nothing for other lines."""
    parsed = parse_line(facts)
    files = [one for one in parsed.files if one.pattern or one.tree]
    if not files:
        return facts
    entries = [bundle.capability(CapabilityName.FILE_WRITE), bundle.capability(CapabilityName.FILE_DELETE)]
    blocked = (path for entry in entries if entry is not None for path in entry.blocked_paths or ())
    names = {
        parts[1].casefold() for path in blocked if (parts := split_nested(normalize(path, _OS_FAMILY), _OS_FAMILY))
    }
    below: dict[str, tuple[str, ...] | None] = {}
    through: dict[tuple[str, str], tuple[str, ...]] = {}
    for one in files:
        pattern = one.pattern or ""
        is_tree = ANY_DEPTH in pattern or one.tree
        for spelling in one.spellings(facts.cwd, facts.home):
            root = facts.real_paths.get(spelling, spelling)
            if pattern:
                through[root, pattern] = tuple(_found_through_links(root, pattern, is_kept=one.mode != "delete"))
            known = below.get(root, ())
            found = (
                _find_below(root, names, None if is_tree else pattern.count("/") + 1)
                if names and known is not None
                else ()
            )
            below[root] = None if known is None or found is None else tuple(dict.fromkeys((*known, *found)))
    return facts._replace(below=below, through=through)


def _found_through_links(root: str, pattern: str, *, is_kept: bool) -> Iterator[str]:
    """The real paths of a pattern's matches below a directory by way of links. The last name counts as a link if its
    target is read or written; removing it removes the link."""
    pending = [(root, 0, False)]
    parts = pattern.strip("/").split("/")
    seen = 0
    while pending:
        directory, place, is_linked = pending.pop()
        rest = parts[place:]
        if not rest or rest[0] == ANY_DEPTH or not any(map(is_pattern, rest)):
            path = os.path.join(directory, *(rest if rest[:1] != [ANY_DEPTH] else []))
            if is_linked or (is_kept and os.path.islink(path)):
                yield os.path.realpath(path)
            continue
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        seen += len(names)
        if seen > _MOST_LOOKED_THROUGH:
            return
        for name in names:
            if finds_name(name, parts[place]):
                path = os.path.join(directory, name)
                is_last = place + 1 == len(parts)
                pending.append((path, place + 1, is_linked or ((is_kept or not is_last) and os.path.islink(path))))


def _find_below(root: str, names: set[str], deepest: int | None) -> tuple[str, ...] | None:
    """Return the entries below a directory with one of the names, which may begin with a star, and the entries inside
    of these; None if the directory is too large."""
    endings = tuple(name[1:] for name in names if name.startswith("*"))
    found: list[str] = []
    seen = 0
    inside_named: set[str] = set()
    for directory, directories, files in os.walk(root):
        seen += len(directories) + len(files)
        if seen > _MOST_LOOKED_THROUGH:
            return None
        inside = os.path.relpath(directory, root)
        lead = "" if inside == os.curdir else inside.replace(os.sep, "/") + "/"
        for name in (*directories, *files):
            plain = name.casefold()
            if directory in inside_named or plain in names or (endings and plain.endswith(endings)):
                found.append(lead + name)
                inside_named.add(os.path.join(directory, name))
        if deepest is not None and lead.count("/") + 1 >= deepest:
            directories.clear()
    return tuple(found)


def read_from(environment: Mapping[str, str] | None, command: str) -> dict[str, str]:
    """The variables that a line reads, with their values; empty if not set. A value that looks secret is left out."""
    if environment is None or "$" not in command:
        return {}
    read = {name: environment.get(name, "") for name in names_read(command)}
    return {name: value for name, value in read.items() if not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    if not _MAY_BE_SECRET.search(value):
        return False
    text = f"{name}={value}"
    return Redaction((), key=lambda: b"", detectors=True).text(text) != text


def _first_in_proc(path: str) -> str | None:
    """The first place in /proc on the way of `path`, with the rest of the path; None if there is none."""
    try:
        return next((os.path.join(step, *rest) for step, rest in steps(path) if step == _PROC), None)
    except OSError:
        return _PROC  # links without an end: what cannot be followed is refused like it


class World:
    """A source of facts: the present state of this machine. Another one has stated facts (`dry_run`)."""

    def path(
        self,
        spelled: str,
        environment: Environment,
        new_size_bytes: int | None,
        *,
        is_subject: bool = True,
        follow: bool = True,
        looks: bool = False,
    ) -> PathFacts | None:
        """The facts of a path as a call spells it; None for one that cannot be made absolute. `is_subject`: it is the
        first of the call's paths. Without `follow` a link at its end is judged itself. With `looks` a name that is not
        there may be another one that looks the same."""
        del is_subject  # all paths are on one disk
        absolute = environment.absolute(spelled)
        if not os.path.isabs(absolute):
            return None
        facts = path_facts(spelled, absolute, new_size_bytes=new_size_bytes, follow=follow)
        if facts.kind != "missing" or not (looks or "\\" in spelled):
            return facts
        meant = intended_path(facts.absolute, looks=looks)
        return facts if meant is None else path_facts(spelled, meant, new_size_bytes=new_size_bytes, follow=follow)

    def directory(self, spelled: str, environment: Environment) -> str:
        """The real directory that a command begins in."""
        return os.path.realpath(normalize(spelled, environment.os_family, environment.workspace, environment.home))

    def real(self, path: str, _environment: Environment) -> str:
        """The real path of an absolute path of a command line. What passes through /proc means another thing in another
        process (its own directory, its own descriptors), so it is not followed: policy gets to see the /proc in it."""
        real = os.path.realpath(path)
        return real if real == os.path.normpath(path) else _first_in_proc(path) or real

    def bare_name(self, program: str, environment: Environment) -> str | None:
        """The name by which a shell finds the program at this absolute path; None if it finds another, or none."""
        name = os.path.basename(program)
        path = (environment.environment or os.environ).get("PATH", "") if name else ""
        # The program that a command finds first, and the one that the host finds, which starts no interpreter in the
        # workspace.
        inside = environment.workspace.rstrip(os.sep) + os.sep
        entries = path.split(os.pathsep)
        outside = os.pathsep.join(
            one for one in entries if not os.path.join(os.path.realpath(one), "").startswith(inside)
        )
        found = filter(None, (shutil.which(name, path=one) for one in (path, outside) if one))
        return name if os.path.realpath(program) in map(os.path.realpath, found) else None

    def addresses(self) -> tuple[str, ...]:
        """The addresses of a URL's host, if already known."""
        return ()

    def script(
        self, skill: str, relative_path: str, _environment: Environment, scripts: Scripts | None
    ) -> ScriptFacts | ToolError:
        """A script of a skill, or why there is none."""
        if scripts is None:
            return ToolError(ErrorCode.FILE_NOT_FOUND, f"there is no skill {skill}")
        return scripts.look_up(skill, relative_path)


THIS_DISK = World()


# The facts of programs that start without a shell: native programs and scripts of skills (NT, SK 5.4).

_RUN = "run"
"""Stands for the directory of a run, whose name is made when it starts."""


class Scripts(Protocol):
    """The scripts of the skills on this machine."""

    @property
    def sandbox(self) -> str:
        """The real path of the directory in which each run of a script has one of its own."""

    @property
    def max_runs(self) -> int:
        """The number of scripts that may run in a task."""

    def look_up(self, skill: str, relative_path: str) -> ScriptFacts | ToolError:
        """A script, or why there is none that could run."""


def program_facts(arguments: Mapping[str, Any], environment: Environment, world: World) -> CommandFacts:
    """A program without a shell, as the line that would start the same: by its bare name if a shell finds it so."""
    os_family = environment.os_family
    asked = arguments.get("working_dir") or environment.workspace
    if not isinstance(asked, str) or "\0" in asked:
        raise UnusableArguments("argument 'working_dir' must be a string without a null byte")
    try:
        argv, variables = argv_of(arguments), variables_of(arguments)
        line = line_of((world.bare_name(argv[0], environment) or argv[0], *argv[1:]), variables, os_family)
    except BadArgv as error:
        raise UnusableArguments(str(error)) from error
    cwd = world.directory(asked, environment)
    shell: ShellName = "cmd" if os_family == "windows" else "sh"
    facts = CommandFacts(line, cwd, shell, environment.home, argv=argv, variables=tuple(variables))
    return _add_real_paths(facts, environment, world, places_of(argv, cwd, os_family))


def script_facts(
    skill: str,
    relative_path: str,
    arguments: Mapping[str, Any],
    environment: Environment,
    world: World,
    scripts: Scripts | None,
) -> CommandFacts:
    """A script of a skill, as the line that would start it. `_RUN` stands for the directory that its run will have."""
    found = world.script(skill, relative_path, environment, scripts)
    if isinstance(found, ToolError):
        raise UnusableArguments(found.message, found.code)
    os_family = environment.os_family
    try:
        args = words_of(arguments.get("args"), "args")
        argv = (*found.argv, found.path, *args)
        program = world.bare_name(argv[0], environment) or argv[0]
        line = line_of((program, *argv[1:]), {}, os_family)
    except BadArgv as error:
        raise UnusableArguments(str(error)) from error
    in_skill = arguments.get("cwd") == "skill"
    sandbox = environment.workspace if scripts is None else scripts.sandbox
    cwd = found.folder if in_skill else normalize(_RUN, os_family, sandbox)
    shell: ShellName = "cmd" if os_family == "windows" else "sh"
    facts = CommandFacts(line, cwd, shell, environment.home, argv=argv, script=found)
    return _add_real_paths(facts, environment, world)
