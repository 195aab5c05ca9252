"""What stands for an argument that is left out, and what is not taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from agent_host.contracts import Subject, ToolSpec
from agent_host.host.environment import BUILT_IN, usable
from tests.support.rows import each_row

FOREIGN = ToolSpec(
    "server/tool",
    "",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "note": {"type": ["string", "null"]},
        },
        "required": ["text"],
    },
    "Mcp.Invoke",
    Subject("name"),
    "other",
    "requests",
    foreign_schema=True,
)


@each_row(
    ("tool", "given", "left"),
    [
        ("ReadFile", {"path": "a", "offset": None, "limit": None}, {"path": "a"}),
        ("ReadFile", {"path": "a", "offset": 3.0}, {"path": "a", "offset": 3}),
        ("ReadFile", {"path": "a", "offset": 3.5}, {"path": "a", "offset": 3.5}),
        ("ReadFile", {"path": "a", "encoding": ""}, {"path": "a"}),
        ("ReadFile", {"path": None}, {"path": None}),
        ("ReadFile", {"path": "a", "offset": "3"}, {"path": "a", "offset": "3"}),
        ("WriteFile", {"path": "a", "content": ""}, {"path": "a", "content": ""}),
        ("WriteFile", {"path": "a", "content": "x", "expectedSha256": ""}, {"path": "a", "content": "x"}),
        (
            "EditFile",
            {"path": "a", "edits": [{"oldText": "x", "newText": "", "replaceAll": None}]},
            {"path": "a", "edits": [{"oldText": "x", "newText": ""}]},
        ),
        ("RunCommand", {"command": "ls", "cwd": None, "timeout": 5.0}, {"command": "ls", "timeout": 5}),
        ("RunCommand", {"command": "ls", "sandboxGrant": {}}, {"command": "ls"}),
        ("RunCommand", {"command": "ls", "sandboxGrant": None}, {"command": "ls"}),
        (
            "RunCommand",
            {"command": "ls", "sandboxGrant": {"write": [], "domains": [], "off": False, "reason": ""}},
            {"command": "ls"},
        ),
        ("RunCommand", {"command": "ls", "sandboxGrant": {"reason": "none needed"}}, {"command": "ls"}),
        (
            "RunCommand",
            {"command": "ls", "sandboxGrant": {"write": None, "domains": ["a.example"], "reason": "To fetch."}},
            {"command": "ls", "sandboxGrant": {"domains": ["a.example"], "reason": "To fetch."}},
        ),
    ],
)
def test_what_stands_for_an_argument_that_is_left_out(tool: str, given: dict[str, Any], left: dict[str, Any]) -> None:
    found = usable(BUILT_IN.get(tool), given)
    assert found == left
    assert [type(value) for value in found.values()] == [type(value) for value in left.values()]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"text": "", "note": None}, {"text": "", "note": None}),
        ({"text": "x", "count": None}, {"text": "x"}),
        ({"text": "x", "count": None, "note": None}, {"text": "x"}),
        ({"text": None}, {"text": None}),
    ],
)
def test_a_tool_of_another_program_gets_what_its_schema_takes(given: dict[str, Any], left: dict[str, Any]) -> None:
    assert usable(FOREIGN, given) == left


def test_rare_arguments_are_taken_and_are_in_no_definition() -> None:
    for name in ("WriteFile", "EditFile", "RunCommand"):
        spec = BUILT_IN.get(name)
        assert spec is not None
        assert not {"expectedSha256", "sandboxGrant"} & spec.input_schema["properties"].keys()
