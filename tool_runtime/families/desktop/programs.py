"""Commands (TR 4.4), what follows a command that runs on in the background (decision 0036), and HTTP requests (TR 4.5).
An HTTP error status is no failure of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.contracts import Need, Subject, ToolSpec
from policy.names import CapabilityName
from tool_runtime.families.family import ToolRow
from tool_runtime.families.schemas import FETCHES, RUNS, flag, integer, mapping, parameters, text
from tool_runtime.output import artifacts, charset_of, decode_body
from tool_runtime.output.truncate import truncate_text
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput, encode

if TYPE_CHECKING:
    from agent_host.contracts import Artifact, ToolRequest
    from tool_runtime.families.operations import Operations
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.tool import CallContext
    from tool_runtime.web.http import HttpOutcome

RUN_COMMAND: Final = ToolSpec(
    "RunCommand",
    "Run a shell command; returns stdout, stderr and exit code. There is no terminal",
    parameters(
        ["command"],
        command=text(minLength=1),
        cwd=text("Default: the workspace", minLength=1),
        timeout=integer("Seconds. Default: 300", minimum=1, maximum=600),
        stdin=text("Default: empty"),
        background=flag(
            "Return an id for CommandOutput and StopCommand at once, and let it run on, as a server does, until the "
            "session ends"
        ),
    ),
    **RUNS,
)
_ID: Final = text(minLength=1)
COMMAND_OUTPUT: Final = ToolSpec(
    "CommandOutput",
    "Read what a background command printed since the last read, and whether it still runs",
    parameters(["id"], id=_ID, offset=integer("Byte to start from", minimum=0), limit=integer("Most bytes", minimum=1)),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="none",
    category="files",
)
STOP_COMMAND: Final = ToolSpec(
    "StopCommand",
    "End a background command and all that it started",
    parameters(["id"], id=_ID),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="other",
    # A slot of its own kind: commands that wait for the one that is to end would keep it from those of commands.
    category="files",
)
HTTP_REQUEST: Final = ToolSpec(
    "HttpRequest",
    "Make an HTTP request",
    parameters(
        ["url"],
        url=text(minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        headers=mapping(),
        body=text(),
        bodyFile=text("File to send in place of body", minLength=1),
        saveTo=text("File for the body of a 2xx response; replaced if it exists", minLength=1),
        timeout=integer("Seconds. Default: 60", minimum=1, maximum=60),
    ),
    **FETCHES,
    also=(
        Need("File.Read", Subject("path", "bodyFile"), optional=True),
        Need("File.Write", Subject("path", "saveTo"), optional=True),
    ),
)


async def _request(operations: Operations, call: CallContext) -> ToolOutput:
    arguments, save_to = call.request.arguments, call.request.arguments.get("saveTo")
    await operations.web.client()
    outcome = await operations.web.fetch(
        call.request,
        await _body(operations, call),
        arguments.get("headers", {}),
        timeout_s=arguments.get("timeout", operations.settings.default_request_s),
        max_saved_bytes=None if save_to is None else operations.most_sent(call, CapabilityName.FILE_WRITE),
    )
    if save_to is None:
        return _response(call, outcome)
    if not 200 <= outcome.status < 300:
        return _response(call, outcome, f"[Nothing was saved to {save_to}: the status is {outcome.status}]\n")
    output = await operations.save(call, save_to, outcome.body)
    size = len(outcome.body)
    return ToolOutput(f"{_head(outcome, size)}Saved {size} bytes to {save_to}", **output)


def _remove_download(operations: Operations, request: ToolRequest) -> bool:
    is_saved = "saveTo" in request.arguments
    return is_saved and operations.remove_temporary(request, "saveTo", CapabilityName.FILE_WRITE)


async def _body(operations: Operations, call: CallContext) -> bytes:
    arguments = call.request.arguments
    path = arguments.get("bodyFile")
    if path is None:
        return encode(arguments.get("body", ""), "body")
    if "body" in arguments:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.bodyFile: give body or bodyFile, not both")
    return await operations.read_to_send(call, path)


def _response(call: CallContext, outcome: HttpOutcome, note: str = "") -> ToolOutput:
    """TR 4.5; `note` stands in front."""
    packed = "content-encoding" in outcome.headers
    length = len(outcome.body) if packed else outcome.headers.get("content-length", len(outcome.body))
    content_type = _content_type(outcome)
    text = decode_body(outcome.body, charset_of(content_type))
    if text is None:
        text = f"Binary body, {len(outcome.body)} bytes"
    kept: tuple[Artifact, ...] = ()
    if len(outcome.body) > call.settings.artifact_threshold_bytes:
        kept = (artifacts.tool_output(call.request, outcome.body, part="body", content_type=content_type),)
    return ToolOutput(note + _head(outcome, length) + truncate_text(text, call.max_output_bytes), kept, capped=True)


def _head(outcome: HttpOutcome, length: int | str) -> str:
    kind = _content_type(outcome)
    return f"HTTP {outcome.status} {outcome.reason}\nContent-Type: {kind}\nContent-Length: {length}\n\n"


def _content_type(outcome: HttpOutcome) -> str:
    return outcome.headers.get("content-type", "unknown")


def set_timeouts(spec: ToolSpec, settings: RuntimeSettings) -> ToolSpec:
    """`spec` with the default and the maximum of its `timeout` as `settings` have them."""
    if spec.name == RUN_COMMAND.name:
        default, most = settings.default_command_s, settings.command_timeout_max_s
    elif spec.name == HTTP_REQUEST.name:
        default, most = settings.default_request_s, settings.http_timeout_max_s
    else:
        return spec
    timeout = integer(f"Seconds. Default: {default:g}", minimum=1, maximum=most)
    schema = spec.input_schema
    if schema["properties"]["timeout"] == timeout:
        return spec
    return spec._replace(input_schema={**schema, "properties": {**schema["properties"], "timeout": timeout}})


ROWS: Final = (
    ToolRow(RUN_COMMAND, run=lambda operations, call: operations.run_command(call)),
    ToolRow(COMMAND_OUTPUT, run=lambda operations, call: operations.commands.read_output(call)),
    ToolRow(STOP_COMMAND, run=lambda operations, call: operations.commands.stop(call)),
    ToolRow(HTTP_REQUEST, run=_request, leftover=_remove_download),
)
