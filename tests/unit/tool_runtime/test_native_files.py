"""cp__read_file, cp__write_file, cp__delete_file through the router, on real files."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints
from agent_host.errors import ErrorCode
from tests.support.rows import each_row
from tests.unit.tool_runtime.conftest import error_of, request, text_of
from tool_runtime.families import DESKTOP
from tool_runtime.families.native import MAX_FILE_BYTES, SPECS
from tool_runtime.tool import judge_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent_host.contracts import ToolResult, ToolSpec
    from tests.unit.tool_runtime.conftest import MakeRouter

OUTPUTS = {spec.name: spec.output_schema for spec in SPECS}
SUCCESS = {"success": True}


def answered(result: ToolResult) -> dict[str, Any]:
    """The answer, which fits the tool's output schema."""
    value: dict[str, Any] = json.loads(text_of(result))
    schema = OUTPUTS[result.tool_name]
    assert schema is not None
    assert judge_of(schema, foreign=True)(value) is None
    return value


@pytest.fixture
def call(make_router: MakeRouter) -> Callable[..., Awaitable[ToolResult]]:
    router = make_router(families=("native",))

    async def run(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        return await router.execute(request(tool, constraints, **arguments))

    return run


@each_row("spec", SPECS, ids=lambda spec: spec.name)
def test_every_tool_has_a_closed_schema_of_its_answer(spec: ToolSpec) -> None:
    schema = spec.output_schema
    assert schema is not None
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert schema["required"]
    assert judge_of(schema, foreign=True)({}) is not None


@each_row("spec", SPECS, ids=lambda spec: spec.name)
def test_the_catalogue_of_errors_is_that_of_the_specification(spec: ToolSpec) -> None:
    """Every fault of the runtime, and every refusal, has one of the names of NT for the model."""
    refused = "CommandNotAllowed" if spec.name == "cp__exec" else "PermissionDenied"
    named = {
        ErrorCode.INVALID_REQUEST: "InvalidArgument",
        ErrorCode.FILE_TOO_LARGE: "InvalidArgument",
        ErrorCode.PERMISSION_DENIED: "PermissionDenied",
        ErrorCode.CAPABILITY_DENIED: refused,
        ErrorCode.APPROVAL_DENIED: "PermissionDenied",
        ErrorCode.FILE_NOT_FOUND: "FileNotFound",
        ErrorCode.TOOL_EXECUTION_TIMEOUT: "DeadlineExceeded",
        ErrorCode.TOOL_EXECUTION_FAILED: "Internal",
        ErrorCode.TOOL_INTERRUPTED: "Internal",
    }
    assert spec.error_names.items() >= named.items()
    assert spec.error_names.keys() >= set(DESKTOP.values())


async def test_a_file_is_read_with_its_metadata(call: Any, workspace: Path) -> None:
    file = workspace / "a.txt"
    file.write_text("żółw\r\nzwei\n", newline="")
    file.chmod(0o640)
    os.utime(file, (0, 1_000_000_000))
    answer = answered(await call("cp__read_file", path=str(file)))
    assert answer == {
        "content": "żółw\r\nzwei\n",
        "metadata": {"path": str(file), "size": 14, "mode": "0640", "modified": "2001-09-09T01:46:40Z"},
    }


async def test_a_long_file_is_cut_and_stored_whole(make_router: MakeRouter, workspace: Path) -> None:
    text = '"\n' * 50_000
    (workspace / "a").write_text(text)
    router = make_router(families=("native",), max_output_bytes=20_000)
    result = await router.execute(request("cp__read_file", path=f"{workspace}/a"))
    answer = answered(result)
    assert answer["truncated"] is True
    assert len(text_of(result).encode()) <= 20_000
    assert len(answer["content"]) > 4_000
    assert result.artifacts[0].data == text.encode()


async def test_a_file_above_the_ceiling_is_refused(call: Any, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    assert error_of(await call("cp__read_file", path=f"{workspace}/a"))[0] == ErrorCode.FILE_TOO_LARGE


async def test_a_binary_file_is_no_text(call: Any, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"\0\1")
    assert error_of(await call("cp__read_file", path=f"{workspace}/a"))[0] == ErrorCode.INVALID_REQUEST


async def test_what_is_no_file_is_a_wrong_argument_for_the_model(call: Any, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    for name in ("", "pipe"):
        error = (await call("cp__read_file", path=f"{workspace}/{name}")).error
        assert error is not None
        assert (error.code, error.name) == (ErrorCode.TOOL_EXECUTION_FAILED, "InvalidArgument")


@pytest.mark.parametrize("tool", ["cp__read_file", "cp__list_dir"])
async def test_a_read_resolves_links_and_ends_in_a_root(call: Any, workspace: Path, tmp_path: Path, tool: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "f").write_text("secret")
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("mine")
    (workspace / "inside").symlink_to(workspace / "d")
    (workspace / "outside").symlink_to(tmp_path / "out")
    name = "f" if tool == "cp__read_file" else ""
    assert (await call(tool, path=f"{workspace}/inside/{name}")).error is None
    for path in (f"{workspace}/outside/{name}", f"{tmp_path}/out/{name}", f"{workspace}/../out/{name}"):
        assert error_of(await call(tool, path=path))[0] == ErrorCode.PERMISSION_DENIED


async def test_a_root_beside_the_workspace_and_the_policy_both_count(
    make_router: MakeRouter, workspace: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("a")
    (other / "b").write_text("b")
    (tmp_path / "c").write_text("c")
    router = make_router(families=("native",), native_roots=(str(workspace), str(other)))
    allowed = ToolConstraints(allowed_paths=(str(tmp_path),), blocked_paths=(str(other / "b"),))
    outcomes = [
        (await router.execute(request("cp__read_file", allowed, path=str(path)))).status
        for path in (other / "a", other / "b", tmp_path / "c")
    ]
    assert outcomes == ["succeeded", "failed", "failed"]


async def test_write_append_and_mode(call: Any, workspace: Path) -> None:
    file = workspace / "deep" / "down" / "a.txt"
    assert answered(await call("cp__write_file", path=str(file), content="one", mode="0600")) == SUCCESS
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert answered(await call("cp__write_file", path=str(file), content="two", append=True)) == SUCCESS
    assert file.read_text() == "onetwo"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    answered(await call("cp__write_file", path=str(file), content="three", mode="644"))
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("three", 0o644)


async def test_an_oversized_write_leaves_the_file_as_it_was(call: Any, workspace: Path) -> None:
    file = workspace / "a"
    file.write_text("kept")
    for more in ({}, {"append": True}):
        result = await call("cp__write_file", path=str(file), content="x" * MAX_FILE_BYTES + "y" * (not more), **more)
        assert error_of(result)[0] == ErrorCode.FILE_TOO_LARGE
    assert file.read_text() == "kept"


async def test_links_are_refused_for_what_changes_files(call: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("kept")
    (workspace / "link").symlink_to("d")
    (workspace / "file").symlink_to("d/f")
    for path in ("link/f", "file"):
        for tool, more in (("cp__write_file", {"content": "x"}), ("cp__delete_file", {})):
            code, message = error_of(await call(tool, path=f"{workspace}/{path}", **more))
            assert (code, "symbolic link" in message) == (ErrorCode.PERMISSION_DENIED, True)
    code, _ = error_of(await call("cp__delete_file", path=f"{workspace}/link", recursive=True))
    assert code == ErrorCode.PERMISSION_DENIED
    assert (workspace / "d" / "f").read_text() == "kept"


async def test_a_directory_that_holds_a_root_is_not_deleted(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "a" / "b" / "c").mkdir(parents=True)
    router = make_router(families=("native",), native_roots=(str(workspace), str(workspace / "a" / "b")))
    for path, status in (("a", "failed"), ("a/b", "failed"), ("a/x/../b", "failed"), ("a/b/c", "succeeded")):
        result = await router.execute(request("cp__delete_file", path=f"{workspace}/{path}", recursive=True))
        assert (path, result.status) == (path, status)


async def test_delete(call: Any, workspace: Path) -> None:
    (workspace / "f").write_text("x")
    tree = workspace / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "f").write_text("x")
    (tree / "out").symlink_to(workspace)
    assert answered(await call("cp__delete_file", path=f"{workspace}/f")) == SUCCESS
    assert error_of(await call("cp__delete_file", path=f"{workspace}/f"))[0] == ErrorCode.FILE_NOT_FOUND
    assert error_of(await call("cp__delete_file", path=str(tree)))[0] == ErrorCode.TOOL_EXECUTION_FAILED
    (workspace / "stays").write_text("x")
    assert answered(await call("cp__delete_file", path=str(tree), recursive=True)) == SUCCESS
    assert sorted(os.listdir(workspace)) == ["stays"]
    code, _ = error_of(await call("cp__delete_file", path=str(workspace), recursive=True))
    assert code == ErrorCode.PERMISSION_DENIED
    assert (workspace / "stays").exists()


@pytest.mark.parametrize("kept", ["blocked/f", "sub/.git/hooks/pre-commit"])
async def test_a_tree_with_what_policy_keeps_is_not_deleted_at_all(call: Any, workspace: Path, kept: str) -> None:
    tree = workspace / "tree"
    (tree / kept).parent.mkdir(parents=True)
    (tree / kept).write_text("x")
    (tree / "a").write_text("x")
    scope = ToolConstraints(allowed_paths=(str(workspace),), blocked_paths=(str(tree / "blocked"),))
    code, _ = error_of(await call("cp__delete_file", scope, path=str(tree), recursive=True))
    assert code == ErrorCode.PERMISSION_DENIED
    assert (tree / "a").exists()
    assert (tree / kept).exists()


async def test_of_the_families_the_chosen_ones_are_offered_and_run(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "f").write_text("x")
    native = {spec.name for spec in SPECS}
    for families, there, missing in (
        (("native",), "cp__read_file", "ReadFile"),
        (("desktop",), "ReadFile", "cp__read_file"),
    ):
        router = make_router(families=families)
        names = {spec.name for spec in await router.tools()}
        assert "ReadOutput" in names
        assert (native <= names, missing in names) == (families == ("native",), False)
        assert (await router.execute(request(there, path=f"{workspace}/f"))).error is None
        assert error_of(await router.execute(request(missing, path=f"{workspace}/f")))[0] == ErrorCode.TOOL_NOT_FOUND
    both = {spec.name for spec in await make_router(families=("desktop", "native")).tools()}
    assert {"ReadFile", "cp__read_file"} <= both
