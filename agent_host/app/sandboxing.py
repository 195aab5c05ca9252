"""How a session's commands are held: what the settings want, what works on this machine, what the user opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agent_host.errors import SandboxWeaker, UsageError
from agent_host.routing.scoping import Scoping, this_machine
from config.lean_typing import NamedTuple
from policy.scope import LEVELS, STRONGEST, Widening, is_weaker
from policy.urls import UrlProblem, canonical_domain

if TYPE_CHECKING:
    from agent_host.app.machine import LocalMachine
    from agent_host.session.opening import ResolvedOptions
    from config.settings import Settings
    from policy.scope import SandboxLevel
    from state.checkpoint import Checkpoint

LEVEL = "sandbox.level"
DOMAINS = "sandbox.allowed_domains"


class Level(NamedTuple):
    """The level by which commands are held. `wanted` is what was asked for, `auto` included; `why` says what keeps a
    stronger one from working here, `unheld` what this one cannot hold."""

    level: SandboxLevel
    wanted: str
    why: str = ""
    unheld: tuple[str, ...] = ()


def level_of(settings: Settings) -> Level:
    """The level that works of the one that the settings want; what was tried once in a process is not tried again."""
    wanted = settings.text(LEVEL)
    if wanted == "none":
        return Level("none", wanted)
    from tool_runtime.core import sandbox

    found = sandbox.strongest() if wanted == STRONGEST else sandbox.look(cast("SandboxLevel", wanted))
    if not found.works:
        return Level("none", wanted, found.problem)
    why = "" if found.level != "none" else "; ".join(f"{one}: {sandbox.look(one).problem}" for one in sandbox.LEVELS)
    return Level(found.level, wanted, why, found.unheld)


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
    )


def refuse_weaker(resolved: ResolvedOptions, level: Level, state: Checkpoint) -> None:
    """Raises SandboxWeaker where commands of the session were held by a stronger level than the one that works now,
    and nobody has said since that this one will do."""
    before = state.sandbox.get("level") or state.identity.options.get("started", {}).get("sandbox", "none")
    if resolved.sandbox_named or before not in LEVELS or not is_weaker(level.level, before):
        return
    because = f" ({level.why})" if level.why else ""
    raise SandboxWeaker(
        f"commands of this session were held at the level {before}, and here it would be {level.level}{because}: "
        f"give --sandbox {level.level} to go on so, or --sandbox {before} to have commands refused",
        before=before,
        level=level.level,
    )
