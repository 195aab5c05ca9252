"""The history of a session: its whole thread as one artifact, uploaded after each task (AH 5.5, interface 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Artifact
from agent_host.events.kinds import EventType
from agent_host.services.workspace import Upload, UploadFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.loop.context import LoopContext

NAME = "session_history.json"
_KIND: Final = "session_history"
_CONTENT_TYPE = "application/json"
_CALL_ID = b',"toolCallId":'
# `encode` writes the role behind two ids of at most 128 characters.
_ROLE, _ROLE_WITHIN = b'"role":"tool"', 400


class History:
    """Has the thread of one session uploaded. `missed` says what became of the last one where it was not stored, as a
    row of the result's `notUploaded`."""

    def __init__(self, ctx: LoopContext) -> None:
        self._ctx = ctx
        self._queued = 0  # messages of the last one that was stored, or is on its way
        self.missed: dict[str, Any] | None = None

    def queue(self) -> None:
        """Have the thread as it is now uploaded behind the artifacts that wait, unless that is done or under way. Never
        waits."""
        ctx, count = self._ctx, len(self._ctx.state.thread)
        if count == self._queued and self.missed is None:
            return
        self._queued, self.missed = count, None
        task_id = None if ctx.state.task is None else ctx.state.task.task_id

        def data() -> bytes:
            return b"".join((b"[", *_join(add_uris(ctx.state.thread[:count], ctx.state.artifact_uris)), b"]"))

        def stored(uri: str) -> None:
            if not ctx.artifacts.elsewhere:  # it lies where everybody finds the session's records
                return
            payload = {"artifactName": NAME, "artifactUri": uri}
            ctx.emitter.emit(EventType.ARTIFACT_UPLOADED, payload, task_id=task_id)

        def missed(message: str, again: bool) -> None:
            payload: dict[str, Any] = {"artifactName": NAME, "message": message}
            if not again:  # else the checkpoint stays, and has all of it
                payload |= self._keep_here(data(), task_id)
            if self._queued == count:
                self.missed = {"artifactType": _KIND, **payload}
            ctx.emitter.emit(EventType.ARTIFACT_UPLOAD_FAILED, payload, task_id=task_id)

        size = sum(map(len, ctx.state.thread))
        ctx.artifacts.queue.put(Upload(_KIND, NAME, _CONTENT_TYPE, size, data, stored, missed, task_id))

    def _keep_here(self, data: bytes, task_id: str | None) -> dict[str, str]:
        """Keep on this disk what another place did not take: {storageRef}, empty where the disk refuses too."""
        if not self._ctx.artifacts.elsewhere:
            return {}
        try:
            artifact = Artifact(_KIND, NAME, _CONTENT_TYPE, data)
            return {"storageRef": self._ctx.artifacts.home.keep_history(artifact, task_id=task_id).ref}
        except UploadFailed:
            return {}


def add_uris(messages: Sequence[bytes], uris: Mapping[str, Sequence[str]]) -> Sequence[bytes]:
    """Encoded `messages`; results of the calls in `uris` say where their artifacts are, in `artifactUris`."""
    if not uris:
        return messages
    known = {orjson.dumps(call_id): orjson.dumps(found) for call_id, found in uris.items()}
    return [_add_uris(message, known) for message in messages]


def _add_uris(message: bytes, known: Mapping[bytes, bytes]) -> bytes:
    """No JSON is parsed: within a text the quotes of the key would be escaped, and behind the id stands `isError`."""
    if message.find(_ROLE, 0, _ROLE_WITHIN) < 0:
        return message
    at = message.rfind(_CALL_ID)
    end = message.find(b',"isError"', at)
    found = known.get(message[at + len(_CALL_ID) : end]) if 0 <= at < end else None
    return message if found is None else b'%s,"artifactUris":%s}' % (message[:-1], found)


def _join(messages: Iterable[bytes]) -> Iterator[bytes]:
    separator = b""
    for message in messages:
        yield separator
        yield message
        separator = b","
