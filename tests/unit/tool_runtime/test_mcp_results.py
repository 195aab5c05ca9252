"""What an MCP server says that a call gave: no more is believed than what its tool promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest

from agent_host.contracts import ToolRequest
from tool_runtime.faults import ToolFault
from tool_runtime.mcp.results import output_of

if TYPE_CHECKING:
    from tool_runtime.tool import ToolOutput

REQUEST = ToolRequest("s/sum", {}, "session", "task", "step", "call", "Mcp.Invoke")
PROMISED = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def output(structured: Any, schema: Any = PROMISED, *, text: str = "", is_error: bool = False) -> ToolOutput:
    content: list[Any] = [types.TextContent(type="text", text=text)] if text else []
    result = types.CallToolResult(content=content, structured_content=structured, is_error=is_error)
    return output_of(result, REQUEST, schema, 10_000)


def test_structured_content_that_fits_is_the_output() -> None:
    assert output({"sum": 3}).text == '{"sum":3}'
    assert output({"sum": 3}, text='{"sum": 3}').text == '{"sum": 3}', "said once"


@pytest.mark.parametrize(
    ("structured", "problem"),
    [
        ({"sum": "3"}, "does not fit the tool's output schema"),
        ({}, "does not fit the tool's output schema"),
        (None, "no structured content, which the tool promises"),
    ],
)
def test_structured_content_that_is_not_what_was_promised_is_a_failure(structured: Any, problem: str) -> None:
    with pytest.raises(ToolFault, match=problem):
        output(structured, text="3")


def test_a_failure_need_not_be_what_was_promised() -> None:
    with pytest.raises(ToolFault, match=r"^no such number$"):
        output(None, text="no such number", is_error=True)


def test_more_parts_than_are_taken_are_counted() -> None:
    parts: list[Any] = [types.TextContent(type="text", text="x")] * 250
    text = output_of(types.CallToolResult(content=parts), REQUEST, None, 10_000).text
    assert text.splitlines()[-1] == "[50 more parts of the result are left out]"
    assert text.count("x\n") == 200
