"""EditFile: exact replacements, all or none, in what the file is."""

from __future__ import annotations

import codecs
import os
import stat
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.contracts import ToolConstraints
from tests.support.tools import TOOLS
from tests.unit.tool_runtime.conftest import error_of, request, text_of
from tool_runtime.files.edits import Edit, EditProblem, apply_edits, nearest_lines

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolResult
    from tests.unit.tool_runtime.conftest import Call, MakeRouter


def edit(old: str, new: str, **more: bool) -> dict[str, Any]:
    return {"oldText": old, "newText": new, **more}


async def apply(call: Call, path: Path, *edits: dict[str, Any], **more: Any) -> ToolResult:
    return await call("EditFile", None, path=str(path), edits=list(edits), **more)


async def test_edits_are_made_in_order(call: Call, workspace: Path) -> None:
    path = workspace / "f"
    path.write_text("one two two\n")
    result = await apply(call, path, edit("one", "1"), edit("1 two", "three"), edit("two", "2"))
    assert path.read_text() == "three 2\n"
    assert text_of(result) == f"Replaced 3 places in {path}"
    (diff,) = result.artifacts
    assert b"-one two two\n+three 2\n" in diff.data


async def test_all_or_none(call: Call, workspace: Path) -> None:
    path = workspace / "f"
    path.write_text("one\ntwo\n")
    code, message = error_of(await apply(call, path, edit("one", "1"), edit("tow", "2")))
    assert code == "INVALID_REQUEST"
    assert message.startswith("edit 2 of 2: the old text is not in the file; nothing was changed")
    assert path.read_text() == "one\ntwo\n"
    assert os.listdir(workspace) == ["f"]


@pytest.mark.parametrize(
    ("content", "old", "said"),
    [
        ("def first():\n    return 1\n", "def frist():", "the nearest lines are: 1: def first():"),
        (
            "  x = 1\n",
            "x = 1\ny = 2",
            "is there with other spaces or followed by other lines: 1:   x = 1",
        ),
        ("", "x", "the file is empty"),
        ("a\nb\n", "entirely different", "no line of it is like the old text"),
        ("a b\na c\na d\n", "a ", "the old text is in the file 3 times"),
        (
            "a b\na c\na d\n",
            "a ",
            "it begins in lines 1, 2, 3: give more of the text around it, or set replaceAll to true",
        ),
    ],
)
async def test_an_edit_that_does_not_fit_says_what_is_there(
    call: Call, workspace: Path, content: str, old: str, said: str
) -> None:
    path = workspace / "f"
    path.write_text(content)
    assert said in error_of(await apply(call, path, edit(old, "new")))[1]
    assert path.read_text() == content


async def test_replace_all(call: Call, workspace: Path) -> None:
    path = workspace / "f"
    path.write_text("a b a")
    assert text_of(await apply(call, path, edit("a", "xa", replaceAll=True))) == f"Replaced 2 places in {path}"
    assert path.read_text() == "xa b xa"


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        (b"a\r\nb\r\n", [edit("a\nb", "c\nd")], b"c\r\nd\r\n"),
        (b"a\r\nb\r\n", [edit("b", "c\nd")], b"a\r\nc\r\nd\r\n"),
        (b"a\r\nb\n", [edit("b", "c\nd")], b"a\r\nc\nd\n"),
        (b"a\r\nb\n", [edit("a\nb", "c\nd")], b"c\r\nd\n"),
        (b"a\nb\n", [edit("a\nb", "c\r\nd")], b"c\r\nd\n"),
        (codecs.BOM_UTF8 + b"a", [edit("a", "\u00e9")], codecs.BOM_UTF8 + "\u00e9".encode()),
        (
            codecs.BOM_UTF16_LE + "a\u00e9".encode("utf-16-le"),
            [edit("\u00e9", "b")],
            codecs.BOM_UTF16_LE + "ab".encode("utf-16-le"),
        ),
        (b"caf\xe9 x", [edit("x", "\u00e9")], b"caf\xe9 \xe9"),
    ],
)
async def test_line_ends_marks_and_encodings_are_kept(
    call: Call, workspace: Path, before: bytes, edits: list[dict[str, Any]], after: bytes
) -> None:
    path = workspace / "f"
    path.write_bytes(before)
    text_of(await apply(call, path, *edits))
    assert path.read_bytes() == after


