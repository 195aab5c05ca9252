"""A session and its tasks: what it says of itself, and what may be asked of it when (AH 3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.errors import GatewayUnavailable, OutOfOrder, SessionNotReady, UsageError
from agent_host.events import EventType
from policy.rules import TaskOptions
from tests.support.loop_parts import bundle, calls, says, settled, shell, write
from tests.support.sessions import Opened

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.judging import Judge
    from agent_host.states import TaskEnd


DOWN = GatewayUnavailable("down")


async def over(opened: Opened) -> TaskEnd:
    async with asyncio.timeout(20):
        return await opened.session.tasks.await_end()


def status(opened: Opened) -> str:
    return str(opened.session.state()["sessionStatus"])


async def paused(folder: Path) -> Opened:
    """A session whose task cannot go on for now."""
    opened = Opened(folder, DOWN)
    opened.session.start_task("t", "Do it.")
    await over(opened)
    assert status(opened) == "SESSION_PAUSED"
    return opened


# What it is


async def test_what_a_session_says_of_itself(tmp_path: Path) -> None:
    opened = Opened(tmp_path, calls(shell("one")), DOWN)
    session = opened.session
    assert (session.session_id, session.identity.workspace_id, session.paths.records) == (
        "s",
        "w",
        opened.paths.records,
    )
    assert (session.incomplete_task, session.step_count, session.ctx.state.step_cursor) == (None, 0, None)
    assert (session.has_ended, session.tasks.busy, session.undelivered()) == (False, False, ["an observer"])
    session.start_task("t", "Do it.", max_steps=7)
    assert session.tasks.busy
    await over(opened)
    assert session.incomplete_task == {"taskId": "t", "prompt": "Do it.", "stepCount": 1, "maxSteps": 7}
    assert (session.step_count, session.ctx.state.step_cursor) == (1, opened.loop.ctx.state.step_cursor)


async def test_a_task_that_is_over_is_not_incomplete(tmp_path: Path) -> None:
    opened = Opened(tmp_path, says())
    opened.session.start_task("t", "Do it.")
    await over(opened)
    assert opened.session.incomplete_task is None


async def test_names_that_approve_nothing_are_told(tmp_path: Path) -> None:
    opened = Opened(tmp_path, policy=bundle(tmp_path, asks=["Shell.Exec"]))
    names = ["zzz", "rule-Shell.Exec", "RunCommand", "File.Read", "aaa", "zzz"]
    assert opened.session.unknown_approvals(names) == ["aaa", "zzz"]


async def test_what_it_tells_of_its_beginning(tmp_path: Path) -> None:
    opened = Opened(tmp_path, says())
    opened.session.announce("ci")
    workspace = opened.loop.folder
    (told,) = opened.loop.told(EventType.SESSION_STARTED)
    assert told == {"executionEnvironment": "ci", "workspace": workspace, "model": "m"}
    opened.session.start_task("t", "Do it.")
    await over(opened)
    opened.session.announce_return()
    assert opened.loop.told(EventType.SESSION_RESUMED) == [{"resumedFromStep": 1}]


async def test_the_model_gets_ready_behind_the_first_reply(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    warmed: list[bool] = []
    opened.loop.model.warm_up = lambda: warmed.append(True)  # type: ignore[method-assign]  # to be noticed
    opened.session.warm_up()
    assert warmed == []
    await settled(2)
    assert warmed == [True]


async def test_the_head_of_requests_is_encoded_when_the_first_reply_is_out_and_after_a_change(tmp_path: Path) -> None:
    opened = Opened(tmp_path, says(), says())
    conversation, made = opened.loop.ctx.conversation, []
    make_head = conversation.make_head

    def noted(judge: Judge, max_output_tokens: int) -> bytes:
        made.append(judge.options)
        return make_head(judge, max_output_tokens)

    conversation.make_head = noted
    opened.session.warm_up()
    assert made == []
    await settled(2)
    assert made == [TaskOptions()]
    opened.session.start_task("t", "Do it.")
    await over(opened)
    assert made == [TaskOptions()]
    offline = TaskOptions(allow_network=False)
    opened.session.start_task("u", "Do it.", options=offline)
    await over(opened)
    assert made == [TaskOptions(), offline]


async def test_what_the_session_changed(tmp_path: Path) -> None:
    opened = Opened(tmp_path, calls(write(tmp_path / "ws" / "a", "new\n")), says(), secrets=("s3cret-value",))
    opened.session.start_task("t", "Do it.")
    await over(opened)
    assert "+new" in opened.session.changes.render()
    (patch,) = await opened.session.preview("t", [str(tmp_path / "ws" / "a")])
    assert (patch.status, patch.additions) == ("added", 1)
    (tmp_path / "ws" / "a").write_text("s3cret-value\n")
    assert "+[redacted]" in opened.session.changes.render()
    assert await opened.session.preview(None, ["b"]) == []
    with pytest.raises(UsageError, match="no task 'other'"):
        await opened.session.preview("other")


async def test_what_the_session_changed_before_it_moved(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    state = opened.loop.ctx.state
    state.identity.options["workspace"] = str(tmp_path / "old")
    state.baselines[str(tmp_path / "old" / "a")] = None
    (tmp_path / "ws" / "a").write_text("new\n")
    (patch,) = await opened.session.preview()
    assert (patch.file_path, patch.status) == (str(tmp_path / "ws" / "a"), "added")


# Its tasks


@pytest.mark.parametrize(("asked", "given"), [(None, 9), (3, 3), (20, 20)])
async def test_how_many_steps_a_task_may_take(tmp_path: Path, asked: int | None, given: int) -> None:
    opened = Opened(tmp_path, says(), flags={"host.max_steps": 9})
    opened.session.start_task("t", "Do it.", max_steps=asked, options=TaskOptions(allow_network=False))
    assert opened.loop.ctx.task.max_steps == given
    assert opened.loop.ctx.judge.options.allow_network is False
    await over(opened)


async def test_a_workspace_can_have_its_tasks_take_fewer_steps(tmp_path: Path) -> None:
    (tmp_path / "ws" / ".agent").mkdir(parents=True)
    (tmp_path / "ws" / ".agent" / "config.toml").write_text("[host]\nmax_steps = 5\n")
    opened = Opened(tmp_path, says())
    opened.session.start_task("t", "Do it.", max_steps=20)
    assert opened.loop.ctx.task.max_steps == 5
    await over(opened)


async def test_a_paused_session_takes_no_task_until_it_is_resumed(tmp_path: Path) -> None:
    opened = await paused(tmp_path)
    with pytest.raises(SessionNotReady):
        opened.session.start_task("second", "Go.")
    opened.loop.model.turns = [says("Done.")]
    opened.session.continue_task()
    assert status(opened) == "SESSION_RUNNING"
    assert (await over(opened)).text == "Done."


async def test_a_denied_call_has_the_settings_steps_to_go_on(tmp_path: Path) -> None:
    opened = Opened(tmp_path, calls(shell("make")), says("No."), policy=bundle(tmp_path / "ws", asks=["Shell.Exec"]),
                    flags={"host.max_steps": 4})  # fmt: skip
    opened.session.start_task("t", "Do it.")
    end = await over(opened)
    (denied,) = opened.session.result(end)["deniedApprovals"]
    opened.loop.model.turns = [says("Done.")]
    opened.session.continue_task(replay_ids=[denied["replay"]["id"]])
    assert opened.loop.ctx.task.max_steps == 2 + 4
    assert (await over(opened)).text == "Done."


async def test_a_new_bundle_ends_a_pause_unless_a_task_waits(tmp_path: Path) -> None:
    opened = await paused(tmp_path)
    renewed = bundle(tmp_path, version="v2")

    def put(ctx: Any) -> None:
        ctx.judge.bundle = renewed

    opened.loop.ctx.judge.expired = True
    opened.session.renew(put)
    assert (status(opened), opened.loop.ctx.judge.expired) == ("SESSION_PAUSED", False)
    assert (opened.loop.kept().policy_bundle_version, opened.loop.kept().session_status) == ("v2", "SESSION_PAUSED")
    opened.session.tasks.cancel("t")
    with pytest.raises(OutOfOrder, match="is running a task"):
        opened.session.renew(put)
    await over(opened)
    opened.session.renew(put)
    assert (status(opened), opened.loop.kept().session_status) == ("SESSION_RUNNING", "SESSION_RUNNING")


async def test_a_session_that_has_ended_gets_no_bundle(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await opened.session.detach()
    with pytest.raises(SessionNotReady, match="has ended"):
        opened.session.renew(lambda _: None)


async def test_an_interrupted_task_stays_open(tmp_path: Path) -> None:
    opened = Opened(tmp_path, says())
    opened.session.start_task("t", "Do it.")
    opened.session.interrupt()
    end = await over(opened)
    assert (end.status, end.resumable, status(opened)) == ("cancelled", True, "SESSION_RUNNING")
