"""The Backend Tool Service as a source of tools (`tool_runtime.remote`): listed beside a session's start, called once
by the id of each call, and asked after a crash what became of one (AH 7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tool_runtime.backend.answers import output_of, tools_of
from tool_runtime.backend.invocations import Invocations
from tool_runtime.wrappers import with_limit

if TYPE_CHECKING:
    from tool_runtime.backend.invocations import Service, Terms
    from tool_runtime.remote import Definition, Listed
    from tool_runtime.tool import CallContext, ToolOutput

NAME: Final = "backend"
"""How records and people know the source."""


class BackendSource:
    """A Source. `service` is closed by whoever made it."""

    name = NAME

    def __init__(self, service: Service, terms: Terms) -> None:
        self._service = service
        self._invocations = Invocations(service, terms)

    async def list(self) -> Listed:
        """See Source."""
        return tools_of(await self._invocations.listing())

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:  # noqa: ARG002 - see Source
        """See Source."""
        return self._output(call, await self._invocations.run(call.request))

    async def outcome(self, tool: Definition, call: CallContext) -> ToolOutput | None:  # noqa: ARG002 - see Source
        """See Source. The service answers by the call's id, and a call that runs is waited for."""
        found = await self._invocations.known(call.request)
        return None if found is None else with_limit(self._output(call, found), call)

    async def aclose(self) -> None:
        """See Source."""

    def _output(self, call: CallContext, body: bytes) -> ToolOutput:
        threshold = call.settings.artifact_threshold_bytes
        return output_of(call.request, body, self._service.clean, threshold)
