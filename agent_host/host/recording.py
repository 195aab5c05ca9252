"""A gateway between a client and a real one, which writes a script of the real one's answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import IO, TYPE_CHECKING, Any, Final

import httpx
import orjson

from agent_host.errors import GatewayRejected, UsageError
from agent_host.llm import AnswerTooLarge, StreamFault, StreamProtocolError, errors
from agent_host.llm.errors import NAMES as ERROR_NAMES
from agent_host.llm.errors import kind_of_answer, kind_of_event
from agent_host.llm.known_dialects import NAMES, check_url, make_dialect, request_url
from agent_host.llm.network import complete_events
from agent_host.redaction import Scrubber
from agent_host.testing.http1 import MockServer
from policy.redaction import Redaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from agent_host.llm import Meaning, ModelTurn
    from agent_host.llm.dialects import Dialect
    from agent_host.llm.errors import ErrorDetails, Kind
    from agent_host.testing.http1 import HttpRequest, Reply
    from config.settings import Settings

_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(600, connect=10)
# Headers of one connection, and those that would cause a compressed answer.
_NOT_PASSED_ON: Final = frozenset(
    ("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "te",
     "transfer-encoding", "upgrade")
)  # fmt: skip
_KEPT_OF_ERRORS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
_JSON: Final = {"content-type": "application/json"}
_SECRET: Final = ("authorization", "x-api-key", "api-key", "cookie")


class Recorder:
    """Passes requests on to the gateway at `url`, and appends a turn to `script` for each answer. `workspace` is
    written as `${workspace}`. Secrets are removed. `on_skipped` gets a line for each answer that a script cannot
    represent."""

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
        server = MockServer(self._handle)
        url = await server.start(host, port)
        try:
            on_ready(url)
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
        status, kept, collected, failure = 0, dict[str, str](), bytearray(), ""
        try:
            async with self._http.stream("POST", url, headers=passed, content=request.body) as answer:
                status, kind = answer.status_code, answer.headers.get("content-type", "")
                kept = {name: value for name in _KEPT_OF_ERRORS if (value := answer.headers.get(name))}
                await reply.relay(status, {"content-type": kind, **kept}, _collect(answer, collected))
        except httpx.HTTPError as error:
            failure = f"the gateway failed: {type(error).__name__}: {error}"
            if not reply.status:
                await reply.send(502, _JSON, orjson.dumps({"error": {"message": "the recorded gateway failed"}}))
        if status:
            self._note(dialect, request, status, kept, bytes(collected), failure)
        else:
            self._on_skipped(failure)

    def _note(
        self, dialect: Dialect, request: HttpRequest, status: int, headers: Mapping[str, str], data: bytes, failure: str
    ) -> None:
        """Record an answer. One whose connection failed after its last event is complete all the same."""
        try:
            turn = turn_of(dialect, status, headers, data)
        except (StreamProtocolError, AnswerTooLarge) as error:
            self._on_skipped(failure or f"an answer is not in the script: {error}")
            return
        sent = request.headers.items()
        secrets = [value.removeprefix("Bearer ") for name, value in sent if name in _SECRET or "token" in name]
        clean = Scrubber([*secrets, check_url(self._url).password], self._redaction).value(self._portable(turn))
        self._script.write(orjson.dumps(clean, option=orjson.OPT_APPEND_NEWLINE))
        self._script.flush()

    def _portable(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("${", "$${").replace(self._workspace, "${workspace}")
        if isinstance(value, dict):
            return {name: self._portable(part) for name, part in value.items()}
        return [self._portable(part) for part in value] if isinstance(value, list) else value


def create_script(path: str, url: str) -> IO[bytes]:
    """A new script file, for the answers of the gateway at `url`. Raises UsageError for a file that is there, for a
    name that is not of JSON lines, and for a URL that is none."""
    check_url(url, "--record", may_be_script=False)
    if not path.endswith(".jsonl"):
        raise UsageError(f"--script {path}: a recorded script has JSON lines; its name ends in .jsonl")
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError as error:
        raise UsageError(f"--script {path}: there is such a file already; a recording begins a new one") from error
    except OSError as error:
        raise UsageError(f"--script {path}: cannot be written: {error.strerror}") from error


async def _collect(answer: httpx.Response, collected: bytearray) -> AsyncIterator[bytes]:
    async for piece in answer.aiter_raw():
        collected += piece
        if len(collected) > _MAX_ANSWER_BYTES:
            raise GatewayRejected(f"the gateway sent an answer of more than {_MAX_ANSWER_BYTES} bytes")
        yield piece


# The turn of a script that gives an answer of a real gateway again.

# The words that scripts have for ends of an answer; each wire of the scripted gateway puts them into its own.
_STOPS: Mapping[Meaning, str] = {
    "cut": "max_tokens",
    "blocked": "refusal",
    "continue": "pause_turn",
    "window": "model_context_window_exceeded",
    "empty": "tool_use",
}
_NO_DETAILS = "no details"


def turn_of(dialect: Dialect, status: int, headers: Mapping[str, str], data: bytes) -> dict[str, Any]:
    """The turn that answers with this HTTP status and body. `headers` are those that an error is sent with.

    Raises StreamProtocolError for a stream that broke off, AnswerTooLarge.
    """
    body = errors.parse(data)
    if status != httpx.codes.OK:
        details = errors.read(data)
        error = _error(details, body, lambda details: kind_of_answer(status, details))
        return {"status": status, "error": error, "headers": dict(headers)}
    if errors.is_error(body):
        sent = {"content-type": "application/json", **headers}
        return {"garbage": data.decode("utf-8", "replace"), "headers": sent}
    if errors.is_complete_answer(body):
        with contextlib.suppress(LookupError, ValueError):
            return _turn_of_events(dialect, list(dialect.events_of_answer(data.decode())))
    return _turn_of_events(dialect, complete_events(data))


def _turn_of_events(dialect: Dialect, events: Iterable[tuple[str, str]]) -> dict[str, Any]:
    assembler = dialect.assembler()
    texts: list[str] = []
    thoughts: list[str] = []
    for name, event in events:
        try:
            texts.append(assembler.feed(name, event) or "")
        except StreamFault as fault:
            turn = {"text": "".join(texts), "thinking": "".join(thoughts), "stream_error": _stream_error(fault, event)}
            return {key: value for key, value in turn.items() if value}
        thoughts.append(assembler.thinking)
    return _complete(assembler.finish(), "".join(thoughts))


def _complete(answer: ModelTurn, thinking: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"text": answer.text, "usage": _usage(answer)}
    if thinking:
        turn["thinking"] = thinking
    if answer.tool_calls:
        turn["tool_calls"] = [
            {"name": call.name, "raw_arguments": "{"}
            if call.problem
            else {"name": call.name, "arguments": call.arguments}
            for call in answer.tool_calls
        ]
    if answer.meaning != "complete":
        turn["stop_reason"] = _STOPS.get(answer.meaning, answer.stop_reason)
    return turn


def _usage(answer: ModelTurn) -> dict[str, int]:
    usage = answer.usage
    counted = {
        "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }
    for_an_hour = usage.cache_write_1h_tokens
    return {**counted, "cache_creation_1h_input_tokens": for_an_hour} if for_an_hour else counted


def _stream_error(fault: StreamFault, event: str) -> dict[str, Any]:
    """The error in the middle of a stream. `failed`: the response itself ended so, as on the wire of Responses."""
    error = _error(
        errors.read_value(fault.body), fault.body, lambda details: kind_of_event(details, passing=fault.retryable)
    )
    value = errors.parse(event.encode("utf-8", "replace"))
    return {**error, "failed": True} if isinstance(value, dict) and "response" in value else error


def _error(details: ErrorDetails, body: Any, meaning: Callable[[ErrorDetails], Kind]) -> dict[str, Any]:
    """The error of a script, which has one name for type and code: the first that means by itself what all names of the
    real one mean."""
    kind = meaning(details)
    message = details.message or _NO_DETAILS
    for name in (*_own_names(body), *sorted(details.names), *ERROR_NAMES.get(kind, ())[:1]):
        alone = errors.read_value({"error": {"type": name, "message": message}})
        if meaning(alone) == kind:
            return {"type": name, "message": message}
    return {"message": message}


def _own_names(body: Any) -> Iterator[str]:
    error = body.get("error") if isinstance(body, dict) else None
    names = (error.get("type"), error.get("code")) if isinstance(error, dict) else ()
    return (name for name in names if isinstance(name, str) and name)
