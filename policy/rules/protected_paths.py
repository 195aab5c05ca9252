"""Paths that have a meaning to git, and the contents of git directories: the only module with git's names; and the
temporary directories of sessions. Pure: paths are judged by their spelling alone, for any machine.

A git directory decides which programs git runs, also for a person who types `git status` in it later. So the list
contains the names that start nothing: objects, refs, logs, the index, heads and messages. State that git continues from
(a rebase, `worktrees`, `modules`) and configuration may stay if the content starts nothing. A command must not leave
any other name, known or not. Names are compared without letter case, as some file systems do.

`find_refused_name` judges by the name alone, for callers without the content: file tools, and names in an archive.
`find_left_problem` judges the leftovers of a command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from config.lean_typing import NamedTuple
from policy.paths import ancestors, is_absolute, is_under, key, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policy.facts import OsFamily

FREE_FOLDERS = frozenset({"objects", "refs", "logs", "reftable", "rr-cache", "lfs"})
"""Folders whose content starts nothing, whatever it is; of git's extensions those that keep only contents."""
_NAMES = (
    r"(?:head|index|packed-refs|shallow|auto_merge|[a-z_]+_head|merge_[a-z_]+|[a-z_]+msg|[a-z_]+_description|bisect_\w+"
    r"|notes_merge_\w+|gc\.pid|gc\.log)"
)
_FREE_NAMES = (
    rf"{_NAMES}(?:\.lock)?|config\.lock|index\.[\w.-]+|next-index-\d+(?:\.lock)?|sharedindex\.\w+|packed-refs\.new"
    r"|shallow_\w+"
)
STATE_FOLDERS = ("rebase-merge", "rebase-apply", "sequencer")
CONFIGS = frozenset({"config", "config.worktree"})
CONTAINERS = ("worktrees", "modules")
"""Folders of other git directories: those of linked working trees, and of submodules."""
_LEADING = frozenset({"commondir", "gitdir"})
SHAPE = frozenset({"head", "objects", "refs", "commondir"})
"""Names that make a directory a git directory, whatever it is called."""
STEERING = CONFIGS.union(_LEADING, CONTAINERS, STATE_FOLDERS, ("hooks", "info", "branches", "remotes"))
"""Names by which git may start a program, in a directory that is laid out like a git directory."""
FILES = CONFIGS.union(_LEADING, ("head", "description"))
"""Those that are files where git makes them."""
_LIKE_GIT = STEERING.union(SHAPE, ("description",))
_EXCLUDE = ("info", "exclude")
ALTERNATES = ("objects", "info", "alternates")
"""The file that names folders of objects of other repositories, which git reads as this one's."""
_STRATEGIES = frozenset({"ort", "recursive", "resolve", "octopus", "ours", "subtree"})
_TODO = frozenset({
    "pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "drop", "d", "label", "l", "reset", "t",
    "merge", "m", "update-ref", "u", "noop", "break", "b", "revert",
})  # fmt: skip
"""The steps of a rebase that start nothing: all of git's except `exec`."""
_QUOTED = r"'(?:[^']|'\\['!]')*'"
_AUTHOR = rf"(?:GIT_AUTHOR_(?:NAME|EMAIL|DATE)={_QUOTED}|\n)*+"
_APPLY_OPTION = (
    r" ?'(?:-[pC]\d+|--whitespace=[\w-]+|--(?:directory|exclude|include)=[^']*|--ignore-(?:space-change|whitespace)"
    r"|--reject)'"
)
_COMMON_OF_TREE = b"../.."
_MAX_LINK = 4096

Role = Literal["own", "worktree", "module"]
Kind = Literal["file", "directory", "other"]


class GitDirectory(NamedTuple):
    """One git directory. `path` is absolute and real. `role`: of a linked working tree (`worktrees/NAME`), of a
    submodule (`modules/NAME`), or neither. `is_new`: a command has created it, so it has the files of git's templates.
    `is_strict`: names unknown to git are denied too; a directory that is only laid out like a repository may have a
    project's files as well."""

    path: str
    role: Role = "own"
    is_new: bool = False
    is_strict: bool = True


class LeftEntry(NamedTuple):
    """One entry of it: `content` is a file's, None if it is too large to be kept. `target` is the real path named by
    the content (`target_of`), None if it names none."""

    kind: Kind
    content: bytes | None = b""
    target: str | None = None


def is_free(name: str) -> bool:
    """True for a name directly in a git directory, in lower case, whose content starts nothing."""
    return name in FREE_FOLDERS or re.fullmatch(_FREE_NAMES, name) is not None


