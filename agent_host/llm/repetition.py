"""An answer that repeats itself: a model that is caught in a loop writes until its limit of output.

A run of one visible character proves no loop: a rule, a filler and a picture in letters are runs too. Such an answer is
read on, and how it ends says what it was.
"""

from __future__ import annotations

from typing import Final

REPEATED_BYTES: Final = 8 * 1024
"""So many bytes at the end of an answer that are one piece, over and over, are a loop."""
MAX_PIECE_BYTES: Final = 512
MAX_RUN_BYTES: Final = 1024 * 1024
"""So long a run of one visible character is a loop, however the answer would end."""
_LOOK_EVERY_BYTES: Final = 1024


class RepetitionWatch:
    """Watches the texts of one kind, such as an answer's text or its thinking, as they come. `max_run_bytes` is how
    long a run of one visible character may be while the answer goes on."""

    def __init__(self, max_run_bytes: int = REPEATED_BYTES) -> None:
        self._max_run_bytes = max_run_bytes
        self._tail = b""
        self._unseen = 0
        self._run = 0

    def repeated(self, text: str) -> int:
        """Take a text; returns how many bytes at the end of all texts say nothing new, because they repeat the piece
        before them; 0 if there is no loop."""
        data = text.encode("utf-8", "replace")
        self._tail = (self._tail + data)[-max(REPEATED_BYTES, len(data)) :]
        self._unseen += len(data)
        return self._look(self._max_run_bytes) if self._unseen >= _LOOK_EVERY_BYTES else 0

    def repeated_at_end(self, *, by_itself: bool) -> int:
        """The same once the last text was taken; `by_itself`: nothing cut the answer, so a run has its end."""
        return self._look(self._max_run_bytes if by_itself else REPEATED_BYTES)

    def _look(self, max_run_bytes: int) -> int:
        tail, newest = self._tail, len(self._tail) - REPEATED_BYTES
        if newest < 0:
            return 0
        new, self._unseen = self._unseen, 0
        starts: list[int] = [*range(0, newest, _LOOK_EVERY_BYTES), newest]
        piece = 0
        for start in starts:
            window = tail[start : start + REPEATED_BYTES]
            piece = _piece_of(window)
            if piece and not _is_visible_character(window[:piece]):
                return len(tail) - start - piece
        in_tail = len(tail) - len(tail.rstrip(tail[-piece:])) if piece else 0
        self._run = in_tail if in_tail < len(tail) else max(in_tail, self._run + new)
        return self._run - piece if self._run >= max_run_bytes else 0


def _piece_of(tail: bytes) -> int:
    """The length of the shortest piece that `tail` repeats, 0 for none of at most `MAX_PIECE_BYTES`."""
    # A text that repeats a piece has its end once more, one piece before it. Two pieces find the shortest.
    end = tail[-2 * MAX_PIECE_BYTES :]
    place = tail.rfind(end, len(tail) - 3 * MAX_PIECE_BYTES, len(tail) - 1)
    length = len(tail) - len(end) - place
    return length if place >= 0 and tail[length:] == tail[:-length] else 0


def _is_visible_character(piece: bytes) -> bool:
    """True for the bytes of one character, from any of them on, that is no white space."""
    return sum(byte & 0xC0 != 0x80 for byte in piece) == 1 and not piece.isspace()
