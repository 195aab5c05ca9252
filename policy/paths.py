"""Paths by spelling alone: normal forms, containment, rejected spellings (AH 8.3). Both dialects work on any machine.

Containment is by component, never by string prefix. Comparison is narrow for permissions and wide for denials: a block
list also matches names that a case-folding or Unicode-normalising file system would treat as equal.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from policy.facts import OsFamily

Width = Literal["narrow", "wide"]

_MAX_LENGTH: dict[OsFamily, int] = {"posix": 4096, "windows": 32_000}
PROCESS_PLACES = frozenset({"/proc", "/dev/fd"})
# Expressions are text, and compiled by the cache of `re` when they are first used: a start is not to wait for them.
_DRIVE = r"[A-Za-z]:"
_DEVICE = r"(?i:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|CLOCK\$|(?:COM|LPT)[0-9¹²³])\s*(?:[.:].*)?"
_SHORT_NAME = r"[^. ]{0,6}~[0-9]{1,6}(?:\.[^.]{0,3})?"
_IGNORED = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that some file systems (HFS+, ext4 with case folding) leave out of a comparison of names."""
_NOT_IN_NAMES = r'[<>"|?*\x00-\x1f]'


def normalize(path: str, os: OsFamily, cwd: str | None = None, home: str | None = None) -> str:
    """The lexical normal form: `.` and `..` resolved, separators unified, `~` expanded when `home` is given, made
    absolute when `cwd` is given. Links are not followed: that takes the disk. Pure, and idempotent on its result."""
    has_dots = "/." in path and ("/./" in path or "/../" in path or path.endswith(("/.", "/..")))
    if os == "posix" and path[:1] == "/" and path[1:] and path[-1] != "/" and "//" not in path and not has_dots:
        return path  # as nearly all are
    if home and (path == "~" or path.startswith(("~/", "~\\") if os == "windows" else "~/")):
        path = home + "/" + path[2:]
    if cwd is not None and not is_absolute(path, os):
        path = _join_windows(cwd, path) if os == "windows" else cwd + "/" + path
    root, rest = _split_root(path, os)
    kept: list[str] = []
    for part in rest.split("/"):
        if part in {"", "."}:
            continue
        if part == "..":
            if kept and kept[-1] != "..":
                kept.pop()
                continue
            if root:
                continue
        kept.append(part)
    if os == "windows":
        return (root + "\\".join(kept)) or "."
    return (root + "/".join(kept)) or "."


def is_absolute(path: str, os: OsFamily) -> bool:
    """True when the path names one place whatever the working directory (on Windows: with drive or share)."""
    if os == "posix":
        return path.startswith("/")
    plain = path.replace("/", "\\")
    return bool(re.match(r"[A-Za-z]:\\|\\\\[^\\]+\\[^\\]+", plain))


def is_share(path: str, os: OsFamily) -> bool:
    """True for a normalised absolute path on a share (`\\\\host\\share\\…`), which may be a directory of this machine
    (`\\\\localhost\\C$`)."""
    return os == "windows" and path.startswith("\\\\")


def is_under(path: str, root: str, os: OsFamily, width: Width = "narrow") -> bool:
    """True when `path` is `root` or inside it. Relative paths are under nothing, and nothing is under them."""
    if not (is_absolute(path, os) and is_absolute(root, os)):
        return False
    wanted = key(normalize(root, os), os, width)
    found = key(normalize(path, os), os, width)
    separator = "/" if os == "posix" else "\\"
    return found == wanted or found.startswith(wanted if wanted.endswith(separator) else wanted + separator)


def ancestors(path: str, os: OsFamily, longest: int) -> Iterator[str]:
    """A normalised absolute path and every directory above it, nearest first, of at most `longest` characters."""
    separator = "/" if os == "posix" else "\\"
    root_length = len(_split_root(path, os)[0])
    if len(path) > longest:
        path = path[: max(path.rfind(separator, 0, longest + 1), root_length)]
    yield path
    while len(path) > root_length:
        path = path[: max(path.rfind(separator), root_length)]
        yield path


def key(path: str, os: OsFamily, width: Width) -> str:
    """Return a comparison key, equal for normalised paths of the same place. A wide key follows the most forgiving file
    system, because any file system may be mounted here."""
    if path.isascii():
        return path.lower() if width == "wide" or os == "windows" else path
    if width == "wide":
        import unicodedata  # most paths are ASCII

        path = unicodedata.normalize("NFD", re.sub(_IGNORED, "", path)).casefold()
        return unicodedata.normalize("NFD", path)
    return "".join(map(_fold_one, path)) if os == "windows" else path


