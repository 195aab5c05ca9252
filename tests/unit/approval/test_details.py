"""What a person is shown of a call before they decide, over real files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.approval import ApprovalRequest
from agent_host.approval.details import DescribedCall, describe
from agent_host.contracts import Subject, ToolSpec
from agent_host.judging import Environment
from agent_host.judging.facts import gather, path_facts
from agent_host.redaction import Scrubber
from policy.facts import NamedToolFacts
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.approval.details import Description

SECRET = "sk-very-secret-value"
BIDI = "\u202e"
OF_SOMEBODY_ELSE = ToolSpec("tool", "", {}, "Mcp.Invoke", Subject("name"), "other", "requests")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path.resolve()


async def shown(place: Path, tool: str, **arguments: Any) -> Description:
    spec = TOOLS[tool]
    where = Environment(str(place), "/home/u", "posix", "bash")
    facts = gather(spec, arguments, where)
    act = DescribedCall(spec, arguments, facts, str(place))
    return await describe(act, Scrubber([SECRET]).text)


def payload(shown: Description, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "approval_id": "a", "session_id": "s", "task_id": "t", "step_id": "p", "tool_name": "T", "capability": "C",
        "arguments": {}, "title": "Title", "description": "", "rule_id": None, "risk_level": "high", "risks": (),
    }  # fmt: skip
    return ApprovalRequest(**{**values, **changes}, summary=shown.summary, details=shown.details).to_payload()


# Commands


async def test_a_command_in_the_background_says_so(place: Path) -> None:
    seen = await shown(place, "RunCommand", command="npm start", background=True)
    assert seen.summary == "Run in the background: npm start"
    assert json.loads(seen.details["otherArguments"]) == {"background": True}
    assert (await shown(place, "RunCommand", command="ls", background=False)).summary == "Run: ls"


async def test_a_command_with_all_that_it_runs_and_opens(place: Path) -> None:
    line = "pytest tests/ --verbose > out.txt && sort < in.txt | $TOOL 'a b'"
    seen = await shown(place, "RunCommand", command=line, cwd=str(place), stdin="y\n", timeout=5)
    assert seen.summary == f"Run: {line}"
    assert seen.details == {
        "command": line,
        "cwd": str(place),
        "shell": "bash",
        "segments": [
            {"program": "pytest", "arguments": ["tests/", "--verbose"], "dynamic": False},
            {"program": "sort", "arguments": [], "dynamic": False},
            {"program": None, "arguments": ["a b"], "dynamic": True},
        ],
        "writes": [str(place / "out.txt")],
        "deletes": [],
        "reads": [str(place / "in.txt")],
        "hosts": [],
        "dynamic": True,
        "doubts": ["the program's name is an expansion"],
        "stdinBytes": 2,
        "stdin": "y\n",
        "otherArguments": '{\n  "timeout": 5\n}',
    }


async def test_deletions_and_hosts_are_called_so(place: Path) -> None:
    line = (
        "rm -r old && curl -o page https://me:secret@files.example.com:8443/x && git clone git@git.example.com:a/b.git"
    )
    seen = await shown(place, "RunCommand", command=line)
    assert seen.details["deletes"] == [str(place / "old")]
    assert str(place / "old") not in seen.details["writes"]
    assert seen.details["hosts"] == ["files.example.com", "git.example.com"]


async def test_a_link_that_a_command_writes_through_is_followed(place: Path) -> None:
    (place / "link").symlink_to("/etc/passwd")
    seen = await shown(place, "RunCommand", command="echo x > link")
    assert seen.details["writes"] == ["/etc/passwd"]


async def test_a_long_line_is_cut_and_its_programs_are_counted(place: Path) -> None:
    seen = await shown(place, "RunCommand", command="; ".join(["true"] * 1500) + "; echo " + "x" * 60_000)
    assert seen.details["command"].endswith("more characters are not shown]")
    assert len(seen.details["segments"]) + seen.details["segmentsNotShown"] == 1501
    assert len(orjson.dumps(payload(seen))) < 128 * 1024


# Files


async def test_a_write_shows_its_diff(place: Path) -> None:
    (place / "src").mkdir()
    target = place / "src" / "a.py"
    target.write_text("one\ntwo\nthree\n")
    seen = await shown(place, "WriteFile", path=str(target), content="one\n2\n3\nthree\n", createDirectories=False)
    assert seen.summary == "Write: src/a.py (+2 −1)"
    assert seen.details == {
        "path": str(target),
        "action": "overwrite",
        "sizeBefore": 14,
        "sizeAfter": 14,
        "additions": 2,
        "deletions": 1,
        "diff": "--- src/a.py\n+++ src/a.py\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+3\n three\n",
        "otherArguments": '{\n  "createDirectories": false\n}',
    }


async def test_a_new_file(place: Path) -> None:
    seen = await shown(place, "WriteFile", path=str(place / "a"), content="x\ny")
    assert seen.summary == "Write: a (+2 −0)"
    assert seen.details["action"] == "create"
    assert seen.details["diff"].startswith("--- /dev/null\n+++ a\n")


async def test_a_write_through_a_link_names_both_places(place: Path) -> None:
    (place / "real").write_text("old\n")
    (place / "link").symlink_to("real")
    seen = await shown(place, "WriteFile", path=str(place / "link"), content="old\n")
    assert (seen.details["path"], seen.details["requestedPath"]) == (str(place / "real"), str(place / "link"))
    assert (seen.summary, seen.details["diff"]) == ("Write: real (+0 −0)", "")


async def test_binary_content_is_said_so(place: Path) -> None:
    (place / "a").write_bytes(b"\0\1\2")
    seen = await shown(place, "WriteFile", path=str(place / "a"), content="text")
    assert seen.summary == "Write: a (binary, 4 bytes)"
    assert (seen.details["binary"], "diff" in seen.details) == (True, False)


async def test_a_large_diff_is_cut_and_its_counts_are_whole(place: Path) -> None:
    content = "".join(f"line {number}\n" for number in range(50_000))
    seen = await shown(place, "WriteFile", path=str(place / "a"), content=content)
    assert seen.summary == "Write: a (+50000 −0)"
    assert seen.details["diff"].endswith("more characters are not shown]")
    assert len(orjson.dumps(payload(seen))) < 80 * 1024


async def test_a_huge_file_is_not_compared(place: Path) -> None:
    (place / "a").write_bytes(b"x" * 3_000_000)
    seen = await shown(place, "WriteFile", path=str(place / "a"), content="x")
    assert seen.summary == "Write: a (1 bytes)"
    assert "not compared" in seen.details["note"]


async def test_what_was_put_in_the_place_of_the_file_is_not_waited_for(place: Path) -> None:
    """A pipe that comes after the facts were gathered."""
    target = place / "a"
    target.write_text("x")
    spec = TOOLS["WriteFile"]
    gathered = gather(spec, {"path": str(target), "content": "y"}, Environment(str(place), None, "posix", "bash"))
    target.unlink()
    os.mkfifo(target)
    act = DescribedCall(spec, {"path": str(target), "content": "y"}, gathered, str(place))
    seen = await describe(act, str)
    assert "cannot be read" in seen.details["note"]


async def test_a_deletion(place: Path) -> None:
    (place / "a").write_text("four")
    seen = await shown(place, "DeleteFile", path=str(place / "a"))
    assert seen.summary == "Delete: a"
    assert seen.details == {"path": str(place / "a"), "exists": True, "sizeBytes": 4}


async def test_an_upload_shows_how_it_begins(place: Path) -> None:
    (place / "a").write_text("text\n")
    target = path_facts(str(place / "a"), str(place / "a"))
    act = DescribedCall(TOOLS["UploadArtifact"], {"path": target.requested}, target, str(place))
    seen = await describe(act, str)
    assert seen == ("Upload: a", {"path": target.real_path, "sizeBytes": 5, "start": "text\n"})
    act = DescribedCall(
        TOOLS["UploadArtifact"], {"content": "x\0", "name": "n"}, NamedToolFacts("UploadArtifact"), str(place)
    )
    seen = await describe(act, str)
    assert (seen.summary, seen.details["binary"], seen.details["sizeBytes"]) == ("Upload: n", True, 2)


# Requests and the rest


async def test_a_request_without_what_lets_somebody_in(place: Path) -> None:
    seen = await shown(
        place, "HttpRequest", url="https://Example.com/path?q=1", method="post", body="é", timeout=3,
        headers={"Authorization": "Bearer abc", "X-Api-Key": "abc", "Cookie": "abc", "Accept": "text/html"},
    )  # fmt: skip
    assert seen.summary == "POST https://Example.com/path?q=1"
    assert seen.details == {
        "method": "POST",
        "url": "https://Example.com/path?q=1",
        "host": "example.com",
        "headers": [
            {"name": "Authorization"}, {"name": "X-Api-Key"}, {"name": "Cookie"},
            {"name": "Accept", "value": "text/html"},
        ],
        "bodyBytes": 2,
        "body": "é",
        "otherArguments": '{\n  "timeout": 3\n}',
    }  # fmt: skip


async def test_a_request_with_its_files(place: Path) -> None:
    (place / "body").write_text("four")
    seen = await shown(place, "HttpRequest", url="https://e.com/", method="PUT", bodyFile="body", saveTo="new/answer")
    assert seen.details == {
        "method": "PUT",
        "url": "https://e.com/",
        "host": "e.com",
        "bodyFile": f"{place}/body",
        "bodyBytes": 4,
        "saveTo": f"{place}/new/answer",
        "saveToExists": False,
    }


async def test_a_tool_of_somebody_else_shows_its_arguments(place: Path) -> None:
    act = DescribedCall(OF_SOMEBODY_ELSE, {"a": BIDI, "b": [1]}, NamedToolFacts("tool"), str(place))
    seen = await describe(act, str)
    assert seen.summary == 'tool { "a": "\\u202e", "b": [ 1 ] }'
    assert "\\u202e" in seen.details["otherArguments"]
    assert (await describe(act._replace(arguments={}), str)).summary == "tool"


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from strings(one)
    if isinstance(value, str):
        yield value


HOSTILE = f"{SECRET}\x1b]0;{BIDI}\x07"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("RunCommand", {"command": f"echo '{BIDI}{SECRET}' > {SECRET}", "stdin": HOSTILE, "x": HOSTILE}),
        ("RunCommand", {"command": HOSTILE}),
        ("WriteFile", {"path": f"/w/{HOSTILE}", "content": HOSTILE}),
        ("DeleteFile", {"path": f"/w/{HOSTILE}"}),
        ("ReadFile", {"path": f"/w/{HOSTILE}"}),
        ("HttpRequest", {"url": f"https://e.com/{HOSTILE}", "headers": {HOSTILE: HOSTILE}, "body": HOSTILE}),
    ],
)
async def test_nothing_of_it_steers_the_screen_or_tells_a_secret(
    place: Path, tool: str, arguments: dict[str, Any]
) -> None:
    seen = payload(await shown(place, tool, **arguments), title=BIDI, description=BIDI, risks=(BIDI,), tool_name=BIDI)
    text = orjson.dumps(seen).decode()
    assert SECRET not in text
    assert all(char in "\n\t" or char.isprintable() for one in strings(seen) for char in one)
    assert "[redacted]" in text


@pytest.mark.many_rows(8)
@pytest.mark.parametrize("filler", ["x", "\x01", '"', "\U000e0001", "\n", "é"])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("RunCommand", {"command": "F", "stdin": "F", "more": "F"}),
        ("WriteFile", {"path": "/w/F", "content": "F\n", "more": "F"}),
        ("HttpRequest", {"url": "F", "headers": {"F": "F"}, "body": "F", "more": "F"}),
    ],
)
async def test_the_payload_is_bounded(place: Path, tool: str, arguments: dict[str, Any], filler: str) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {filled(name): filled(inner) for name, inner in value.items()}
        return value.replace("F", filler * 300_000)

    seen = await shown(place, tool, **{name: filled(value) for name, value in arguments.items()})
    long = filler * 100_000
    whole = payload(seen, title=long, description=long, risks=(long,) * 100, tool_name=long)
    assert len(orjson.dumps(whole)) < 140 * 1024
