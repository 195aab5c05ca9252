"""How a session's commands are held: what the settings want, what works on this machine, what the user opens."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from agent_host.errors import SandboxWeaker, UsageError
from agent_host.routing.scoping import Scoping, this_machine
from agent_host.version import __version__
from config.lean_typing import NamedTuple
from policy.scope import LEVELS, STRONGEST, Widening, is_weaker
from policy.urls import UrlProblem, canonical_domain
from state.errors import WriteFailed
from state.sandbox_levels import SandboxLevels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.app.machine import LocalMachine
    from agent_host.session.opening import ResolvedOptions
    from config.settings import Settings
    from policy.scope import CommandScope, SandboxLevel
    from state.checkpoint import Checkpoint

    Levels = Mapping[str, Mapping[str, Any]]
    """{works, problem, unheld} of each level."""

LEVEL = "sandbox.level"
DOMAINS = "sandbox.allowed_domains"


class Level(NamedTuple):
    """The level by which commands are held. `wanted` is what was asked for, `auto` included; `why` says what keeps a
    stronger one from working here, and what of this one does not, `unheld` what this one cannot hold."""

    level: SandboxLevel
    wanted: str
    why: str = ""
    unheld: tuple[str, ...] = ()


def level_of(settings: Settings, state_dir: str, found: Levels | None = None) -> Level:
    """The level that works of the one that the settings want. What was found under the same circumstances is kept in
    `state_dir` and not tried again: the first command tries it anyway, and is refused where it does not work. `found`:
    what was tried just now."""
    wanted = settings.text(LEVEL)
    if wanted == LEVELS[0]:
        return Level(LEVELS[0], wanted)
    found = found or _found(state_dir)
    strongest: tuple[SandboxLevel, ...] = LEVELS[:0:-1]
    tried = [one for one in strongest if wanted in (one, STRONGEST)]
    works = next((one for one in tried if found[one]["works"]), LEVELS[0])
    looked = tried if works == LEVELS[0] else tried[: tried.index(works) + 1]
    why = "; ".join(f"{one}: {found[one]['problem']}" for one in looked if found[one]["problem"])
    return Level(works, wanted, why, () if works == LEVELS[0] else tuple(found[works]["unheld"]))


def _found(state_dir: str) -> Levels:
    known = SandboxLevels(state_dir, __version__).known()
    return known if all(level in known for level in LEVELS[1:]) else try_levels(state_dir)


def look_ahead(settings: Settings, state_dir: str) -> bool:
    """Begin to try the levels in a thread where `level_of` would have to, so that a start does other work meanwhile.
    Whether it was begun."""
    if settings.text(LEVEL) == LEVELS[0] or SandboxLevels(state_dir, __version__).known():
        return False
    threading.Thread(target=_rows, name="sandbox-levels").start()
    return True


_kept: set[str] = set()
"""The state directories in which this process has kept what it found: one write each, since two would use one name."""


def try_levels(state_dir: str) -> Levels:
    """Each level, tried once in this process. The result is written to `state_dir` for later sessions by a thread of
    its own: a start does not wait for the disk. A failure that may pass is not written."""
    found, is_passing = _rows()
    if state_dir not in _kept and not is_passing:
        _kept.add(state_dir)
        threading.Thread(target=_keep, args=(state_dir, found), name="sandbox-levels-kept").start()
    return found


def _rows() -> tuple[Levels, bool]:
    """What was found, and whether it may be another the next time."""
    from tool_runtime.core import sandbox

    looked = {level: sandbox.look(level) for level in LEVELS[:0:-1]}  # the strongest tries the others on its way
    rows: dict[str, dict[str, Any]] = {
        level: {"works": one.works, "problem": one.problem, "unheld": list(one.unheld)} for level, one in looked.items()
    }
    return rows, any(one.is_passing for one in looked.values())


def _keep(state_dir: str, found: Levels) -> None:
    with contextlib.suppress(WriteFailed):  # they are tried again then
        SandboxLevels(state_dir, __version__).keep(found)


def opened_domains(settings: Settings) -> tuple[str, ...]:
    """The hosts that the user opens for commands. Raises UsageError for one that cannot be read."""
    names = []
    for entry in settings.names(DOMAINS):
        try:
            names.append(canonical_domain(entry))
        except UrlProblem as error:
            raise UsageError(
                f"--allow-domain {entry}: {error}; give a host such as pypi.org or *.example.com"
            ) from error
    return tuple(dict.fromkeys(names))


def refuse_domains_of_a_service(resolved: ResolvedOptions) -> None:
    """Raises UsageError where the command line opens hosts, and the policy comes from the Session Service: it alone
    says what may be reached."""
    if resolved.flags.get(DOMAINS):
        raise UsageError(
            "--allow-domain needs a built-in policy or a bundle in a file: the Session Service says what this session "
            "may reach"
        )


def scoping_of(
    resolved: ResolvedOptions, machine: LocalMachine, level: Level, *, steering: tuple[str, ...], granted: bool
) -> Scoping:
    """How the commands of a session are held. `granted`: its bundle is of the Session Service, and the user opens
    nothing. Raises UsageError."""
    opened = () if granted else opened_domains(resolved.settings)
    return Scoping(
        level.level,
        level.wanted,
        this_machine(machine.environment, temporary=machine.temporary, records=resolved.state_dir, steering=steering),
        level.why,
        Widening(domains=opened),
        resolved.settings.names("policy.blocked_domains"),
        unheld=level.unheld,
        withheld=withheld,
    )


def withheld(scope: CommandScope, level: SandboxLevel) -> tuple[str, ...]:
    """What the level refuses on this machine although the scope gives it, in words for people."""
    from tool_runtime.platform.landlock_rules import rules_for, rules_in_view  # only where commands are held

    return (rules_in_view if level == "namespace" else rules_for)(scope).notes


def refuse_weaker(resolved: ResolvedOptions, level: Level, state: Checkpoint) -> None:
    """Raises SandboxWeaker where commands of the session were held by a stronger level than the one that works now,
    and nobody has said since that this one will do."""
    before = state.sandbox.get("level") or state.identity.options.get("started", {}).get("sandbox", "none")
    if resolved.sandbox_named or before not in LEVELS or not is_weaker(level.level, before):
        return
    because = f" ({level.why})" if level.why else ""
    held = f"commands of this session were held at the level {before}, and here it would be {level.level}{because}"
    raise SandboxWeaker(
        f"{held}: give --sandbox {level.level} to go on so, or --sandbox {before} to have commands refused",
        held=f"{held}.",
        before=before,
        level=level.level,
    )
