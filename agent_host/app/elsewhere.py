"""Tools from elsewhere in a session: what is kept of them, who approved them, and what people are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.events.kinds import EventType
from policy.rules.named_tools import lists
from state.tool_lists import ToolLists
from tool_runtime.remote import RemoteTools

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.contracts import NoticeKind, SourceNotice, ToolSpec
    from agent_host.events.emitter import Emitter
    from agent_host.routing.judge import Approved
    from policy.bundle.model import PolicyBundle
    from tool_runtime.remote import Source, Terms

_EVENTS: dict[NoticeKind, EventType] = {
    "listed": EventType.TOOLS_LISTED,
    "changed": EventType.TOOLS_CHANGED,
    "hidden": EventType.TOOLS_HIDDEN,
    "unavailable": EventType.TOOLS_UNAVAILABLE,
}


class ToolsElsewhere:
    """The sources of a session. `bundle` gives the bundle that says which of their tools there are. Of tools that may
    change it says which are approved as they are: `others` are those of the workspace."""

    def __init__(
        self, state_dir: str, bundle: Callable[[], PolicyBundle], emitter: Emitter, others: Approved | None
    ) -> None:
        self._bundle = bundle
        self._state_dir = state_dir
        self._emitter = emitter
        self._others = others
        self._kept: list[ToolLists] = []

    def provider(
        self, source: Source, place: str, terms: Terms, completed: Callable[[ToolSpec], ToolSpec] | None = None
    ) -> RemoteTools:
        """A Provider of a source's tools. `place` is what makes it this source and no other: its URL, its command.
        `completed` as of RemoteTools."""
        kept = ToolLists(self._state_dir, f"{source.name} {place}")
        self._kept.append(kept)

        def admits(tool_name: str) -> bool:
            entry = self._bundle().capability(terms.capability)
            return entry is not None and lists(entry, tool_name)

        return RemoteTools(source, terms, kept, admits=admits, report=self.report, completed=completed)

    def knows(self, name: str, identity: str) -> bool:
        """See Approved."""
        return any(one.knows(name, identity) for one in self._all())

    def approve(self, name: str, identity: str) -> None:
        """See Approved."""
        for one in self._kept:
            if one.lists(name):
                one.approve(name, identity)
                return
        if self._others is not None:
            self._others.approve(name, identity)

    def _all(self) -> Sequence[Approved]:
        return (*self._kept, *(() if self._others is None else (self._others,)))

    def report(self, notice: SourceNotice) -> None:
        """Tell people of a source."""
        names = {"added": notice.added, "removed": notice.removed, "changed": notice.changed}
        more = {key: list(value) for key, value in (*names.items(), ("rejected", notice.rejected)) if value}
        payload = {"source": notice.source, "toolCount": notice.tool_count, "message": notice.message, **more}
        self._emitter.emit(_EVENTS[notice.kind], payload)
