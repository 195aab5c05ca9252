"""HttpRequest (TR 4.5)."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Need, Subject, ToolSpec
from tool_runtime.families.schemas import integer, parameters, text

HTTP_REQUEST: Final = ToolSpec(
    "HttpRequest",
    "Make an HTTP request and return the response",
    parameters(
        ["url"],
        url=text("Request URL", minLength=1),
        method=text("HTTP method. Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        headers={
            "type": "object",
            "description": "Request headers",
            "additionalProperties": {"type": "string"},
        },
        body=text("Request body"),
        bodyFile=text(
            "Path of a file to send as the body, absolute or relative to the workspace, in place of body", minLength=1
        ),
        saveTo=text(
            "Path of a file to save the body of a 2xx response to, absolute or relative to the workspace. A file "
            "that is there is replaced",
            minLength=1,
        ),
        timeout=integer("Timeout in seconds. Default: 60", minimum=1, maximum=60),
    ),
    capability="Network.Http",
    subject=Subject("url", "url"),
    effect="other",
    category="requests",
    display="request",
    also=(
        Need("File.Read", Subject("path", "bodyFile"), optional=True),
        Need("File.Write", Subject("path", "saveTo"), optional=True),
    ),
)
