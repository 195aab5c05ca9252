"""Inner door: the session of a server, in a process that is the program's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.approval.gate import InAdvance, PendingApprovals
from agent_host.host.opening import SessionOpener
from agent_host.host.sandboxing import look_ahead
from agent_host.host.secrets import Tokens
from agent_host.llm.stream import import_client
from agent_host.session.host import SessionHost
from agent_host.session.task_runner import import_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.approval.gate import OnAsked
    from agent_host.events.emitter import Sink
    from agent_host.host.options import LayeredOptions
    from agent_host.session.opening import ResolvedOptions
    from agent_host.session.stored import StoredSessions
    from config.settings import Settings


def session_host(
    source: LayeredOptions, watch: Callable[[int], Sequence[Sink]], on_asked: OnAsked | None = None
) -> SessionHost:
    """The one session of a server, whose client approves; the tokens are taken out of the environment.
    `watch` gives its sinks, by the number of its first event; `on_asked` as PendingApprovals has it."""
    tokens = Tokens.take()

    def gate(resolved: ResolvedOptions) -> PendingApprovals:
        in_advance = InAdvance(resolved.approvals, resolved.approve_all)
        timeout_s = resolved.settings.approvals.timeout_s
        return PendingApprovals(timeout_s=timeout_s, in_advance=in_advance, on_asked=on_asked)

    opener = SessionOpener(source, gate=gate, watch=watch, tokens=tokens, owns_process=True, reopens=True)

    def open_store() -> StoredSessions:
        from agent_host.host.records import stored_sessions  # with the first look at what is on record

        return stored_sessions(source.state_dir, tokens)

    def remove(session_id: str) -> None:
        from agent_host.host.records import remove_session

        remove_session(source.state_dir, session_id)

    return SessionHost(opener, open_store, remove)


# What a process does before its first session needs it.

__all__ = ["get_ready", "look_ahead"]


def get_ready(settings: Settings, state_dir: str) -> None:
    """For a process that runs one task: where the levels of the sandbox are to be tried, which another process takes
    its time for, import meanwhile what the first request needs."""
    if look_ahead(settings, state_dir):
        import_client()
        import_loop()
