"""The path rule for a tool that walks a tree: what File.Read says to each file of it, at the cost of one question a
directory where the answer is the same for all that is in it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from policy.paths import PROCESS_PLACES, covering, is_share, is_under, key, normalize, process_place, roots
from policy.rules.session_paths import may_be_of_session, session_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policy.facts import OsFamily

Below = Literal["all", "none", "named", "each"]
"""What holds for everything below a directory: all of it is admitted, or nothing, or all but what is called by a name
that means something (`is_named`), or each path has to be asked for."""
_OF_SESSIONS = "agent-host-"


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
        """True if policy lets anybody read what is at the real, normalised path, or name it."""
        os = self._os
        if self._blocked_table.relative is not None or covering(real, self._blocked_table, os, "wide") is not None:
            return False
        if self._allowed is None and self._blocked_table.entries and is_share(real, os):
            return False
        if self._allowed is not None and covering(real, self._allowed_table, os, "narrow") is None:
            return False
        if self._allowed is not None and may_be_of_session(real, os) and session_place(real, self._allowed, os):
            return False
        place = process_place(real, os)
        if place is None:
            return True
        named = (one for one in self._allowed or () if is_under(one, place, os))
        return any(is_under(real, one, os) for one in named)

    def below(self, directory: str) -> Below:
        """What holds for what is below the real, normalised path of a directory."""
        os = self._os
        if not self.admits(directory):
            blocked = covering(directory, self._blocked_table, os, "wide") is not None
            leads_on = not blocked and any(_is_below(one, directory, os) for one in self._allowed or ())
            return "each" if leads_on else "none"
        plain = key(directory, os, "wide")
        inside = plain if plain.endswith(("/", "\\")) else plain + ("/" if os == "posix" else "\\")
        if any(place.startswith(inside) for place in self._blocked_table.entries):
            return "each"
        if os == "posix" and _is_below_any(PROCESS_PLACES, inside):
            return "each"
        nested = self._blocked_table.nested
        if nested is None:
            return "named" if self._allowed is not None else "all"
        near = any(root.startswith(inside) or inside.startswith(_as_folder(root, os)) for root in nested.roots)
        return "named" if near or plain in nested.roots or self._allowed is not None else "all"

    def is_named(self, name: str) -> bool:
        """True if an entry of this name below a directory that is "named" has to be asked for."""
        plain = key(name, self._os, "wide")
        return plain in self._names or plain.startswith(_OF_SESSIONS) or plain.endswith(self._endings)

    def some_named(self, names: Sequence[str]) -> bool:
        """True if one of the names may be such a name; a look at all of them at once, which is cheaper."""
        text = key("/".join(names), self._os, "wide")
        parts = (_OF_SESSIONS, *self._names, *self._endings)
        return any(part in text for part in parts)


def _is_below(path: str, directory: str, os: OsFamily) -> bool:
    return normalize(path, os) != directory and is_under(path, directory, os)


def _is_below_any(places: Iterable[str], inside: str) -> bool:
    return any(place.startswith(inside) for place in places)


def _as_folder(root: str, os: OsFamily) -> str:
    separator = "/" if os == "posix" else "\\"
    return root if root.endswith(separator) else root + separator
