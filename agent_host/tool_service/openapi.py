"""The OpenAPI document of the service. A test sends requests made from it, and judges every answer by it."""

from __future__ import annotations

from typing import Any, Final

from agent_host.errors import ErrorCode
from agent_host.version import __version__

_CODES: Final = [str(code) for code in ErrorCode]
_TOOL_RESULT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["toolName", "sessionId", "taskId", "stepId", "status"],
    "properties": {
        "toolName": {"type": "string"},
        "sessionId": {"type": "string"},
        "taskId": {"type": "string"},
        "stepId": {"type": "string"},
        "status": {"type": "string", "enum": ["succeeded", "failed", "denied"]},
        "outputText": {"type": "string"},
        "artifactUris": {"type": "array", "items": {"type": "string"}},
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
_ID: Final = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 128}
_INVOCATION: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["sessionId", "taskId", "stepId", "workspaceId", "toolName", "arguments"],
    "properties": {
        "sessionId": _ID,
        "taskId": _NAME,
        "stepId": _NAME,
        "workspaceId": _ID,
        "toolName": {**_NAME, "description": "the tool of the path"},
        "arguments": {"type": "object"},
    },
}
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "message", "retryable"],
    "properties": {
        "code": {"type": "string", "enum": _CODES},
        "message": {"type": "string"},
        "retryable": {"type": "boolean"},
        "details": {"type": "object"},
    },
}
_TOOLS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["tools"],
    "properties": {
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["toolName", "description", "inputSchema", "requiresCapability"],
                "properties": {
                    "toolName": {"type": "string"},
                    "description": {"type": "string"},
                    "inputSchema": {"type": "object"},
                    "requiresCapability": {"type": "string", "const": "BackendTool.Invoke"},
                },
            },
        }
    },
}
_STATUS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
}
_EPOCH: Final = {
    "X-Tool-Service-Epoch": {
        "description": "changes when answers of keys may have been forgotten",
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER: Final = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}}}
_TOOL: Final = {"name": "toolName", "in": "path", "required": True, "schema": {"type": "string"}}
_GRANT: Final = {
    "name": "X-Capability-Grant",
    "in": "header",
    "required": True,
    "description": "v1.PAYLOAD.MAC: tenant, session, tool names and expiry, signed by the host",
    "schema": {"type": "string"},
}
_REFUSALS: Final = {
    400: "the request is not what it must be",
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
    """The document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backend Tool Service", "version": __version__},
        "security": [{"tenant": []}],
        "paths": {
            "/tools": {"get": _operation("listTools", "The tenant's tools", {200: _TOOLS}, (401,))},
            "/tools/{toolName}/invoke": {"post": _invoke()},
            "/tools/{toolName}/invocations/{key}": {"get": _invocation()},
            "/healthz": {"get": _open("health", "Whether the process answers", {200: _STATUS})},
            "/readyz": {"get": _open("readiness", "Whether it takes calls", {200: _STATUS, 503: _STATUS})},
            "/metrics": {"get": _metrics()},
            "/openapi.json": {"get": _open("openapi", "This document", {200: {"type": "object"}})},
        },
        "components": {
            "securitySchemes": {"tenant": {"type": "http", "scheme": "bearer"}},
            "schemas": {"ToolResult": _TOOL_RESULT, "Error": _ERROR, "Invocation": _INVOCATION},
        },
    }


def _invoke() -> dict[str, Any]:
    operation = _operation(
        "invokeTool",
        "Run a tool; with an Idempotency-Key once, however often it is sent",
        {200: {"$ref": "#/components/schemas/ToolResult"}},
        (400, 401, 403, 404, 409, 412, 413, 429, 503),
    )
    operation["parameters"] = [
        _TOOL,
        _GRANT,
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "the id of the call; it holds within tenant, session and tool, for the same arguments. "
            "Without it the call runs each time that it is sent",
            "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        },
        {
            "name": "X-Tool-Service-Epoch",
            "in": "header",
            "description": "with a repetition: the epoch that the first try saw; another one is refused",
            "schema": {"type": "string"},
        },
    ]
    schema = {"$ref": "#/components/schemas/Invocation"}
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _invocation() -> dict[str, Any]:
    operation = _operation(
        "findInvocation",
        "The answer of a key of the grant's session",
        {200: {"$ref": "#/components/schemas/ToolResult"}, 202: _STATUS},
        (401, 403, 404, 410, 503),
    )
    key = {"name": "key", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    operation["parameters"] = [_TOOL, key, _GRANT]
    return operation


def _metrics() -> dict[str, Any]:
    operation = _open("metrics", "Prometheus' text format", {})
    operation["responses"] = {
        "200": {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    return operation


def _open(name: str, summary: str, answers: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {**_operation(name, summary, answers, ()), "security": []}


def _operation(
    name: str, summary: str, answers: dict[int, dict[str, Any]], refusals: tuple[int, ...]
) -> dict[str, Any]:
    error = {"$ref": "#/components/schemas/Error"}
    responses = {str(status): _response(summary, schema, _EPOCH) for status, schema in answers.items()}
    for status in refusals:
        headers = {**_EPOCH, **_RETRY_AFTER} if status in (429, 503) else _EPOCH
        responses[str(status)] = _response(_REFUSALS[status], error, headers)
    return {"operationId": name, "summary": summary, "responses": responses}


def _response(description: str, schema: dict[str, Any], headers: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "headers": headers, "content": {"application/json": {"schema": schema}}}
