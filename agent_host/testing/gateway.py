"""A scripted LLM gateway: real HTTP on loopback, answers from a script, requests checked against the script.

For tests and CI jobs that must not depend on a model. `docs/mock-gateway.md` describes scripts and behaviour.

    async with MockGateway(Script.from_turns([{"text": "Hello."}])) as gateway:
        ...  # talk to gateway.url
    assert gateway.failures == []
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.dialects import ANTHROPIC, BadRequest, MockDialect, PromptCache, split, tokens_of
from agent_host.testing.dialects.openai_chat import CHAT_COMPLETIONS
from agent_host.testing.dialects.openai_responses import RESPONSES
from agent_host.testing.http1 import MAX_BODY_BYTES, HttpRequest, MockServer, Reply
from agent_host.testing.script import ErrorBody, RequestView, Script, ScriptError, Turn, Usage, fill

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["MockGateway", "RequestRecord", "Script", "ScriptError", "serve_forever"]

FAILURE_HEADER = "x-mock-gateway-failure"
"""Set to `1` on answers that report a failure of the run, so that they can be distinguished from scripted errors."""

WIRES: tuple[MockDialect, ...] = (ANTHROPIC, CHAT_COMPLETIONS, RESPONSES)
_DIALECTS: Mapping[str, MockDialect] = {dialect.path: dialect for dialect in WIRES}
_PAGES = frozenset({"/props", "/v1/models", "/api/show", "/api/ps", "/api/tags"})
_MAX_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A record of one request. Times are of `time.monotonic_ns`; those of the answer are 0 until it starts and ends.
    `number` counts from 1. `session`, `model`, `message_count` and `turn` (the script's turn number) are None if the
    request was refused before they were known; `body` is None unless bodies are kept."""

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
    """The request is answered with an error and, unless it `is_a_probe`, recorded as a failure."""

    def __init__(self, status: int, text: str, *, is_a_probe: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.is_a_probe = is_a_probe


class MockGateway(MockServer):
    """A gateway that serves one script to any number of concurrent sessions. `variables` are values of placeholders and
    override those of the script; ScriptError is raised if a placeholder has no value. `keep_bodies` keeps each
    request's body in its record; this takes much memory, because a long thread is sent with each request. `on_failure`
    is called with each new entry of `failures`."""

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
        """The last 10,000 requests in order of arrival, including those in progress. Usable from any thread. Status and
        times of an answer are recorded after its last byte has been sent, so a client in another thread may have read
        all of it a moment before they are visible here."""
        return tuple(self._records.values())

    @property
    def failures(self) -> list[str]:
        """The last 10,000 departures from the script, one line each. Usable from any thread."""
        return list(self._failures)

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        dialect = _DIALECTS.get(request.path)
        if request.path in _PAGES:  # a probe for the kind of server
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
                await self._refuse_path(request, reply)
                return
            try:
                view, turn = self._choose(number, dialect, request)
            except _Refusal as refusal:
                await self._refuse(dialect, refusal, reply)
            except BadRequest as error:
                await self._refuse(dialect, _Refusal(400, f"the request is not valid: {error}"), reply)
            else:
                await deliver(turn, dialect, view, reply)
        finally:
            start, end = reply.started_ns, reply.ended_ns
            self._note(number, status=reply.status or None, answer_start_ns=start, answer_end_ns=end)

    def _note(self, number: int, **known: Any) -> None:
        if record := self._records.get(number):
            self._records[number] = replace(record, **known)

    def _choose(self, number: int, dialect: MockDialect, request: HttpRequest) -> tuple[RequestView, Turn]:
        """Return the view of the request and the turn that answers it, after checking expectations and filling
        placeholders."""
        view = self._read(dialect, request)
        self._note(number, session=view.session, model=view.model, message_count=view.message_count)
        where = f"request {number} (session {view.session})"
        chosen = self._turns.choose(view)
        if chosen is None:
            raise _Refusal(
                400,
                f"{where}: the script has no answer left: it has {self._turns.count} by position, answer "
                f"{view.position + 1} is asked for, and no 'when' matches",
            )
        self._note(number, turn=chosen.number)
        turn = fill(chosen, {**self._script.variables, "turn": str(view.turn_index)})
        misses = [(condition.key, condition.miss(view)) for condition in turn.expect]
        if differences := [f"expect.{key}: {miss}" for key, miss in misses if miss]:
            raise _Refusal(400, f"{where}: turn {turn.number}: {'; '.join(differences)}")
        self._turns.count_served(chosen, view.session)
        return view, self._count_tokens(dialect, request, view, turn) if self._script.count_tokens else turn

    def _count_tokens(self, dialect: MockDialect, request: HttpRequest, view: RequestView, turn: Turn) -> Turn:
        """Return the turn with the token counts of this request and its answer, if the script gives none. Failing turns
        are not counted, because a provider caches nothing of them."""
        if turn.usage != Usage() or turn.fails:
            return turn
        pieces = dialect.pieces(orjson.loads(request.body or b"null"))
        counts = self._cache.count(view.model, pieces, has_marks=dialect.has_cache_marks)
        texts = [turn.text, turn.thinking, *(call.name + call.encode_arguments() for call in turn.tool_calls)]
        fresh = counts.total - counts.read - counts.written
        return replace(turn, usage=Usage(fresh, tokens_of("".join(texts).encode()), *counts[1:]))

    @staticmethod
    def _read(dialect: MockDialect, request: HttpRequest) -> RequestView:
        if request.body is None:
            raise _Refusal(413, f"a request of {request.body_bytes} bytes is over the limit of {MAX_BODY_BYTES}")
        try:
            payload = orjson.loads(request.body)
            if payload == {}:
                raise _Refusal(400, "the request is empty", is_a_probe=True)
            return dialect.read(payload, request.headers)
        except orjson.JSONDecodeError as error:
            raise _Refusal(400, f"the request is not JSON: {error}") from None

    async def _refuse_path(self, request: HttpRequest, reply: Reply) -> None:
        text = f"{request.method} {request.path} is not served here; POST to {' or '.join(_DIALECTS)}"
        if request.method == "POST":  # anything else may be a check that the server is up
            self._fail(text)
        dialect = next(iter(_DIALECTS.values()))
        await reply.send(404, JSON_HEADERS, dialect.error(404, ErrorBody(text)))

    async def _refuse(self, dialect: MockDialect, refusal: _Refusal, reply: Reply) -> None:
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


async def serve_forever(
    script_path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    variables: Mapping[str, str] | None = None,
    on_ready: Callable[[str], None],
    on_failure: Callable[[str], None] | None = None,
) -> None:
    """Serve a script file until cancelled, then close cleanly. `on_ready` is called with the base URL. Raises
    ScriptError for an invalid script, OSError for an unavailable address."""
    gateway = MockGateway(Script.load(script_path), variables=variables, on_failure=on_failure)
    url = await gateway.start(host, port)
    try:
        on_ready(url)
        await asyncio.Event().wait()
    finally:
        await gateway.aclose()


# Delivery of the answer that a turn describes, with its scripted faults.

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
STREAM_HEADERS: Mapping[str, str] = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


async def deliver(turn: Turn, dialect: MockDialect, view: RequestView, reply: Reply) -> None:
    """Send the answer of `turn`, after its delay."""
    if turn.delay_ms:
        await asyncio.sleep(turn.delay_ms / 1000)
    match turn.kind:
        case "answer":
            await _answer(turn, dialect, view, reply)
        case "http_error":
            await reply.send(turn.status, {**JSON_HEADERS, **turn.headers}, dialect.error(turn.status, turn.error))
        case "garbage":
            headers = STREAM_HEADERS if view.stream else JSON_HEADERS
            await _send(turn, headers, _cut(turn, (turn.garbage or b"",)), reply)
        case "hang":
            await reply.await_client_end()


def stream_body(turn: Turn, dialect: MockDialect, view: RequestView) -> tuple[bytes, ...]:
    """Return the stream of an answer as it is sent: cut, ended by an error or split as the turn requires."""
    events = dialect.stream_events(turn, view)
    if turn.stream_error is not None:
        # By default as late as possible: after all content, before the events that declare it complete.
        stop = len(events) - dialect.closing_events if turn.cut_after_events is None else turn.cut_after_events
        events = [*events[:stop], dialect.error_event(turn.stream_error, view)]
    elif turn.cut_after_events is not None:
        events = events[: turn.cut_after_events]
    return _cut(turn, tuple(events))


def _cut(turn: Turn, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if turn.cut_after_bytes is not None:
        pieces = (b"".join(pieces)[: turn.cut_after_bytes],)
    if (size := turn.split_bytes) is not None:
        pieces = tuple(split(b"".join(pieces), size))
    return pieces


async def _send(turn: Turn, headers: Mapping[str, str], pieces: tuple[bytes, ...], reply: Reply) -> None:
    await reply.stream(
        turn.status,
        {**headers, **turn.headers},
        pieces,
        separately=bool(turn.split_bytes or turn.chunk_delay_ms),
        pause_s=turn.chunk_delay_ms / 1000,
        complete=not turn.cut,
    )


async def _answer(turn: Turn, dialect: MockDialect, view: RequestView, reply: Reply) -> None:
    headers = {"request-id": f"req_{view.session}_{view.turn_index}"}
    if view.stream:
        await _send(turn, {**STREAM_HEADERS, **headers}, stream_body(turn, dialect, view), reply)
    elif turn.stream_error is not None:
        # Without a stream, an error cannot follow the start of the answer; the closest equivalent is an HTTP error.
        failed = dialect.failed_message(turn.stream_error, view)
        status, body = (500, dialect.error(500, turn.stream_error)) if failed is None else (200, failed)
        await reply.send(status, {**JSON_HEADERS, **headers, **turn.headers}, body)
    else:
        body = b"" if turn.cut_after_events is not None else dialect.message(turn, view)
        await _send(turn, {**JSON_HEADERS, **headers}, _cut(turn, (body,)), reply)


# The choice of the turn that answers a request.

_MAX_SESSIONS = 10_000


class TurnChooser:
    """A chooser of turns: first by conditions, then by position. Its only state is the number of times that turns with
    a limit were served, per session, so a request that is repeated, by the same process or the next, gets the same
    answer."""

    def __init__(self, script: Script) -> None:
        self._variables = script.variables
        self._conditional = [turn for turn in script.turns if turn.when is not None]
        self._by_position: list[tuple[Turn, ...]] = []
        failing: tuple[Turn, ...] = ()
        for turn in script.turns:
            if turn.when is not None:
                continue
            if turn.fails:
                failing += (turn,)
            else:
                # A failing turn adds no message to the thread, so it shares the position of the answer after it.
                self._by_position.append((*failing, turn))
                self._by_position.extend([(turn,)] * (turn.repeat - 1))
                failing = ()
        if failing:
            self._by_position.append(failing)
        self._served: OrderedDict[str, Counter[int]] = OrderedDict()

    @property
    def count(self) -> int:
        """The number of positions that have an answer."""
        return len(self._by_position)

    def choose(self, view: RequestView) -> Turn | None:
        """Return the turn for a request; None if no turn with conditions matches and no turn is left at its position.
        Does not count the use: see `count_served`."""
        counts: Mapping[int, int] = self._served.get(view.session, {})
        variables = {**self._variables, "turn": str(view.turn_index)}
        for turn in self._conditional:
            if _is_left(turn, counts) and all(
                fill(condition, variables).miss(view) is None for condition in turn.when or ()
            ):
                return turn
        if view.position < len(self._by_position):
            for turn in self._by_position[view.position]:
                if _is_left(turn, counts):
                    return turn
        return None

    def count_served(self, turn: Turn, session: str) -> None:
        """Count one use of `turn`. Above 10,000 sessions, the counts of the least recently used ones are dropped."""
        if turn.limit is None:
            return
        counts = self._served.setdefault(session, Counter())
        counts[turn.number] += 1
        self._served.move_to_end(session)
        if len(self._served) > _MAX_SESSIONS:
            self._served.popitem(last=False)


def _is_left(turn: Turn, counts: Mapping[int, int]) -> bool:
    return turn.limit is None or counts.get(turn.number, 0) < turn.limit
