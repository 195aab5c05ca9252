"""What a CommandScope says of a path: the answer that the operating system is to give as well (design, invariant 11).
Pure; for policy, which makes scopes, and for the runtime, which explains refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from policy.places import NOWHERE, Places

if TYPE_CHECKING:
    from policy.facts import OsFamily
    from policy.scope import CommandScope

ScopePart = Literal["reads", "writes", "hidden", "guarded"]


def refusal(scope: CommandScope, path: str, os: OsFamily, *, write: bool) -> ScopePart | None:
    """The part of `scope` that refuses to read `path`, which is absolute and real, or with `write` to write, make, move
    and remove it; None where it may be done. Of places that contain each other the innermost decides."""
    writes = Places(scope.writes, os).inmost(path)
    reads = 0 if scope.reads is None else Places(scope.reads, os).inmost(path)
    granted = writes if write else max(reads, writes)
    if Places(scope.hidden, os).inmost(path) >= max(granted, 0):
        return "hidden"
    if granted == NOWHERE:
        return "writes" if write else "reads"
    return "guarded" if write and Places(scope.guarded, os).inmost(path) >= granted else None


def may_read(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if the scope lets a process read the file at a real path."""
    return refusal(scope, path, os, write=False) is None


def may_write(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if the scope lets a process write, make, move and remove the file at a real path."""
    return refusal(scope, path, os, write=True) is None
