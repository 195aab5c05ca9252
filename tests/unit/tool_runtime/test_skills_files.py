"""read_file, list_dir, grep, write_file, delete_file and network_request through the router, on real files."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_host.contracts import ToolConstraints
from agent_host.errors import ErrorCode
from config.load import load_defaults
from tests.support.rows import each_row
from tests.unit.tool_runtime.conftest import error_of, request, text_of
from tests.unit.tool_runtime.test_http import response, serving
from tool_runtime.families import skills as specs
from tool_runtime.families.skills import SPECS
from tool_runtime.files.listing import BadGlob, _compile, hidden_names
from tool_runtime.tool import judge_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent_host.contracts import ToolResult
    from tests.unit.tool_runtime.conftest import MakeRouter

OUTPUTS = {spec.name: spec.output_schema for spec in SPECS}
HIDDEN = tuple(map(str, load_defaults()["skills.hidden_files"]))  # type: ignore[arg-type]


def answered(result: ToolResult) -> dict[str, Any]:
    """The answer, which fits the tool's output schema."""
    value: dict[str, Any] = json.loads(text_of(result))
    schema = OUTPUTS[result.tool_name]
    assert schema is not None
    assert judge_of(schema, foreign=True)(value) is None
    return value


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def call(make_router: MakeRouter) -> Callable[..., Awaitable[ToolResult]]:
    router = make_router(families=("skills",), hidden_files=HIDDEN)

    async def run(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        asked = request(tool, constraints, **arguments)
        at_once = router.at_once(asked)
        result = await router.execute(asked)
        assert at_once in (None, result) or tool not in ("read_file", "list_dir", "grep")
        return result

    return run


async def test_a_small_file_is_read_whole(call: Any, workspace: Path) -> None:
    data = "żółw\r\nzwei\n".encode()
    (workspace / "a").write_bytes(data)
    result = await call("read_file", path=str(workspace / "a"))
    assert answered(result) == {
        "content_excerpt": data.decode(), "size": len(data), "sha256": sha(data), "truncated": False,
    }  # fmt: skip
    assert result.artifacts == ()


async def test_a_large_file_is_read_in_excerpts_and_stored_once(call: Any, workspace: Path) -> None:
    text = "".join(f"line {number} ü\n" for number in range(3000))
    (workspace / "a").write_text(text)
    shown, offset, stored = "", 0, []
    while True:
        result = await call("read_file", path=str(workspace / "a"), offset=offset)
        answer = answered(result)
        assert len(answer["content_excerpt"]) <= specs.EXCERPT_CHARS
        assert answer["sha256"] == sha(text.encode())
        shown += answer["content_excerpt"]
        stored += result.artifacts
        if not answer["truncated"]:
            break
        offset = answer["next_offset"]
    assert shown == text
    assert [(one.data, one.ref_field) for one in stored] == [(text.encode(), "storage_ref")]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(max_size=3000), limit=st.integers(400, 4000))
async def test_excerpts_of_any_text_join_to_it_under_any_limit(
    call: Any, workspace: Path, text: str, limit: int
) -> None:
    (workspace / "a").write_text(text, encoding="utf-8", newline="")
    if "\0" in text or text.startswith("\ufeff"):
        return
    shown, offset = "", 0
    while True:
        result = await call("read_file", ToolConstraints(max_output_bytes=limit), path=f"{workspace}/a", offset=offset)
        assert len((result.output_text or "").encode()) <= limit
        answer = answered(result)
        shown += answer["content_excerpt"]
        if not answer["truncated"]:
            break
        offset = answer["next_offset"]
    assert shown == text


async def test_a_binary_file_is_not_shown(call: Any, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"\0\1")
    assert (
        answered(await call("read_file", path=str(workspace / "a")))["content_excerpt"] == "[2 bytes that are no text]"
    )


async def test_what_cannot_be_read(call: Any, workspace: Path, tmp_path: Path) -> None:
    (workspace / "large").write_bytes(b"x" * (specs.FILE_BYTES + 1))
    (tmp_path / "outside").write_text("S3")
    (workspace / "link").symlink_to(tmp_path / "outside")
    inside = ToolConstraints(allowed_paths=(str(workspace),))
    for path, code, name in (
        ("large", ErrorCode.FILE_TOO_LARGE, None),
        ("missing", ErrorCode.FILE_NOT_FOUND, None),
        ("../outside", ErrorCode.PERMISSION_DENIED, None),
        ("link", ErrorCode.PERMISSION_DENIED, None),
        (".", ErrorCode.TOOL_EXECUTION_FAILED, None),
    ):
        result = await call("read_file", inside, path=f"{workspace}/{path}")
        assert error_of(result)[0] == code, path
        assert result.error is not None
        assert result.error.name == name


async def test_a_file_that_the_system_keeps_is_no_traversal(call: Any, workspace: Path, monkeypatch: Any) -> None:
    (workspace / "a").write_text("x")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        result = await call("read_file", path=f"{workspace}/a")
    assert error_of(result)[0] == ErrorCode.PERMISSION_DENIED
    assert result.error is not None
    assert result.error.name == "IOError"


async def test_a_directory_is_listed_without_files_of_secrets(call: Any, workspace: Path) -> None:
    for name in (".env", ".ENV.local", "server.pem", "id_rsa", "b.txt", "a"):
        (workspace / name).write_text("x")
    for name in (".ssh", "d"):
        (workspace / name).mkdir()
    answer = answered(await call("list_dir", path=str(workspace)))
    assert answer == {
        "entries": [
            {"name": "a", "type": "file", "size": 1},
            {"name": "b.txt", "type": "file", "size": 1},
            {"name": "d", "type": "directory"},
        ],
        "total": 3,
        "hidden": 5,
        "truncated": False,
    }


