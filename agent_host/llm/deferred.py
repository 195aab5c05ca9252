"""Lazy LLM client and model table: both are expensive to import and not needed for the first reply. Both are made when
they are first needed."""

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
    """The model that answers the loop's requests: what `make` gives, from the first request on. Used on one event
    loop."""

    def __init__(self, make: Callable[[], LlmClient]) -> None:
        self._make = make
        self._client: LlmClient | None = None

    def warm_up(self) -> None:
        """Get ready for the first request, beside the event loop: what it imports takes a while. The process waits for
        it when it ends: C code that is cut off in the middle of an import crashes."""
        threading.Thread(target=import_client, name="warm-up").start()

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


class KnownModels:
    """Facts about models, with `configured`, the section `[models]`, over the shipped table."""

    def __init__(self, configured: Mapping[str, Mapping[str, Any]]) -> None:
        self._configured = configured

    @cached_property
    def table(self) -> Models:
        """The facts, made when they are first asked for."""
        from agent_host.llm.models import Models

        return Models(self._configured)


def import_client() -> None:
    """Import what makes requests."""
    import agent_host.llm.client  # noqa: F401  for its effect
