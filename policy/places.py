"""Which of many directories a path lies in: an answer costs the path's depth, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.paths import ancestors, is_absolute, key, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.facts import OsFamily

NOWHERE = -1


class Places:
    """Directories by their absolute paths; relative ones contain nothing. Compared narrowly (`policy.paths.key`)."""

    def __init__(self, places: Iterable[str], os: OsFamily) -> None:
        self._os: OsFamily = os
        self._keys = {_key(one, os) for one in places if is_absolute(one, os)}
        self._longest = max(map(len, self._keys), default=0)

    def contain(self, path: str) -> bool:
        """True if a path is one of them or lies in one."""
        return self.inmost(path) != NOWHERE

    def inmost(self, path: str) -> int:
        """The length of the longest of them that a path is or lies in, `NOWHERE` where it is in none."""
        return self._inmost(_key(path, self._os)) if self._keys and is_absolute(path, self._os) else NOWHERE

    def around(self, path: str) -> int:
        """The same of those that are not the path itself."""
        if not self._keys or not is_absolute(path, self._os):
            return NOWHERE
        own = _key(path, self._os)
        return self._inmost(own, own)

    def _inmost(self, own: str, apart: str | None = None) -> int:
        above = ancestors(own, self._os, self._longest)
        return next((len(one) for one in above if one in self._keys and one != apart), NOWHERE)


def _key(path: str, os: OsFamily) -> str:
    return key(normalize(path, os), os, "narrow")