class Nested(NamedTuple):
    """The entries `ROOT/**/NAME` of one list, by comparison key: `names` has for each NAME its ROOTs and, for each of
    these, the entry; NAMEs that begin with a star keep it. `endings` are the lengths of what follows the star, `roots`
    all ROOTs, `longest` the length of the longest."""

    names: dict[str, dict[str, str]]
    endings: tuple[int, ...]
    roots: frozenset[str]
    longest: int


class Roots(NamedTuple):
    """The absolute paths of one list, by comparison key. `longest` is the length of the longest key; `relative` is an
    entry that is not absolute, if any; `nested` are entries that name something at any depth."""

    entries: dict[str, str]
    longest: int
    relative: str | None
    nested: Nested | None = None


def split_nested(path: str, os: OsFamily) -> tuple[str, str] | None:
    """(ROOT, NAME) of a normalised absolute `ROOT/**/NAME`, which stands for whatever is called NAME at any depth below
    ROOT, and all that is in it. NAME is one component and may begin with a star. None for every other path."""
    separator = "/" if os == "posix" else "\\"
    root, stars, name = path.rpartition(f"{separator}**{separator}")
    if not stars or separator in name or "*" in name[1:] or name == "*":
        return None
    return normalize(root + separator, os), name


def join_nested(root: str, name: str, os: OsFamily) -> str:
    """Join what `split_nested` takes apart."""
    separator = "/" if os == "posix" else "\\"
    return f"{root.rstrip(separator)}{separator}**{separator}{name}"


def roots(entries: Iterable[str], os: OsFamily, width: Width, real_places: Mapping[str, str] | None = None) -> Roots:
    """The look-up table of one list; `real_places` maps entries that are links to their targets, and both count.

    `ROOT/**/NAME` has a meaning in a wide table only, because a denial may cover more than intended, but a permission
    may not. For it `real_places` may have both the entry itself, for the real ROOT, and `ROOT/NAME`."""
    table: dict[str, str] = {}
    names: dict[str, dict[str, str]] = {}
    relative: str | None = None
    looked_up = real_places or {}
    for entry in entries:
        if not is_absolute(entry, os):
            relative = entry if relative is None else relative
            continue
        spelled, real = normalize(entry, os), looked_up.get(entry)
        nested = split_nested(spelled, os) if width == "wide" and "*" in spelled else None
        if nested is None:
            table[key(spelled, os, width)] = entry
        else:
            really = nested if real is None else split_nested(normalize(real, os), os) or nested
            for root, name in (nested, really):
                names.setdefault(key(name, os, width), {}).setdefault(key(root, os, width), entry)
            real = looked_up.get(normalize("/".join(nested), os))
        if real is not None:
            table.setdefault(key(normalize(real, os), os, width), entry)
    return Roots(table, max(map(len, table), default=0), relative, _nest(names) if names else None)


def _nest(names: dict[str, dict[str, str]]) -> Nested:
    above = frozenset(root for over in names.values() for root in over)
    endings = {len(name) - 1 for name in names if name.startswith("*")}
    return Nested(names, tuple(sorted(endings)), above, max(map(len, above)))


def covering(path: str, table: Roots, os: OsFamily, width: Width) -> str | None:
    """The entry of `roots(…)` that the normalised absolute path is under: of those that are places the nearest, else
    one that names something at any depth. The cost follows neither the number of entries nor, for places, how much
    deeper than they the path is; for the others it is a look-up for each component."""
    plain = key(path, os, width)
    entries = table.entries
    if entries:  # `ancestors`, written out: this is asked several times for each path
        separator, root_length = "/" if os == "posix" else "\\", len(_split_root(plain, os)[0])
        end = len(plain)
        if end > table.longest:
            end = max(plain.rfind(separator, 0, table.longest + 1), root_length)
        while (place := plain[:end]) not in entries and end > root_length:
            end = max(plain.rfind(separator, 0, end), root_length)
        if place in entries:
            return entries[place]
    return None if table.nested is None else _covering_nested(plain, table.nested, os)


def _covering_nested(path: str, nested: Nested, os: OsFamily) -> str | None:
    separator = "/" if os == "posix" else "\\"
    if not _has_a_name(path.split(separator), nested):  # most paths have none
        return None
    begin = len(_split_root(path, os)[0])
    above = {path[:begin]} & nested.roots
    while begin < len(path):
        end = path.find(separator, begin)
        end = len(path) if end < 0 else end
        for meant in _meanings(path[begin:end], nested) if above else ():
            if not meant.keys().isdisjoint(above):
                return next(entry for root, entry in meant.items() if root in above)
        if end <= nested.longest and path[:end] in nested.roots:
            above.add(path[:end])
        begin = end + 1
    return None


