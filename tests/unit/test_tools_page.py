"""docs/tools.md against the code: the schemas, and what the details of an approval hold for each kind of tool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval import ApprovalRequest
from agent_host.approval.details import DescribedCall, describe
from agent_host.contracts import Subject, ToolSpec
from agent_host.judging import Environment
from agent_host.judging.facts import gather
from tests.support.tool_page import PAGE, SHOWN, page
from tests.support.tools import TOOLS
from tool_runtime.families.skills import RUN_SCRIPT
from tool_runtime.files.skills import SkillFolder, SkillIndex
from tool_runtime.processes.scripts import SkillScripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.contracts import Display

KINDS = {
    "string": str,
    "integer": int,
    "true": bool,
    "boolean": bool,
    "list of strings": list,
    "list of objects": list,
}
KNOWN = {**TOOLS, RUN_SCRIPT.name: RUN_SCRIPT}
OF_SOMEBODY_ELSE = ToolSpec("tool", "", {}, "Mcp.Invoke", Subject("name"), "other", "requests")
HEADERS = {f"x-{number}": "y" for number in range(51)}

# (how it is shown, tool, arguments): together they have every field. `old`, `bytes`, `link` (to `old`) and
# `here` (to their folder) are there.
CALLS: list[tuple[Display, str, dict[str, Any]]] = [
    ("command", "RunCommand", {"command": "cat < old > new; $X", "stdin": "y", "timeout": 5}),
    ("command", "RunCommand", {"command": "; ".join(["true"] * 1500)}),
    ("command", "run_script", {"skill": "forms", "relative_path": "scripts/fill.py", "args": ["a b"]}),
    ("write", "WriteFile", {"path": "new", "content": "x\n", "createDirectories": False}),
    ("write", "WriteFile", {"path": "link", "content": "x\n"}),
    ("write", "EditFile", {"path": "old", "edits": [{"oldText": "old", "newText": "new"}]}),
    ("write", "EditFile", {"path": "old", "edits": [{"oldText": "x", "newText": "new"}]}),
    ("move", "MoveFile", {"path": "here/old", "newPath": "new", "x": 1}),
    ("move", "MoveFile", {"path": "old", "newPath": "bytes"}),
    ("write", "WriteFile", {"path": "bytes", "content": "x\n"}),
    ("delete", "DeleteFile", {"path": "here/link", "x": 1}),
    ("delete", "DeleteFile", {"path": "new"}),
    ("read", "ReadFile", {"path": "link", "limit": 1}),
    ("read", "ReadFile", {"path": "new"}),
    ("request", "HttpRequest", {"url": "https://e.com/", "headers": HEADERS, "body": "x", "timeout": 3}),
    ("request", "HttpRequest", {"url": "https://e.com/", "body": "\0"}),
    ("request", "HttpRequest", {"url": "https://"}),
    ("request", "HttpRequest", {"url": "https://e.com/", "bodyFile": "a", "saveTo": "b"}),
    ("upload", "UploadArtifact", {"path": "link", "name": "n"}),
    ("upload", "UploadArtifact", {"path": "bytes"}),
    ("upload", "UploadArtifact", {"content": "x"}),
    ("arguments", "tool", {"a": 1}),
    ("arguments", "tool", {}),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "old").write_text("old\n")
    (tmp_path / "bytes").write_bytes(b"\0")
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "here").symlink_to(".")
    scripts = tmp_path / "skills" / "forms" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "fill.py").touch()
    (scripts.parent / "SKILL.md").write_text("---\nname: forms\ndescription: Fills in forms.\n---\n")
    return tmp_path.resolve()


async def details(place: Path, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    spec = KNOWN.get(tool, OF_SOMEBODY_ELSE)
    arguments |= {name: str(place / arguments[name]) for name in ("path", "newPath") if name in arguments}
    index = SkillIndex([SkillFolder(str(place / "skills"), of_workspace=False)])
    scripts = SkillScripts(index, os.environ["PATH"], str(place / "sandbox"), 6)
    facts = gather(spec, arguments, Environment(str(place), "/home/u", "posix", "bash"), scripts=scripts)
    found = await describe(DescribedCall(spec, arguments, facts, str(place)), str)
    made: dict[str, Any] = ApprovalRequest(
        "a", "s", "t", "p", tool, spec.capability, arguments, "", "", None, "low", (), found.summary, found.details
    ).to_payload()["details"]
    return made


def members(value: list[Any], kind: str) -> Iterator[bool]:
    for one in value:
        yield isinstance(one, dict) if kind == "list of objects" else one is None or isinstance(one, str)


def test_the_page_is_made_from_the_specifications() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.support.tool_page"


def test_every_tool_is_shown_in_a_way_that_the_page_has() -> None:
    assert {spec.display for spec in KNOWN.values()} <= set(SHOWN) == {shown for shown, *_ in CALLS}


@pytest.mark.parametrize(("shown", "tool", "arguments"), CALLS)
async def test_details_are_as_documented(place: Path, shown: Display, tool: str, arguments: dict[str, Any]) -> None:
    assert KNOWN.get(tool, OF_SOMEBODY_ELSE).display == shown
    found = await details(place, tool, arguments)
    assert (found.pop("toolName"), found.pop("capability")) == (tool, KNOWN.get(tool, OF_SOMEBODY_ELSE).capability)
    known = {detail.name: detail for detail in SHOWN[shown].details}
    assert {name for name, detail in known.items() if not detail.optional} <= set(found) <= set(known)
    for name, value in found.items():
        kind, meaning = known[name].kind, known[name].meaning
        assert isinstance(value, KINDS[kind]) or (value is None and "null" in meaning), name
        if isinstance(value, list):
            assert all(members(value, kind)), name


@pytest.mark.parametrize("shown", SHOWN)
async def test_every_documented_detail_comes_with_some_call(place: Path, shown: Display) -> None:
    calls = [(tool, arguments) for kind, tool, arguments in CALLS if kind == shown]
    found = {name for tool, arguments in calls for name in await details(place, tool, arguments)}
    assert found == {detail.name for detail in SHOWN[shown].details} | {"toolName", "capability"}
