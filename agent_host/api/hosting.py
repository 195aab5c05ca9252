"""Inner door: the session of a server, in a process that is the program's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.app.opener import SessionOpener
from agent_host.app.secrets import Tokens
from agent_host.approval.gate import InAdvance
from agent_host.approval.pending import PendingApprovals
from agent_host.session.host import SessionHost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.api.options import LayeredOptions
    from agent_host.events.emitter import Sink
    from agent_host.session.opening import ResolvedOptions
    from agent_host.session.stored import StoredSessions


def session_host(source: LayeredOptions, watch: Callable[[int], Sequence[Sink]]) -> SessionHost:
    """The one session of a server, whose client approves; the tokens are taken out of the environment.
    `watch` gives its sinks, by the number of its first event."""
    tokens = Tokens.taken()
    opener = SessionOpener(source, gate=_pending_approvals, watch=watch, tokens=tokens, owns_process=True)

    def stored() -> StoredSessions:
        from agent_host.api.records import stored_sessions  # with the first look at what is on record

        return stored_sessions(source.state_dir, tokens)

    return SessionHost(opener, stored)


def _pending_approvals(resolved: ResolvedOptions) -> PendingApprovals:
    in_advance = InAdvance(resolved.approvals, resolved.approve_all)
    return PendingApprovals(timeout_s=resolved.settings.number("approvals.timeout_s"), in_advance=in_advance)
