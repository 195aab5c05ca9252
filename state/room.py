"""How much room a session's snapshot has: nobody reads one above the limit, so nobody writes one (decision 0026)."""

from __future__ import annotations

from state.errors import WriteFailed


class Room:
    """The room in the snapshot of one session. `limit_bytes` is what a snapshot may have; it is full at fifteen
    sixteenths of that. The rest is for the current step, and for the session to be opened again."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._full_at_bytes = limit_bytes - limit_bytes // 16
        self.is_full = False

    def left_bytes(self, size: int) -> int:
        """What may come to a snapshot of `size` bytes before it is full."""
        return self._full_at_bytes - size

    def note(self, size: int, *, between_steps: bool) -> None:
        """Take note of a snapshot's size. One of an open step says nothing: results stand in it whole, and large ones
        no longer when the step is over."""
        self.is_full = between_steps and size > self._full_at_bytes

    def is_too_large(self, size: int) -> bool:
        """True if a snapshot of `size` bytes is above the limit."""
        return size > self._limit_bytes

    def refuse(self, size: int) -> None:
        """Raises WriteFailed for a snapshot of `size` bytes where that is above the limit."""
        if self.is_too_large(size):
            raise WriteFailed(
                f"the snapshot would have {size} bytes, and host.max_snapshot_bytes is {self._limit_bytes}"
            )
