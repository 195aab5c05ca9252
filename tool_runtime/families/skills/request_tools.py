"""network_request, over `core.http`. An HTTP error status is no failure of the call."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tool_runtime.families.answers import answer, excerpt
from tool_runtime.families.desktop.calls import encoded
from tool_runtime.families.desktop.timeouts import request_timeout_s
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.skills import limits
from tool_runtime.families.skills.specs import NETWORK_REQUEST
from tool_runtime.families.web import Web, body_text
from tool_runtime.output import artifacts
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput


class RequestTools:
    """See `families.skills.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._body_bytes = min(settings.http_max_body_bytes, limits.BODY_BYTES)
        self._web = Web(settings._replace(http_max_body_bytes=self._body_bytes), pool)

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(NETWORK_REQUEST, capped(self._request), DESKTOP),)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._web.aclose()

    async def _request(self, call: CallContext) -> ToolOutput:
        arguments, settings = call.request.arguments, self._settings
        outcome = await self._web.fetch(
            call.request,
            encoded(arguments.get("body", ""), "body"),
            arguments.get("headers", {}),
            timeout_s=min(arguments.get("timeout_s", request_timeout_s(settings)), settings.http_timeout_max_s),
            most_bytes=self._body_bytes,
        )
        text = body_text(outcome)
        fields: dict[str, Any] = {
            "status": outcome.status,
            "headers": dict(outcome.headers),
            "sha256": hashlib.sha256(outcome.body).hexdigest(),
            "truncated": False,
        }
        end = excerpt(call, fields, "content_excerpt", text, 0, limits.EXCERPT_CHARS)
        if end == len(text) and not outcome.body_cut:
            return answer(fields)
        fields["truncated"] = True
        stored = artifacts.tool_output(call.request, outcome.body, part="body")._replace(ref_field="storage_ref")
        return answer(fields, artifacts=(stored,))
