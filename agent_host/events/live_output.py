"""Output of tools on its way to the observers: as it comes, and never more than somebody can look at.

A command that prints gigabytes costs a few events a second. The whole output is the result's business, not this one's.
Of what is too much the beginning and the end are kept: the last lines often say how a command ended.

A secret is found by what it looks like, and so it must not be cut: the last line waits for its end, and a private key
for its last line, unless nothing more comes for a while.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from typing import TYPE_CHECKING, Final

from agent_host.events import EventType

if TYPE_CHECKING:
    from agent_host.contracts import ToolRequest
    from agent_host.events.emitter import Emitter

PAUSE_S: Final = 0.05
"""Between two pieces of one stream. What comes meanwhile is put together."""
MAX_PIECE_BYTES: Final = 8 * 1024
"""Of what came during a pause; what is left out is in its middle, and the piece says how much that is."""
VERBOSE_PIECE_BYTES: Final = 1024 * 1024
"""The same where all output is to be seen: 20 MB a second."""

_KEY_BEGINS = r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY"
_KEY_ENDS = "-----END"


class LiveOutput:
    """Hands pieces of output, of at most `max_bytes`, to `emitter` as `tool_output_chunk`. Used on the event loop."""

    def __init__(self, emitter: Emitter, max_bytes: int = MAX_PIECE_BYTES) -> None:
        self._emitter = emitter
        self._max_bytes = max_bytes
        self._streams: dict[str, dict[str, _Stream]] = {}

    def take(self, request: ToolRequest, stream: str, data: bytes) -> None:
        """Take what the call has just printed to `stream`, which is `stdout` or `stderr`."""
        of_call = self._streams.setdefault(request.tool_call_id, {})
        if stream not in of_call:
            of_call[stream] = _Stream(self._emitter, request, stream, self._max_bytes)
        of_call[stream].take(data)

    def end(self, tool_call_id: str) -> None:
        """The call is over; what still waits goes out now."""
        for stream in self._streams.pop(tool_call_id, {}).values():
            stream.end()


class _Stream:
    def __init__(self, emitter: Emitter, request: ToolRequest, name: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._emitter = emitter
        self._request = request
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = bytearray()
        self._left_out = 0
        self._held = ""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        excess = len(self._waiting) + len(data) - self._max_bytes
        if excess > 0:
            half = self._max_bytes // 2
            first = max(0, half - len(self._waiting))
            last = min(len(data), self._max_bytes - half)
            middle = max(first, len(data) - last)
            self._waiting += data[:first]
            self._waiting += data[middle:]
            over = len(self._waiting) - self._max_bytes
            del self._waiting[half : half + max(0, over)]
            self._left_out += excess
        else:
            self._waiting += data
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
        if self._left_out:
            text = self._around_the_gap(final=final)
        else:
            whole = self._held + self._decoder.decode(bytes(self._waiting), final)
            end = len(whole) if final or silent else self._whole(whole)
            text, self._held = whole[:end], whole[end:]
        self._waiting.clear()
        self._left_out = 0
        if text:
            request = self._request
            payload = {"toolCallId": request.tool_call_id, "stream": self._name, "text": text}
            self._emitter.emit(EventType.TOOL_OUTPUT_CHUNK, payload, task_id=request.task_id, step_id=request.step_id)

    def _around_the_gap(self, *, final: bool) -> str:
        """The lines before and behind what was left out. A line that it cut is left out as a whole, where it can be."""
        half = self._max_bytes // 2
        before = self._held + self._decoder.decode(bytes(self._waiting[:half]), final=True)
        self._decoder.reset()
        behind = self._decoder.decode(bytes(self._waiting[half:]), final)
        end = self._whole(before) or len(before)
        start = _first_whole(behind)
        stop = len(behind) if final else max(start, self._whole(behind))
        self._held = behind[stop:]
        left_out = self._left_out + len(before[end:].encode()) + len(behind[:start].encode())
        return f"{before[:end]}\n[... {left_out} bytes left out ...]\n{behind[start:stop]}"

    def _whole(self, text: str) -> int:
        """Return how much of `text` may go: whole lines, the states of a progress bar among them, and no part of a
        private key. What is long without goes as it is."""
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        begun = [found.start() for found in re.finditer(_KEY_BEGINS, text[:end])] if "PRIVATE KEY" in text else []
        if begun and _KEY_ENDS not in text[begun[-1] : end]:
            end = begun[-1]
        return end if len(text) - end <= self._max_bytes else len(text)


def _first_whole(text: str) -> int:
    """The first character of the first line that is whole, and no rest of a private key."""
    start = text.find("\n") + 1 or len(text)
    key_ends = text.find(_KEY_ENDS)
    if key_ends >= 0 and re.search(_KEY_BEGINS, text[:key_ends]) is None:
        start = max(start, text.find("\n", key_ends) + 1 or len(text))
    return start
