"""`agent-host mcp`: tasks handed in by the clients of the official MCP SDK, of both eras that it speaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import anyio
import mcp_types as types
import psutil  # type: ignore[import-untyped]  # it has none
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from agent_host.llm.dialects import sendable_name
from agent_host.mcp_server import CANCELLING
from tests.support.mcp_servers import command
from tests.support.process import PATIENCE_S, eventually, gateway, process_exists, say, shell, use, write_to_pipe
from tests.support.process import call as tool_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp_types import CallToolResult

    from tests.support.process import Gateway, Host
    from tests.support.serve_process import Servers

RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
ASKS: dict[str, dict[str, Any]] = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}, "Mcp.Invoke": {}}
EFFECT = shell("echo model >> effects")
ERAS = ("2026-07-28", "legacy")


def command_of(host: Host, model: Gateway, *options: str) -> list[str]:
    """What starts a server."""
    policy = str(host.policy(grants=ASKS, approvalRules=RULES))
    return [sys.executable, "-P", "-m", "agent_host", "mcp", "--gateway", model.url, "--policy", policy, *options]


def client_of(host: Host, model: Gateway, *options: str, **more: Any) -> Client:
    """A client of a server of its own."""
    command, *arguments = command_of(host, model, *options)
    server = StdioServerParameters(
        command=command, args=arguments, env=host.environment(), cwd=os.fspath(host.workspace)
    )
    return Client(server, read_timeout_seconds=PATIENCE_S, **more)


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What a call answers; it must not fail."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return cast("dict[str, Any]", result.structured_content)


async def mistake(client: Client, tool: str, /, **arguments: Any) -> str:
    """The line with which a call fails."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return text_of(result)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def effects(host: Host) -> str:
    path = host.workspace / "effects"
    return path.read_text() if path.exists() else ""


def person(asked: list[str], **content: str) -> Callable[[Any, types.ElicitRequestParams], Any]:
    """Fills in each form with this."""

    async def fill(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content=dict(content))

    return fill


