"""Holds commands to their scope on Linux (decision 0055). Imported and made with the first of them.

A command is started by a fresh thread that has given up its rights (`platform.linux_sandbox`); what it does with
sockets is judged by the session's supervisor. Nothing of the host itself is held.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

from policy.addresses import address_is_public
from tool_runtime.core.fresh_thread import in_fresh_thread
from tool_runtime.core.held_sockets import Held, HeldSockets
from tool_runtime.core.own_sockets import OwnSockets
from tool_runtime.core.sandbox import find
from tool_runtime.core.sandbox_variables import caches_in
from tool_runtime.core.supervisor import Supervisor
from tool_runtime.platform import landlock_rules, linux_sandbox

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from agent_host.contracts import Denial
    from policy.scope import CommandScope
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network
    from tool_runtime.settings import RuntimeSettings, SandboxSettings
    from tool_runtime.threads import DaemonPool

MAX_DENIALS: Final = 50
"""So many refusals of one command are kept; a program that tries again and again is told of once."""


class HeldCommand:
    """One command that is held. `variables` go over its environment. `denials` are what it was refused, as far as
    somebody was asked; `on_denial` is called with each, from any thread."""

    def __init__(self, sandbox: Sandbox, scope: CommandScope, cwd: str, on_denial: Callable[[Denial], None]) -> None:
        self._sandbox = sandbox
        self._on_denial = on_denial
        self._cwd = cwd
        self.scope = scope
        self.denials: dict[Denial, None] = {}
        self.variables: Mapping[str, str] = sandbox.variables

    def start(self, launch: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """What `launch` starts, held. Raises what it raises, and OSError where it cannot be held."""
        restriction = self._sandbox.restriction(self.scope)
        process, listener = in_fresh_thread(lambda: _launched(restriction, launch))
        if listener is not None:
            self._sandbox.watch(listener, self, restriction)
        return process

    def report(self, denial: Denial) -> None:
        """Remember a refusal. Safe from any thread."""
        if denial not in self.denials and len(self.denials) < MAX_DENIALS:
            self.denials[denial] = None
            self._on_denial(denial)

    def finish(self, exit_code: int, printed: bytes) -> tuple[Denial, ...]:
        """What it was refused, now that it is over and has `printed` that."""
        del exit_code, printed
        return tuple(self.denials)

    def gone(self) -> None:
        """None of its programs is left."""


def _launched(
    restriction: Restriction, launch: Callable[[], subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], int | None]:
    listener = linux_sandbox.restrict_this_thread(restriction)
    try:
        return launch(), listener
    except BaseException:
        if listener is not None:
            os.close(listener)
        raise


class Sandbox:
    """For the commands of one session. Raises ToolFault where the level that is asked for is required and does not
    work."""

    def __init__(self, settings: SandboxSettings, runtime: RuntimeSettings, pool: DaemonPool) -> None:
        self.found = find(settings)
        self._settings = settings
        self._runtime = runtime
        self._pool = pool
        self._supervisor: Supervisor | None = None
        self._own: dict[CommandScope, OwnSockets] = {}

    def hold(self, scope: CommandScope, cwd: str, on_denial: Callable[[Denial], None]) -> HeldCommand:
        """What starts a command in `cwd` under `scope`. `on_denial` is told of each refusal, from any thread."""
        return HeldCommand(self, scope, cwd, on_denial)

    @functools.cached_property
    def variables(self) -> Mapping[str, str]:
        """Of every command that is held."""
        return {} if self._settings.caches is None else caches_in(self._settings.caches, os.environ)

    def restriction(self, scope: CommandScope) -> Restriction:
        """What the thread is held to that starts a command under `scope`."""

        rules = landlock_rules.rules_for(scope)
        is_open = scope.domains is None and not scope.blocked_domains
        supervised = self.found.is_supervised
        network: Network = "open" if is_open else "supervised" if supervised else "closed"
        return linux_sandbox.Restriction(rules.rules, self.found.abi, network, supervised)

    def watch(self, listener: int, command: HeldCommand, restriction: Restriction) -> None:
        """Have the supervisor answer for a command that was started."""

        if self._supervisor is None:
            self._supervisor = Supervisor()
        own = self._own.setdefault(command.scope, OwnSockets(self._supervisor.listeners))
        held = Held(
            command.scope,
            restriction,
            own,
            agents=frozenset(),
            all_agents=frozenset(),
            proxy_port=None,
            is_open=restriction.network == "open",
            address_allowed=self._runtime.address_allowed or address_is_public,
            report=command.report,
        )
        self._supervisor.watch(listener, HeldSockets(held), command.gone)

    def close(self) -> None:
        """End what answers for commands; none is started afterwards. Blocks for a moment."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None
