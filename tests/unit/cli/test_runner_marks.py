"""Annotations out of what commands print, the runner's escapes, and the files of a step."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_host.cli import pipeline
from agent_host.cli.pipeline import MAX_SUMMARY_BYTES, Finding, append_outputs, append_summary, findings_of
from agent_host.cli.runner_log import _Log, _Text, mark_gitlab_section, write_github_command

if TYPE_CHECKING:
    from pathlib import Path


def command(output: str, line: str = "make", exit_code: int = 1, **arguments: Any) -> dict[str, Any]:
    return {
        "kind": "call", "toolName": "RunCommand", "status": "succeeded", "exitCode": exit_code, "output": output,
        "arguments": {"command": line, **arguments},
    }  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    root = tmp_path.resolve() / "work"
    for name in ("src/a.py", "src/a.ts", "src/main.rs", "x.c", "tests/test_a.py", "main.go", "with space.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


TRACEBACK = """Traceback (most recent call last):
  File "{root}/src/a.py", line 3, in <module>
    f()
  File "src/a.py", line 2, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""
RUST = """error[E0308]: mismatched types
 --> src/main.rs:4:5
  |
4 |     "x"
warning: unused variable: `y`
 --> src/main.rs:2:9
"""


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (TRACEBACK, [("error", "src/a.py", 2, 0, "ZeroDivisionError: division by zero")]),
        ("x.c:1:5: error: expected ';'\n", [("error", "x.c", 1, 5, "expected ';'")]),
        ("x.c:7:1: warning: unused\nx.c:7:1: note: here\n", [("warning", "x.c", 7, 1, "unused")]),
        ("\x1b[1mx.c:1:5: \x1b[31mfatal error: \x1b[mno y.h\n", [("error", "x.c", 1, 5, "no y.h")]),
        ("src/a.ts(3,5): error TS2322: Type\n", [("error", "src/a.ts", 3, 5, "TS2322: Type")]),
        ("src/a.ts:3:5 - error TS2322: Type\n", [("error", "src/a.ts", 3, 5, "TS2322: Type")]),
        (
            "{root}/src/a.ts\n  1:10  error  'x' is unused  no-unused-vars\n  2:1  warning  y  z\n",
            [("error", "src/a.ts", 1, 10, "'x' is unused  no-unused-vars"), ("warning", "src/a.ts", 2, 1, "y  z")],
        ),
        ("tests/test_a.py:12: AssertionError\n", [("error", "tests/test_a.py", 12, 0, "AssertionError")]),
        ("src/a.py:1: error: Incompatible  [x]\n", [("error", "src/a.py", 1, 0, "Incompatible  [x]")]),
        ("src/a.py:1:80: E501 line too long\n", [("error", "src/a.py", 1, 80, "E501 line too long")]),
        ("./main.go:3:5: undefined: x\n", [("error", "main.go", 3, 5, "undefined: x")]),
        ("with space.py:3: bad\n", [("error", "with space.py", 3, 0, "bad")]),
        (
            RUST,
            [
                ("error", "src/main.rs", 4, 5, "mismatched types"),
                ("warning", "src/main.rs", 2, 9, "unused variable: `y`"),
            ],
        ),
        ("thread 'main' panicked at src/main.rs:4:5:\nboom\n", [("error", "src/main.rs", 4, 5, "boom")]),
        ("/etc/passwd:1: error: x\n../x:1: error: y\nnone.c:1:1: error: z\n12:30:01: started\n", []),
        ("http://x.example:80: refused\nsrc:1: error: a directory\n\x00:1: error: x\n", []),
    ],
)
def test_output_names_file_and_line(workspace: Path, output: str, found: list[tuple[Any, ...]]) -> None:
    items = [command(output.replace("{root}", str(workspace)))]
    assert findings_of(items, str(workspace)) == [Finding(*one) for one in found]