async def test_entries_come_in_pages(call: Any, workspace: Path) -> None:
    for number in range(5):
        (workspace / f"f{number}").touch()
    first = answered(await call("list_dir", path=str(workspace), max_entries=3))
    rest = answered(await call("list_dir", path=str(workspace), max_entries=3, offset=3))
    assert [one["name"] for page in (first, rest) for one in page["entries"]] == [f"f{number}" for number in range(5)]
    assert (first["truncated"], rest["truncated"], first["total"]) == (True, False, 5)
    for number in range(300):
        (workspace / f"{number:03}{'x' * 200}").touch()
    cut = answered(await call("list_dir", ToolConstraints(max_output_bytes=4000), path=str(workspace)))
    assert 0 < len(cut["entries"]) < 20
    assert cut["truncated"]


async def test_a_search_gives_lines_or_files(call: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d" / "a.py").write_text("one\nneedle " + "x" * 2000 + "\n")
    (workspace / "b.txt").write_text("needle\n")
    (workspace / ".env").write_text("needle=SECRET\n")
    (workspace / ".aws").mkdir()
    (workspace / ".aws" / "config").write_text("needle\n")
    found = answered(await call("grep", path=str(workspace), pattern="needle"))
    assert [(one["path"], one["line"]) for one in found["matches"]] == [("b.txt", 1), ("d/a.py", 2)]
    assert len(found["matches"][1]["text"]) < 600
    assert (found["hidden"], found["truncated"]) == (2, False)
    only = answered(await call("grep", path=str(workspace), pattern="NEEDLE", mode="files", ignore_case=True))
    assert (only["files"], only["truncated"]) == (["b.txt", "d/a.py"], False)
    assert "matches" not in only
    some = answered(await call("grep", path=str(workspace), pattern="needle", max_results=1))
    assert (len(some["matches"]), some["truncated"]) == (1, True)
    assert answered(await call("grep", path=str(workspace), pattern="needle", glob="*.py", mode="files"))["files"] == [
        "d/a.py"
    ]
    one = answered(await call("grep", path=str(workspace / "b.txt"), pattern="needle"))
    assert one["matches"] == [{"path": "b.txt", "line": 1, "text": "needle"}]
    assert error_of(await call("grep", path=str(workspace), pattern="("))[0] == ErrorCode.INVALID_REQUEST


async def test_a_file_is_written_and_deleted(call: Any, workspace: Path) -> None:
    result = await call("write_file", path=str(workspace / "d" / "a"), content="zwölf\n")
    answer = answered(result)
    assert answer == {"path": f"{workspace}/d/a", "bytes_written": 7, "sha256": sha("zwölf\n".encode())}
    assert [one.ref_field for one in result.artifacts] == ["diff_ref"]
    assert (workspace / "d" / "a").read_text() == "zwölf\n"
    large = await call("write_file", path=f"{workspace}/b", content="x" * (specs.FILE_BYTES + 1))
    assert error_of(large)[0] == ErrorCode.FILE_TOO_LARGE
    gone = await call("delete_file", path=str(workspace / "d" / "a"))
    assert answered(gone) == {"path": f"{workspace}/d/a", "deleted": True}
    assert error_of(await call("delete_file", path=str(workspace / "d")))[0] == ErrorCode.TOOL_EXECUTION_FAILED
    assert os.listdir(workspace) == ["d"]


async def test_a_request_and_an_excerpt_of_its_answer(call: Any) -> None:
    body = ("ü" * 20_000).encode()
    answers = {"/": response(body=b"short", Content_Type="text/plain"), "/long": response("404 Not Found", body)}
    async with serving(answers) as server:
        short = await call("network_request", url=f"http://127.0.0.1:{server.port}/", headers={"x-a": "b"})
        long = await call("network_request", url=f"http://127.0.0.1:{server.port}/long", method="POST", body="sent")
    answer = answered(short)
    assert answer["headers"]["content-type"] == "text/plain"
    del answer["headers"]
    assert answer == {"status": 200, "content_excerpt": "short", "sha256": sha(b"short"), "truncated": False}
    assert server.requests[0][1]["x-a"] == "b"
    assert server.requests[1][2] == b"sent"
    cut = answered(long)
    assert (cut["status"], cut["content_excerpt"]) == (404, "ü" * specs.EXCERPT_CHARS)
    assert (cut["sha256"], cut["truncated"]) == (sha(body), True)
    assert [(one.data, one.ref_field) for one in long.artifacts] == [(body, "storage_ref")]


# Names of secrets


@each_row(
    ("path", "is_hidden"),
    [
        (".env", True), ("a/.env", True), (".env.production", True), ("environment", False), ("KEY.PEM", True),
        ("keys", False), (".ssh", True), ("a/.ssh", True), ("secrets.yaml", True), ("secrets", True),
        ("my-secrets.txt", False), ("id_ed25519.pub", True), ("", False),
    ],
)  # fmt: skip
def test_names_that_are_hidden(path: str, is_hidden: bool) -> None:
    assert hidden_names(HIDDEN)(path) is is_hidden


def test_many_globs_make_few_patterns_and_all_of_them_count() -> None:
    globs = tuple(f"name-{number}.*" for number in range(2000))
    is_hidden = hidden_names(globs)
    assert is_hidden("d/name-1999.x")
    assert is_hidden("name-0.x")
    assert not is_hidden("name-2000.x")
    assert len(_compile(globs)) < 50
    assert not hidden_names(())("a")
    with pytest.raises(BadGlob):
        hidden_names(["/"])
