"""The LLM client, made when it is first needed: its imports are half of a start, and no reply waits for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.llm.client import LlmClient
    from agent_host.llm.stream import ModelTurn


class Model(Protocol):
    """What answers the loop's requests."""

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """See `LlmClient.stream`."""
        ...

    def warm_up(self) -> None:
        """Get ready for the first request, beside the event loop."""
        ...

    async def aclose(self) -> None:
        """Let go of the connection."""
        ...


class DeferredClient:
    """A `Model` that is `make()` from its first request on. Used on one event loop."""

    def __init__(self, make: Callable[[], LlmClient]) -> None:
        self._make = make
        self._client: LlmClient | None = None

    def warm_up(self) -> None:
        """See Model: what the first request imports takes a while. The process waits for it when it ends: C code that
        is cut off in the middle of an import crashes."""
        threading.Thread(target=_import_client, name="warm-up").start()

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """See `LlmClient.stream`. Raises what making the client raises, too."""
        if self._client is None:
            self._client = self._make()
        return await self._client.stream(head, messages, on_text, on_thinking, on_sent)

    async def aclose(self) -> None:
        """Close the connection, where there is one."""
        if self._client is not None:
            await self._client.aclose()


def _import_client() -> None:
    import agent_host.llm.client  # noqa: F401  for its effect
