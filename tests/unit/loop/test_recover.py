"""The calls of a step that a crash left open: reused, run, compared with the disk, or told to be cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import Subject, ToolResult, ToolSpec
from agent_host.faults.disk import SimulatedDisk
from agent_host.loop.recovery import recover_calls
from policy.bundle import Capability, ToolPolicy
from state.blobs import sha256_hex
from tests.support.loop import Loop
from tests.support.loop_crashes import Died, died, killed_before, open_calls, resumed
from tests.support.loop_parts import Tools, bundle, call, calls, do, read, says, shell, succeeded, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent_host.contracts import ToolRequest
    from policy.bundle import PolicyBundle

UNKNOWN = "TOOL_INTERRUPTED: the process ended; whether it took effect is unknown: inspect before you try again"
NOT_DONE = "TOOL_INTERRUPTED: the process ended before it took effect: the file is as it was"
DONE = "done: the process ended before the answer, and the file shows that this call took effect"


async def test_a_command_that_had_started_is_not_run_again(tmp_path: Path) -> None:
    following = await resumed(await died(tmp_path, shell("make", "c")))
    assert (following.tools.ran, following.texts()) == ([], [UNKNOWN])
    (leftover,) = following.tools.leftovers
    assert (leftover.tool_call_id, leftover.arguments) == ("c", {"command": "make"})
    assert following.finished() == [("RunCommand", "failed", "TOOL_INTERRUPTED")]


async def test_a_call_without_side_effects_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    following = await resumed(await died(tmp_path, read(tmp_path / "a")), other_boot=True)
    assert (following.texts(), following.tools.leftovers) == (["text"], [])


@pytest.mark.parametrize("other_boot", [False, True])
async def test_a_command_that_is_not_known_to_have_started(tmp_path: Path, *, other_boot: bool) -> None:
    """Its start is on record before it, and survives the process, not the machine."""
    loop = await died(tmp_path, shell("one"), shell("two"))
    for one in open_calls(loop):
        loop.ctx.state.open_call(one.call_id).started = False
    loop.ctx.journal.store.compact()
    following = await resumed(loop, other_boot=other_boot)
    assert following.tools.ran == ([] if other_boot else ["one", "two"])
    assert following.texts() == ([UNKNOWN] * 2 if other_boot else ["ok"] * 2)


async def test_results_on_record_are_used_and_stand_in_call_order(tmp_path: Path) -> None:
    def second_only(request: ToolRequest) -> ToolResult:
        if request.arguments["command"] == "two":
            return succeeded(request, "done two")
        raise Died

    loop = await died(tmp_path, shell("one", "a"), shell("two", "b"), shell("three", "c"), tools=Tools(second_only))
    following = await resumed(loop)
    assert [answer.call_id for answer in following.answers()] == ["a", "b", "c"]
    assert following.texts() == [UNKNOWN, "done two", UNKNOWN]


@pytest.mark.parametrize(
    ("found", "said"), [("new", DONE), ("old", NOT_DONE), ("of somebody else", UNKNOWN), (None, UNKNOWN)]
)
async def test_the_disk_tells_of_a_write_that_was_cut_off(tmp_path: Path, found: str | None, said: str) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    loop = await died(tmp_path, write(path, "new"))
    path.unlink() if found is None else path.write_text(found)
    following = await resumed(loop)
    assert (following.texts(), following.tools.ran) == ([said], [])
    assert following.answers()[0].is_error == (said != DONE)
    assert [one.tool_name for one in following.tools.leftovers] == ["WriteFile"]


async def test_a_write_that_changes_nothing_is_run_again_for_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("same")
    following = await resumed(await died(tmp_path, write(path, "same")))
    assert (following.texts(), following.tools.ran) == (["ok"], [str(path)])


async def test_a_call_that_nobody_knows_any_more_is_answered(tmp_path: Path) -> None:
    following = await resumed(await died(tmp_path, call("Teleport", to="Mars"), shell("make")))
    assert [answer.code for answer in following.answers()] == ["TOOL_NOT_FOUND", "TOOL_INTERRUPTED"]


async def test_arguments_that_held_a_secret_are_not_run_with_its_placeholder(tmp_path: Path) -> None:
    loop = await died(tmp_path, shell("login s3cret-value"), secrets=("s3cret-value",))
    loop.ctx.state.open_call(open_calls(loop)[0].call_id).started = False
    loop.ctx.journal.store.compact()
    following = await resumed(loop, secrets=("s3cret-value",))
    assert following.tools.ran == []
    assert following.texts()[0].startswith("INVALID_REQUEST: its arguments contained a secret")


async def test_a_policy_that_says_no_by_now_is_heard(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    loop = await died(tmp_path, read(tmp_path / "a"))
    following = await resumed(loop, policy=bundle(tmp_path, without=["File.Read"]))
    assert (following.tools.ran, following.answers()[0].code) == ([], "CAPABILITY_DENIED")


async def test_where_no_step_is_open_there_is_nothing_to_do(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    assert await recover_calls(loop.ctx) == ()


async def test_what_a_write_finds_after_all_is_on_record_before_it_starts(tmp_path: Path) -> None:
    """Else the next crash would compare the disk with what the first process found."""
    path, disk = tmp_path / "a", SimulatedDisk()
    loop = Loop(tmp_path, calls(write(path, "new")), disk=disk)
    sessions = await killed_before(loop, disk, "call_started")
    path.write_text("by somebody else")
    seen: list[object] = []

    def look(request: ToolRequest) -> ToolResult:
        (call,) = open_calls(following)
        seen.append(call.intent)
        return do(request)

    following = Loop(tmp_path, says(), sessions=sessions, tools=Tools(look))
    await following.run()
    assert seen == [{"path": str(path), "before": sha256_hex(b"by somebody else"), "after": sha256_hex(b"new")}]


async def test_what_could_not_be_ended_is_named(tmp_path: Path) -> None:
    tools = Tools()
    tools.running = (17, 19)
    following = await resumed(await died(tmp_path, shell("one")), tools=tools)
    assert following.texts() == [f"{UNKNOWN}; still running after SIGKILL: 17, 19"]


ELSEWHERE = ToolSpec(
    "db/query",
    "Ask the database",
    {"type": "object"},
    capability="BackendTool.Invoke",
    subject=Subject("name"),
    effect="other",
    category="requests",
    elsewhere=True,
)


def _repeatable(folder: Path, *, repeatable: bool) -> PolicyBundle:
    policies = (ToolPolicy("db/*", repeatable=repeatable),)
    usual = bundle(folder)
    return usual._replace(capabilities=(*usual.capabilities, Capability("BackendTool.Invoke", tool_policies=policies)))


def _tools(run: Callable[[ToolRequest], ToolResult] = do, **outcomes: Callable[[ToolRequest], ToolResult]) -> Tools:
    tools = Tools(run)
    tools.more, tools.outcomes = (ELSEWHERE,), outcomes
    return tools


def _dying(_: ToolRequest) -> ToolResult:
    raise Died


async def test_a_place_that_knows_what_became_of_a_call_is_asked_and_nothing_is_sent_again(tmp_path: Path) -> None:
    policy = _repeatable(tmp_path, repeatable=True)
    loop = await died(tmp_path, call("db/query", "c", sql="x"), tools=_tools(_dying), policy=policy)
    following = await resumed(loop, tools=_tools(c=lambda request: succeeded(request, "42 rows")), policy=policy)
    assert [request.tool_call_id for request in following.tools.asked] == ["c"]
    assert (following.tools.requests, following.texts()) == ([], ["42 rows"])
    assert following.finished() == [("db/query", "succeeded", None)]


@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_call_that_nobody_knows_of_is_sent_again_only_where_policy_says_so(
    tmp_path: Path, *, repeatable: bool
) -> None:
    policy = _repeatable(tmp_path, repeatable=repeatable)
    loop = await died(tmp_path, call("db/query", "c", sql="x"), tools=_tools(_dying), policy=policy)
    again = _tools(lambda request: succeeded(request, "ran"))
    following = await resumed(loop, tools=again, policy=policy)
    assert following.texts() == (["ran"] if repeatable else [UNKNOWN])
    assert len(following.tools.requests) == repeatable


async def test_a_call_that_never_came_is_told_to_the_model_in_the_words_of_its_place(tmp_path: Path) -> None:
    policy = _repeatable(tmp_path, repeatable=False)
    loop = await died(tmp_path, call("db/query", "c", sql="x"), tools=_tools(_dying), policy=policy)
    gone = _tools(c=lambda request: ToolResult.failure(request, "TOOL_INTERRUPTED", "the service never got it"))
    following = await resumed(loop, tools=gone, policy=policy)
    assert following.texts() == ["TOOL_INTERRUPTED: the service never got it"]


async def test_a_resumed_task_has_the_lists_of_tools_that_it_began_with(tmp_path: Path) -> None:
    first = _tools(_dying)
    first.lists = {"mcp:fs": "a" * 64}
    loop = await died(tmp_path, shell("make"), tools=first)
    assert loop.ctx.task.options["tool_lists"] == {"mcp:fs": "a" * 64}
    later = _tools()
    later.lists = {"mcp:fs": "b" * 64}
    following = await resumed(loop, tools=later)
    assert later.wanted == [{"mcp:fs": "a" * 64}]
    assert following.ctx.task.options["tool_lists"] == {"mcp:fs": "a" * 64}
