"""A client as the server sees it: bytes that come, and bytes that go. Writing never waits; what the other side does not
take stays with the channel, and the writer can see how much that is."""

from __future__ import annotations

from typing import Protocol


class Receiver(Protocol):
    """The receiver of the other side's messages."""

    def receive(self, data: bytes) -> None:
        """The next bytes."""
        ...

    def end(self) -> None:
        """The other side is gone, or has nothing more to say. Called once."""
        ...


class Channel(Protocol):
    """One client. Used on the event loop."""

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were written and not taken yet."""
        ...

    def write(self, data: bytes) -> None:
        """Hand over `data`, at once as far as the other side takes it. What comes after the end is dropped."""
        ...

    async def drain(self) -> None:
        """Until the other side has taken all, or is gone."""
        ...

    def pause_reading(self, *, paused: bool) -> None:
        """Leave further bytes where they are, or take them again."""
        ...

    def close(self) -> None:
        """Let go of the client; what it has not taken is dropped."""
        ...
