"""HTTP interface of the service: Starlette routes over `Invoker` and tenants. `document` describes it in OpenAPI."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from agent_host.capability_grants import GRANT_HEADER
from agent_host.errors import ErrorCode
from agent_host.tool_service.answers import IdempotencyScope
from agent_host.tool_service.invocation import MAX_KEY_CHARS, InvocationRequest, tool_of
from agent_host.tool_service.tenants import find_tenant
from agent_host.tool_service.tool import HttpRefusal, database_unreachable
from agent_host.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request as HttpRequest

    from agent_host.tool_service.invocation import Answers, Invoker, Metrics
    from agent_host.tool_service.tenants import ServedTenant

    Handler = Callable[[HttpRequest], Awaitable[Response]]
    Opened = Callable[[], AbstractAsyncContextManager[tuple[Answers, Invoker]]]


HAS_TOKEN: Final = "agent_host.has_token"  # noqa: S105  a name
"""Key that is set in the scope of a request that has a tenant's token."""
KEY_HEADER: Final = "idempotency-key"
EPOCH_HEADER: Final = "x-tool-service-epoch"
_PROBLEMS: Final = {
    404: (ErrorCode.INVALID_REQUEST, "there is nothing at this path"),
    405: (ErrorCode.INVALID_REQUEST, "this path takes another method"),
    500: (ErrorCode.INTERNAL_ERROR, "the service failed"),
}


