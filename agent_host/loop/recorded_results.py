"""What ReadOutput reads: artifacts of calls, and results of the conversation that requests leave out."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from agent_host.contracts import Maker
from agent_host.thread.cleared import RESULTS
from agent_host.thread.messages import decode

if TYPE_CHECKING:
    from agent_host.services.workspace import ArtifactHome
    from agent_host.thread.messages import Message
    from state.checkpoint import Checkpoint
    from state.store import OpenSession


class RecordedResults:
    """References of one session: `home` has its artifacts, the record of `store` the results in the conversation."""

    def __init__(self, store: OpenSession, home: ArtifactHome) -> None:
        self._store = store
        self._home = home

    def maker_of(self, ref: str) -> Maker | None:
        """The call that left what `ref` names; None for no reference of this session."""
        call_id = _call_id(ref)
        if call_id is None:
            return self._home.maker_of(ref)
        for message in _with(self._store.state, call_id):
            for call in message.tool_calls:
                if call.call_id == call_id:
                    return Maker(call.name, ())
        return None

    def open(self, ref: str) -> BinaryIO | None:
        """What `ref` names, to be closed by the caller; None for no reference of this session. Raises OSError."""
        call_id = _call_id(ref)
        if call_id is None:
            return self._home.open(ref)
        for message in _with(self._store.state, call_id):
            if message.tool_call_id == call_id:
                return io.BytesIO(message.content.encode("utf-8", "replace"))
        return None


def _call_id(ref: str) -> str | None:
    return ref.removeprefix(RESULTS) if ref.startswith(RESULTS) else None


def _with(state: Checkpoint, call_id: str) -> list[Message]:
    """The messages that hold the id, as they are on record."""
    wanted = call_id.encode("utf-8", "replace")
    return [decode(data) for data in state.thread if wanted in data]