def find_refused_name(inside: Sequence[str]) -> str | None:
    """Return the part of a path inside a git directory (lower case) that only git may write; None for none."""
    if not inside:
        return None
    first = inside[0]
    if first == "worktrees":
        return find_refused_name(inside[2:]) if len(inside) > 2 else first
    if first == "modules":  # whose names may have slashes
        splits = [inside[at:] for at in range(2, len(inside)) if inside[at] in _LIKE_GIT or is_free(inside[at])]
        return next(filter(None, map(find_refused_name, splits)), None) if splits else first
    if (first in CONFIGS and len(inside) > 1) or tuple(inside) == _EXCLUDE:  # a folder is not read as a configuration
        return None
    return None if is_free(first) else first


def is_laid_out(names: Iterable[str]) -> bool:
    """True if git takes a directory with these entries for a git directory."""
    folded = {name.lower() for name in names} & SHAPE
    return "head" in folded and ({"objects", "refs"} <= folded or "commondir" in folded)


def target_of(content: bytes | None, directory: str) -> str | None:
    """Return the target of a file whose content is a path or `gitdir: PATH`, absolute by spelling; None if there is
    none."""
    if content is None or len(content) > _MAX_LINK or b"\0" in content:
        return None
    named = content.decode("utf-8", "surrogateescape").removeprefix("gitdir: ").rstrip("\r\n")
    return normalize(named, "posix", directory) if named and "\n" not in named else None


def find_left_problem(
    of: GitDirectory, inside: Sequence[str], left: LeftEntry | None, before: LeftEntry | None, roots: Sequence[str]
) -> str | None:
    """Return why a command must not leave its change in a git directory; None if it starts nothing.

    `inside` are the components of the entry's path in it, without those of working trees and submodules, which are git
    directories themselves. `left` is the present entry, None for none; `before` is the entry before the command.
    `roots` are the real paths that may contain a working tree."""
    folded = tuple(one.lower() for one in inside)
    name = folded[0]
    if left is not None and left.kind == "other":
        return "a git directory has no links and no devices"
    if folded == ALTERNATES and left is not None:
        return None if left == before or _is_within(left, roots) else "git would read objects of another repository"
    if name in FREE_FOLDERS or (left is None and (of.is_new or name in STATE_FOLDERS)):
        return None
    if name in STATE_FOLDERS:
        return _state_problem(name, folded[1:], left)
    if len(inside) == 1 and (re.fullmatch(_FREE_NAMES, name) or (of.role == "worktree" and name == "locked")):
        return None
    if name in CONTAINERS:
        return None if left is None or left.kind == "directory" else "git keeps directories there"
    if of.role == "worktree" and name in _LEADING:
        return _leading_problem(name, left, roots)
    if name in CONFIGS and len(inside) == 1:
        return _configuration_problem(of, left, before, roots)
    if left is not None and left.kind == "file" and folded == _EXCLUDE:
        return None
    if of.is_new and left is not None and _is_of_template(folded, left):
        return None
    if not of.is_strict and name not in _LIKE_GIT:
        return None
    return "git may start a program by it" if name in _LIKE_GIT else "git makes no such file there"


def git_file_problem(left: LeftEntry, known: Iterable[str]) -> str | None:
    """Return why a command must not leave a `.git` that is not a directory; `known` are the judged git directories."""
    if left.kind != "file" or left.content is None or not left.content.startswith(b"gitdir: "):
        return "it leads to no git directory"
    return (
        None if left.target in set(known) else "it leads to a directory that is not a git directory of this workspace"
    )


def _configuration_problem(
    of: GitDirectory, left: LeftEntry | None, before: LeftEntry | None, roots: Sequence[str]
) -> str | None:
    if left is None:
        return "a command may not remove it"
    if left.kind != "file" or left.content is None:
        return "it cannot be read as git reads it"
    if left.target is not None and not any(is_under(left.target, root, "posix") for root in roots):
        return "its working tree is elsewhere"
    earlier = before.content if before is not None and before.kind == "file" else b""
    return config_problem(left.content, earlier or b"", of.path, roots)


def _leading_problem(name: str, left: LeftEntry | None, roots: Sequence[str]) -> str | None:
    if left is None:
        return None
    if name == "commondir":
        is_expected = left.content is not None and left.content.strip() == _COMMON_OF_TREE
    else:
        is_expected = left.content is not None and _is_within(left, roots) and (left.target or "").endswith("/.git")
    return None if left.kind == "file" and is_expected else "it leads elsewhere"


def _is_within(left: LeftEntry, roots: Sequence[str]) -> bool:
    return left.target is not None and any(is_under(left.target, root, "posix") for root in roots)


