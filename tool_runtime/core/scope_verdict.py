"""What a CommandScope says of a path, by its spelling: the answer that the operating system is to give as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.scope import CommandScope


def within(path: str, place: str) -> bool:
    """Whether `path` is `place` or lies below it."""
    return path == place or place == "/" or path.startswith(place.rstrip("/") + "/")


def refusal(scope: CommandScope, path: str, *, write: bool) -> str | None:
    """The part of `scope` that refuses to read or write `path`, which is absolute and real; None where it may be done.
    Of places that contain each other the inmost decides."""
    writes = _inmost(path, scope.writes)
    reads = 1 if scope.reads is None else _inmost(path, scope.reads)
    granted = writes if write else max(reads, writes)
    if _inmost(path, scope.hidden) >= max(granted, 1):
        return "hidden"
    if not granted:
        return "writes" if write else "reads"
    return "guarded" if write and _inmost(path, scope.guarded) >= granted else None


def _inmost(path: str, places: Iterable[str]) -> int:
    """The length of the longest of `places` that contains `path`, 0 for none."""
    return max((len(place) for place in places if within(path, place)), default=0)
