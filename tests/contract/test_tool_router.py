"""What the host may expect of every ToolRouter (AH 7.1, TR 3)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import Leftovers, Subject, ToolConstraints, ToolRequest, ToolRouter, ToolSpec
from agent_host.errors import ErrorCode
from agent_host.ids import MACHINE
from tests.support.results import wire_of
from tests.unit.tool_runtime.conftest import until
from tool_runtime.families import DESKTOP
from tool_runtime.families.catalogue import SPECS, specs_of
from tool_runtime.families.desktop import UPLOAD_ARTIFACT
from tool_runtime.processes.command import LocalCommand
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings, Tool, ToolOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tool_runtime.tool import CallContext


def local(workspace: Path) -> ToolRouter:
    return LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(workspace)), LocalCommand)


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[ToolRouter]:
    made = local(tmp_path)
    yield made
    await made.aclose()


STEP = f"step{os.getpid()}"
"""Every step has an id of its own: what a call has left running is found by it."""


def ask(tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolRequest:
    return ToolRequest(tool, arguments, "session", "task", STEP, "call", "any", constraints or ToolConstraints())


async def test_specifications_are_closed_schemas_of_distinct_tools(router: ToolRouter) -> None:
    specs = await router.tools()
    assert tuple(specs) == (*SPECS, UPLOAD_ARTIFACT)
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        schema = spec.input_schema
        assert spec.description
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= set(schema["properties"])


async def test_each_tool_that_is_listed_runs(router: ToolRouter) -> None:
    """Whatever it makes of arguments that it cannot use: it is found."""
    for spec in await router.tools():
        result = await router.execute(ask(spec.name))
        assert result.error is None or result.error.code != ErrorCode.TOOL_NOT_FOUND


async def test_a_result_names_its_request(router: ToolRouter, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("text")
    result = await router.execute(ask("ReadFile", path=f"{tmp_path}/f"))
    assert wire_of(result) == {
        "toolName": "ReadFile",
        "sessionId": "session",
        "taskId": "task",
        "stepId": STEP,
        "status": "succeeded",
        "outputText": "text",
    }


@pytest.mark.slow
async def test_failures_are_results_with_a_known_code(router: ToolRouter, tmp_path: Path) -> None:
    outside = ToolConstraints(allowed_paths=("/nowhere",))
    for request, code in (
        (ask("Nope"), ErrorCode.TOOL_NOT_FOUND),
        (ask("ReadFile"), ErrorCode.INVALID_REQUEST),
        (ask("ReadFile", path="relative"), ErrorCode.INVALID_REQUEST),
        (ask("ReadFile", path=f"{tmp_path}/none"), ErrorCode.FILE_NOT_FOUND),
        (ask("ReadFile", outside, path=f"{tmp_path}/none"), ErrorCode.PERMISSION_DENIED),
        (ask("RunCommand", command="exec sleep 60", timeout=1), ErrorCode.TOOL_EXECUTION_TIMEOUT),
    ):
        result = await router.execute(request)
        assert result.status == "failed"
        assert result.error is not None
        assert type(result.error.code) is str
        assert result.error.code == code
        assert "\n" not in result.error.message


async def test_calls_run_side_by_side(router: ToolRouter, tmp_path: Path) -> None:
    waits = router.execute(ask("RunCommand", command="until [ -e go ]; do sleep 0.01; done; echo went", timeout=10))
    writes = router.execute(ask("WriteFile", path=f"{tmp_path}/go", content=""))
    first, second = await asyncio.gather(waits, writes)
    assert "went" in (first.output_text or "")
    assert second.status == "succeeded"


async def test_cancellation_propagates_and_the_router_stays_usable(router: ToolRouter, tmp_path: Path) -> None:
    task = asyncio.ensure_future(router.execute(ask("RunCommand", command="touch begun; sleep 60; touch ended")))
    await until((tmp_path / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await router.execute(ask("RunCommand", command="true"))).status == "succeeded"
    assert not (tmp_path / "ended").exists()


async def cut_off(router: ToolRouter, folder: Path, request: ToolRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave in `folder` what a process leaves that dies in the middle of this write, and say what it is."""
    before = set(os.listdir(folder))

    def die(*_: Any, **__: Any) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        for name in ("replace", "unlink"):
            patched.setattr(os, name, die)
        assert (await router.execute(request)).status == "failed"
    (left,) = set(os.listdir(folder)) - before
    return left