def _has_a_name(parts: list[str], nested: Nested) -> bool:
    names = nested.names.keys()
    if not names.isdisjoint(parts):
        return True
    for length in nested.endings:
        ended = ["*" + part[len(part) - length :] for part in parts]
        if not names.isdisjoint(ended):
            return True
    return False


def _meanings(name: str, nested: Nested) -> Iterator[dict[str, str]]:
    """Below which places the name means something."""
    if name in nested.names:
        yield nested.names[name]
    for length in nested.endings:
        if length > len(name):
            break
        ending = "*" + name[len(name) - length :]
        if ending in nested.names:
            yield nested.names[ending]


def process_place(path: str, os: OsFamily) -> str | None:
    """The place on the way of a POSIX spelling (`..` left in) whose files differ from process to process, or None."""
    if os == "windows" or not path.startswith("/") or ("proc" not in path and "fd" not in path):
        return None
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in {"", "."}:
            kept.append(part)
        if len(kept) <= 2 and "/" + "/".join(kept) in PROCESS_PLACES:
            return "/" + "/".join(kept)
    return None


def problem_with(path: str, os: OsFamily) -> str | None:
    """Why this spelling is refused before any rule is asked, or None. A relative spelling is no problem."""
    if not path:
        return "the path is empty"
    if "\0" in path:
        return "the path contains a NUL character"
    if len(path) > _MAX_LENGTH[os]:
        return f"the path is longer than {_MAX_LENGTH[os]} characters"
    return _windows_problem(path) if os == "windows" else None


def _windows_problem(path: str) -> str | None:
    plain = path.replace("/", "\\")
    if plain.startswith(("\\??\\", "\\\\?", "\\\\.")):
        return "the path uses a device or verbatim prefix"
    drive = re.match(_DRIVE, plain)
    if drive and plain[2:3] != "\\":
        return "the path is relative to a drive's current directory"
    if plain.startswith("\\") and not plain.startswith("\\\\"):
        return "the path is relative to the current drive"
    for part in plain[2 if drive else 0 :].split("\\"):
        problem = None if part in {"", ".", ".."} else _windows_name_problem(part)
        if problem:
            return f"{problem}: {part}"
    return None


def _windows_name_problem(name: str) -> str | None:
    if ":" in name:
        return "the path names an alternate stream"
    if re.search(_NOT_IN_NAMES, name):
        return "the path has a character that no Windows name has"
    if name[-1] in ". ":
        return "a name ends in a dot or space, which Windows drops"
    if re.fullmatch(_DEVICE, name):
        return "the path names a device"
    if re.fullmatch(_SHORT_NAME, name):
        return "the path uses a short (8.3) name"
    return None


def _split_root(path: str, os: OsFamily) -> tuple[str, str]:
    """The root with its separator, and the rest with `/` as separator."""
    if os == "posix":
        return ("/", path) if path.startswith("/") else ("", path)
    plain = path.replace("\\", "/")
    if re.match(_DRIVE, plain):
        drive = plain[0].upper() + ":"
        return (drive + "\\", plain[2:]) if plain[2:3] == "/" else (drive, plain[2:])
    share = re.match(r"//+([^/]+)/+([^/]+)", plain)
    if share:
        return f"\\\\{share[1]}\\{share[2]}\\", plain[share.end() :]
    return ("\\", plain) if plain.startswith("/") else ("", plain)


def _join_windows(cwd: str, path: str) -> str:
    if path[:1] in {"/", "\\"}:
        return _split_root(cwd, "windows")[0] + path
    if re.match(_DRIVE, path):
        return path
    return cwd + "\\" + path


def _fold_one(character: str) -> str:
    """The lower case of a letter that has just one other: the sign for Kelvin is no `k` to a file system."""
    upper, lower = character.upper(), character.lower()
    return lower if len(upper) == 1 and upper.lower() == lower and lower.upper() == upper else character


# Look-up of the directory that contains a path, among many: it costs the path's depth, independent of their number.

NOWHERE = -1


class Places:
    """Directories by their absolute paths; relative ones contain nothing. Compared narrowly (`policy.paths.key`)."""

    def __init__(self, places: Iterable[str], os: OsFamily) -> None:
        self._os: OsFamily = os
        self._keys = {_key(one, os) for one in places if is_absolute(one, os)}
        self._longest = max(map(len, self._keys), default=0)

    def contain(self, path: str) -> bool:
        """True if a path is one of them or in one."""
        return self.inmost(path) != NOWHERE

    def inmost(self, path: str) -> int:
        """The length of the longest of them that contains or equals a path, `NOWHERE` if none does."""
        return self._inmost(_key(path, self._os)) if self._keys and is_absolute(path, self._os) else NOWHERE

    def around(self, path: str) -> int:
        """The same of those that are not the path itself."""
        if not self._keys or not is_absolute(path, self._os):
            return NOWHERE
        own = _key(path, self._os)
        return self._inmost(own, own)

    def _inmost(self, own: str, excluded: str | None = None) -> int:
        above = ancestors(own, self._os, self._longest)
        return next((len(one) for one in above if one in self._keys and one != excluded), NOWHERE)


