"""What the loop puts on record, and when that is durable (design section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from state.errors import WriteFailed

if TYPE_CHECKING:
    from agent_host.events.emitter import Emitter
    from state.checkpoint import Checkpoint
    from state.records import Record
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

    def record(self, record: Record) -> None:
        """Put something on record that must be there before the loop goes on. Raises CheckpointWriteFailed."""
        try:
            self.store.append(record)
        except WriteFailed as error:
            raise _nothing_started(error) from error

    def try_record(self, record: Record) -> None:
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

    def checkpoint(self, step_id: str | None, record: Record, *, sync: bool = True) -> None:
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
