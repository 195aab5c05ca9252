"""`agent-host view`: the sessions of a state directory as a live page on this machine.

Access: every request for data must have the token in a header. It has 128 bits, is new at each start, and is in the
fragment of the printed URL. The page itself has no data and needs no token. Requests that a browser would send for
another site are rejected: another Host, or an Origin or Sec-Fetch-Site of another site; there is no CORS, and no frame
may contain the page.

The server only reads. A stream checks the files of a session for changes 20 times a second, and sends the changed parts
of the page, as HTML that a template has escaped. Nothing is written, and sessions are not involved. With `can_approve`
a person answers an open question through its channel (`agent_host.rpc.questions`), with `once` or a denial.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_host.display_text import one_line
from agent_host.errors import AgentHostError, UsageError
from agent_host.host.records import state_of_files, state_of_list, stored_sessions
from agent_host.rpc import questions
from agent_host.view import hash_of, list_body, live_shell
from agent_host.view.session import session_body
from config import json_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request

    Handler = Callable[[Request], Awaitable[Response]]
    Look = Callable[[], object]
    Read = Callable[[], dict[str, Any]]

HOST: Final = "127.0.0.1"
TOKEN_HEADER: Final = "x-agent-host-token"  # noqa: S105  the header's name
_LOOK_S: Final = 0.05
_LOOK_AT_ALL_S: Final = 0.5
_ALIVE_S: Final = 15.0
_MOST_STREAMS: Final = 32
_MOST_BODY: Final = 4096
_BACKLOG: Final = 128
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(state_dir: str, *, port: int, can_approve: bool, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives; `on_ready` gets the URL with the token. Raises UsageError if the port is in use."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen(_BACKLOG)  # listens before the URL is printed, so a request waits until the server is up
    except OSError as error:
        listening.close()
        raise UsageError(f"--port {port}: {error.strerror}") from error
    number = listening.getsockname()[1]
    view = View(state_dir, number, can_approve=can_approve)
    config = uvicorn.Config(
        view.app(), log_config=None, log_level="critical", access_log=False, server_header=False, http="h11", ws="none",
        lifespan="off", h11_max_incomplete_event_size=16 * 1024, timeout_graceful_shutdown=1,
    )  # fmt: skip
    with listening:
        on_ready(f"http://{HOST}:{number}/#token={view.token}")
        uvicorn.Server(config).run([listening])


class View:
    """The pages of one state directory, at one port."""

    def __init__(self, state_dir: str, port: int, *, can_approve: bool) -> None:
        self.token = secrets.token_urlsafe(16)
        self._state_dir = state_dir
        self._can_approve = can_approve
        self._sessions = stored_sessions(state_dir, reads_only=True)
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self._streams = 0
        self._shell, style, scripts = live_shell()
        self._policy = (
            f"default-src 'none'; style-src {hash_of(style)}; script-src {' '.join(map(hash_of, scripts))}; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route("/", self._checked(self._page, needs_token=False)),
            Route("/s/{session_id}", self._checked(self._page, needs_token=False)),
            Route("/api/sessions", self._checked(self._list)),
            Route("/api/sessions/{session_id}", self._checked(self._session)),
            Route("/api/answers", self._checked(self._answer), methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def _checked(self, handler: Handler, *, needs_token: bool = True) -> Handler:
        """Call `handler` only for requests of this page, and add the security headers to its response."""

        async def handle(request: Request) -> Response:
            refused = self._refusal(request, needs_token=needs_token)
            response = await handler(request) if refused is None else PlainTextResponse(f"{refused}\n", 403)
            response.headers.update({**_HEADERS, "Content-Security-Policy": self._policy})
            return response

        return handle

    def _refusal(self, request: Request, *, needs_token: bool) -> str | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self._hosts:
            return "this server has another name"
        if origin is not None and origin not in {f"http://{name}" for name in self._hosts}:
            return "requests of another origin are refused"
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "requests of another site are refused"
        given = request.headers.get(TOKEN_HEADER, "")
        if needs_token and not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the token is missing or wrong: open the URL that `agent-host view` printed"
        return None

    async def _page(self, _: Request) -> Response:
        return Response(self._shell, media_type="text/html")

    async def _list(self, _: Request) -> Response:
        def read() -> dict[str, Any]:
            waiting = questions.open_questions(self._state_dir, lambda _: None)
            asked = {str(row["sessionId"]) for row in waiting}
            return list_body(self._sessions.all(), asked, state_dir=self._state_dir)

        return self._stream(lambda: state_of_list(self._state_dir), read, every_s=_LOOK_AT_ALL_S)

    async def _session(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]

        look = functools.partial(state_of_files, self._state_dir, session_id)
        read = functools.partial(self._read_session, session_id)
        try:
            seen = await run_in_threadpool(look)  # taken before reading, so that a later write counts as a change
            first = await run_in_threadpool(read)
        except AgentHostError as error:
            return PlainTextResponse(f"{one_line(str(error))}\n", 404)
        return self._stream(look, read, seen, first, every_s=_LOOK_S)

    def _read_session(self, session_id: str) -> dict[str, Any]:
        transcript = self._sessions.record(session_id).transcript()
        return session_body(transcript, state_dir=self._state_dir, can_approve=self._can_approve)

    def _stream(
        self, look: Look, read: Read, seen: object = None, body: dict[str, Any] | None = None, *, every_s: float
    ) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        return StreamingResponse(self._changes(look, read, seen, body, every_s), media_type="application/x-ndjson")

    async def _changes(
        self, look: Look, read: Read, seen: object, body: dict[str, Any] | None, every_s: float
    ) -> AsyncIterator[bytes]:
        """Yield lines of JSON: first all parts, then changed ones; and sometimes an empty line, to detect a reader that
        is gone. `body` was read from the state `seen`."""
        self._streams += 1
        try:
            sent: dict[str, str] = {}
            last_sent = pause = 0.0
            while True:
                if body is None and (now := await run_in_threadpool(look)) != seen:
                    started = time.monotonic()
                    with contextlib.suppress(AgentHostError, OSError):  # a session ends; the next check retries
                        body, seen = await run_in_threadpool(read), now
                    pause = time.monotonic() - started
                change, body = {} if body is None else _changed(body, sent), None
                if change or time.monotonic() - last_sent > _ALIVE_S:
                    last_sent = time.monotonic()
                    yield json_text.dumps(change) + b"\n"
                await asyncio.sleep(max(every_s, pause))  # avoids reading a long session all the time
        finally:
            self._streams -= 1

    async def _answer(self, request: Request) -> Response:
        if not self._can_approve:
            return PlainTextResponse("start `agent-host view --allow-approve` to answer here\n", 403)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("an answer is JSON\n", 415)
        data = b""
        async for piece in request.stream():
            data += piece
            if len(data) > _MOST_BODY:
                return PlainTextResponse("the answer is too long\n", 413)
        given = _answer_in(data)
        if given is None:
            return PlainTextResponse("an answer is {approvalId, decision: approved or denied}\n", 400)
        found: dict[str, Any] | None = await run_in_threadpool(
            questions.answer, self._state_dir, {**given, "scope": "once", "answeredBy": "view"}, lambda _: None
        )
        return JSONResponse({"status": "not_found"} if found is None else found)


def _changed(body: Mapping[str, Any], sent: dict[str, str]) -> dict[str, Any]:
    """The parts of `body` that are not in `sent`, to which they are added: {title, parts: {id: html}, steps: [[id,
    html]], gone: ids of removed steps}."""
    found: dict[str, Any] = {}
    parts = {name: html for name, html in body["parts"].items() if sent.get(name) != html}
    steps = [[name, html] for name, html in body.get("steps", ()) if sent.get(name) != html]
    names = {name for name, _ in body.get("steps", ())}
    removed = [name for name in sent if name not in names and name not in body["parts"]]
    for name in removed:
        del sent[name]
    sent.update(parts)
    sent.update((name, html) for name, html in steps)
    if parts or steps or removed:
        found = {"title": body["title"], "parts": parts, "steps": steps, "gone": removed}
    return found


def _answer_in(data: bytes) -> dict[str, str] | None:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or set(value) != {"approvalId", "decision"}:
        return None
    approval_id = value["approvalId"]
    is_id = isinstance(approval_id, str) and 0 < len(approval_id) <= 128
    return value if is_id and value["decision"] in ("approved", "denied") else None
