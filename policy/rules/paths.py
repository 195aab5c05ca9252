"""Scope of File.* and of uploads: location, kind and size of a file (AH 8.2, 8.3)."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal

from policy import CHANGING, READS_TOO, SIZED_CAPABILITIES
from policy import CapabilityName as Name
from policy.paths import (
    PROCESS_PLACES,
    covering,
    is_absolute,
    is_share,
    is_under,
    key,
    normalize,
    problem_with,
    process_place,
    roots,
)
from policy.rules import PROCESS_RULE, REPOSITORY_RULE, SESSION_RULE, deny, where
from policy.rules.protected_paths import OF_SESSIONS, may_be_of_session, own_place, repository_place, session_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policy import Decision
    from policy.facts import OsFamily, PathFacts
    from policy.paths import Roots, Width
    from policy.rules import Case


def path_rules(case: Case, facts: PathFacts) -> Decision | str | None:
    """Blocked first, for the spelling and for the real place; allowed by the real place only."""
    entry, os = case.entry, case.os
    for spelling in (facts.requested, facts.absolute, facts.real_path):
        problem = problem_with(spelling, os)
        if problem:
            return deny(entry.name, where(entry), problem)
    if not (is_absolute(facts.absolute, os) and is_absolute(facts.real_path, os)):
        return deny(entry.name, where(entry), f"not an absolute path: {facts.absolute}")
    real = normalize(facts.real_path, os)
    if entry.blocked_paths:
        for place in dict.fromkeys((normalize(facts.absolute, os), real)):
            blocked = _blocking(case, place)
            if blocked is not None:
                return deny(entry.name, where(entry, "blockedPaths", blocked), f"path is blocked: {place}")
            if entry.allowed_paths is None and is_share(place, os):
                reason = f"a share may be a blocked path under another name, and no allowed path names it: {place}"
                return deny(entry.name, where(entry, "blockedPaths"), reason)
    if entry.allowed_paths is None:
        return None
    admitted = covering(real, _root_table(case, "allowed"), os, "narrow")
    if admitted is None:
        own = own_place(real, entry.allowed_paths, os)
        hint = "" if own is None else f"; the session's own temporary directory is {own}"
        return deny(entry.name, where(entry, "allowedPaths"), f"path not in allowed paths: {real}{hint}")
    return where(entry, "allowedPaths", admitted)


def _blocking(case: Case, place: str) -> str | None:
    """An entry that is not absolute matches nothing, so it refuses everything instead of protecting nothing."""
    table = _root_table(case, "blocked")
    return covering(place, table, case.os, "wide") if table.relative is None else table.relative


def _root_table(case: Case, which: str) -> Roots:
    entries = (case.entry.allowed_paths if which == "allowed" else case.entry.blocked_paths) or ()
    width: Width = "narrow" if which == "allowed" else "wide"
    real = case.bundle.real_places.get(which)
    return case.bundle.remember((case.entry.name, which, case.os), lambda: roots(entries, case.os, width, real))


def process_places(case: Case, facts: PathFacts) -> Decision | str | None:
    """/proc shows the secrets of processes and leads anywhere, so being inside a wider allowed path is not enough:
    a place there must be inside an allowed path that is there itself."""
    entry = case.entry
    for path in (facts.requested, facts.absolute, facts.real_path):
        place = _unnamed_process_place(path, entry.allowed_paths or (), case.os)
        if place is not None:
            return deny(entry.name, f"{PROCESS_RULE}: {place}", f"path is in {place}, which no allowed path names")
    return None


def _unnamed_process_place(path: str, allowed: Sequence[str], os: OsFamily) -> str | None:
    place = process_place(path, os)
    is_named = place is not None and any(is_under(one, place, os) and is_under(path, one, os) for one in allowed)
    return None if is_named else place


def repository_places(case: Case, facts: PathFacts) -> Decision | str | None:
    """Deny a change to a file that decides which programs git runs, unless an allowed path names its `.git`, or the
    repository if it is called otherwise: an allowed path that was meant for a project's files does not reach it."""
    entry = case.entry
    if entry.name not in CHANGING:
        return None
    for path in dict.fromkeys((normalize(facts.absolute, case.os), normalize(facts.real_path, case.os))):
        place = repository_place(path, entry.allowed_paths, case.os, in_repository=facts.in_repository)
        if place is not None:
            name = ".git" if place.startswith(".git") else "repository"
            reason = f"{path} determines which programs git runs, and no allowed path names its {name}"
            return deny(entry.name, f"{REPOSITORY_RULE}: {place}", reason)
    made = facts.makes_repository
    if made is not None:
        reason = f"{facts.real_path} makes a git repository of {made}, which has what starts programs in one"
        return deny(entry.name, f"{REPOSITORY_RULE}: {made}", reason)
    return None


def session_places(case: Case, facts: PathFacts) -> Decision | str | None:
    """Sessions have temporary directories of their own beside each other. That their parent is allowed opens none of
    them: an allowed path has to name it, as `${tmp}` does for the session's own. A bundle without a list of allowed
    paths restricts nothing here."""
    entry, real = case.entry, normalize(facts.real_path, case.os)
    if entry.allowed_paths is None or not may_be_of_session(real, case.os):
        return None
    real_places = case.bundle.real_places.get("allowed", {})
    allowed = [*entry.allowed_paths, *(real_places[one] for one in entry.allowed_paths if one in real_places)]
    place = session_place(real, allowed, case.os)
    if place is None:
        return None
    reason = f"{place} is the temporary directory of another session, and no allowed path names it"
    return deny(entry.name, f"{SESSION_RULE}: {place}", reason)