def _is_of_template(inside: Sequence[str], left: LeftEntry) -> bool:
    """True for files that `git init` copies from its templates, and for files without further content."""
    if len(inside) == 1:
        return left.kind == ("file" if inside[0] == "description" else "directory") and inside[0] in _TEMPLATE
    folder, name = inside[0], inside[-1]
    is_sample = folder == "hooks" and name.endswith(".sample")
    return len(inside) == 2 and left.kind == "file" and (is_sample or (folder, name) == ("info", "refs"))


_TEMPLATE = frozenset({"description", "hooks", "info", "branches"})


def _state_problem(folder: str, inside: Sequence[str], left: LeftEntry | None) -> str | None:
    if left is None or left.kind == "directory":
        return None
    if left.content is None:
        return "it is too large to be judged"
    if len(inside) != 1:
        return None
    text = left.content.decode("utf-8", "surrogateescape")
    name = inside[0].removesuffix(".backup")
    if name in ("git-rebase-todo", "done", "todo") and not all(map(_is_step, text.split("\n"))):
        return "it has a step that starts a program, or that git does not know"
    if name == "strategy" and text.strip() not in _STRATEGIES:
        return "it names a strategy that is not git's own"
    if name == "author-script" and not re.fullmatch(_AUTHOR, text):
        return "it sets more than an author"
    if name == "apply-opt" and not re.fullmatch(rf"(?:{_APPLY_OPTION})*\s*", text):
        return "it has an option that git am does not pass on"
    if folder == "sequencer" and name == "opts":
        return _options_problem(left.content)
    return None


def _is_step(line: str) -> bool:
    line = line.lstrip(" \t")
    if not line[:1].isalpha():
        return True
    return re.split(r"[ \t\r]", line, maxsplit=1)[0] in _TODO


def _options_problem(content: bytes) -> str | None:
    found = settings_of(content)
    if found is None or any(one.section != "options" for one in found):
        return "it cannot be read as git reads it"
    is_custom = any(one.key == "strategy" and one.value not in _STRATEGIES for one in found)
    return "it names a strategy that is not git's own" if is_custom else None


# Read the configuration of a git repository as git does, and judge a command's changes in it. Pure.
#
# Only listed keys may be added, removed and changed: they name branches, remotes and people. Every other key may start
# a program, now or in the next version of git.

MAX_BYTES = 256 * 1024
"""A longer file is not read, and counts as one that git could not read either."""
_PLAIN = frozenset({
    "core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase",
    "core.precomposeunicode", "extensions.objectformat", "user.name", "user.email", "pull.rebase", "push.default",
    "init.defaultbranch", "submodule.active",
})  # fmt: skip
_NAMED = frozenset({
    ("remote", "url"), ("remote", "fetch"), ("branch", "remote"), ("branch", "merge"), ("branch", "rebase"),
    ("submodule", "url"), ("submodule", "active"),
})  # fmt: skip
"""The keys that have a name between section and key: `remote.origin.url`."""
_ADDRESSES = frozenset({("remote", "url"), ("submodule", "url"), ("branch", "remote")})
_STARTS_A_HELPER = r"-|[^/]*::|\w*!"
"""Prefixes of an address that is an option, or that a program `git-remote-NAME` serves."""
# git's own grammar (`config.c`), of which the values are read character by character.
_BLANKS = r"(?:[ \t\r\n]|[#;][^\n]*\n)*"
_HEADER = r'\[([A-Za-z0-9.-]*)(?:[ \t\r]+"((?:[^"\\\n]|\\[^\n])*)")?\]'
_KEY = r"([A-Za-z][A-Za-z0-9-]*)[ \t]*([=\n])"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}


class GitSetting(NamedTuple):
    """One line: `section` and `key` in lower case, `name` as written or None; a key without a value has None."""

    section: str
    name: str | None
    key: str
    value: str | None


def settings_of(content: bytes) -> list[GitSetting] | None:
    """The settings of a file in their order; None if git would not read all of it, or beyond MAX_BYTES."""
    if len(content) > MAX_BYTES or b"\0" in content:
        return None
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n") + "\n"
    found: list[GitSetting] = []
    section, name, place = "", None, 0
    while (place := re.compile(_BLANKS).match(text, place).end()) < len(text):  # type: ignore[union-attr]
        header = re.compile(_HEADER).match(text, place)
        key = re.compile(_KEY).match(text, place) if section else None
        if header is not None:
            section, name, place = header[1].lower(), header[2], header.end()
            if name is None:
                section, dot, rest = section.partition(".")
                name = rest if dot else None
            else:
                name = re.sub(r"\\(.)", r"\1", name)
        elif key is not None:
            read = _read_value(text, key.end()) if key[2] == "=" else (None, key.end())
            if read is None:
                return None
            value, place = read
            found.append(GitSetting(section, name, key[1].lower(), value))
        else:
            return None
    return found


