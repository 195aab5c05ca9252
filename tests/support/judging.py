"""Calls as policy decides on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.judging.decisions import decide
from agent_host.thread.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.judging import Judge, PreparedCall


def decided_call(judge: Judge, tool_name: str, arguments: Mapping[str, Any]) -> PreparedCall:
    """A call of the tool, with policy's decision."""
    return decide(judge, ToolCall("c", tool_name, dict(arguments)))


def problem_with(prepared: PreparedCall) -> str:
    """The problem with the arguments of a call that policy does not see."""
    assert prepared.decision is None
    assert prepared.refusal is not None
    assert prepared.refusal.withheld is None
    return prepared.refusal.message


def withheld_by(prepared: PreparedCall) -> str | None:
    """The setting that withholds the tool of a call, None for a tool that the session has."""
    return None if prepared.refusal is None else prepared.refusal.withheld