async def test_the_mode_is_kept(call: Call, workspace: Path) -> None:
    path = workspace / "f"
    path.write_text("a")
    path.chmod(0o751)
    text_of(await apply(call, path, edit("a", "b")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


@pytest.mark.parametrize(
    ("content", "one", "said"),
    [
        (b"a\0b", edit("a", "b"), "it is a binary file"),
        (b"a", edit("a", "a"), "the new text is the old one"),
        (b"\xe9a", edit("a", "\u20ac\u4e2d"), "does not have"),
        (codecs.BOM_UTF8 + b"\xff", edit("a", "b"), "the file is not utf-8, as its byte order mark indicates"),
    ],
)
async def test_what_is_no_edit(call: Call, workspace: Path, content: bytes, one: dict[str, Any], said: str) -> None:
    path = workspace / "f"
    path.write_bytes(content)
    assert said in error_of(await apply(call, path, one))[1]
    assert path.read_bytes() == content


async def test_no_file(call: Call, workspace: Path) -> None:
    assert error_of(await apply(call, workspace / "f", edit("a", "b")))[0] == "FILE_NOT_FOUND"


async def test_both_scopes_count(make_router: MakeRouter, workspace: Path) -> None:
    path = workspace / "f"
    path.write_text("a")
    router = make_router()
    asked = request("EditFile", ToolConstraints(), path=str(path), edits=[edit("a", "b")])
    unreadable = asked._replace(also={"File.Read": ToolConstraints(blocked_paths=(str(path),))})
    assert error_of(await router.execute(unreadable))[0] == "PERMISSION_DENIED"
    small = asked._replace(also={"File.Read": ToolConstraints(max_file_size_bytes=0)})
    assert error_of(await router.execute(small))[0] == "FILE_TOO_LARGE"
    grows = asked._replace(constraints=ToolConstraints(max_file_size_bytes=1))
    longer = grows._replace(arguments={**asked.arguments, "edits": [edit("a", "bb")]})
    assert error_of(await router.execute(longer))[0] == "FILE_TOO_LARGE"
    assert path.read_text() == "a"


# What the model has seen


@pytest.mark.parametrize("tool", ["EditFile", "WriteFile"])
async def test_a_file_that_changed_since_it_was_read_is_left_alone(
    make_router: MakeRouter, workspace: Path, tool: str
) -> None:
    path, router = workspace / "f", make_router()
    path.write_text("a")
    seen = (await router.execute(request("ReadFile", path=str(path)))).seen
    arguments = {"edits": [edit("a", "b")]} if tool == "EditFile" else {"content": "b"}
    asked = request(tool, path=str(path), **arguments)._replace(last_seen=seen, also={"File.Read": ToolConstraints()})
    path.write_text("a, or more")
    now = sha256(b"a, or more").hexdigest()
    code, message = error_of(await router.execute(asked))
    assert code == "TOOL_EXECUTION_FAILED"
    assert message.startswith("the file has changed since it was read")
    assert now in message
    assert path.read_text() == "a, or more"
    other = asked._replace(arguments={**asked.arguments, "expectedSha256": "0" * 64})
    assert "is not the one that expectedSha256 names" in error_of(await router.execute(other))[1]
    done = await router.execute(asked._replace(arguments={**asked.arguments, "expectedSha256": now.upper()}))
    assert done.error is None
    assert done.seen != seen
    again = request(tool, path=str(path), **({"edits": [edit("b", "c")]} if tool == "EditFile" else {"content": "c"}))
    assert (await router.execute(again._replace(last_seen=done.seen))).error is None


async def test_the_hash_of_a_file_that_may_not_be_read_is_not_given(make_router: MakeRouter, workspace: Path) -> None:
    path, router = workspace / "f", make_router()
    path.write_text("a")
    asked = request("WriteFile", path=str(path), content="b", expectedSha256="0" * 64)
    assert sha256(b"a").hexdigest() not in error_of(await router.execute(asked))[1]


async def test_a_file_that_was_written_again_with_the_same_content_has_not_changed(
    make_router: MakeRouter, workspace: Path
) -> None:
    path, router = workspace / "f", make_router()
    path.write_text("a")
    seen = (await router.execute(request("ReadFile", path=str(path)))).seen
    path.unlink()
    path.write_text("a")
    asked = request("EditFile", path=str(path), edits=[edit("a", "b")])._replace(last_seen=seen)
    assert (await router.execute(asked)).error is None


async def test_of_a_large_file_the_time_of_its_change_counts(make_router: MakeRouter, workspace: Path) -> None:
    path, router = workspace / "f", make_router()
    path.write_text("a\n" * 200_000)
    seen = (await router.execute(request("ReadFile", path=str(path), limit=1))).seen
    asked = request("WriteFile", path=str(path), content="b")._replace(last_seen=seen)
    os.utime(path, ns=(1, 1))
    assert "has changed since" in error_of(await router.execute(asked))[1]


# Pure


@given(st.text(), st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=4))
def test_what_is_computed_before_is_what_is_left(text: str, pairs: list[tuple[str, str]]) -> None:
    spec = TOOLS["EditFile"]
    assert spec.after is not None
    before = text.encode("utf-8", "replace")
    edits = [Edit(old, new) for old, new in pairs]
    try:
        left: bytes | None = apply_edits(before, edits).data
    except EditProblem:
        left = None
    arguments = {"path": "f", "edits": [edit(old, new) for old, new in pairs]}
    assert spec.after(arguments, before) == left


@given(st.text(alphabet="ab\n\r", max_size=30), st.text(alphabet="ab\n", min_size=1, max_size=4), st.text(max_size=4))
def test_nothing_else_changes(text: str, old: str, new: str) -> None:
    before = text.encode()
    try:
        after = apply_edits(before, [Edit(old, new)]).data.decode()
    except EditProblem:
        return
    for spelled in (old, old.replace("\n", "\r\n")):
        head, found, tail = text.partition(spelled)
        if found:
            assert after.startswith(head)
            assert after.endswith(tail)
            return
    raise AssertionError


@given(st.text(), st.text(min_size=1))
def test_nearest_lines_are_one_line_for_any_text(text: str, old: str) -> None:
    assert len(nearest_lines(text, old)) < 1500


@pytest.mark.parametrize("arguments", [{}, {"edits": 1}, {"edits": [{}]}, {"edits": [{"oldText": 1, "newText": 2}]}])
def test_arguments_of_another_shape_say_nothing_of_what_is_left(arguments: dict[str, Any]) -> None:
    after = TOOLS["EditFile"].after
    assert after is not None
    assert after(arguments, b"a") is None