_UNCHANGEABLE = {"directory": "a directory", "other": "not a regular file"}


def file_kind(case: Case, facts: PathFacts) -> Decision | str | None:
    """Only regular files may be written or deleted, and directories if the call includes their contents."""
    is_whole_tree = facts.tree and case.entry.name == Name.FILE_DELETE
    if is_whole_tree or case.entry.name not in CHANGING or facts.kind not in _UNCHANGEABLE:
        return None
    return deny(case.entry.name, where(case.entry), f"{facts.absolute} is {_UNCHANGEABLE[facts.kind]}")


def file_size(case: Case, facts: PathFacts) -> Decision | str | None:
    """maxFileSizeBytes: the present size for a read or an upload, the size to be for a write."""
    limit, name = case.entry.max_file_size_bytes, case.entry.name
    size = facts.new_size_bytes if name == Name.FILE_WRITE else facts.size_bytes
    if name not in SIZED_CAPABILITIES or name == Name.FILE_DELETE or limit is None or size is None or size <= limit:
        return None
    rule = where(case.entry, "maxFileSizeBytes", limit)
    return deny(case.entry.name, rule, f"file exceeds size limit: {size} > {limit} bytes")


def readable_too(case: Case, facts: PathFacts) -> Decision | str | None:
    """Judge an upload as a read, too: File.Read may deny it or require approval."""
    if case.entry.name not in READS_TOO:
        return None
    answer = case.judge(Name.FILE_READ.value, facts)
    return None if answer.allowed else answer


# The path rule for a tool that walks a tree: File.Read's decision for each file, at the cost of one question for a
# directory whose contents all have the same answer. Pure.

Below = Literal["all", "none", "named", "each"]
"""The answer for everything below a directory: all of it is admitted, or nothing, or all but names with a meaning
(`is_named`), or each path must be checked."""


class TreeRule:
    """The scope of File.Read over paths: `allowed` and `blocked` are absolute, with the real places of entries that are
    links; None means no restriction of that kind."""

    def __init__(self, allowed: Sequence[str] | None, blocked: Iterable[str] | None, os: OsFamily) -> None:
        self._os = os
        self._allowed = None if allowed is None else tuple(allowed)
        self._allowed_table = roots(self._allowed or (), os, "narrow")
        self._blocked_table = roots(blocked or (), os, "wide")
        nested = self._blocked_table.nested
        names = nested.names if nested is not None else {}
        self._names = frozenset(name for name in names if not name.startswith("*"))
        self._endings = tuple(name[1:] for name in names if name.startswith("*"))

    def admits(self, real: str) -> bool:
        """True if policy lets the file at the real, normalised path be read or named."""
        os = self._os
        if self._blocked_table.relative is not None or covering(real, self._blocked_table, os, "wide") is not None:
            return False
        if self._allowed is None and self._blocked_table.entries and is_share(real, os):
            return False
        if self._allowed is not None and covering(real, self._allowed_table, os, "narrow") is None:
            return False
        if self._allowed is not None and may_be_of_session(real, os) and session_place(real, self._allowed, os):
            return False
        return _unnamed_process_place(real, self._allowed or (), os) is None

    def judge_below(self, directory: str) -> Below:
        """The places below the real, normalised path of a directory, as the lists judge them."""
        os = self._os
        if not self.admits(directory):
            blocked = covering(directory, self._blocked_table, os, "wide") is not None
            leads_on = not blocked and any(_is_below(one, directory, os) for one in self._allowed or ())
            return "each" if leads_on else "none"
        separator = "/" if os == "posix" else "\\"
        plain = key(directory, os, "wide")
        inside = plain if plain.endswith(("/", "\\")) else plain + separator
        others = PROCESS_PLACES if os == "posix" else ()
        if any(place.startswith(inside) for place in chain(self._blocked_table.entries, others)):
            return "each"
        nested = self._blocked_table.nested
        if nested is None or self._allowed is not None:
            return "named" if self._allowed is not None else "all"
        folders = (root if root.endswith(separator) else root + separator for root in nested.roots)
        near = any(folder.startswith(inside) or inside.startswith(folder) for folder in folders)
        return "named" if near or plain in nested.roots else "all"

    def is_named(self, name: str) -> bool:
        """True if an entry of this name below a directory that is "named" has to be asked for."""
        plain = key(name, self._os, "wide")
        return plain in self._names or plain.startswith(OF_SESSIONS) or plain.endswith(self._endings)

    def some_named(self, names: Sequence[str]) -> bool:
        """True if one of the names may be such a name; a look at all of them at once, which is cheaper."""
        text = key("/".join(names), self._os, "wide")
        parts = (OF_SESSIONS, *self._names, *self._endings)
        return any(part in text for part in parts)


def _is_below(path: str, directory: str, os: OsFamily) -> bool:
    return normalize(path, os) != directory and is_under(path, directory, os)
