"""A scripted LLM gateway: real HTTP on loopback, answers from a script, requests checked against it.

For tests and CI jobs that must not depend on a model. `docs/mock-gateway.md` describes scripts and behaviour.

    async with MockGateway(Script.from_turns([{"text": "Hello."}])) as gateway:
        ...  # talk to gateway.url
    assert gateway.failures == []
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from agent_host.testing.anthropic_wire import Anthropic
from agent_host.testing.chat_wire import ChatCompletions
from agent_host.testing.delivery import JSON_HEADERS, deliver
from agent_host.testing.dialect import BadRequest, Dialect, RequestView
from agent_host.testing.http1 import MAX_BODY_BYTES, HttpRequest, Reply
from agent_host.testing.mock_server import MockServer
from agent_host.testing.placeholders import fill
from agent_host.testing.prompt_cache import PromptCache, TooManyMarks, tokens_of
from agent_host.testing.responses_wire import Responses
from agent_host.testing.script import ErrorBody, Script, ScriptError, Turn, Usage
from agent_host.testing.turns import OffTheEnd, TurnChooser

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["MockGateway", "RequestRecord", "Script", "ScriptError", "serve_forever"]

FAILURE_HEADER = "x-mock-gateway-failure"
"""Set to `1` on answers that report a failure of the run, so that they can be distinguished from scripted errors."""

WIRES: tuple[Dialect, ...] = (Anthropic(), ChatCompletions(), Responses())
_DIALECTS: Mapping[str, Dialect] = {dialect.path: dialect for dialect in WIRES}
_PAGES = frozenset({"/props", "/v1/models", "/api/show", "/api/ps", "/api/tags"})
_MAX_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What is kept of one request. Times are of `time.monotonic_ns`; the answer's are 0 until it has come to that.

    `number` counts from 1. `session`, `model`, `message_count` and `turn` (the script's turn number) are None when the
    request was refused before they were known; `body` is None unless bodies are kept.
    """

    number: int
    path: str
    headers: Mapping[str, str]
    body_bytes: int
    first_byte_ns: int
    body_end_ns: int
    session: str | None = None
    model: str | None = None
    message_count: int | None = None
    turn: int | None = None
    status: int | None = None
    answer_start_ns: int = 0
    answer_end_ns: int = 0
    body: bytes | None = None


