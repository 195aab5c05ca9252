"""What an editor is shown: diffs, places, kinds and news, by themselves."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.acp.updates import (
    Notice,
    diff_contents,
    edits_in,
    locations_in,
    news_of,
    notice_update,
    requested_call,
    tool_kind,
    updates_of_item,
)
from agent_host.text_diff import hunks

LINES = st.lists(st.text(st.sampled_from("ab-+@\\ \r\x0b "), max_size=4), max_size=12)
ROOT = os.path.abspath(os.sep)


def _text(lines: list[str], *, ends: bool) -> str:
    return "\n".join(lines) + ("\n" if ends and lines else "")


@given(LINES, LINES, st.booleans(), st.booleans())
def test_each_hunk_has_the_lines_before_and_after_it(old: list[str], new: list[str], first: bool, second: bool) -> None:
    before, after = _text(old, ends=first), _text(new, ends=second)
    diff = "--- a\n+++ a\n" + hunks(before.encode(), after.encode()).decode()
    numbers = re.findall(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@$", diff, re.MULTILINE)
    sides = [(one["oldText"], one["newText"]) for one in diff_contents("/x", diff)]
    assert len(sides) == len(numbers)
    for (was, now), (at_old, count_old, at_new, count_new) in zip(sides, numbers, strict=True):
        assert was == _lines(before, at_old, count_old)
        assert now == _lines(after, at_new, count_new)


def _lines(text: str, start: str, count: str) -> str:
    """The lines that a hunk's head names, counted from 1; a side without lines starts behind a line."""
    number = int(count or 1)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    return "".join(lines[int(start) - 1 : int(start) - 1 + number]) if number else ""


@given(st.text())
def test_no_text_is_a_diff_that_cannot_be_read(text: str) -> None:
    for one in diff_contents("/x", text):
        assert (one["type"], one["path"]) == ("diff", "/x")


def test_a_new_file_has_no_old_text() -> None:
    diff = "--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
    assert diff_contents("/x", diff) == [{"type": "diff", "path": "/x", "oldText": None, "newText": "one\ntwo"}]


@pytest.mark.parametrize(
    ("name", "capability", "kind"),
    [
        ("ReadFile", "File.Read", "read"),
        ("Grep", "File.Read", "search"),
        ("EditFile", "File.Write", "edit"),
        ("MoveFile", "File.Write", "move"),
        ("DeleteFile", "File.Delete", "delete"),
        ("RunCommand", "Shell.Exec", "execute"),
        ("HttpRequest", "Network.Http", "fetch"),
        ("odd__ask", "Mcp.Invoke", "other"),
        ("Nothing", None, "other"),
    ],
)
def test_a_tool_has_a_kind_of_the_protocol(name: str, capability: str | None, kind: str) -> None:
    assert tool_kind(name, capability) == kind


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"path": "a/../b.py", "offset": 7}, [{"path": f"{ROOT}ws{os.sep}b.py", "line": 7}]),
        ({"path": f"{ROOT}x", "newPath": "y"}, [{"path": f"{ROOT}x"}, {"path": f"{ROOT}ws{os.sep}y"}]),
        ({"path": 7, "dir": "", "bodyFile": "a\0b", "offset": True}, []),
        ({"path": "x", "offset": True}, [{"path": f"{ROOT}ws{os.sep}x"}]),
    ],
)
def test_places_are_absolute(arguments: dict[str, Any], places: list[dict[str, Any]]) -> None:
    assert locations_in(arguments, f"{ROOT}ws") == places


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_odd_arguments_of_a_call_break_nothing(edits: Any) -> None:
    for one in edits_in({"path": "x", "edits": edits}, ROOT):
        assert isinstance(one["oldText"], str)
    payload = {"toolCallId": "c", "toolName": "EditFile", "arguments": {"path": edits, "edits": edits}}
    assert requested_call(payload, ROOT)["status"] == "pending"


def test_news_is_a_notice_or_text() -> None:
    notice = Notice("warning", "Denied\n!", "because\x1b[2J")
    update = notice_update(notice, takes_notices=True)
    assert update == {
        "sessionUpdate": "notice",
        "severity": "warning",
        "title": "Denied\\n!",
        "description": "because\\x1b[2J",
    }
    assert "> **agent-host**: Denied" in notice_update(notice, takes_notices=False)["content"]["text"]


@pytest.mark.parametrize(
    ("sandbox", "title"),
    [
        (None, []),
        ({"level": "none", "wanted": "auto", "why": "old kernel"}, ["Commands run without a sandbox"]),
        ({"level": "landlock", "wanted": "auto"}, ["Commands run in the landlock sandbox"]),
    ],
)
def test_the_level_of_the_sandbox_is_news(sandbox: dict[str, Any] | None, title: list[str]) -> None:
    payload = {} if sandbox is None else {"sandbox": sandbox}
    assert [one.title for one in news_of({"eventType": "session_started", "payload": payload})] == title


def test_a_history_shows_what_requests_no_longer_contain() -> None:
    mark = {"kind": "mark", "mark": "context_compacted", "itemId": "m-1", "summary": "Notes."}
    (compacted,) = updates_of_item(mark, ROOT, takes_compactions=True)
    assert isinstance(compacted, dict)
    assert (compacted["sessionUpdate"], compacted["compactionId"]) == ("compaction_update", "m-1")
    (notice,) = updates_of_item(mark, ROOT, takes_compactions=False)
    assert isinstance(notice, Notice)
    steered = {"kind": "mark", "mark": "task_steered", "itemId": "m-2", "text": "Left."}
    (said,) = updates_of_item(steered, ROOT, takes_compactions=True)
    assert isinstance(said, dict)
    assert said["sessionUpdate"] == "user_message_chunk"
    assert updates_of_item({"kind": "mark", "mark": "task_completed"}, ROOT, takes_compactions=True) == []


def test_a_call_of_a_history_has_its_places_once_and_its_edits() -> None:
    arguments = {"path": "a.txt", "edits": [{"oldText": "one", "newText": "two"}]}
    place = f"{ROOT}ws{os.sep}a.txt"
    item = {"kind": "call", "itemId": "c", "toolName": "EditFile", "arguments": arguments, "status": "succeeded"}
    (shown,) = updates_of_item(
        {**item, "pathsChanged": [place], "output": "Done."}, f"{ROOT}ws", takes_compactions=True
    )
    assert isinstance(shown, dict)
    assert (shown["locations"], shown["kind"], shown["status"]) == ([{"path": place}], "edit", "completed")
    assert shown["content"][0] == {"type": "diff", "path": place, "oldText": "one", "newText": "two"}
    (failed,) = updates_of_item({**item, "status": "failed"}, f"{ROOT}ws", takes_compactions=True)
    assert isinstance(failed, dict)
    assert (failed["status"], failed["content"]) == ("failed", [])