async def test_what_is_left_of_a_write_is_taken_away_and_nothing_else(
    router: ToolRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ask("WriteFile", path=f"{tmp_path}/f", content="new")
    of_another = write._replace(step_id="another")
    assert await router.end_leftovers(write) == Leftovers(0)
    (tmp_path / "f").write_text("old")
    names = [await cut_off(router, tmp_path, request, monkeypatch) for request in (write, of_another)]
    assert await router.end_leftovers(write) == Leftovers(1)
    assert sorted(os.listdir(tmp_path)) == sorted([names[1], "f"])
    assert await router.end_leftovers(write) == Leftovers(0)
    assert (tmp_path / "f").read_text() == "old"


async def test_what_is_left_of_a_write_does_not_stop_the_same_write(
    router: ToolRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ask("WriteFile", path=f"{tmp_path}/f", content="new")
    await cut_off(router, tmp_path, write, monkeypatch)
    assert (await router.execute(write)).status == "succeeded"
    assert (tmp_path / "f").read_text() == "new"
    assert os.listdir(tmp_path) == ["f"]


async def test_a_link_in_the_place_of_a_leftover_is_not_followed(
    router: ToolRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "victim").write_text("mine")
    write = ask("WriteFile", path=f"{folder}/f", content="new")
    left = folder / await cut_off(router, folder, write, monkeypatch)
    for use in (router.execute, router.end_leftovers):
        left.unlink(missing_ok=True)
        left.symlink_to(tmp_path / "victim")
        await use(write)
        assert not left.is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"


async def test_ending_leftovers_keeps_to_the_paths_of_the_request(
    router: ToolRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ask("WriteFile", path=f"{tmp_path}/f", content="new")
    left = await cut_off(router, tmp_path, write, monkeypatch)
    outside = write._replace(constraints=ToolConstraints(allowed_paths=("/nowhere",)))
    assert await router.end_leftovers(outside) == Leftovers(0)
    assert os.listdir(tmp_path) == [left]


async def test_ending_leftovers_of_what_never_ran_is_harmless(router: ToolRouter, tmp_path: Path) -> None:
    for request in (
        ask("Nope"),
        ask("WriteFile"),
        ask("WriteFile", path=3),
        ask("WriteFile", path="relative"),
        ask("WriteFile", path=f"{tmp_path}/none/f", content="x"),
        ask("WriteFile", path=f"{tmp_path}", content="x"),
        ask("DeleteFile", path=f"{tmp_path}/f"),
        ask("HttpRequest", url="http://localhost"),
        ask("UploadArtifact", content="x"),
        ask("RunCommand", command="true"),
    ):
        assert await router.end_leftovers(request) == Leftovers(0)
    assert os.listdir(tmp_path) == []


async def test_what_is_done_at_once_is_what_execute_gives(router: ToolRouter, tmp_path: Path) -> None:
    file = tmp_path / "small"
    file.write_text("one\ntwo\n")
    link = tmp_path / "link"
    link.symlink_to("/etc")
    outside = ToolConstraints(allowed_paths=(str(tmp_path),))
    for request in (
        ask("ReadFile", path=str(file)),
        ask("ReadFile", path=str(file), offset=2, limit=1),
        ask("ReadFile", path=str(file), offset=9),
        ask("ReadFile", path=str(tmp_path / "missing")),
        ask("ReadFile", path=str(tmp_path)),
        ask("ReadFile", path=str(link / "hostname"), constraints=outside),
        ask("ReadFile"),
    ):
        result = router.at_once(request)
        assert result in (None, await router.execute(request))
        assert result is not None or request.arguments.get("path") == str(file)  # whose disk may be far away


async def test_what_has_an_effect_or_something_to_wait_for_is_not_done_at_once(
    router: ToolRouter, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (1 << 20))
    for request in (
        ask("WriteFile", path=str(tmp_path / "new"), content="x"),
        ask("DeleteFile", path=str(large)),
        ask("RunCommand", command="touch new"),
        ask("ReadFile", path=str(large)),
        ask("NoSuchTool"),
    ):
        assert router.at_once(request) is None
    assert os.listdir(tmp_path) == ["large"]


async def test_closing_twice_is_harmless(router: ToolRouter) -> None:
    await router.aclose()
    await router.aclose()


# Families


@pytest.mark.parametrize("families", [("native",), ("skills",), ("skills", "native"), ("skills", "desktop", "native")])
async def test_the_tools_of_every_family_are_as_the_catalogue_has_them(
    tmp_path: Path, families: tuple[str, ...]
) -> None:
    """Closed schemas of distinct tools, each of which runs, and says of its errors what its family calls them."""
    router = LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(tmp_path), families=families), LocalCommand)
    specs = await router.tools()
    assert [spec.name for spec in specs] == [spec.name for spec in specs_of(families)]
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        schema = spec.input_schema
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= set(schema["properties"])
        result = await router.execute(ask(spec.name, unknown=True))
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", ErrorCode.INVALID_REQUEST)
        assert await router.end_leftovers(ask(spec.name)) == Leftovers(0)
        assert spec.error_names == {} or spec.error_names[ErrorCode.PERMISSION_DENIED]
    await router.aclose()


# Several providers


class Echo:
    """A provider whose list changes while a session lasts."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[ToolRequest] = []
        self.is_closed = False

    async def tools(self) -> tuple[ToolSpec, ...]:
        schema = {"type": "object", "required": [], "properties": {}, "additionalProperties": False}
        return tuple(ToolSpec(name, "Says its name.", schema, "Tool.Invoke", Subject("name"), "none", "requests")
                     for name in self.names)  # fmt: skip

    def get(self, name: str) -> Tool | None:
        async def run(call: CallContext) -> ToolOutput:
            self.asked.append(call.request)
            return ToolOutput(name)

        spec = ToolSpec(name, "", {}, "Tool.Invoke", Subject("name"), "none", "requests")
        return Tool(spec, run, DESKTOP) if name in self.names else None

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        self.asked.append(request)
        return Leftovers(7)

    async def aclose(self) -> None:
        self.is_closed = True


async def test_the_tools_of_a_provider_run_and_its_list_may_change(tmp_path: Path) -> None:
    echo = Echo("one", "ReadFile")
    router = LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(tmp_path)), LocalCommand, [echo])
    assert [spec.name for spec in await router.tools()] == [*(spec.name for spec in (*SPECS, UPLOAD_ARTIFACT)), "one"]
    assert (await router.execute(ask("one"))).output_text == "one"
    assert await router.end_leftovers(ask("one")) == Leftovers(7)
    echo.names = ("two",)
    assert [spec.name for spec in await router.tools()][-1] == "two"
    gone = await router.execute(ask("one"))
    assert gone.error is not None
    assert gone.error.code == ErrorCode.TOOL_NOT_FOUND
    assert await router.end_leftovers(ask("one")) == Leftovers()
    (tmp_path / "f").write_text("here")
    assert (await router.execute(ask("ReadFile", path=f"{tmp_path}/f"))).output_text == "here"
    await router.aclose()
    assert echo.is_closed


class Foreign(Echo):
    """A provider whose tools have a schema that another program wrote."""

    def __init__(self, schema: dict[str, Any], *, foreign: bool = True) -> None:
        super().__init__("theirs")
        self.spec = ToolSpec("theirs", "Echoes.", schema, "Mcp.Invoke", Subject("name"), "other", "requests",
                             foreign_schema=foreign)  # fmt: skip

    async def tools(self) -> tuple[ToolSpec, ...]:
        return (self.spec,)

    def get(self, name: str) -> Tool | None:
        tool = super().get(name)
        return None if tool is None else tool._replace(spec=self.spec)


async def test_arguments_of_a_tool_with_a_foreign_schema_are_judged_by_it(tmp_path: Path) -> None:
    schema = {
        "$defs": {"row": {"type": "object", "oneOf": [{"required": ["id"]}, {"required": ["name"]}]}},
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}, "uniqueItems": True}},
        "dependentRequired": {"limit": ["rows"]},
    }
    theirs = Foreign(schema)
    router = LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(tmp_path)), LocalCommand, [theirs])
    assert (await router.tools())[-1] == theirs.spec
    assert (await router.execute(ask("theirs", rows=[{"id": 1}, {"name": "x"}]))).status == "succeeded"
    for arguments, said in (
        ({"rows": [{"id": 1}, {}]}, "$.rows[1]: "),
        ({"rows": [{"id": 1}, {"id": 1}]}, "$.rows: "),
        ({"limit": 1}, "$: "),
    ):
        refused = await router.execute(ask("theirs", **arguments))
        assert refused.error is not None
        assert refused.error.code == ErrorCode.INVALID_REQUEST
        assert refused.error.message.startswith(said)
    assert len(theirs.asked) == 1
    await router.aclose()


@pytest.mark.parametrize(
    ("schema", "foreign", "says"),
    [
        ({"type": "strin"}, True, "is not a valid JSON Schema"),
        ({"$ref": "http://127.0.0.1:1/"}, True, "$ref: must lead into the schema itself"),
        ({"type": "object", "allOf": [{"required": ["a"]}]}, False, "$.allOf: is not known"),
    ],
)
async def test_a_tool_whose_schema_cannot_be_used_is_left_out_and_never_runs(
    tmp_path: Path, schema: dict[str, Any], foreign: bool, says: str
) -> None:
    theirs, echo = Foreign(schema, foreign=foreign), Echo("one", "theirs")
    router = LocalToolRouter(RuntimeSettings(outside=MACHINE, workspace=str(tmp_path)), LocalCommand, [theirs, echo])
    assert [spec.name for spec in await router.tools()] == [*(spec.name for spec in (*SPECS, UPLOAD_ARTIFACT)), "one"]
    assert list(router.unusable) == ["theirs"]
    assert says in router.unusable["theirs"]
    refused = await router.execute(ask("theirs"))
    assert refused.error is not None
    assert refused.error.code == ErrorCode.TOOL_NOT_FOUND
    assert says in refused.error.message
    assert not theirs.asked
    theirs.spec = theirs.spec._replace(input_schema={"type": "object"})
    assert [spec.name for spec in await router.tools()][-2:] == ["theirs", "one"]
    assert router.unusable == {}
    assert (await router.execute(ask("theirs"))).status == "succeeded"
    await router.aclose()