class _Refusal(Exception):
    """The request gets an error answer, and unless it `is_a_probe` the run a failure entry."""

    def __init__(self, status: int, text: str, *, is_a_probe: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.is_a_probe = is_a_probe


class MockGateway(MockServer):
    """Serves one script to any number of sessions at once.

    Args:
        script: what to answer and what to expect.
        variables: values of placeholders, over those that the script defines.
        keep_bodies: keep each request's body in its record. Off by default: a long thread is sent again and again.
        on_failure: called with each entry of `failures` as it comes.

    Raises:
        ScriptError: a placeholder of the script has no value.
    """

    def __init__(
        self,
        script: Script,
        *,
        variables: Mapping[str, str] | None = None,
        keep_bodies: bool = False,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._script = script.with_variables(variables or {})
        self._turns = TurnChooser(self._script)
        self._cache = PromptCache()
        self._keep_bodies = keep_bodies
        self._on_failure = on_failure
        super().__init__(self._handle, name="mock-gateway")
        self._records: OrderedDict[int, RequestRecord] = OrderedDict()
        self._failures: deque[str] = deque(maxlen=_MAX_RECORDS)
        self._count = 0

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """The requests in order of arrival, those under way included; the last 10,000. Any thread may ask.

        Status and times of an answer are noted after its last byte has been sent, so that a client in another thread
        may have read it all a moment before they can be seen here.
        """
        return tuple(self._records.values())

    @property
    def failures(self) -> list[str]:
        """What did not go as the script expects, one line each, the last 10,000. Any thread may ask."""
        return list(self._failures)

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        dialect = _DIALECTS.get(request.path)
        if request.path in _PAGES:  # a look at which server this is
            await reply.send(404, JSON_HEADERS, b'{"error":"this is a scripted gateway"}')
            return
        self._count += 1
        number = self._count
        self._records[number] = RequestRecord(
            number=number,
            path=request.path,
            headers=request.headers,
            body_bytes=request.body_bytes,
            first_byte_ns=request.first_byte_ns,
            body_end_ns=request.body_end_ns,
            body=request.body if self._keep_bodies else None,
        )
        if len(self._records) > _MAX_RECORDS:
            self._records.popitem(last=False)
        try:
            if dialect is None or request.method != "POST":
                await self._not_here(request, reply)
                return
            try:
                view, turn = self._choose(number, dialect, request)
            except _Refusal as refusal:
                await self._refuse(dialect, refusal, reply)
                return
            await deliver(turn, dialect, view, reply)
        finally:
            self._note(number, status=reply.status or None, started=reply.started_ns, ended=reply.ended_ns)

    def _choose(self, number: int, dialect: Dialect, request: HttpRequest) -> tuple[RequestView, Turn]:
        """The request as scripts see it, and the turn that answers it, expectations met and placeholders filled."""
        view = self._read(dialect, request)
        record = replace(
            self._records[number], session=view.session, model=view.model, message_count=view.message_count
        )
        self._records[number] = record
        where = f"request {number} (session {view.session})"
        try:
            chosen = self._turns.choose(view)
        except OffTheEnd as error:
            raise _Refusal(400, f"{where}: {error}") from None
        self._records[number] = replace(record, turn=chosen.number)
        turn = fill(chosen, {**self._script.variables, "turn": str(view.turn_index)})
        misses = [(condition.key, condition.miss(view)) for condition in turn.expect]
        if differences := [f"expect.{key}: {miss}" for key, miss in misses if miss]:
            raise _Refusal(400, f"{where}: turn {turn.number}: {'; '.join(differences)}")
        self._turns.served(chosen, view.session)
        return view, self._counted(dialect, request, view, turn) if self._script.count_tokens else turn

    def _counted(self, dialect: Dialect, request: HttpRequest, view: RequestView, turn: Turn) -> Turn:
        """The turn with the tokens of this request and its answer, where the script gives it none. What fails is not
        counted: a provider keeps nothing of it."""
        if turn.usage != Usage() or turn.fails:
            return turn
        pieces = dialect.pieces(orjson.loads(request.body or b"null"))
        try:
            counts = self._cache.count(view.model, pieces, has_marks=dialect.has_cache_marks)
        except TooManyMarks as error:
            raise _Refusal(400, f"the request is not valid: {error}") from None
        said = [turn.text, turn.thinking, *(call.name + call.encoded_arguments() for call in turn.tool_calls)]
        fresh = counts.whole - counts.read - counts.written
        return replace(turn, usage=Usage(fresh, tokens_of("".join(said).encode()), *counts[1:]))

    @staticmethod
    def _read(dialect: Dialect, request: HttpRequest) -> RequestView:
        if request.body is None:
            raise _Refusal(413, f"a request of {request.body_bytes} bytes is over the limit of {MAX_BODY_BYTES}")
        try:
            payload = orjson.loads(request.body)
            if payload == {}:
                raise _Refusal(400, "the request is empty", is_a_probe=True)
            return dialect.read(payload, request.headers)
        except orjson.JSONDecodeError as error:
            raise _Refusal(400, f"the request is not JSON: {error}") from None
        except BadRequest as error:
            raise _Refusal(400, f"the request is not valid: {error}") from None

    async def _not_here(self, request: HttpRequest, reply: Reply) -> None:
        text = f"{request.method} {request.path} is not served here; POST to {' or '.join(_DIALECTS)}"
        if request.method == "POST":  # anything else may be a look at whether somebody listens
            self._fail(text)
        dialect = next(iter(_DIALECTS.values()))
        await reply.send(404, JSON_HEADERS, dialect.error(404, ErrorBody(text)))

    async def _refuse(self, dialect: Dialect, refusal: _Refusal, reply: Reply) -> None:
        body = dialect.error(refusal.status, ErrorBody(f"mock gateway: {refusal}"))
        headers = JSON_HEADERS
        if not refusal.is_a_probe:
            self._fail(str(refusal))
            headers = {**JSON_HEADERS, FAILURE_HEADER: "1"}
        await reply.send(refusal.status, headers, body)

    def _fail(self, text: str) -> None:
        self._failures.append(text)
        if self._on_failure is not None:
            self._on_failure(text)

    def _note(self, number: int, *, status: int | None, started: int, ended: int) -> None:
        if record := self._records.get(number):
            self._records[number] = replace(record, status=status, answer_start_ns=started, answer_end_ns=ended)


async def serve_forever(
    script_path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    variables: Mapping[str, str] | None = None,
    on_ready: Callable[[str], None],
    on_failure: Callable[[str], None] | None = None,
) -> None:
    """Serve a script file until cancelled, then close cleanly. `on_ready` is called with the base URL.

    Raises:
        ScriptError: the script cannot be used.
        OSError: the address cannot be had.
    """
    gateway = MockGateway(Script.load(script_path), variables=variables, on_failure=on_failure)
    url = await gateway.start(host, port)
    try:
        on_ready(url)
        await asyncio.Event().wait()
    finally:
        await gateway.aclose()
