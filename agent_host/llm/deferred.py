"""Lazy LLM client and model table: both are expensive to import and not needed for the first reply."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.llm import ModelTurn
    from agent_host.llm.client import LlmClient
    from agent_host.llm.models import Models


class Model:
    """The model that answers the loop's requests. `make` creates the client with the first request. Used on one event
    loop."""

    def __init__(self, make: Callable[[], LlmClient]) -> None:
        self._make = make
        self._client: LlmClient | None = None

    def warm_up(self) -> None:
        """Import the client's modules in a thread, because that takes a while. The process waits for the thread when it
        ends, because C code that is interrupted during an import crashes."""
        threading.Thread(target=import_client, name="warm-up").start()

    async def stream(
        self,
        head: bytes,
        messages: Sequence[bytes],
        on_text: Callable[[str], None],
        on_thinking: Callable[[str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> ModelTurn:
        """See `LlmClient.stream`. Also raises the errors of creating the client."""
        if self._client is None:
            self._client = self._make()
        return await self._client.stream(head, messages, on_text, on_thinking, on_sent)

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            await self._client.aclose()


class KnownModels:
    """Facts about models: the shipped table, overridden by `configured`, the section `[models]`."""

    def __init__(self, configured: Mapping[str, Mapping[str, Any]]) -> None:
        self._configured = configured

    @cached_property
    def table(self) -> Models:
        """The facts, created on first use."""
        from agent_host.llm.models import Models

        return Models(self._configured)


def import_client() -> None:
    """Import the client's modules."""
    import agent_host.llm.client  # noqa: F401  for its side effect