def _key(path: str, os: OsFamily) -> str:
    return key(normalize(path, os), os, "narrow")


# Patterns of file names and the blocked places that they may reach: in doubt a pattern reaches one.


ANY_DEPTH = "**"
ELSEWHERE = "?*"
"""Stands for a name that a loop has found in another directory."""
_UNCLEAR = ("[:", "[=", "[.", "\\")
"""Syntax that a shell reads differently from `fnmatch`."""
_EXTENSION = re.compile(r".*\.[a-z0-9_]+")
_STEERS_GIT = "config.worktree"


def reaches(pattern: str, place: str, *, tree: bool, writes: bool) -> bool:
    """True if a pattern's match may be a place below its directory, or be in it, or contain it if a `tree` is included.
    `place` is relative, in the spelling of block lists.

    After `**` only the last name of a pattern counts. A deletion by name inside of a blocked place is not detected; a
    write is, unless the name has an extension, which no file that steers git has.
    """
    patterns, names = pattern.strip("/").casefold().split("/"), place.split("/")
    head = patterns[: patterns.index(ANY_DEPTH)] if ANY_DEPTH in patterns else patterns
    if not all(map(_fits, names, head)):
        return False
    if head is patterns:
        return len(head) >= len(names) or tree
    wanted = patterns[-1]
    below = names[len(head) :]
    if wanted in {ANY_DEPTH, "*"} or not below:
        return True
    if writes and (not _EXTENSION.fullmatch(wanted) or _is_called(_STEERS_GIT, wanted)):
        return True
    return any(_is_called(name, wanted) for name in below)


def is_pattern(text: str) -> bool:
    """True for text that stands for several names."""
    return any(mark in text for mark in "*?[{")


def finds_name(name: str, pattern: str) -> bool:
    """True if the shell may find a name by one component of a pattern; in doubt it does."""
    return _fits(name.casefold(), pattern.casefold())


def _fits(name: str, pattern: str) -> bool:
    """As the shell finds names: a dot in front has to be spelled."""
    return _is_called(name, pattern) and (
        not name.startswith(".") or pattern.startswith((".", "[")) or _unclear(pattern)
    )


def _is_called(name: str, pattern: str) -> bool:
    """As `find` compares names."""
    return _unclear(pattern) or fnmatchcase(name, pattern.replace("[^", "[!"))


def _unclear(pattern: str) -> bool:
    return any(mark in pattern for mark in _UNCLEAR)


def may_meet(pattern: str, name: str, *, hidden: bool = False) -> bool:
    """True if a component of a pattern may match the name of a blocked entry, which may begin with a star. As in a
    shell, a leading dot must be spelled, unless `hidden` names match too. Matches of a bare star depend on the disk,
    and so do those of a star at the end against a name that begins with one, unless they share some text."""
    pattern = pattern.casefold()
    if not pattern.strip("*"):
        return False
    if len(pattern) > _LONGEST_NAME:  # no file has such a name, and stars may make one of it
        return True
    if _unclear(pattern) or "[" in pattern:
        pattern = _SET.sub("?", pattern)
    if name.startswith(".") and not (hidden or pattern.startswith((".", "?"))):
        return False
    if name.startswith("*") and pattern.endswith("*") and ELSEWHERE not in pattern:
        return any(piece in name for piece in _LITERAL.findall(pattern))
    return _overlap(pattern, name)


_LONGEST_NAME = 255
_SET = re.compile(r"\[[^\]]*\]|\\.")
_LITERAL = re.compile(r"[^*?]{2,}")


def _overlap(one: str, other: str) -> bool:
    """True if some text fits both of two patterns of `*`, `?` and characters."""
    reached = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        at, place = pending.pop()
        if at == len(one) and place == len(other):
            return True
        steps = []
        if one[at : at + 1] == "*":
            steps += [(at + 1, place), (at, place + 1)]
        if other[place : place + 1] == "*":
            steps += [(at, place + 1), (at + 1, place)]
        if at < len(one) and place < len(other) and (one[at] == other[place] or "?" in (one[at], other[place])):
            steps.append((at + 1, place + 1))
        for step in steps:
            if step[0] <= len(one) and step[1] <= len(other) and step not in reached:
                reached.add(step)
                pending.append(step)
    return False
