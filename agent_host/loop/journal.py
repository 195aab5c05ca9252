"""The loop's records, and when each is durable (design section 6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson

from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events import EventType
from agent_host.thread.messages import ToolCall, holds_arguments, set_lengths
from policy.redaction import PLACEHOLDER
from state.errors import WriteFailed

if TYPE_CHECKING:
    from agent_host.events.emitter import Emitter
    from agent_host.redaction import Scrubber
    from agent_host.thread.messages import Block, Message
    from state.checkpoint import Checkpoint
    from state.records import JournalRecord
    from state.store import OpenSession


class Journal:
    """The record of one session. `max_stored_bytes` is the limit at which `store` is full. `keeps_versions`:
    each version of a file that a call writes over is kept, and not only the first of a task."""

    def __init__(
        self,
        store: OpenSession,
        emitter: Emitter,
        max_stored_bytes: int,
        *,
        keeps_versions: bool = False,
    ) -> None:
        self.store = store
        self.keeps_versions = keeps_versions
        self._emitter = emitter
        self._max_stored_bytes = max_stored_bytes
        self._reported_full = False

    @property
    def state(self) -> Checkpoint:
        """The session's recoverable state."""
        return self.store.state

    @property
    def task_id(self) -> str | None:
        """The id of the current task, or of the last one; None before the first."""
        task = self.store.state.task
        return None if task is None else task.task_id

    def record(self, record: JournalRecord) -> None:
        """Put something on record that must be there before the loop goes on. Raises CheckpointWriteFailed."""
        try:
            self.store.append(record)
        except WriteFailed as error:
            raise _nothing_started(error) from error

    def try_record(self, record: JournalRecord) -> None:
        """Put something on record, or leave all as it was. Raises CheckpointWriteFailed."""
        try:
            self.store.try_append(record)
        except WriteFailed as error:
            raise _nothing_started(error) from error

    def write_ahead(self) -> None:
        """Make what is recorded durable before an effect may follow. Raises CheckpointWriteFailed."""
        try:
            self.store.sync()
        except WriteFailed as error:
            raise _nothing_started(error) from error
        self._report_storage_limit(None)

    def checkpoint(self, step_id: str | None, record: JournalRecord, *, sync: bool = True) -> None:
        """Put something on record that has already happened, durably unless more follows at once. A failure is
        reported, and the next write carries what this one could not (AH 11)."""
        try:
            self.store.append(record)
            if sync:
                self.store.sync()
        except WriteFailed as error:
            self._emit(EventType.CHECKPOINT_FAILED, step_id, message=str(error), code=ErrorCode.CHECKPOINT_WRITE_FAILED)
        self._report_storage_limit(step_id)

    def keep(self, data: bytes) -> str:
        """Keep a large thing with the session; see `OpenSession.keep`."""
        name = self.store.keep(data)
        self._report_storage_limit(None)
        return name

    def has_room(self) -> bool:
        """True if another step has room on record; see `OpenSession.has_room`. Raises CheckpointWriteFailed."""
        try:
            return self.store.has_room()
        except WriteFailed as error:
            raise _nothing_started(error) from error

    def _report_storage_limit(self, step_id: str | None) -> None:
        if self.store.storage_full and not self._reported_full:
            self._reported_full = True
            message = (
                f"the session has reached host.max_stored_bytes ({self._max_stored_bytes} bytes): artifacts, "
                "versions of files and records are no longer kept"
            )
            self._emit(EventType.STORAGE_LIMIT_REACHED, step_id, message=message)

    def _emit(self, event_type: EventType, step_id: str | None, **payload: object) -> None:
        self._emitter.emit(event_type, payload, task_id=self.task_id, step_id=step_id)


def _nothing_started(error: WriteFailed) -> CheckpointWriteFailed:
    return CheckpointWriteFailed(f"{error}; nothing was started")


# What goes on record of a model's turn: everything but secrets (AH 8.7).
#
# The calls that run are the model's own, with every byte. What is kept of them, and what the model is shown of them
# from then on, has placeholders; so a call whose arguments held a secret cannot be taken up again from the record. It
# says so.

NOT_KEPT = "its arguments held a secret, which is kept nowhere, so it cannot be resumed: make the call again"
_HOLDS_PLACEHOLDER = (
    "the arguments hold {placeholder}, which stands in the place of a secret that you were not shown; it would be put "
    "there for good: leave that part of the file as it is, or name where the value is to come from"
)


def clean_message(scrubber: Scrubber, message: Message) -> Message:
    """The message as it is kept, and goes back to the model. A block of the provider that holds a secret is left out:
    blocks are signed, and one with a placeholder in it would be refused."""
    content = scrubber.text(message.content)
    changed = content != message.content
    calls = tuple(_clean_call(scrubber, call) for call in message.tool_calls)
    # A secret is found in arguments by where it stands in them, and not in a text that quotes them.
    of_others = calls != message.tool_calls

    def is_kept(block: Block) -> bool:
        is_other = (changed and block.holds_text) or (of_others and holds_arguments(block))
        return not is_other and _is_clean(scrubber, block)

    kept = message.keeping(is_kept)
    if changed:
        texts = [scrubber.text(part) for part in kept.parts() if isinstance(part, str)]
        # A secret may begin in one text and end in the next: then they become one.
        lengths = [len(text) for text in texts] if "".join(texts) == content else [len(content)]
        kept = kept._replace(content=content, order=set_lengths(kept.order, lengths))
    return kept._replace(tool_calls=calls)


def holds_secret(scrubber: Scrubber, call: ToolCall) -> bool:
    """True if the call's arguments differ from what is kept of them."""
    return scrubber.json(call.arguments_json) != call.arguments_json


def placeholder_problem(call: ToolCall) -> str | None:
    """Why a call that would put a placeholder in the place of a secret cannot be run; None for any other."""
    if b"[redacted:" not in call.arguments_json:
        return None
    found = re.search(PLACEHOLDER, call.arguments_json.decode())
    return None if found is None else _HOLDS_PLACEHOLDER.format(placeholder=found.group())


def _is_clean(scrubber: Scrubber, block: Block) -> bool:
    raw = block.raw.encode()
    return scrubber.json(raw) == raw


def _clean_call(scrubber: Scrubber, call: ToolCall) -> ToolCall:
    if not holds_secret(scrubber, call):
        return call
    return ToolCall(call.call_id, call.name, orjson.loads(scrubber.json(call.arguments_json)), NOT_KEPT)
