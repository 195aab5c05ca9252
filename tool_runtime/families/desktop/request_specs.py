"""HttpRequest (TR 4.5)."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Need, Subject, ToolSpec
from tool_runtime.families.schemas import integer, parameters, text

HTTP_REQUEST: Final = ToolSpec(
    "HttpRequest",
    "Make an HTTP request",
    parameters(
        ["url"],
        url=text(minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        headers={
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        body=text(),
        bodyFile=text("File to send in place of body", minLength=1),
        saveTo=text(
            "File for the body of a 2xx response; replaced if it exists",
            minLength=1,
        ),
        timeout=integer("Seconds. Default: 60", minimum=1, maximum=60),
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
