"""HTTP requests, over `web.http` (TR 4.5). An HTTP error status is no failure of the call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from policy.names import CapabilityName
from tool_runtime.families.answers import DESKTOP
from tool_runtime.families.desktop.calls import constraints_of, encode, mark_of, place_to_keep, scope_of
from tool_runtime.families.desktop.command_tools import describe_saved, http_output
from tool_runtime.families.desktop.file_tools import settling_of
from tool_runtime.families.desktop.specs import HTTP_REQUEST
from tool_runtime.families.desktop.timeouts import request_timeout_s
from tool_runtime.families.web import Web
from tool_runtime.files import read, write
from tool_runtime.tool import CallContext, FaultKind, Tool, ToolFault, ToolOutput, cap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool


T = TypeVar("T")


class RequestTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._web = Web(settings, pool)

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        return (Tool(HTTP_REQUEST, cap(self._http_request), DESKTOP),)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._web.aclose()

    async def _http_request(self, call: CallContext) -> ToolOutput:
        arguments, settings = call.request.arguments, self._settings
        client = await self._web.client()
        from tool_runtime.web.domain_gate import DomainScope
        from tool_runtime.web.http import HttpParams, is_success

        limits, save_to = call.request.constraints, arguments.get("saveTo")
        most = None if save_to is None else self._most_bytes(call, CapabilityName.FILE_WRITE)
        params = HttpParams(
            url=arguments["url"],
            method=arguments.get("method", "GET"),
            headers=arguments.get("headers", {}),
            body=await self._body_to_send(call),
            timeout_s=arguments.get("timeout", request_timeout_s(settings)),
            domains=DomainScope(limits.allowed_domains, limits.blocked_domains),
            max_saved_bytes=most,
        )
        outcome = await client.fetch(params)
        if save_to is None:
            return http_output(call, outcome)
        if not is_success(outcome.status):
            return http_output(call, outcome, f"[Nothing was saved to {save_to}: the status is {outcome.status}]\n")
        saved = await self._save(call, save_to, outcome.body)
        return describe_saved(outcome, save_to)._replace(seen=str(saved.seen), settle=settling_of(saved))

    async def _body_to_send(self, call: CallContext) -> bytes:
        """The body, from the arguments or from a file."""
        arguments = call.request.arguments
        path = arguments.get("bodyFile")
        if path is None:
            return encode(arguments.get("body", ""), "body")
        if "body" in arguments:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.bodyFile: give body or bodyFile, not both")
        needed = CapabilityName.FILE_READ
        scope, most = scope_of(call.request, needed), self._most_bytes(call, needed)
        return await self._run_on_disk(call, path, lambda: read.read_bytes(path, scope, most, call.abandoned))

    async def _save(self, call: CallContext, path: str, body: bytes) -> write.WriteOutcome:
        scope = scope_of(call.request, CapabilityName.FILE_WRITE)
        params = write.WriteParams(path, scope, body, mark_of(call.request), kept=place_to_keep(call))
        return await self._run_on_disk(call, path, lambda: write.write_file(params, call.abandoned))

    async def _run_on_disk(self, call: CallContext, path: str, work: Callable[[], T]) -> T:
        """`work` on a file in a thread, within the time that files have."""
        timeout_s = self._settings.file_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._pool.run(work)
        except BaseException as error:
            call.abandoned.flag = True
            if isinstance(error, TimeoutError):
                message = f"the file took longer than {timeout_s:g} seconds: {path}"
                raise ToolFault(FaultKind.TIMED_OUT, message) from error
            raise

    def _most_bytes(self, call: CallContext, capability: str) -> int:
        """The largest file of the call."""
        of_policy, settings = constraints_of(call.request, capability).max_file_size_bytes, self._settings
        limits = (settings.http_max_download_bytes, settings.max_file_size_bytes, of_policy)
        return min(limit for limit in limits if limit is not None)
