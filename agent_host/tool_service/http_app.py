"""The service's HTTP: Starlette routes over `Invoker` and `Tenants`. What it answers is described by `openapi.py`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from agent_host.capability_grants import GRANT_HEADER
from agent_host.errors import ErrorCode
from agent_host.tool_service.answers import Place
from agent_host.tool_service.connections import HAS_TOKEN
from agent_host.tool_service.invoking import MAX_KEY_CHARS, Request, tool_of
from agent_host.tool_service.openapi import document
from agent_host.tool_service.refusals import Refusal, database_is_away

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from starlette.requests import Request as HttpRequest

    from agent_host.tool_service.answers import Answers
    from agent_host.tool_service.invoking import Invoker
    from agent_host.tool_service.tenants import ServedTenant, Tenants
    from agent_host.tool_service.watching import Metrics

    Handler = Callable[[HttpRequest], Awaitable[Response]]
    Opened = Callable[[], AbstractAsyncContextManager[tuple[Answers, Invoker]]]

KEY_HEADER: Final = "idempotency-key"
EPOCH_HEADER: Final = "x-tool-service-epoch"
_JSON: Final = "application/json"
_LAST_ANSWERS_S: Final = 3.0


class HttpApp:
    """The routes. `opened` gives what keeps answers and what runs calls, for as long as the application lives."""

    def __init__(self, tenants: Tenants, metrics: Metrics, opened: Opened) -> None:
        self._tenants = tenants
        self._metrics = metrics
        self._opened = opened
        self._answers: Answers
        self._invoker: Invoker
        self._requests: set[asyncio.Task[Any]] = set()
        self._looking: asyncio.Task[bool] | None = None

    def starlette(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/tools/{tool_name}/invoke", self._answered(self._invoke), methods=["POST"]),
            Route("/tools/{tool_name}/invocations/{key}", self._answered(self._invocation), methods=["GET"]),
            Route("/tools", self._answered(self._tools), methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/metrics", self._metrics_text, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
        ]
        handlers: Mapping[Any, Any] = {404: self._not_found, 405: self._not_allowed, 500: self._failed}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:  # noqa: ARG002  Starlette's form of it
        async with self._opened() as (self._answers, self._invoker):
            yield
            if self._requests:  # they were cancelled, and have their last words to say
                await asyncio.wait(self._requests, timeout=_LAST_ANSWERS_S)

    def _answered(self, handler: Handler) -> Handler:
        async def answered(request: HttpRequest) -> Response:
            task = asyncio.current_task()
            if task is not None:
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            try:
                if not self._answers.epoch:
                    raise database_is_away()
                return await handler(request)
            except Refusal as refusal:
                return self._refused(refusal)
            except asyncio.CancelledError:
                # uvicorn cancels requests when the time to drain is over, and nobody else does. What became of a call
                # is not known here, so this is no 503, after which it would be sent again.
                return self._refused(Refusal(500, ErrorCode.INTERNAL_ERROR, "the service was stopped"))

        return answered

    def _tenant(self, request: HttpRequest) -> ServedTenant:
        """The tenant that sends the request. Raises Refusal 401."""
        tenant = self._tenants.of(request.headers.get("authorization"))
        request.scope[HAS_TOKEN] = True
        return tenant

    async def _invoke(self, request: HttpRequest) -> Response:
        tenant = self._tenant(request)
        name = request.path_params["tool_name"]
        tool_of(tenant, name)
        grant = request.headers.get(GRANT_HEADER)
        self._invoker.granted(tenant, name, grant)  # before a body is read for it
        body = await _bounded_body(request, tenant.limits.max_request_bytes)
        key = request.headers.get(KEY_HEADER)
        if key is not None and not 0 < len(key) <= MAX_KEY_CHARS:
            raise Refusal(400, ErrorCode.INVALID_REQUEST, f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters")
        asked = Request(name, body, grant, key, request.headers.get(EPOCH_HEADER))
        return self._json(await self._invoker.invoke(tenant, asked))

    async def _invocation(self, request: HttpRequest) -> Response:
        tenant = self._tenant(request)
        name = request.path_params["tool_name"]
        tool_of(tenant, name)
        grant = self._invoker.granted(tenant, name, request.headers.get(GRANT_HEADER))
        known = await self._answers.find(Place(tenant.name, grant.session_id, name, request.path_params["key"]))
        if known is None:
            raise Refusal(404, ErrorCode.INVALID_REQUEST, "no call of this key is known")
        if known.state == "running":
            return self._json(orjson.dumps({"status": "running"}), 202, {"retry-after": "1"})
        if known.body is None:
            raise Refusal(410, ErrorCode.TOOL_INTERRUPTED, "the call of this key was cut off, or its answer is let go")
        return self._json(known.body)

    async def _tools(self, request: HttpRequest) -> Response:
        return self._json(orjson.dumps({"tools": [tool.listed() for tool in self._tenant(request).tools.values()]}))

    async def _healthz(self, request: HttpRequest) -> Response:  # noqa: ARG002  Starlette's form of a handler
        return self._json(b'{"status":"ok"}')

    async def _readyz(self, request: HttpRequest) -> Response:  # noqa: ARG002  as above
        # It needs no token, so that all who ask share one look at the database.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._answers.ready())
        if not await asyncio.shield(self._looking):
            return self._json(b'{"status":"answers cannot be kept"}', 503)
        return self._json(b'{"status":"ready"}')

    async def _metrics_text(self, request: HttpRequest) -> Response:  # noqa: ARG002  as above
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: HttpRequest) -> Response:  # noqa: ARG002  as above
        return self._json(orjson.dumps(document()))

    async def _not_found(self, request: HttpRequest, error: Exception) -> Response:  # noqa: ARG002  as above
        return self._refused(Refusal(404, ErrorCode.INVALID_REQUEST, "there is nothing at this path"))

    async def _not_allowed(self, request: HttpRequest, error: Exception) -> Response:  # noqa: ARG002  as above
        response = self._refused(Refusal(405, ErrorCode.INVALID_REQUEST, "this path takes another method"))
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    async def _failed(self, request: HttpRequest, error: Exception) -> Response:  # noqa: ARG002  as above
        """Nothing of the error is told: it may hold configuration. uvicorn logs it."""
        return self._refused(Refusal(500, ErrorCode.INTERNAL_ERROR, "the service failed"))

    def _refused(self, refusal: Refusal) -> Response:
        self._metrics.refused.labels(str(refusal.status)).inc()
        headers = {} if refusal.retry_after_s is None else {"retry-after": str(refusal.retry_after_s)}
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        return self._json(orjson.dumps(refusal.body()), refusal.status, headers)

    def _json(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        epoch = {EPOCH_HEADER: self._answers.epoch} if self._answers.epoch else {}
        return Response(body, status, {**epoch, **(headers or {})}, _JSON)


async def _bounded_body(request: HttpRequest, most: int) -> bytes:
    """The body. Raises Refusal 413 for more than `most` bytes, before they are read where their number is given."""
    refusal = Refusal(413, ErrorCode.INVALID_REQUEST, f"the request has more than {most:,} bytes")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most:
        raise refusal
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise refusal
    except ClientDisconnect:
        raise Refusal(400, ErrorCode.INVALID_REQUEST, "the request is not whole") from None
    return bytes(body)
