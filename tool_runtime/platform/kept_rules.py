"""Rules of Landlock that are kept between commands: made again when the disk does not look as it did.

A ruleset is made of paths and holds for the files that these were. Kept, it may hold for what has another name by now,
so before each use all is compared that it was made of (decision 0100): each place that the scope names is the file that
was granted, each directory that was listed has had no entry come, go or change its name, what is hidden is there or not
as it was, and nothing has been mounted. What a command cannot set decides: inodes, which the ruleset keeps from being
used again, and the times of the inodes' own changes.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.platform import landlock_rules, linux_sandbox
from tool_runtime.platform.mounts import is_settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.scope import CommandScope
    from tool_runtime.platform.landlock_rules import Rules
    from tool_runtime.platform.linux_sandbox import Restriction

_MOST: Final = 8


class Kept(NamedTuple):
    """Rules with what they were made of."""

    rules: Rules
    restriction: Restriction
    is_sure: bool
    is_there: tuple[bool, ...]
    has_terminals: bool


class KeptRules:
    """The rules of the scopes of one session, as `make` makes them, with what `restrict` makes of these and, unless
    programs have a view of their own (`in_view`), the kernel's form of them. Not for several threads at once."""

    def __init__(
        self,
        make: Callable[[CommandScope], Rules],
        restrict: Callable[[CommandScope, Rules], Restriction],
        *,
        in_view: bool,
    ) -> None:
        self._make = make
        self._restrict = restrict
        self._in_view = in_view
        self._kept: dict[CommandScope, Kept] = {}
        self._mounted = -1
        self._mounts = select.poll()

    def get(self, scope: CommandScope) -> Kept:
        """Return the ruleset of a command under `scope`, as the disk is now. Raises OSError."""
        if self._has_mounted():
            self.forget()
        kept = self._kept.pop(scope, None)
        if kept is not None and not _is_current(kept, scope):
            _close(kept)
            kept = None
        self._kept[scope] = kept = kept or self._make_kept(scope)
        if len(self._kept) > _MOST:
            _close(self._kept.pop(next(iter(self._kept))))
        return kept

    def rules(self, scope: CommandScope) -> Rules:
        """The rules of the last command under `scope`."""
        kept = self._kept.get(scope)
        return self._make(scope) if kept is None else kept.rules

    def forget(self) -> None:
        """Keep none: as long as a ruleset is there, so are the files that it was made of."""
        while self._kept:
            _close(self._kept.popitem()[1])
        if self._mounted >= 0:
            self._mounts.unregister(self._mounted)
            os.close(self._mounted)
            self._mounted = -1

    def _make_kept(self, scope: CommandScope) -> Kept:
        if self._mounted < 0:
            self._mounted = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._mounts.register(self._mounted, select.POLLPRI | select.POLLERR)
        began = time.time_ns()
        terminals = landlock_rules.has_terminals()
        is_there = _which_are_there(scope)
        rules = self._make(scope)
        restriction = self._restrict(scope, rules)
        if not self._in_view:
            restriction = restriction._replace(ruleset=linux_sandbox.ruleset_of(restriction))
        is_sure = all(is_settled(max(changed, modified), began) for _, _, modified, changed in rules.listed.values())
        return Kept(rules, restriction, is_sure, is_there, terminals)

    def _has_mounted(self) -> bool:
        return self._mounted >= 0 and bool(self._mounts.poll(0))


def _is_current(kept: Kept, scope: CommandScope) -> bool:
    if not kept.is_sure or kept.has_terminals != landlock_rules.has_terminals():
        return False
    ruleset = kept.restriction.ruleset
    try:
        if ruleset is not None and any(ruleset.granted.get(place) != _key_of(place) for place in kept.rules.named):
            return False
        if any(landlock_rules.stamp_of(place) != stamp for place, stamp in kept.rules.listed.items()):
            return False
    except OSError:
        return False
    return kept.is_there == _which_are_there(scope)


def _close(kept: Kept) -> None:
    if kept.restriction.ruleset is not None:
        os.close(kept.restriction.ruleset.descriptor)


def _which_are_there(scope: CommandScope) -> tuple[bool, ...]:
    return tuple(map(os.path.lexists, scope.hidden))


def _key_of(place: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino
