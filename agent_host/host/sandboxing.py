"""The sandbox of a session's commands: what the settings want, what works on this machine, what the user opens."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from agent_host.errors import SandboxWeaker, UsageError
from agent_host.version import __version__
from config.lean_typing import NamedTuple
from policy import LEVELS, STRONGEST, is_weaker
from policy.urls import UrlProblem, canonical_domain
from state import WriteFailed
from state import temporary as temporary_directory
from state.keys import SandboxLevels
from state.temporary import system_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.session.opening import ResolvedOptions
    from config.settings import Settings
    from policy import CommandScope, SandboxLevel
    from state.checkpoint import Checkpoint

    Levels = Mapping[str, Mapping[str, Any]]
    """{works, problem, unheld, isPassing?} of each level."""

LEVEL = "sandbox.level"
DOMAINS = "sandbox.allowed_domains"


class Level(NamedTuple):
    """The level by which commands are held. `wanted` is what was asked for, `auto` included; `why` says what keeps a
    stronger one from working here, and what of this one does not, `unheld` what this one cannot hold. `is_untried`:
    none works, and a trial failed for a reason of its own, so that commands are refused."""

    level: SandboxLevel
    wanted: str
    why: str = ""
    unheld: tuple[str, ...] = ()
    is_untried: bool = False


def level_of(settings: Settings, state_dir: str, temporary: str | None = None, *, found: Levels | None = None) -> Level:
    """The level that works of the one that the settings want. What was found under the same circumstances is kept in
    `state_dir` and not tried again: the first command tries it anyway, and is refused where it does not work. `found`:
    what was tried just now. A trial that fails for a reason of its own is made again in `temporary`, the session's own
    directory."""
    wanted = settings.sandbox.level
    if wanted == LEVELS[0]:
        return Level(LEVELS[0], wanted)
    if not found:
        found = SandboxLevels(state_dir, __version__).findings()
        if not all(level in found for level in LEVELS[1:]):
            found = try_levels(state_dir, temporary)
    strongest: tuple[SandboxLevel, ...] = LEVELS[:0:-1]
    tried = [one for one in strongest if wanted in (one, STRONGEST)]
    works = next((one for one in tried if found[one]["works"]), LEVELS[0])
    looked = tried if works == LEVELS[0] else tried[: tried.index(works) + 1]
    why = "; ".join(f"{one}: {found[one]['problem']}" for one in looked if found[one]["problem"])
    unheld = () if works == LEVELS[0] else tuple(found[works]["unheld"])
    is_untried = works == LEVELS[0] and any(found[one].get("isPassing", False) for one in tried)
    return Level(works, wanted, why, unheld, is_untried)


def level_to_try(settings: Settings, state_dir: str, named: str | None) -> Level:
    """The level for which a dry run answers: as a run has it, unless the user has `named` one, which is taken whether
    it works here or not."""
    return Level(named, named) if named in LEVELS else level_of(settings, state_dir)


def look_ahead(settings: Settings, state_dir: str) -> bool:
    """Begin to try the levels in a thread where `level_of` would have to, so that a start does other work meanwhile.
    Whether it was begun."""
    if settings.sandbox.level == LEVELS[0] or SandboxLevels(state_dir, __version__).findings():
        return False
    threading.Thread(target=_rows, args=(system_directory(os.environ),), name="sandbox-levels").start()
    return True


_kept: set[str] = set()
"""The state directories in which this process has kept what it found: one write each, since two would use one name."""


def try_levels(state_dir: str, temporary: str | None = None) -> Levels:
    """Each level, tried once in this process where sessions have their temporary directories, and again in `temporary`
    where that failed for a reason of its own. The result is written to `state_dir` for later sessions by a thread of
    its own: a start does not wait for the disk. A failure that may pass is not written."""
    found = _rows(system_directory(os.environ))
    if temporary is not None and _is_passing(found):
        found = _rows_in_session(temporary)
    if state_dir not in _kept and not _is_passing(found):
        _kept.add(state_dir)
        threading.Thread(target=_keep, args=(state_dir, found), name="sandbox-levels-kept").start()
    return found


def _rows(directory: str) -> Levels:
    from tool_runtime.sandbox import look

    looked = [look(level, directory) for level in LEVELS[:0:-1]]  # the strongest tries the others on its way
    return {
        one.level: {
            "works": one.works,
            "problem": one.problem,
            "unheld": list(one.unheld),
            **({"isPassing": True} if one.is_passing else {}),
        }
        for one in looked
    }


def _rows_in_session(temporary: str) -> Levels:
    is_there = os.path.isdir(temporary)
    with contextlib.suppress(OSError):  # then the trial says what is wrong with it
        temporary_directory.make(temporary)
    try:
        return _rows(temporary)
    finally:
        if not is_there:
            temporary_directory.remove(temporary)


def _is_passing(found: Levels) -> bool:
    """True if a trial failed for a reason of its own: the next one may find something else."""
    return any("isPassing" in one for one in found.values())


def _keep(state_dir: str, found: Levels) -> None:
    with contextlib.suppress(WriteFailed):  # they are tried again then
        SandboxLevels(state_dir, __version__).keep(found)


def domains_to_open(settings: Settings) -> tuple[str, ...]:
    """The hosts that the user opens for commands. Raises UsageError for one that cannot be read."""
    names, wrong = [], []
    for entry in settings.sandbox.allowed_domains:
        try:
            names.append(canonical_domain(entry))
        except UrlProblem as error:
            named = settings.name_of(DOMAINS)
            wrong.append(f"{named} {entry}: {error}; give a host such as pypi.org or *.example.com")
    if wrong:
        raise UsageError(*wrong)
    return tuple(dict.fromkeys(names))


def withheld(scope: CommandScope, level: SandboxLevel) -> tuple[str, ...]:
    """Describe what the level denies on this machine although the scope allows it, for people."""
    from tool_runtime.platform.landlock import rules_for, rules_in_view  # only where commands are held

    return (rules_in_view if level == "namespace" else rules_for)(scope).notes


def refuse_weaker(resolved: ResolvedOptions, level: Level, state: Checkpoint) -> None:
    """Raises SandboxWeaker where commands of the session were held by a stronger level than the one that works now,
    and nobody has said since that this one will do."""
    before = state.sandbox.get("level") or state.identity.options.get("started", {}).get("sandbox", "none")
    if resolved.sandbox_named or before not in LEVELS or not is_weaker(level.level, before):
        return
    because = f" ({level.why})" if level.why else ""
    held = f"commands of this session ran at the sandbox level {before}; here it would be {level.level}{because}"
    raise SandboxWeaker(
        f"{held}: --sandbox {level.level} continues at that level, --sandbox {before} has commands denied",
        held=f"{held}.",
        before=before,
        level=level.level,
    )
