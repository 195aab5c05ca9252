"""What every tool gets, as small functions from a handler to a handler."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.output.truncate import truncate_text
from tool_runtime.schema import problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tool_runtime.tool import CallContext, Handler, ToolOutput


def checked(handler: Handler, schema: Mapping[str, Any]) -> Handler:
    """Refuses arguments that break `schema` before anything happens (TR 8)."""

    async def run(call: CallContext) -> ToolOutput:
        if wrong := problems(schema, call.request.arguments):
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "; ".join(wrong))
        return await handler(call)

    return run


def timed(handler: Handler, timeout_s: float) -> Handler:
    """Ends a call after `timeout_s` (AH 7.4). Work that goes on in a thread sees that it is abandoned."""

    async def run(call: CallContext) -> ToolOutput:
        try:
            async with asyncio.timeout(timeout_s):
                return await handler(call)
        except TimeoutError as error:
            message = f"{call.request.tool_name} timed out after {timeout_s:g} seconds"
            raise ToolFault(FaultKind.TIMED_OUT, message) from error
        finally:
            call.abandoned.flag = True

    return run


def capped(handler: Handler) -> Handler:
    """Cuts text that is over the output limit (TR 7.1), unless the tool has seen to it itself."""

    async def run(call: CallContext) -> ToolOutput:
        output = await handler(call)
        if output.capped:
            return output
        return output._replace(text=truncate_text(output.text, call.max_output_bytes), capped=True)

    return run


class Counter:
    """Calls of one tool so far; `seconds` is their time altogether."""

    __slots__ = ("calls", "failed", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.seconds = 0.0


def counted(handler: Handler, counter: Counter) -> Handler:
    """Counts calls, what did not succeed, and time."""

    async def run(call: CallContext) -> ToolOutput:
        began = time.perf_counter()
        counter.calls += 1
        counter.failed += 1  # taken back on success: also right for a cancelled call
        try:
            output = await handler(call)
            counter.failed -= 1
            return output
        finally:
            counter.seconds += time.perf_counter() - began

    return run