def test_a_link_out_of_the_workspace_is_no_file_of_it(workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc/passwd")
    assert findings_of([command("link:1: error: x\n")], str(workspace)) == []


def test_a_command_counts_as_it_ended_last(workspace: Path) -> None:
    red = command("x.c:1:1: error: red\n")
    assert findings_of([red, command("", exit_code=0)], str(workspace)) == []
    assert len(findings_of([command("", exit_code=0), red, red], str(workspace))) == 1
    assert len(findings_of([red, command("", "other", 0)], str(workspace))) == 1


def test_names_are_from_where_the_command_ran_and_for_the_root_of_the_repository(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [command("a.py:1: error: x\n", cwd="src")]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(workspace.parent))
    assert [one.file for one in findings_of(items, str(workspace))] == ["work/src/a.py"]


PIECES = st.text(st.sampled_from(":#[%\r\n ,x=\u2028\u200b\x1b\x00é")) | st.sampled_from(
    ["::error::", "##[", "##vso[a", "\r\n::stop-commands::x", "%0A", "section_start:1:x\r"]
)


def written(first: str, message: str, title: str) -> str:
    under = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True)
    stream: Any = _Text(under, _Log())
    stream.write(first)
    write_github_command(stream, "error", message, title=title)
    stream.write("after\n")
    under.flush()
    data = under.buffer.getvalue()
    assert isinstance(data, bytes)
    return data.decode()


@example("", ":::error::", "")
@given(st.lists(PIECES).map("".join), st.lists(PIECES).map("".join), st.lists(PIECES).map("".join))
def test_a_command_is_one_line_that_the_runner_reads_back(first: str, message: str, title: str) -> None:
    lines = written(first, message, title).replace("\r\n", "\n").split("\n")
    (own,) = [line for line in lines if line.lstrip().startswith("::")]
    assert lines[-2:] == ["after", ""]
    assert own.startswith("::error title=")
    properties, _, text = own.removeprefix("::error ").partition("::")
    assert properties.isprintable()
    assert not set(properties.removeprefix("title=")) & set(":,\r\n")
    assert text.replace("\t", "").isprintable()
    assert " ::" not in text
    assert "##[" not in own
    back = text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    assert back.count("%") == message.count("%")
    assert back.count("\n") == message.count("\n")


def test_only_a_stream_for_a_runner_gets_commands() -> None:
    plain = io.StringIO()
    write_github_command(plain, "group", "x")
    mark_gitlab_section(plain, "start", "x", "x", 1)
    assert plain.getvalue() == ""


def test_a_summary_is_no_longer_than_the_runner_takes(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_text("before\n")
    append_summary(str(path), "é line\n" * 200_000)
    data = path.read_bytes()
    assert MAX_SUMMARY_BYTES - 100 < len(data) <= MAX_SUMMARY_BYTES
    assert data.decode().endswith("é line\n\n\nThe rest of the summary is left out: it was too long for this page.\n")
    append_summary(str(path), "x\n" * 100)
    assert len(path.read_bytes()) <= MAX_SUMMARY_BYTES


def test_an_output_ends_where_the_host_says(tmp_path: Path) -> None:
    path = tmp_path / "outputs"
    append_outputs(str(path), {"a": "x\nagent-host-0\nb=c", "d": ""})
    lines = path.read_text().splitlines()
    end = lines[0].partition("<<")[2]
    assert (len(end), lines[1:5], lines[5].partition("<<")[0]) == (43, ["x", "agent-host-0", "b=c", end], "d")


@pytest.mark.parametrize("kind", ["link", "folder", "missing folder"])
def test_what_is_no_file_of_the_step_is_left_alone(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = tmp_path / "target", tmp_path / "summary"
    target.write_text("own")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "none" / "summary"
    append_summary(str(path), "x")
    assert "was not written: " in capsys.readouterr().err
    assert target.read_text() == "own"


def test_ten_of_a_kind_are_annotated(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    under = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True)
    stream: Any = _Text(under, _Log())
    output = "".join(f"x.c:{n}:1: error: e\nx.c:{n}:1: warning: w\n" for n in range(1, 20))

    details = {"verdict": "paused", "reason": "TIME_LIMIT", "endedBy": "limit", "deniedApprovals": []}
    result: Any = SimpleNamespace(completed=False, message="it ended", unfinished=True, details=details)
    marks = pipeline.StepMarks(lambda: None, stream)
    marks.annotate(result, lambda: [command(output)], str(workspace), code=3, resume="agent-host resume s")
    data: Any = under.buffer
    kinds = [line.split()[0] for line in data.getvalue().decode().splitlines()]
    assert (kinds[0], kinds.count("::error"), kinds.count("::warning")) == ("::error", 10, 10)
    assert len(kinds) == 20