class HttpApp:
    """The routes. `opened` provides the answer store and the invoker for the lifetime of the application."""

    def __init__(self, tenants: Sequence[ServedTenant], metrics: Metrics, opened: Opened) -> None:
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
            Route("/tools/{tool_name}/invoke", self._handle(self._invoke), methods=["POST"]),
            Route("/tools/{tool_name}/invocations/{key}", self._handle(self._invocation), methods=["GET"]),
            Route("/tools", self._handle(self._tools), methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/metrics", self._metrics_text, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
        ]
        handlers: Mapping[Any, Any] = dict.fromkeys(_PROBLEMS, self._on_error)
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:  # noqa: ARG002  Starlette's form of it
        async with self._opened() as (self._answers, self._invoker):
            yield
            if self._requests:  # they were cancelled and still have to respond
                await asyncio.wait(self._requests, timeout=3.0)

    def _handle(self, handler: Handler) -> Handler:
        async def handle(request: HttpRequest) -> Response:
            task = asyncio.current_task()
            if task is not None:
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            try:
                if not self._answers.epoch:
                    raise database_unreachable()
                return await handler(request)
            except HttpRefusal as refusal:
                return self._on_refusal(refusal)
            except asyncio.CancelledError:
                # Only uvicorn cancels requests, when the drain time is over. The outcome of the call is unknown here,
                # so this is not a 503, after which the call would be sent again.
                return self._on_refusal(HttpRefusal(500, ErrorCode.INTERNAL_ERROR, "the service was stopped"))

        return handle

    def _tenant(self, request: HttpRequest) -> ServedTenant:
        """Return the tenant that sent the request. Raises HttpRefusal 401."""
        tenant = find_tenant(self._tenants, request.headers.get("authorization"))
        request.scope[HAS_TOKEN] = True
        return tenant

    async def _invoke(self, request: HttpRequest) -> Response:
        tenant = self._tenant(request)
        name = request.path_params["tool_name"]
        tool_of(tenant, name)
        grant = request.headers.get(GRANT_HEADER)
        self._invoker.read_grant(tenant, name, grant)  # before the body is read
        body = await _read_body(request, tenant.limits.max_request_bytes)
        key = request.headers.get(KEY_HEADER)
        if key is not None and not 0 < len(key) <= MAX_KEY_CHARS:
            message = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters"
            raise HttpRefusal(400, ErrorCode.INVALID_REQUEST, message)
        asked = InvocationRequest(name, body, grant, key, request.headers.get(EPOCH_HEADER))
        return self._json(await self._invoker.invoke(tenant, asked))

    async def _invocation(self, request: HttpRequest) -> Response:
        tenant = self._tenant(request)
        name = request.path_params["tool_name"]
        tool_of(tenant, name)
        grant = self._invoker.read_grant(tenant, name, request.headers.get(GRANT_HEADER))
        place = IdempotencyScope(tenant.name, grant.session_id, name, request.path_params["key"])
        known = await self._answers.find(place)
        if known is None:
            raise HttpRefusal(404, ErrorCode.INVALID_REQUEST, "no call of this key is known")
        if known.state == "running":
            return self._json(orjson.dumps({"status": "running"}), 202, {"retry-after": "1"})
        if known.body is None:
            message = "the call of this key was cut off, or its answer is let go"
            raise HttpRefusal(410, ErrorCode.TOOL_INTERRUPTED, message)
        return self._json(known.body)

    async def _tools(self, request: HttpRequest) -> Response:
        return self._json(orjson.dumps({"tools": [tool.to_wire() for tool in self._tenant(request).tools.values()]}))

    async def _healthz(self, request: HttpRequest) -> Response:  # noqa: ARG002  Starlette's form of a handler
        return self._json(b'{"status":"ok"}')

    async def _readyz(self, request: HttpRequest) -> Response:  # noqa: ARG002  as above
        # This route needs no token, so concurrent requests share one query of the database.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._answers.ready())
        if not await asyncio.shield(self._looking):
            return self._json(b'{"status":"answers cannot be kept"}', 503)
        return self._json(b'{"status":"ready"}')

    async def _metrics_text(self, request: HttpRequest) -> Response:  # noqa: ARG002  as above
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: HttpRequest) -> Response:  # noqa: ARG002  as above
        return self._json(orjson.dumps(document()))

    async def _on_error(self, request: HttpRequest, error: Exception) -> Response:  # noqa: ARG002  as above
        """Respond without details of an unexpected error, because they may contain configuration. uvicorn logs it."""
        status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
        response = self._on_refusal(HttpRefusal(status, *_PROBLEMS[status]))
        response.headers.update(headers or {})
        return response

    def _on_refusal(self, refusal: HttpRefusal) -> Response:
        self._metrics.refused.labels(str(refusal.status)).inc()
        headers = {} if refusal.retry_after_s is None else {"retry-after": str(refusal.retry_after_s)}
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        status, retryable = refusal.status, refusal.status in (429, 503)
        body = {"code": str(refusal.code), "message": refusal.message, "retryable": retryable}
        return self._json(orjson.dumps(body), status, headers)

    def _json(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        epoch = {EPOCH_HEADER: self._answers.epoch} if self._answers.epoch else {}
        return Response(body, status, {**epoch, **(headers or {})}, "application/json")


async def _read_body(request: HttpRequest, most: int) -> bytes:
    """Read the body. Raises HttpRefusal 413 for more than `most` bytes, before reading if Content-Length is given."""
    refusal = HttpRefusal(413, ErrorCode.INVALID_REQUEST, f"the request has more than {most:,} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise refusal
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise refusal
    except ClientDisconnect:
        raise HttpRefusal(400, ErrorCode.INVALID_REQUEST, "the request is not whole") from None
    return bytes(body)


# The OpenAPI document of the service. A test generates requests from it and validates every response against it.

_TEXT: Final = {"type": "string"}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object with these properties; others are allowed."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


_IDS: Final = ("toolName", "sessionId", "taskId", "stepId")
_TOOL_RESULT: Final = {
    **_object(
        {**dict.fromkeys(_IDS, _TEXT), "status": {"type": "string", "enum": ["succeeded", "failed", "denied"]}},
        {
            "outputText": _TEXT,
            "artifactUris": {"type": "array", "items": _TEXT},
            "error": {**_object({"code": _TEXT, "message": _TEXT}), "additionalProperties": False},
        },
    ),
    "additionalProperties": False,
}
_ID: Final = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 128}
_INVOCATION: Final = _object({
    "sessionId": _ID,
    "taskId": _NAME,
    "stepId": _NAME,
    "workspaceId": _ID,
    "toolName": {**_NAME, "description": "the tool of the path"},
    "arguments": {"type": "object"},
})  # fmt: skip
_ERROR: Final = _object(
    {
        "code": {"type": "string", "enum": [str(code) for code in ErrorCode]},
        "message": _TEXT,
        "retryable": {"type": "boolean"},
    },
    {"details": {"type": "object"}},
)
_LISTED_TOOL: Final = _object({
    "toolName": _TEXT,
    "description": _TEXT,
    "inputSchema": {"type": "object"},
    "requiresCapability": {"type": "string", "const": "BackendTool.Invoke"},
})  # fmt: skip
_TOOLS: Final = _object({"tools": {"type": "array", "items": _LISTED_TOOL}})
_STATUS: Final = _object({"status": _TEXT})
_EPOCH: Final = {
    "X-Tool-Service-Epoch": {"description": "changes when answers of keys may have been forgotten", "schema": _TEXT}
}
_RETRY_AFTER: Final = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}}}
_TOOL: Final = {"name": "toolName", "in": "path", "required": True, "schema": _TEXT}
_KEY: Final = {"name": "key", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_GRANT: Final = {
    "name": "X-Capability-Grant",
    "in": "header",
    "required": True,
    "description": "v1.PAYLOAD.MAC: tenant, session, tool names and expiry, signed by the host",
    "schema": _TEXT,
}
_KEY_TO_SEND: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "the id of the call; it holds within tenant, session and tool, for the same arguments. "
    "Without it the call runs each time that it is sent",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS},
}
_EPOCH_TO_SEND: Final = {
    "name": "X-Tool-Service-Epoch",
    "in": "header",
    "description": "with a repetition: the epoch that the first try saw; another one is refused",
    "schema": _TEXT,
}
_REFUSALS: Final = {
    400: "the request is invalid",
    401: "no token of a tenant",
    403: "the grant is missing, not of this tenant or session, expired, or does not name the tool",
    404: "no such tool, or no such call",
    409: "the idempotency key was used for other arguments",
    410: "the call was cut off, or its answer is not kept any more",
    412: "the epoch that was expected is over",
    413: "the request is too large",
    429: "too many calls under way",
    503: "not able to answer now",
}


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    result = {"$ref": "#/components/schemas/ToolResult"}
    invoke = _operation(
        "invokeTool",
        "Run a tool; with an Idempotency-Key once, however often it is sent",
        {200: result},
        (400, 401, 403, 404, 409, 412, 413, 429, 503),
        parameters=[_TOOL, _GRANT, _KEY_TO_SEND, _EPOCH_TO_SEND],
        requestBody={"required": True, "content": _json_content({"$ref": "#/components/schemas/Invocation"})},
    )
    find = _operation(
        "findInvocation",
        "The answer of a key of the grant's session",
        {200: result, 202: _STATUS},
        (401, 403, 404, 410, 503),
        parameters=[_TOOL, _KEY, _GRANT],
    )
    metrics = {"200": {"description": "metrics", "content": {"text/plain": {"schema": _TEXT}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backend Tool Service", "version": __version__},
        "security": [{"tenant": []}],
        "paths": {
            "/tools": {"get": _operation("listTools", "The tenant's tools", {200: _TOOLS}, (401,))},
            "/tools/{toolName}/invoke": {"post": invoke},
            "/tools/{toolName}/invocations/{key}": {"get": find},
            "/healthz": {"get": _operation("health", "Whether the process answers", {200: _STATUS})},
            "/readyz": {"get": _operation("readiness", "Whether it takes calls", {200: _STATUS, 503: _STATUS})},
            "/metrics": {"get": _operation("metrics", "Prometheus' text format", {}, responses=metrics)},
            "/openapi.json": {"get": _operation("openapi", "This document", {200: {"type": "object"}})},
        },
        "components": {
            "securitySchemes": {"tenant": {"type": "http", "scheme": "bearer"}},
            "schemas": {"ToolResult": _TOOL_RESULT, "Error": _ERROR, "Invocation": _INVOCATION},
        },
    }


def _operation(
    name: str, summary: str, answers: Mapping[int, Any], refusals: tuple[int, ...] = (), **extra: Any
) -> dict[str, Any]:
    """Return an operation; without `refusals` it needs no token."""
    error = _json_content({"$ref": "#/components/schemas/Error"})
    responses: dict[str, Any] = {}
    for status, schema in answers.items():
        responses[str(status)] = {"description": summary, "headers": _EPOCH, "content": _json_content(schema)}
    for status in refusals:
        headers = {**_EPOCH, **_RETRY_AFTER} if status in (429, 503) else _EPOCH
        responses[str(status)] = {"description": _REFUSALS[status], "headers": headers, "content": error}
    access: dict[str, Any] = {} if refusals else {"security": []}
    return {"operationId": name, "summary": summary, "responses": responses, **access, **extra}


def _json_content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
