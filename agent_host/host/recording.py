"""Inner door: a gateway between a client and a real one, which writes a script of what the real one answered."""

from __future__ import annotations

import asyncio
import os
from typing import IO, TYPE_CHECKING, Any, Final

import httpx
import orjson

from agent_host.errors import GatewayRejected, UsageError
from agent_host.host.recorded_turns import turn_of
from agent_host.llm.dialects import NAMES, make_dialect
from agent_host.llm.limits import AnswerTooLarge
from agent_host.llm.stream import StreamProtocolError
from agent_host.llm.urls import check_url, password_of, request_url
from agent_host.redaction import Scrubber
from agent_host.testing.http1 import HttpServer
from policy.redaction.redact import Redaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from agent_host.llm.stream import Dialect
    from agent_host.testing.http1 import HttpRequest, Reply
    from config.settings import Settings

_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(600, connect=10)
# What belongs to one connection, and what would have the answer come compressed.
_NOT_PASSED_ON: Final = frozenset(
    ("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "te",
     "transfer-encoding", "upgrade")
)  # fmt: skip
_KEPT_OF_ERRORS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
_JSON: Final = {"content-type": "application/json"}


class Recorder:
    """Passes requests on to the gateway at `url`, and appends a turn to `script` for each answer. `workspace` stands as
    `${workspace}` in it. Secrets are taken out. `on_skipped` gets a line for each answer that no script can hold."""

    def __init__(
        self, url: str, script: IO[bytes], settings: Settings, *, workspace: str, on_skipped: Callable[[str], None]
    ) -> None:
        self._url = url
        self._script = script
        self._workspace = workspace
        self._on_skipped = on_skipped
        self._dialects: dict[str, Dialect] = {
            dialect.path: dialect for dialect in (make_dialect(name, settings) for name in NAMES)
        }
        key = os.urandom(32)
        self._redaction = Redaction(key=lambda: key)
        self._http = httpx.AsyncClient(timeout=_TIMEOUT)

    async def serve(self, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        """Serve until cancelled. `on_ready` gets the base URL. Raises OSError for an address that cannot be had."""
        server = HttpServer(self._handle)
        bound_host, bound_port = await server.start(host, port)
        try:
            on_ready(f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}")
            await asyncio.Event().wait()
        finally:
            await server.aclose()
            await self._http.aclose()

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        dialect = self._dialects.get(request.path)
        if dialect is None or request.method != "POST" or request.body is None:
            await reply.send(404, _JSON, orjson.dumps({"error": {"message": f"POST to {', '.join(self._dialects)}"}}))
            return
        passed = {name: value for name, value in request.headers.items() if name not in _NOT_PASSED_ON}
        url = request_url(self._url, request.path)
        try:
            async with self._http.stream("POST", url, headers=passed, content=request.body) as answer:
                kind = answer.headers.get("content-type", "")
                kept = {name: value for name in _KEPT_OF_ERRORS if (value := answer.headers.get(name))}
                collected = bytearray()
                await reply.relay(answer.status_code, {"content-type": kind, **kept}, _collect(answer, collected))
        except httpx.HTTPError as error:
            self._on_skipped(f"the gateway failed: {type(error).__name__}: {error}")
            if not reply.status:
                await reply.send(502, _JSON, orjson.dumps({"error": {"message": "the recorded gateway failed"}}))
            return
        self._note(dialect, request, answer.status_code, kept, bytes(collected))

    def _note(
        self, dialect: Dialect, request: HttpRequest, status: int, headers: Mapping[str, str], data: bytes
    ) -> None:
        """Append the turn that would answer so."""
        try:
            turn = turn_of(dialect, status, headers, data)
        except (StreamProtocolError, AnswerTooLarge) as error:
            self._on_skipped(f"an answer is not in the script: {error}")
            return
        secrets = [value.removeprefix("Bearer ") for name, value in request.headers.items() if _is_secret(name)]
        clean = Scrubber([*secrets, password_of(self._url)], self._redaction).value(self._portable(turn))
        self._script.write(orjson.dumps(clean, option=orjson.OPT_APPEND_NEWLINE))
        self._script.flush()

    def _portable(self, value: Any) -> Any:
        """The same value with the placeholder of the workspace in its texts."""
        if isinstance(value, str):
            return value.replace("${", "$${").replace(self._workspace, "${workspace}")
        if isinstance(value, dict):
            return {name: self._portable(part) for name, part in value.items()}
        return [self._portable(part) for part in value] if isinstance(value, list) else value


def create_script(path: str, url: str) -> IO[bytes]:
    """A new script file, for the answers of the gateway at `url`. Raises UsageError for a file that is there, for a
    name that is not of JSON lines, and for a URL that is none."""
    check_url(url)
    if not path.endswith(".jsonl"):
        raise UsageError(f"--script {path}: a recorded script has JSON lines; its name ends in .jsonl")
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError as error:
        raise UsageError(f"--script {path}: there is such a file already; a recording begins a new one") from error
    except OSError as error:
        raise UsageError(f"--script {path}: cannot be written: {error.strerror}") from error


async def _collect(answer: httpx.Response, collected: bytearray) -> AsyncIterator[bytes]:
    """The pieces of the answer; those that were read are in `collected`."""
    async for piece in answer.aiter_raw():
        collected += piece
        if len(collected) > _MAX_ANSWER_BYTES:
            raise GatewayRejected(f"the gateway sent an answer of more than {_MAX_ANSWER_BYTES} bytes")
        yield piece


def _is_secret(header: str) -> bool:
    return header in ("authorization", "x-api-key", "api-key", "cookie") or "token" in header
