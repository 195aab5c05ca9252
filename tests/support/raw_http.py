"""Answers that no decent server gives: real HTTP on loopback, any bytes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agent_host.testing.http1 import HttpRequest, MockServer, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


class Answers:
    """Answers every request the same; `requests` are those that came."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._answer = (status, headers, body)
        self.requests: list[HttpRequest] = []
        self.url = ""

    async def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Take one request."""
        self.requests.append(request)
        status, headers, body = self._answer
        await reply.send(status, headers, body)


@asynccontextmanager
async def answering(
    status: int, body: bytes, *, headers: Mapping[str, str] | None = None, content_type: str = "application/json"
) -> AsyncIterator[Answers]:
    """A server that answers with `body` and nothing else."""
    answers = Answers(status, body, {"content-type": content_type, **(headers or {})})
    server = MockServer(answers.handle)
    answers.url = await server.start()
    try:
        yield answers
    finally:
        await server.aclose()
