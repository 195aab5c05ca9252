"""The public API, as a program that embeds the host uses it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import agent_host
from tests.support.process import call, eventually, gateway, process_exists, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host import ApprovalRequest, SessionOptions
    from tests.support.process import Host

PAGE = Path(__file__).resolve().parents[2] / "docs" / "embedding.md"


def options(host: Host, url: str, **more: Any) -> SessionOptions:
    given = {"workspace": host.workspace, "state_dir": host.state, "gateway": url, "policy": "full", **more}
    return agent_host.SessionOptions(**given)


def test_every_name_is_there_and_no_other() -> None:
    assert sorted(agent_host.__all__) == agent_host.__all__
    assert {name: getattr(agent_host, name) for name in agent_host.__all__}.keys() == set(dir(agent_host))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = agent_host.nothing
    assert issubclass(agent_host.SessionHeld, agent_host.SessionError)
    assert issubclass(agent_host.SessionError, agent_host.AgentHostError)


def test_the_import_alone_loads_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import agent_host; print(sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['agent_host', 'agent_host.import_isolation']"


def test_no_module_of_another_package_is_switched_off() -> None:
    code = "import sys; from agent_host import http; assert http.httpx; print(None in sys.modules.values())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_a_task_from_start_to_end(host: Host) -> None:
    events: list[Mapping[str, Any]] = []
    before = (dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    with gateway(use(call("WriteFile", path=str(host.workspace / "f"), content="x")), say("Done.")) as model:
        result = await agent_host.run_task("Do it.", options(host, model.url), on_event=events.append)
    assert (result.status, result.text, result.completed, result.resumable) == ("TASK_COMPLETED", "Done.", True, False)
    assert result.step_count == 2
    assert (host.workspace / "f").read_text() == "x"
    kinds = [event["eventType"] for event in events]
    assert (kinds[0], kinds[-1]) == ("session_started", "session_completed")
    assert [event["eventId"] for event in events] == list(range(1, len(events) + 1))
    assert before == (dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    assert host.checkpoints() == []


async def test_one_task_after_the_other(host: Host) -> None:
    with gateway(say("One."), say("Two.")) as model:
        async with agent_host.open_session(options(host, model.url)) as session:
            first = await session.run("First.")
            second = await session.run("Second.")
            assert (first.text, second.text) == ("One.", "Two.")
            assert first.session_id == second.session_id == session.id
            assert first.task_id != second.task_id
            assert session.unfinished is None
        said = [message["content"] for message in model.bodies[-1]["messages"]]
    assert len(said) == 3
    assert host.checkpoints() == []


@pytest.mark.many_rows(4)
@pytest.mark.parametrize(
    ("decided", "ran"),
    [
        (True, True), (False, False),
        (agent_host.ApprovalAnswer(approved=True, reason="fine", scope="session"), True),
        (agent_host.ApprovalAnswer(approved=False, reason="no"), False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("later", [False, True])
async def test_an_approval_is_asked_of_the_program(host: Host, decided: Any, ran: bool, later: bool) -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Any:
        asked.append(request)

        async def answer() -> Any:
            return decided

        return answer() if later else decided

    policy = host.policy(grants={"Shell.Exec": {"requiresApproval": True}})
    with gateway(use(shell("touch ran")), say("Done.")) as model:
        result = await agent_host.run_task("Do it.", options(host, model.url, policy=policy), approve=approve)
    assert result.completed
    assert [(one.tool_name, one.arguments["command"]) for one in asked] == [("RunCommand", "touch ran")]
    assert (host.workspace / "ran").exists() is ran
    assert result.details["deniedApprovals"] == []


async def test_without_anybody_to_ask_it_is_denied_and_can_be_approved_later(host: Host) -> None:
    policy = host.policy(grants={"Shell.Exec": {"requiresApproval": True}})
    with gateway(use(shell("touch ran")), say("Denied."), say("Done.")) as model:
        given = options(host, model.url, policy=policy)
        first = await agent_host.run_task("Do it.", given)
        assert (first.text, first.resumable) == ("Denied.", True)
        assert len(first.details["deniedApprovals"]) == 1
        async with agent_host.resume_session(first.session_id, given) as session:
            assert session.id == first.session_id
    assert not (host.workspace / "ran").exists()


@pytest.mark.parametrize("in_an_open_session", [False, True])
async def test_a_denied_call_is_approved_by_its_id_and_runs(host: Host, in_an_open_session: bool) -> None:
    policy = host.policy(grants={"Shell.Exec": {"requiresApproval": True}})
    hosts_turn = say("not asked for: the turn that the host makes takes its place")
    with gateway(use(shell("touch ran")), say("Denied."), hosts_turn, say("Done.")) as model:
        given = options(host, model.url, policy=policy)
        first = await agent_host.run_task("Do it.", given)
        assert first.resumable
        assert not first.unfinished
        (denied,) = first.details["deniedApprovals"]
        again = options(host, model.url, policy=policy, approvals=[denied["replay"]["id"]])
        with pytest.raises(agent_host.UsageError, match="that is a call of another session"):
            await agent_host.run_task("Do it.", again)
        if in_an_open_session:
            async with agent_host.resume_session(first.session_id, again) as session:
                assert (await session.go_on()).text == "Done."
                with pytest.raises(agent_host.NoActiveTask):
                    await session.go_on()
        else:
            assert (await agent_host.resume_task(first.session_id, again)).text == "Done."
    assert (host.workspace / "ran").exists()


async def test_a_session_is_handed_out_before_its_task_and_the_result_before_its_end(host: Host) -> None:
    seen: list[tuple[str, bool, str]] = []
    sessions: list[agent_host.Session] = []

    def on_result(result: agent_host.Result) -> None:
        on_record = f"{result.session_id}.json" in host.checkpoints()
        seen.append((result.text, on_record, sessions[0].patch().splitlines()[-1]))

    with gateway(use(call("WriteFile", path=str(host.workspace / "f"), content="x\n")), say("Done.")) as model:
        given = options(host, model.url)
        result = await agent_host.run_task("Do it.", given, on_open=sessions.append, on_result=on_result)
    assert seen == [("Done.", True, "+x")]
    assert host.checkpoints() == []
    assert sessions[0].id == result.session_id
    assert (sessions[0].found_on_disk, sessions[0].unknown_approvals, sessions[0].policy_notice) == ((), (), None)
    closing = sessions[0].closing
    assert closing == (os.path.join(result.records, "result.json"), None, False, ())


@pytest.mark.slow
async def test_an_interrupted_task_stays_open(host: Host) -> None:
    sessions: list[agent_host.Session] = []
    with gateway(use(shell("touch begun; sleep 1")), say("Done.")) as model:
        given = options(host, model.url, session_id="mine")
        task = asyncio.ensure_future(agent_host.run_task("Do it.", given, on_open=sessions.append))
        await asyncio.to_thread(eventually, (host.workspace / "begun").exists, "the command runs")
        sessions[0].interrupt()
        result = await task
        assert (result.completed, result.unfinished, result.resumable) == (False, True, True)
        assert (await agent_host.resume_task("mine", given)).text == "Done."
    assert host.checkpoints() == []


@pytest.mark.slow
async def test_what_is_cancelled_can_be_gone_on_with(host: Host) -> None:
    with gateway(use(shell("touch begun; sleep 60")), say("Done.")) as model:
        given = options(host, model.url, session_id="mine")
        task = asyncio.ensure_future(agent_host.run_task("Do it.", given))
        await asyncio.to_thread(eventually, (host.workspace / "begun").exists, "the command runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await agent_host.resume_task("mine", given)
        (answer,) = model.results()
    assert result.completed
    assert "TOOL_INTERRUPTED" in answer.text
    assert host.checkpoints() == []


async def test_a_block_that_fails_leaves_the_session(host: Host) -> None:
    with gateway(say("One."), say("Two.")) as model:
        given = options(host, model.url, session_id="mine")

        async def fails() -> None:
            async with agent_host.open_session(given) as session:
                await session.run("First.")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        assert "mine.json" in host.checkpoints()
        async with agent_host.resume_session("mine", given) as session:
            assert (await session.run("Second.")).text == "Two."
    assert host.checkpoints() == []


@pytest.mark.slow
async def test_a_task_is_cancelled_for_good(host: Host) -> None:
    with gateway(use(shell("touch begun; sleep 60"))) as model:
        async with agent_host.open_session(options(host, model.url)) as session:
            session.cancel()  # nothing is running
            task = asyncio.ensure_future(session.run("Do it."))
            await asyncio.to_thread(eventually, (host.workspace / "begun").exists, "the command runs")
            session.cancel(force=True)
            result = await task
    assert (result.status, result.completed, result.resumable) == ("TASK_CANCELLED", False, False)


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"policy": "nothing"}, agent_host.UsageError, "give a bundle file or one of"),
        ({"workspace": "/nowhere"}, agent_host.UsageError, "there is no such directory"),
        ({"settings": {"llm.nothing": 1}}, agent_host.UsageError, "SessionOptions: unknown key llm.nothing"),
        ({"gateway": "ftp://x"}, agent_host.UsageError, "ftp"),
        ({"session_id": "../x"}, agent_host.UsageError, "session id"),
        ({"model": "\ud800"}, agent_host.UsageError, "SessionOptions: '\\ud800' is not UTF-8"),
        ({"approvals": ["\ud800"]}, agent_host.UsageError, "is not UTF-8"),
        ({"approvals": ["WriteFil"]}, agent_host.UsageError, "WriteFil"),
        ({"max_steps": 0}, agent_host.UsageError, "SessionOptions.max_steps"),
    ],
)
async def test_what_cannot_be_used_is_one_error(
    host: Host, given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        await agent_host.run_task("Do it.", options(host, "http://127.0.0.1:9", **given))
    with pytest.raises(agent_host.UsageError, match="the prompt is empty"):
        await agent_host.run_task(" ", options(host, "http://127.0.0.1:9"))
    with pytest.raises(agent_host.SessionNotFound):
        await agent_host.resume_task("none", options(host, "http://127.0.0.1:9"))


async def test_tokens_are_given_and_not_taken_from_the_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_GATEWAY_TOKEN", "of-the-environment")
    with gateway(say("One."), say("Two.")) as model:
        await agent_host.run_task("Do it.", options(host, model.url, token="given-t0ken"))
        await agent_host.run_task("Do it.", options(host, model.url))
        sent = [
            request.headers.get("x-api-key") or request.headers.get("authorization") for request in model.mock.requests
        ]
    assert ["given-t0ken" in (one or "") for one in sent] == [True, False]
    assert all("of-the-environment" not in (one or "") for one in sent)
    assert os.environ["LLM_GATEWAY_TOKEN"] == "of-the-environment"


@pytest.mark.slow
async def test_a_task_that_was_stopped_is_gone_on_with_in_an_open_session(host: Host) -> None:
    with gateway(use(shell("touch begun; sleep 1")), say("Done."), say("Two.")) as model:
        given = options(host, model.url, session_id="mine")

        async def stopped() -> None:
            async with agent_host.open_session(given) as session:
                await session.run("First.")

        task = asyncio.ensure_future(stopped())
        await asyncio.to_thread(eventually, (host.workspace / "begun").exists, "the command runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with agent_host.resume_session("mine", given) as session:
            unfinished = [session.unfinished]
            assert (await session.go_on()).text == "Done."
            unfinished.append(session.unfinished)
            assert unfinished == ["First.", None]
            with pytest.raises(agent_host.NoActiveTask, match="session mine has no unfinished task"):
                await session.go_on()
            assert (await session.run("Second.")).text == "Two."
    assert host.checkpoints() == []


async def test_a_callback_that_fails_stops_nothing(host: Host) -> None:
    failed: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    def on_event(event: Mapping[str, Any]) -> None:
        raise ZeroDivisionError(event["eventType"])

    with gateway(say("Done.")) as model:
        assert (await agent_host.run_task("Do it.", options(host, model.url), on_event=on_event)).completed
    assert {type(context["exception"]) for context in failed} == {ZeroDivisionError}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("guarded", [True, False])
def test_what_a_command_left_running_ends_with_a_killed_program_that_asked_for_it(host: Host, guarded: bool) -> None:
    with gateway(use(shell("(setsid sleep 300 & echo $! > left); sleep 300"))) as model:
        given = f"workspace={str(host.workspace)!r}, gateway={model.url!r}, policy='full', guard_processes={guarded}"
        code = (
            "import asyncio, agent_host\n"
            f"asyncio.run(agent_host.run_task('Do it.', agent_host.SessionOptions({given})))\n"
        )
        program = subprocess.Popen([sys.executable, "-c", code], env=host.environment(), cwd=host.root)
        left = host.workspace / "left"
        eventually(lambda: left.exists() and left.read_text().strip(), "the command runs")
        number, began = int(left.read_text()), time.monotonic()
        eventually(lambda: time.monotonic() > began + 1, "it has lived for the second that is promised")
        program.kill()
        program.wait()
        try:
            if guarded:
                eventually(lambda: not process_exists(number), "what was left has ended")
            else:
                assert process_exists(number)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def test_the_example_of_the_page_runs(host: Host, tmp_path: Path) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 30
    project = tmp_path / "my-project"
    project.mkdir()
    with gateway(use(shell("echo tests pass")), say("They pass."), say("Written.")) as model:
        (tmp_path / "example.py").write_text(code.replace("http://127.0.0.1:8080", model.url))
        ended = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, env=host.environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert (lines[0], lines[-2:]) == ("session_started", ["TASK_COMPLETED Written.", "session_completed"])
    assert lines.count("task_completed") == 2


async def test_events_are_iterated_over_until_the_session_is_over(tmp_path: Path) -> None:
    with gateway(use(call("ListDirectory", path=".")), say("Done.")) as model:
        options = agent_host.SessionOptions(
            workspace=tmp_path, state_dir=tmp_path / "state", gateway=model.url, sandbox="none", toolsets=["slim"]
        )
        seen: list[str] = []

        async def watch(session: agent_host.Session) -> None:
            seen.extend([event["eventType"] async for event in session.events()])

        async with agent_host.open_session(options) as session:
            watching = asyncio.ensure_future(watch(session))
            await asyncio.sleep(0)
            assert (await session.run("Look.")).completed
        await watching
        assert "tool_completed" in seen
        assert seen[-1] == "session_completed"
        assert {tool["name"] for tool in model.bodies[0]["tools"]} == {
            "ReadFile", "WriteFile", "EditFile", "ListDirectory", "Grep", "RunCommand",
        }  # fmt: skip


def test_fields_of_a_wrong_type_are_all_named() -> None:
    wrong = agent_host.SessionOptions(gateway=5, max_steps="3", approvals="File.Delete", toolsets=[1], approve_all=1)  # type: ignore[arg-type,list-item]  # what a program without types may do
    with pytest.raises(agent_host.UsageError) as refused:
        _ = wrong.flags
    said = str(refused.value)
    for field in ("gateway: give a string", "max_steps", "approvals: give a list", "toolsets: all", "approve_all"):
        assert f"SessionOptions.{field}" in said
