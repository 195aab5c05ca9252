"""Server-sent events out of bytes as they arrive, none of them larger than the settings allow.

The whole of it is 'event stream interpretation' of the HTML standard, without ids and reconnection times, which mean
nothing in an answer to a POST. A line that comes in many pieces costs no more than one that comes whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.llm.limits import AnswerTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.llm.limits import AnswerLimits

_UNNAMED = "message"


class EventReader:
    """Reads one answer. Holds one line and the data of one event at most."""

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._answer_bytes = 0
        self._event_bytes = 0
        self._line = bytearray()
        self._after_cr = False
        self._name = _UNNAMED
        self._data: bytearray | None = None

    def feed(self, piece: bytes) -> Iterator[tuple[str, str]]:
        """(name, data) of each event that ends in `piece`. A lone surrogate that was encoded as if it were a character
        stands in `data` as it is.

        Raises AnswerTooLarge; UnicodeDecodeError for data that is no UTF-8.
        """
        self._answer_bytes += len(piece)
        if self._answer_bytes > self._limits.max_answer_bytes:
            raise AnswerTooLarge("an answer", "max_answer_bytes", self._limits.max_answer_bytes)
        for line in self._lines(piece):
            if line:
                self._take(line)
                continue
            if self._data is not None:
                yield self._name, _decoded(self._data)
            self._name, self._data, self._event_bytes = _UNNAMED, None, 0
        self._check(len(self._line))

    def _lines(self, piece: bytes) -> list[bytes | bytearray]:
        """The lines that end in `piece`, without their ends; the start of the next one is kept."""
        if self._after_cr and piece.startswith(b"\n"):  # the second half of one line end
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        lines: list[bytes | bytearray] = [*piece.splitlines()]
        rest = lines.pop() if lines and not piece.endswith((b"\n", b"\r")) else b""
        if lines and self._line:
            self._line += lines[0]
            lines[0] = self._line
            self._line = bytearray()
        self._line += rest
        return lines

    def _take(self, line: bytes | bytearray) -> None:
        self._check(len(line))
        if line.startswith(b":"):
            return
        self._event_bytes += len(line) + 1
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            if self._data is None:
                self._data = bytearray()
            else:
                self._data += b"\n"
            self._data += value

    def _check(self, line_bytes: int) -> None:
        limits = self._limits
        if line_bytes > limits.max_line_bytes:
            raise AnswerTooLarge("a line", "max_line_bytes", limits.max_line_bytes)
        if self._event_bytes + line_bytes > limits.max_event_bytes:
            raise AnswerTooLarge("an event", "max_event_bytes", limits.max_event_bytes)


def _decoded(data: bytearray) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogatepass")
