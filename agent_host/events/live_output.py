"""What tools print, on its way to the observers: as it comes, and never more than somebody can look at.

A command that prints gigabytes costs a few events a second. The whole output is the result's business, not this one's.

A secret is found by what it looks like, and so it must not be cut: the last line waits for its end, and a private key
for its last line, unless nothing more comes for a while.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from typing import TYPE_CHECKING, Final

from agent_host.events.kinds import EventType

if TYPE_CHECKING:
    from agent_host.contracts import ToolRequest
    from agent_host.events.emitter import Emitter

PAUSE_S: Final = 0.05
"""Between two pieces of one stream. What comes meanwhile is put together."""
MAX_PIECE_BYTES: Final = 8 * 1024
"""Of what came during a pause; the rest is left out, and the piece says how much that is."""


_KEY_BEGINS = r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY"
_KEY_ENDS = "-----END"


class LiveOutput:
    """Hands pieces of output to `emitter` as `tool_output_chunk`. Used on the event loop."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._streams: dict[str, dict[str, _Stream]] = {}

    def take(self, request: ToolRequest, stream: str, data: bytes) -> None:
        """What the call has just printed to `stream`, which is `stdout` or `stderr`."""
        of_call = self._streams.setdefault(request.tool_call_id, {})
        if stream not in of_call:
            of_call[stream] = _Stream(self._emitter, request, stream)
        of_call[stream].take(data)

    def end(self, tool_call_id: str) -> None:
        """The call is over; what still waits goes out now."""
        for stream in self._streams.pop(tool_call_id, {}).values():
            stream.end()


class _Stream:
    def __init__(self, emitter: Emitter, request: ToolRequest, name: str) -> None:
        self._emitter = emitter
        self._request = request
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = bytearray()
        self._left_out = 0
        self._held = ""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        room = MAX_PIECE_BYTES - len(self._waiting)
        self._waiting += data[:room]
        self._left_out += max(0, len(data) - room)
        if self._timer is None:
            self._emit()
            self._pause()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._emit(final=True)

    def _pause(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._over)

    def _over(self) -> None:
        self._timer = None
        if self._waiting or self._held:
            self._emit(silent=not self._waiting)
            self._pause()

    def _emit(self, *, final: bool = False, silent: bool = False) -> None:
        """`silent`: nothing came since the last piece, so what waits for its end may be a prompt."""
        text = self._held + self._decoder.decode(bytes(self._waiting), final or self._left_out > 0)
        end = len(text) if final or silent else _whole(text)
        if self._left_out:
            end, self._held = end or len(text), ""
            text = f"{text[:end]}\n[... {self._left_out + len(text[end:].encode())} bytes left out ...]\n"
        else:
            self._held, text = text[end:], text[:end]
        self._waiting.clear()
        self._left_out = 0
        if text:
            request = self._request
            payload = {"toolCallId": request.tool_call_id, "stream": self._name, "text": text}
            self._emitter.emit(EventType.TOOL_OUTPUT_CHUNK, payload, task_id=request.task_id, step_id=request.step_id)


def _whole(text: str) -> int:
    """How much of `text` may go: whole lines, and no part of a private key. What is long without goes as it is."""
    end = text.rfind("\n") + 1
    begun = [found.start() for found in re.finditer(_KEY_BEGINS, text[:end])] if "PRIVATE KEY" in text else []
    if begun and _KEY_ENDS not in text[begun[-1] : end]:
        end = begun[-1]
    return end if len(text) - end <= MAX_PIECE_BYTES else len(text)