@contextlib.contextmanager
def deadline(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process where the test waits for it without end."""
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("mode", ERAS)
def test_a_task_is_done_and_reported(host: Host, mode: str) -> None:
    seen: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async def scenario(model: Gateway) -> None:
        async with client_of(host, model, mode=mode) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["run_task", "session_status"]
            result = await client.call_tool("run_task", {"prompt": "Write it."}, progress_callback=note)
            found = cast("dict[str, Any]", result.structured_content)
            assert (found["status"], found["text"], found["stepCount"]) == ("TASK_COMPLETED", "Written.", 2)
            (changed,) = found["filesChanged"]
            assert (changed["status"], changed["additions"]) == ("added", 1)
            assert changed["path"].endswith("new.txt")
            assert found["usage"]["totalTokens"] > 0
            assert "denied" not in found
            again = await call(client, "run_task", prompt="And now?", sessionId=found["sessionId"])
            assert (again["text"], again["filesChanged"]) == ("Nothing.", [])
            assert (await call(client, "session_status", sessionId=found["sessionId"]))["text"] == "Nothing."

    with gateway(
        use(tool_call("WriteFile", path="new.txt", content="text\n")), say("Written."), say("Nothing.")
    ) as model:
        asyncio.run(scenario(model))
    assert (host.workspace / "new.txt").read_text() == "text\n"
    assert "WriteFile" in seen


@pytest.mark.slow
@pytest.mark.many_rows(2)
@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(("decision", "left"), [("approve", "model\n"), ("deny", "")])
def test_the_person_behind_the_client_approves(host: Host, mode: str, decision: str, left: str) -> None:
    asked: list[str] = []

    async def scenario(model: Gateway) -> None:
        fill = person(asked, decision=decision, reason="As you like.")
        async with client_of(host, model, mode=mode, elicitation_callback=fill) as client:
            found = await call(client, "run_task", prompt="Do it.")
            assert found["status"] == "TASK_COMPLETED"
            assert found.get("denied") == (None if left else ["Run: echo model >> effects"])

    with gateway(use(EFFECT), say("Done.")) as model:
        asyncio.run(scenario(model))
        if not left:
            assert "As you like." in model.results(1)[0].text
    assert effects(host) == left
    (message,) = asked
    assert "echo model >> effects" in message
    assert message.startswith("Act: Run: echo model >> effects\nDoes something.\n\nrisk: ")


@pytest.mark.slow
def test_what_is_no_answer_is_a_denial(host: Host) -> None:
    """And not the end of the call, with a task behind it that waits for nobody. No client of the SDK sends it."""
    info = {"capabilities": {"elicitation": {}}, "clientInfo": {"name": "odd", "version": "1"}}
    sent: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", **info}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "run_task", "arguments": {"prompt": "Do it."}}},
    ]

    def lines(*messages: dict[str, Any]) -> bytes:
        return b"".join(json.dumps({"jsonrpc": "2.0", **one}).encode() + b"\n" for one in messages)

    with gateway(use(EFFECT), say("Done.")) as model:
        process = subprocess.Popen(
            command_of(host, model),
            env=host.environment(),
            cwd=host.workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process, deadline(process):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(lines(*sent))
            process.stdin.flush()
            reply: dict[str, Any] = {}
            while reply.get("id") != 2:
                reply = json.loads(process.stdout.readline())
                if reply.get("method") == "elicitation/create":
                    process.stdin.write(lines({"id": reply["id"], "result": {"action": "perhaps"}}))
                    process.stdin.flush()
                    reply = {}
            process.stdin.close()
        assert reply["result"]["structuredContent"]["denied"] == ["Run: echo model >> effects"]
        assert "the client did not answer" in model.results(1)[0].text
    assert effects(host) == ""


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("mode", ERAS)
def test_what_nobody_can_be_asked_about_is_denied(host: Host, mode: str) -> None:
    async def scenario(model: Gateway) -> None:
        async with client_of(host, model, mode=mode) as client:
            found = await call(client, "run_task", prompt="Do it.")
            assert (found["status"], len(found["denied"])) == ("TASK_COMPLETED", 1)
            assert "TOOL_NOT_FOUND" in await mistake(client, "approve", sessionId="s", approvalId="a")

    with gateway(use(EFFECT), say("Done.")) as model:
        asyncio.run(scenario(model))
        assert "the client has no elicitation" in model.results(1)[0].text
    assert effects(host) == ""


def configure(host: Host) -> None:
    """A server of the task that asks a person."""
    program, *args = command("odd")
    entry = {"name": "odd", "command": program, "args": args, "elicitation": True}
    lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write("\n".join(["[mcp]", "connect_timeout_s = 25.0", "[[mcp.servers]]", *lines, ""]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name", "said"), [(ERAS[0], "Ada", "accept name='Ada' times=3"), (ERAS[1], 7, "decline None")]
)
def test_a_server_of_the_task_asks_the_person_behind_the_client(host: Host, mode: str, name: object, said: str) -> None:
    configure(host)
    seen: list[types.ElicitRequestFormParams] = []

    async def fill(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        seen.append(params)
        known = {"name": name, "times": 3}
        content = {key: known[key] for key in params.requested_schema["properties"]}
        return types.ElicitResult(action="accept", content=cast("Any", content))

    async def scenario(model: Gateway) -> None:
        async with client_of(host, model, mode=mode, elicitation_callback=fill) as client:
            assert (await call(client, "run_task", prompt="Do it."))["status"] == "TASK_COMPLETED"

    calls = [use(tool_call(sendable_name(f"odd/{tool}"))) for tool in ("ask", "page")]
    with gateway(*calls, say("Done.")) as model:
        asyncio.run(scenario(model))
        assert said in model.results(1)[0].text
        assert "page accept" in model.results(2)[-1].text
    asked, page = seen
    assert "Who are you?" in asked.message
    assert set(asked.requested_schema["properties"]) == {"name", "times"}
    assert "url: https://example.com/login" in page.message
    assert page.requested_schema == {"type": "object", "properties": {}}


@pytest.mark.slow
@pytest.mark.many_rows(1)
def test_a_client_that_may_approve_has_a_tool_for_it(host: Host) -> None:
    async def scenario(model: Gateway) -> None:
        async with client_of(host, model, "--allow-approve") as client:
            found = await call(client, "run_task", prompt="Do it.")
            assert found["status"] == "APPROVAL_REQUIRED"
            (waiting,) = found["approvals"]
            named = {"sessionId": found["sessionId"], "approvalId": waiting["approvalId"]}
            assert "decision" in await mistake(client, "approve", **named, decision="perhaps")
            assert effects(host) == ""
            done = await call(client, "approve", **named, decision="approved")
            assert done["status"] == "TASK_COMPLETED"
            assert "INVALID_REQUEST" in await mistake(client, "approve", **named, decision="approved")

    with gateway(use(EFFECT), say("Done.")) as model:
        asyncio.run(scenario(model))
    assert effects(host) == "model\n"


@pytest.mark.slow
def test_a_client_that_may_approve_answers_a_server_of_the_task(host: Host) -> None:
    configure(host)

    async def scenario(model: Gateway) -> None:
        async with client_of(host, model, "--allow-approve") as client:
            found = await call(client, "run_task", prompt="Do it.")
            (waiting,) = found["approvals"]
            assert set(waiting["form"]["properties"]) == {"name", "times"}
            named = {"sessionId": found["sessionId"], "approvalId": waiting["approvalId"], "decision": "approved"}
            assert "name is missing" in await mistake(client, "approve", **named)
            assert (await call(client, "approve", **named, answers={"name": "Ada"}))["status"] == "TASK_COMPLETED"

    with gateway(use(tool_call(sendable_name("odd/ask"))), say("Done.")) as model:
        asyncio.run(scenario(model))
        assert "accept name='Ada'" in model.results(1)[0].text


@pytest.mark.slow
def test_a_client_need_not_wait(host: Host) -> None:
    async def scenario(model: Gateway) -> None:
        os.mkfifo(host.workspace / "hold")
        async with client_of(host, model, "--approve-all") as client:
            found = await call(client, "run_task", prompt="Do it.", waitS=0)
            assert found["status"] == "RUNNING"
            session = found["sessionId"]
            assert "TASK_ALREADY_RUNNING" in await mistake(client, "run_task", prompt="Me too.", sessionId=session)
            await anyio.to_thread.run_sync(write_to_pipe, host.workspace / "hold")
            done = await call(client, "session_status", sessionId=session, waitS=PATIENCE_S)
            assert (done["status"], done["text"]) == ("TASK_COMPLETED", "Done.")

    with gateway(use(shell("cat hold")), say("Done.")) as model:
        asyncio.run(scenario(model))


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize(("mode", "left"), [(ERAS[0], "model\n"), (ERAS[1], "model\n"), (ERAS[1], "")])
def test_who_follows_a_task_is_asked_on_the_way(host: Host, mode: str, left: str) -> None:
    """By `session_status` as by `run_task`, as long as the call waits; where nobody can be asked, it is denied."""
    asked: list[str] = []
    may_answer = asyncio.Event()

    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        await may_answer.wait()
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async def scenario(model: Gateway) -> None:
        person = {"elicitation_callback": answer} if left else {}
        async with client_of(host, model, mode=mode, **person) as client:
            found = await call(client, "run_task", prompt="Do it.", waitS=0)
            session = found["sessionId"]
            while found["status"] == "RUNNING" and left:
                short = 0.05 if mode == "legacy" else 0  # with time, the newer era asks by its answer
                found = await call(client, "session_status", sessionId=session, waitS=short)
            may_answer.set()
            done = await call(client, "session_status", sessionId=session, waitS=PATIENCE_S)
            assert (done["status"], "denied" in done) == ("TASK_COMPLETED", not left)

    with gateway(use(EFFECT), say("Done.")) as model:
        asyncio.run(scenario(model))
    assert effects(host) == left
    assert bool(asked) == bool(left)


@pytest.mark.slow
def test_a_cancelled_call_cancels_its_task(host: Host) -> None:
    async def scenario(model: Gateway) -> None:
        os.mkfifo(host.workspace / "hold")
        os.mkfifo(host.workspace / "last")
        async with client_of(host, model, "--approve-all") as client:
            async with asyncio.timeout(PATIENCE_S):
                running = asyncio.create_task(client.call_tool("run_task", {"prompt": "Do it."}))
                await anyio.to_thread.run_sync(write_to_pipe, host.workspace / "hold")  # it runs now
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                (session,) = [row["sessionId"] for row in (await call(client, "session_status"))["sessions"]]
                while (await call(client, "session_status", sessionId=session))["doing"] != CANCELLING:  # noqa: ASYNC110
                    await asyncio.sleep(0)  # the other process says when
                await anyio.to_thread.run_sync(write_to_pipe, host.workspace / "last")  # a running tool finishes
                ended = await client.call_tool("session_status", {"sessionId": session, "waitS": PATIENCE_S})
            assert cast("dict[str, Any]", ended.structured_content)["status"] == "TASK_CANCELLED"

    with gateway(use(shell("cat hold; cat last")), say("Never asked.")) as model:
        asyncio.run(scenario(model))


@pytest.mark.slow
def test_mistakes_are_one_line(host: Host) -> None:
    async def scenario(model: Gateway) -> None:
        async with client_of(host, model) as client:
            assert "$.prompt" in await mistake(client, "run_task")
            assert "$.workspace" in await mistake(client, "run_task", prompt="Do it.", workspace="/")
            assert "$.maxSteps" in await mistake(client, "run_task", prompt="Do it.", maxSteps="3")
            assert "SESSION_NOT_FOUND" in await mistake(client, "session_status", sessionId="no_such")
            assert "SESSION_NOT_FOUND" in await mistake(client, "run_task", sessionId="no_such")
            assert "INVALID_REQUEST" in await mistake(client, "run_task", prompt="Do it.", model="no-such-model")

    with gateway(say("Never asked.")) as model:
        asyncio.run(scenario(model))
        assert model.count == 0


@pytest.mark.parametrize("options", [("--policy", "no-such"), ("--workspace", "no-such"), ("--output", "json")])
def test_options_are_checked_before_anybody_is_served(host: Host, options: tuple[str, ...]) -> None:
    outcome = host.run("mcp", *options)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert len(outcome.stderr.strip().splitlines()) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_a_task_outlives_its_client(servers: Servers, how: str) -> None:
    """What ran when the client left goes on where another server, or a person, resumes it. Nothing is done twice. Any
    later server knows it, and none of a tenant of its own."""
    host = servers.host

    async def first(model: Gateway) -> tuple[str, int]:
        async with client_of(host, model, "--approve-all") as client:
            found = await call(client, "run_task", prompt="Do it.", waitS=0)
            await anyio.to_thread.run_sync(eventually, lambda: model.count == 2, "the second request")
            (row,) = (await call(client, "session_status"))["sessions"]
            if how == "is killed":
                psutil.Process(row["pid"]).parent().kill()
            return str(found["sessionId"]), int(row["pid"])

    async def second(model: Gateway, session: str) -> None:
        async with client_of(host, model, "--approve-all") as client:
            left = await client.call_tool("session_status", {"sessionId": session})
            found = cast("dict[str, Any]", left.structured_content)
            assert (found["status"], found["reason"], found["verdict"]) == (
                "SESSION_PAUSED", "interrupted", "interrupted",
            )  # fmt: skip
            assert "open task" in await mistake(client, "run_task", prompt="Another.", sessionId=session)
            found = await call(client, "run_task", sessionId=session)
            assert (found["status"], found["text"]) == ("TASK_COMPLETED", "Done.")
            task.append(found["taskId"])

    async def third(model: Gateway, session: str, others: str) -> None:
        async with client_of(host, model, "--approve-all") as client:
            for named in ({}, {"taskId": task[0]}):
                found = await call(client, "session_status", sessionId=session, **named)
                assert (found["status"], found["text"], found["taskId"]) == ("TASK_COMPLETED", "Done.", task[0])
            assert "has no task 'zz'" in await mistake(client, "session_status", sessionId=session, taskId="zz")
            for tool, more in (("session_status", {}), ("run_task", {"prompt": "Go on."}), ("run_task", {})):
                assert "SESSION_NOT_FOUND" in await mistake(client, tool, sessionId=others, **more)
            listed = await call(client, "session_status")
            assert [row["sessionId"] for row in listed["sessions"]] == [session], "and none of another tenant"

    task: list[str] = []
    with gateway(use(EFFECT), {"hang": True}, say("Done.")) as model, gateway(say("Theirs.")) as another:
        session, serve = asyncio.run(first(model))
        eventually(lambda: not process_exists(serve), "the end of the session's process")
        asyncio.run(second(model, session))
        theirs, client = servers.session(another.url)
        client.task()
        client.event("task_completed")
        asyncio.run(third(model, session, client.session_id))
        client.call("Shutdown")
        theirs.ended_well()
        asyncio.run(third(model, session, client.session_id))
    assert effects(host) == "model\n"
