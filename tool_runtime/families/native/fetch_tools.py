"""cp__fetch, over `core.http`. An HTTP error status is no failure of the call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import orjson

from tool_runtime.families.answers import with_text
from tool_runtime.families.desktop.calls import encoded
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.native import limits
from tool_runtime.families.native.specs import FETCH
from tool_runtime.families.web import Web, body_text
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

_JSON: Final = {"content-type": "application/json"}


class FetchTools:
    """See `families.native.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        limited = settings._replace(
            http_max_redirects=min(settings.http_max_redirects, limits.FETCH_REDIRECTS),
            http_max_body_bytes=min(settings.http_max_body_bytes, limits.FETCH_BODY_BYTES),
        )
        self._body_bytes = limited.http_max_body_bytes
        self._web = Web(limited, pool, tls_checks=settings.native_tls_checks)

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(FETCH, capped(self._fetch), DESKTOP),)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._web.aclose()

    async def _fetch(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        sent, headers = _sent(arguments.get("body", ""), arguments.get("headers", {}))
        timeout_ms = min(arguments.get("timeout_ms", limits.FETCH_TIMEOUT_MS), limits.FETCH_TIMEOUT_MS)
        await self._web.client()  # made before the clock runs
        began = time.monotonic()
        outcome = await self._web.fetch(
            call.request, sent, headers, timeout_s=timeout_ms / 1000, most_bytes=self._body_bytes
        )
        fields = {
            "status_code": outcome.status,
            "status_text": outcome.reason,
            "headers": dict(outcome.headers),
            "body": body_text(outcome),
            "body_truncated": outcome.body_cut,
            "duration_ms": int((time.monotonic() - began) * 1000),
        }
        return with_text(call, fields, cut={"body": "body_truncated"}, stored="body")


def _sent(body: str | Mapping[str, object], headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """The body as it is sent, and the headers with its type."""
    if isinstance(body, str):
        return encoded(body, "body"), headers
    try:
        data = orjson.dumps(body)
    except TypeError as error:  # what JSON cannot hold, such as a lone surrogate
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.body: {error}") from error
    named = {name.lower() for name in headers}
    return data, headers if "content-type" in named else {**headers, **_JSON}