def tree_of(content: bytes, directory: str) -> str | None:
    """The working tree that the `config` of a git directory (POSIX, absolute) names, as spelled; None for none."""
    trees = [one.value or "" for one in settings_of(content) or [] if one[:3] == ("core", None, "worktree")]
    return normalize(trees[-1], "posix", directory) if trees else None


def config_problem(content: bytes, before: bytes, directory: str, roots: Sequence[str]) -> str | None:
    """Return the setting that a command must not leave in the `config` of the git directory `directory` (POSIX,
    absolute), whose content was `before`; None if there is none. A working tree must be below one of the real paths
    `roots`."""
    now, then = settings_of(content), settings_of(before)
    if now is None:
        return "it cannot be read as git reads it"
    kept = [one for one in then or [] if not _is_harmless(one, directory, roots)]
    left = [one for one in now if not _is_harmless(one, directory, roots)]
    if left == kept:
        return None
    changed = next((one for one in left if one not in kept), None) or next(iter([*kept, *left]))
    name = ".".join(filter(None, (changed.section, changed.name, changed.key)))
    return f"a command may not set or remove {name}"


def _is_harmless(one: GitSetting, directory: str, roots: Sequence[str]) -> bool:
    if one.section == "core" and one.name is None and one.key == "worktree":
        tree = normalize(one.value or "", "posix", directory)
        return any(is_under(tree, root, "posix") for root in roots)
    if (one.section, one.key) in _ADDRESSES and re.match(_STARTS_A_HELPER, one.value or ""):
        return False
    if one.name is None:
        return f"{one.section}.{one.key}" in _PLAIN
    return (one.section, one.key) in _NAMED


def _read_value(text: str, place: int) -> tuple[str, int] | None:
    """The value after `=`, and the position after its line; None if git rejects it."""
    value: list[str] = []
    length, is_quoted = 0, False
    while place < len(text):
        character, place = text[place], place + 1
        if character == "\n" or (character in "#;" and not is_quoted):
            end = place if character == "\n" else text.index("\n", place) + 1
            return None if is_quoted else ("".join(value[:length]), end)
        if character == '"':
            is_quoted = not is_quoted
        elif character in " \t\r" and not is_quoted:
            value += [character] if value else []  # counts if something follows
        elif character != "\\":
            value.append(character)
            length = len(value)
        else:
            character, place = text[place], place + 1
            if character != "\n" and character not in _ESCAPES:
                return None
            if character != "\n":
                value.append(_ESCAPES[character])
                length = len(value)
    return None


# Paths of git repositories, by their spelling alone.

_MOST_DIRECTORIES = 3


def repository_place(
    path: str, allowed: Iterable[str] | None, os: OsFamily, *, in_repository: bool = False
) -> str | None:
    """Return the part of a git repository that a write to a normalised absolute path would change so that git may run
    other programs: `.git` itself, or anything in it whose name alone may start something (`find_refused_name`). None
    for any other path, and for one covered by an entry of `allowed` that names a `.git` itself. Letter case and
    characters that file systems ignore in names do not matter.

    `in_repository`: the directory is laid out like a repository, whatever its name, or becomes one by this change. Then
    an entry of `allowed` must be that directory, or be in it."""
    place = _repository_place(path, os)
    if place is not None:
        return None if names_repository(path, allowed, os) else place
    for directory, inside in repositories_by_shape(path, os)[:1] if in_repository else ():
        if not any(is_under(path, one, os) and is_under(one, directory, os) for one in allowed or ()):
            return f"{_parts(directory, os)[-1]}/{inside}"
    return None


def is_called(path: str, name: str, os: OsFamily) -> bool:
    """True if `name` is the last component of a normalised absolute path."""
    return _parts(path, os)[-1] == name


def names_repository(path: str, allowed: Iterable[str] | None, os: OsFamily) -> bool:
    """True if an entry of `allowed` that covers the path names a `.git` itself."""
    return any(".git" in _parts(one, os) and is_under(path, one, os) for one in allowed or ())


def names_directory(directory: str, allowed: Iterable[str] | None, os: OsFamily) -> bool:
    """True if an entry of `allowed` names the git directory itself, so that its contents are ordinary files."""
    return names_repository(directory, allowed, os) or any(is_under(one, directory, os) for one in allowed or ())


