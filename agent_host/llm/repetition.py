"""An answer that repeats itself: a model that is caught in a loop writes until its limit of output."""

from __future__ import annotations

from typing import Final

REPEATED_BYTES: Final = 8 * 1024
"""So many bytes at the end of an answer that are one piece, over and over, are a loop."""
MAX_PIECE_BYTES: Final = 512
_LOOK_EVERY_BYTES: Final = 1024


class RepetitionWatch:
    """Watches the texts of one kind, such as an answer's text or its thinking, as they come."""

    def __init__(self) -> None:
        self._tail = b""
        self._unseen = 0

    def repeated(self, text: str, *, at_end: bool = False) -> int:
        """Take a text, with `at_end` the last one; returns how many bytes at the end of all texts say nothing new,
        because they repeat the piece before them; 0 if there is no loop."""
        data = text.encode("utf-8", "replace")
        self._tail = (self._tail + data)[-max(REPEATED_BYTES, len(data)) :]
        self._unseen += len(data)
        if (self._unseen < _LOOK_EVERY_BYTES and not at_end) or len(self._tail) < REPEATED_BYTES:
            return 0
        self._unseen = 0
        for start in range(0, len(self._tail) - REPEATED_BYTES + 1, _LOOK_EVERY_BYTES):
            end = start + REPEATED_BYTES
            piece = _piece_of(self._tail[start:end])
            if piece:
                return len(self._tail) - start - piece
        return 0


def _piece_of(tail: bytes) -> int:
    """The length of the shortest piece that `tail` repeats, 0 for none of at most `MAX_PIECE_BYTES`."""
    # A text that repeats a piece has its end once more, one piece before it. Two pieces find the shortest.
    end = tail[-2 * MAX_PIECE_BYTES :]
    place = tail.rfind(end, len(tail) - 3 * MAX_PIECE_BYTES, len(tail) - 1)
    length = len(tail) - len(end) - place
    return length if place >= 0 and tail[length:] == tail[:-length] else 0
