"""The rules of Landlock for a scope: what is hidden below an allowed place has its neighbours granted one by one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.platform import landlock
from tool_runtime.platform.landlock import PathRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.scope import CommandScope

MAX_RULES: Final = 4096
"""So many neighbours are granted at most: each costs some microseconds at each command."""

_DEVICE: Final = landlock.READ_FILE | landlock.WRITE_FILE | landlock.TRUNCATE | landlock.IOCTL_DEV
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  semaphores and shared memory of programs are there, by POSIX


class Rules(NamedTuple):
    """What is granted, and what of the scope that cannot say, in words for people."""

    rules: tuple[PathRule, ...]
    notes: tuple[str, ...] = ()


def within(path: str, place: str) -> bool:
    """Whether `path` is `place` or lies below it, by their spelling."""
    return path == place or place == "/" or path.startswith(place.rstrip("/") + "/")


def rules_for(scope: CommandScope) -> Rules:
    """What Landlock is to grant. Looks at the disk for what is hidden, and for its neighbours; what is not there needs
    no hiding."""
    hidden = [place for place in scope.hidden if os.path.lexists(place)]
    granting = _Granting()
    for path in _DEVICES:
        granting.rules.append(PathRule(path, _DEVICE))
    granting.rules.append(PathRule(SHARED_MEMORY, landlock.READ | landlock.WRITE))
    for place in ("/",) if scope.reads is None else scope.reads:
        granting.grant(place, landlock.READ, hidden)
    for place in scope.writes:
        granting.grant(place, landlock.READ | landlock.WRITE, hidden)
    return Rules(tuple(granting.rules), tuple(granting.notes))


def rules_in_view(scope: CommandScope) -> Rules:
    """What Landlock is to grant to a program whose view of the disk covers what is hidden, and which has shared memory
    and terminals of its own."""
    rules = [PathRule(path, _DEVICE) for path in (*_DEVICES, "/dev/ptmx", "/dev/pts", "/dev/tty")]
    rules.append(PathRule(SHARED_MEMORY, landlock.READ | landlock.WRITE))
    rules += [PathRule(place, landlock.READ) for place in (("/",) if scope.reads is None else scope.reads)]
    rules += [PathRule(place, landlock.READ | landlock.WRITE) for place in scope.writes]
    return Rules(tuple(rules))


class _Granting:
    def __init__(self) -> None:
        self.rules: list[PathRule] = []
        self.notes: list[str] = []

    def grant(self, place: str, rights: int, hidden: Sequence[str]) -> None:
        """Grant a place without what is hidden in it."""
        if place in hidden:
            return
        below = [one for one in hidden if within(one, place)]
        if not below:
            self._add(place, rights)
            return
        # Names are listed, those of what is hidden as well: without the right nobody could list a home directory.
        self._add(place, landlock.READ_DIR)
        if rights & landlock.WRITE:
            named = ", ".join(os.path.relpath(one, place) for one in below[:3])
            self.notes.append(f"nothing new can be made directly in {place}, since {named} there is hidden")
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if not entry.is_symlink():
                self.grant(entry.path, rights, below)

    def _add(self, place: str, rights: int) -> None:
        if len(self.rules) < MAX_RULES:
            self.rules.append(PathRule(place, rights))
        elif len(self.rules) == MAX_RULES and not any("places beside" in note for note in self.notes):
            self.notes.append(
                f"of the places beside hidden ones only {MAX_RULES} are granted; {place} is the first not"
            )
