"""Processes that die, and those that follow them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from state.records import JournalRecord, kind_of
from tests.support.loop import Loop, sessions_on
from tests.support.loop_parts import Tools, calls, says

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.faults.disk import SimulatedDisk
    from agent_host.thread.messages import ToolCall
    from state.checkpoint import OpenCall
    from tests.support.memory_store import CheckpointStore


class Died(Exception):
    """What ends the first process."""


async def died(folder: Path, *turn: ToolCall, **more: Any) -> Loop:
    """A process that died while its first tool ran; `tools` say which that is."""

    def die(_: ToolRequest) -> ToolResult:
        raise Died

    loop = Loop(folder, calls(*turn), **{"tools": Tools(die), **more})
    with contextlib.suppress(Died):
        await loop.run()
    assert loop.ctx.state.open_step is not None
    return loop


async def killed_before(loop: Loop, disk: SimulatedDisk, *kinds: str) -> CheckpointStore:
    """What the next process finds of a loop on `disk` that died just before a record of one of these kinds."""
    append = loop.ctx.journal.store.append

    def until_then(record: JournalRecord) -> None:
        if kind_of(record) in kinds:
            raise Died
        append(record)

    loop.ctx.journal.store.append = until_then  # type: ignore[method-assign]  # the process dies on this line
    with contextlib.suppress(Died):
        await loop.run()
    return sessions_on(disk.kill())


async def resumed(loop: Loop, *, other_boot: bool = False, **more: Any) -> Loop:
    """The next process, which goes on to the end of the task. Its tools do what they are told."""
    following = loop.again(says(), **{"tools": Tools(), **more})
    if other_boot and following.ctx.state.open_step is not None:
        following.ctx.state.open_step.boot = "before the power went"
    assert (await following.run()).status == "completed"
    assert following.ctx.state.open_step is None
    return following


def open_calls(loop: Loop) -> list[OpenCall]:
    """The calls of the open step."""
    step = loop.ctx.state.open_step
    assert step is not None
    return step.calls
