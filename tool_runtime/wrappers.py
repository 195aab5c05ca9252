"""What every tool gets, as small functions from a handler to a handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.output.truncate import truncate_text

if TYPE_CHECKING:
    from tool_runtime.tool import CallContext, Handler, ToolOutput


def timed(handler: Handler, timeout_s: float) -> Handler:
    """Ends a call after `timeout_s` (AH 7.4). Work that goes on in a thread sees that it is abandoned."""

    async def run(call: CallContext) -> ToolOutput:
        try:
            async with asyncio.timeout(timeout_s) as call.clock.limit:
                return await handler(call)
        except TimeoutError as error:
            message = f"{call.request.tool_name} timed out after {timeout_s:g} seconds"
            raise ToolFault(FaultKind.TIMED_OUT, message) from error
        finally:
            call.clock.limit = None
            call.abandoned.flag = True

    return run


def capped(handler: Handler) -> Handler:
    """Cuts text that is over the output limit (TR 7.1), unless the tool has seen to it itself."""

    async def run(call: CallContext) -> ToolOutput:
        return with_limit(await handler(call), call)

    return run


def with_limit(output: ToolOutput, call: CallContext) -> ToolOutput:
    """The output within the limit of the call's text."""
    if output.capped:
        return output
    return output._replace(text=truncate_text(output.text, call.max_output_bytes), capped=True)
