"""Names that a model cannot give as they are, and those that are no file's."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.judging import Environment
from agent_host.judging.facts import UnusableArguments, gather
from policy.facts import PathFacts
from tests.support.tools import TOOLS
from tests.unit.tool_runtime.conftest import error_of, request, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call, MakeRouter

NAMES = ("Shot 9.41\u202fAM.png", "a\u00a0b.txt", "cafe\u0301.txt", "tab\there", "new\nline", "back\\slash")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names as Linux has them")


def judged(workspace: Path, tool: str, argument: str, name: str, **more: Any) -> str:
    """The path that policy judges, from the workspace."""
    where = Environment(str(workspace.resolve()), None, "posix", "bash")
    facts = gather(TOOLS[tool], {argument: name, **more}, where)
    assert isinstance(facts, PathFacts)
    return os.path.relpath(facts.absolute, where.workspace)


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_that_was_shown_can_be_given_back(call: Call, workspace: Path, name: str) -> None:
    (workspace / name / "sub").mkdir(parents=True)
    (workspace / name / name).write_text("x")
    for tool, argument in (("FindFiles", "pattern"), ("ListDirectory", "path")):
        more: dict[str, Any] = {"pattern": "*"} if argument == "pattern" else {"depth": 2}
        said = text_of(await call(tool, None, **{"path": str(workspace), **more}))
        shown = next(line for line in said.splitlines() if "/" in line and not line.endswith("/"))
        shown = shown.removeprefix("file  ").removesuffix(" (1 byte)")
        assert judged(workspace, "ReadFile", "path", shown) == f"{name}/{name}"
        for changing in ("DeleteFile", "EditFile", "WriteFile"):
            assert judged(workspace, changing, "path", shown) == f"{name}/{name}"


def test_a_name_that_is_no_utf_8_is_given_back_as_it_is_shown(workspace: Path) -> None:
    with open(os.fsencode(workspace) + b"/a\xff.txt", "wb"):
        pass
    for shown in ("a\\udcff.txt", "a\\xff.txt"):
        assert judged(workspace, "ReadFile", "path", shown) == "a\udcff.txt"


@pytest.mark.parametrize(
    ("there", "given"),
    [
        ("Shot 9.41\u202fAM.png", "Shot 9.41 AM.png"),
        ("a\u00a0b", "a b"),
        ("cafe\u0301", "caf\u00e9"),
        ("caf\u00e9", "cafe\u0301"),
        ("\ufb01le", "file"),
    ],
)
async def test_one_clear_look_alike_is_taken_for_reading_alone(
    make_router: MakeRouter, workspace: Path, there: str, given: str
) -> None:
    (workspace / there).write_text("x")
    assert judged(workspace, "ReadFile", "path", given) == there
    assert judged(workspace, "ListDirectory", "path", given) == there
    for tool in ("WriteFile", "EditFile", "DeleteFile", "MoveFile"):
        assert judged(workspace, tool, "path", given, newPath="other") == given
    asked = request("DeleteFile", path=str(workspace / given))
    assert "near it: " in error_of(await make_router().execute(asked))[1]
    (workspace / given.replace(" ", "\u2009")).write_text("x")
    if " " in given:  # two look the same
        assert judged(workspace, "ReadFile", "path", given) == given


async def test_what_is_not_there_is_told_with_what_is_near(call: Call, workspace: Path) -> None:
    (workspace / "settings.toml").write_text("x")
    (workspace / "sittings.toml").write_text("x")
    _, message = error_of(await call("ReadFile", None, path=str(workspace / "settings.tml")))
    assert message.endswith("near it: settings.toml, sittings.toml")


async def test_own_temporary_files_are_listed_nowhere(call: Call, workspace: Path) -> None:
    (workspace / f".agent-host-{'0' * 32}.tmp").write_text("found")
    (workspace / ".agent-host-notes").write_text("found")
    calls: dict[str, dict[str, Any]] = {
        "ListDirectory": {}, "FindFiles": {"pattern": "*"}, "Grep": {"pattern": "found"},
    }  # fmt: skip
    for tool, more in calls.items():
        said = text_of(await call(tool, None, path=str(workspace), **more))
        assert ".tmp" not in said
        assert "agent-host-notes" in said


@pytest.mark.parametrize("tool", ["WriteFile", "DeleteFile", "EditFile", "ReadFile", "MoveFile"])
async def test_what_ends_in_a_slash_is_no_file(call: Call, workspace: Path, tool: str) -> None:
    (workspace / "f").write_text("x")
    arguments: dict[str, dict[str, Any]] = {
        "WriteFile": {"content": "y"},
        "EditFile": {"edits": [{"oldText": "x", "newText": "y"}]},
        "MoveFile": {"newPath": f"{workspace}/g"},
    }
    more = arguments.get(tool, {})
    assert "slash" in error_of(await call(tool, None, path=f"{workspace}/f/", **more))[1]
    with pytest.raises(UnusableArguments, match="slash"):
        judged(workspace, tool, "path", "f/", **more)
    assert (workspace / "f").read_text() == "x"
    if tool == "WriteFile":
        assert "slash" in error_of(await call(tool, None, path=f"{workspace}/new/", **more))[1]
        assert os.listdir(workspace) == ["f"]


async def test_an_empty_file_says_so(call: Call, workspace: Path) -> None:
    (workspace / "f").touch()
    assert text_of(await call("ReadFile", None, path=str(workspace / "f"))) == "[The file is empty]"


async def test_a_new_file_that_could_be_taken_for_another_is_told(call: Call, workspace: Path) -> None:
    (workspace / "a\u202fb").touch()
    said = text_of(await call("WriteFile", None, path=str(workspace / "a b"), content="x"))
    assert said.endswith("looks the same: a\\u202fb")
    assert sorted(os.listdir(workspace)) == ["a b", "a\u202fb"]
