"""Answers of the Backend Tool Service, checked: they are input from outside like any other (BT, "API Endpoints").

What it says becomes what a tool of this machine would have given: text and URIs, or a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import ErrorCode
from config import json_text
from config.shapes import ANYTHING, FLAG, OBJECT, TEXT, ListOf, Nullable, Record, Text, first_problem, one_of
from tool_runtime.output.artifacts import tool_output
from tool_runtime.remote.lists import Definition, ToolList, usable
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import ToolRequest

CAPABILITY: Final = "BackendTool.Invoke"
_MAX_URIS: Final = 1000
_MAX_CODE_CHARS: Final = 64
_RESULT: Final = Record(
    {
        "toolName": TEXT,
        "sessionId": TEXT,
        "taskId": TEXT,
        "stepId": TEXT,
        "status": one_of("succeeded", "failed", "denied"),
    },
    {
        "outputText": Text(nul=True),
        "artifactUris": ListOf(Text(1, 2048), most=_MAX_URIS),
        "error": Record({"code": TEXT, "message": TEXT}, closed=True),
    },
    closed=True,
)
"""BT, "Tool Result Schema"."""
_TOOLS: Final = Record({"tools": ListOf(ANYTHING)})
_TOOL: Final = Record(
    {"toolName": TEXT, "description": TEXT, "inputSchema": OBJECT},
    {"outputSchema": Nullable(OBJECT), "requiresCapability": TEXT},
)
_ERROR: Final = Record({"code": TEXT, "message": TEXT}, {"retryable": FLAG, "details": ANYTHING})
CODES: Final = frozenset(
    {
        *(ErrorCode.INVALID_REQUEST, ErrorCode.UNAUTHORIZED, ErrorCode.CAPABILITY_DENIED, ErrorCode.TOOL_NOT_FOUND),
        *(ErrorCode.TOOL_EXECUTION_FAILED, ErrorCode.TOOL_EXECUTION_TIMEOUT, ErrorCode.TOOL_INTERRUPTED),
        *(ErrorCode.FILE_NOT_FOUND, ErrorCode.FILE_TOO_LARGE, ErrorCode.PERMISSION_DENIED, ErrorCode.RATE_LIMITED),
        *(ErrorCode.WORKSPACE_UPLOAD_FAILED, ErrorCode.INTERNAL_ERROR),
    }
)
"""The names of errors that a call may end with. Any other is the service's own, or would say something of the session
that the service cannot know."""
_BY_STATUS: Final[Mapping[int, ErrorCode]] = {
    400: ErrorCode.INVALID_REQUEST,
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.CAPABILITY_DENIED,
    404: ErrorCode.TOOL_NOT_FOUND,
    409: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.INVALID_REQUEST,
    422: ErrorCode.INVALID_REQUEST,
    429: ErrorCode.RATE_LIMITED,
}


def tools_of(body: bytes) -> ToolList:
    """The tools of an answer to GET /tools, and why the others cannot be used. Raises ToolFault for no such answer."""
    value = _json(body)
    problem = first_problem(_TOOLS, value)
    if problem is not None:
        raise ToolFault(FaultKind.SYSTEM, f"its list of tools cannot be read: {problem.sentence}")
    found, rejected = [], {}
    for place, tool in enumerate(value["tools"]):
        problem = first_problem(_TOOL, tool)
        if problem is not None:
            name = tool.get("toolName") if isinstance(tool, dict) else None
            rejected[name if isinstance(name, str) else f"tools[{place}]"] = problem.sentence
        elif tool.get("requiresCapability", CAPABILITY) != CAPABILITY:
            rejected[tool["toolName"]] = f"it needs {tool['requiresCapability']}, and not {CAPABILITY}"
        else:
            output = tool.get("outputSchema")
            found.append(Definition(tool["toolName"], tool["description"], tool["inputSchema"], output))
    return usable(found, rejected)


def output_of(request: ToolRequest, body: bytes, clean: Callable[[str], str], threshold: int) -> ToolOutput:
    """Decode the output of a call from the ToolResult in `body`. Text of more than `threshold` bytes is left as an
    artifact, as local tools leave theirs. Raises ToolFault for a result that is failed or denied, and for what is no
    result of this call: whether the tool did its work is then not known."""
    value = _json(body)
    problem = first_problem(_RESULT, value)
    said = None if problem is None else problem.sentence
    if said is None and _names(value) != (request.tool_name, request.session_id, request.task_id, request.step_id):
        said = "it is the result of another call"
    if said is not None:
        message = f"the tool has run, and its result cannot be used: {said}; inspect before you try again"
        raise ToolFault(FaultKind.INTERRUPTED, message)
    output = _output(request, value, threshold)
    if value["status"] == "succeeded":
        return output
    error = value.get("error", {"code": "", "message": "the service gave no reason"})
    raise _fault(error["code"], clean(error["message"]), denied=value["status"] == "denied", partial=output)


def refusal_of(status: int, body: bytes, clean: Callable[[str], str]) -> ToolFault:
    """The fault for an answer by which no tool has run."""
    code, message, _ = error_of(body)
    usual = _BY_STATUS.get(status, ErrorCode.TOOL_EXECUTION_FAILED)
    said = clean(message) or f"HTTP {status}"
    if status == 401:
        said = (
            f"the Backend Tool Service does not take this host's token, or got none ({said}); check "
            "BACKEND_TOOL_SERVICE_TOKEN: it must be the token of your tenant"
        )
    return _fault(code or usual, said, denied=status == 403)


def error_of(body: bytes) -> tuple[str, str, bool | None]:
    """Code, message and `retryable` of an error's body; empty and None where it is none of the documented shape."""
    value = _json(body)
    if not _ERROR.fits(value):
        return "", "", None
    return value["code"], value["message"], value.get("retryable")


def _output(request: ToolRequest, value: Mapping[str, Any], threshold: int) -> ToolOutput:
    text = value.get("outputText", "")
    uris = tuple(uri for uri in value.get("artifactUris", ()) if uri.isprintable())
    content = text.encode("utf-8", "replace")
    artifacts = (tool_output(request, content, part="result"),) if len(content) > threshold else ()
    if uris:
        text = f"{text}\n[stored: {', '.join(uris)}]".lstrip("\n")
    return ToolOutput(text, artifacts, artifact_uris=uris)


def _fault(code: str, message: str, *, denied: bool, partial: ToolOutput | None = None) -> ToolFault:
    if code not in CODES:
        shown = code[:_MAX_CODE_CHARS]
        message = f"{shown}: {message}" if shown.isidentifier() and shown.isascii() else message
        code = ErrorCode.CAPABILITY_DENIED if denied else ErrorCode.TOOL_EXECUTION_FAILED
    kind = FaultKind.REFUSED if denied else FaultKind.SYSTEM
    return ToolFault(kind, message, partial=partial, code=ErrorCode(code))


def _names(value: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(value[name] for name in ("toolName", "sessionId", "taskId", "stepId"))


def _json(body: bytes) -> Any:
    try:
        return json_text.loads(body)
    except orjson.JSONDecodeError:
        return None