def repositories_by_shape(path: str, os: OsFamily, names: frozenset[str] = STEERING) -> tuple[tuple[str, str], ...]:
    """Return (directory, part of it) for each directory of which a normalised absolute path would be a hook, the
    configuration or the like if that directory were a repository (with SHAPE as `names`: that it may make one of),
    nearest first and three at most. None for most paths, and for those in a `.git`, which that name describes."""
    folded = _parts(key(path, os, "wide"), os)
    if names.isdisjoint(folded) or ".git" in folded:
        return ()
    last = len(folded) - 1
    found = [
        (place, part)
        for place, part in enumerate(folded)
        if place > 0 and part in names and (place == last or part not in FILES)
    ]
    separator = "/" if os == "posix" else "\\"
    parts = _parts(path, os)
    return tuple(
        (normalize(separator.join(parts[:place]) + separator, os), part)
        for place, part in reversed(found[-_MOST_DIRECTORIES:])
    )


def _parts(path: str, os: OsFamily) -> list[str]:
    return (path.replace("\\", "/") if os == "windows" else path).split("/")


def _repository_place(path: str, os: OsFamily) -> str | None:
    plain = key(path, os, "wide")
    if ".git" not in plain:
        return None
    parts = _parts(plain, os)
    refused = None
    for place, part in enumerate(parts):
        if part == ".git":
            inside = parts[place + 1 :]
            named = find_refused_name(inside)
            refused = ".git" if not inside else refused if named is None else f".git/{named}"
    return refused


# The temporary directories of sessions, which are siblings: no session may use another's.

OF_SESSIONS = "agent-host-"
_SESSION_FOLDER = re.compile(OF_SESSIONS + r"[A-Za-z0-9_-]+-[0-9a-f]{8}")
_TEMPORARY_FOLDERS = frozenset({
    "/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "c:\\windows\\temp",  # noqa: S108  names to compare with
})  # fmt: skip


def session_place(path: str, allowed: Iterable[str], os: OsFamily) -> str | None:
    """The temporary directory of a session that contains a normalised absolute path, unless an entry of `allowed` that
    covers the path names that directory itself. None for any other path. Such a directory is directly in a directory
    for temporary files: a usual one, or the parent of a session's directory in `allowed`."""
    entries = [normalize(one, os) for one in allowed if is_absolute(one, os)]
    folders = _TEMPORARY_FOLDERS | {key(_parent(one, os), os, "wide") for one in entries if _is_of_session(one, os)}
    for at in ancestors(path, os, len(path)):
        if _name(key(at, os, "wide"), os).startswith(OF_SESSIONS) and key(_parent(at, os), os, "wide") in folders:
            named = any(is_under(one, at, os) and is_under(path, one, os) for one in entries)
            return None if named else at
    return None


def own_place(path: str, allowed: Iterable[str], os: OsFamily) -> str | None:
    """The session's own temporary directory in `allowed`, if a normalised path is beside or in it."""
    own = next((one for one in allowed if _is_of_session(one, os)), None)
    return own if own is not None and is_under(path, _parent(own, os), os) else None


def is_shared_temporary(path: str, own: str | None, os: OsFamily) -> bool:
    """True for a directory that sessions have theirs in: a usual one, or that of the session's `own`."""
    shared = _TEMPORARY_FOLDERS if own is None else _TEMPORARY_FOLDERS | {key(_parent(own, os), os, "wide")}
    return key(path, os, "wide") in shared


def may_be_of_session(path: str, os: OsFamily) -> bool:
    """True if a name on the path is like that of a session's temporary directory."""
    return OF_SESSIONS in key(path, os, "wide")


def session_samples(allowed: Iterable[str], os: OsFamily) -> list[str]:
    """The directory of a nonexistent session, in each place that may contain those of others."""
    entries = [normalize(one, os) for one in allowed if is_absolute(one, os)]
    folders = [_parent(one, os) for one in entries if _is_of_session(one, os)]
    usual = sorted(one for one in _TEMPORARY_FOLDERS if is_absolute(one, os))
    return [f"{folder}/{OF_SESSIONS}s-00000000" for folder in dict.fromkeys((*folders, *usual))]


def _parent(path: str, os: OsFamily) -> str:
    return normalize(path + "/..", os)


def _is_of_session(path: str, os: OsFamily) -> bool:
    return _SESSION_FOLDER.fullmatch(_name(path, os)) is not None


def _name(path: str, os: OsFamily) -> str:
    return re.split(r"[\\/]" if os == "windows" else "/", path)[-1]
