"""`agent-host mcp` with a client that has the tasks extension: a task for an answer, polled, answered, cancelled."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Literal

import anyio
import mcp_types as types
import pytest
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from agent_host.mcp_server.server import EXTENSION
from tests.interaction.test_mcp_server import EFFECT, call, client_of, effects, person
from tests.support.process import PATIENCE_S, eventually, gateway, say, shell, use, write_to_pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp import Client

    from tests.support.process import Gateway, Host

pytestmark = pytest.mark.slow  # each starts a server, and a process of the host for its session


class Told(types.Result):
    """Whatever a method of the extension answers."""

    model_config = ConfigDict(extra="allow")


class Created(Told):
    """A task for an answer."""

    result_type: Literal["task"]
    task_id: str


async def ask(session: Any, method: str, **params: Any) -> dict[str, Any]:
    """The answer of a method of the extension."""
    request = types.Request[dict[str, Any], str](method=method, params=params)
    told: Told = await session.send_request(request, Told)
    return told.model_dump(by_alias=True)


class Tasks(ClientExtension):
    """A client that follows a task to its end, and has answers for what it asks."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.created: list[str] = []
        self.seen: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {"decision": "approve"}

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """See ClientExtension."""
        return (ResultClaim(result_type="task", model=Created, resolve=self._follow),)

    async def _follow(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        self.created.append(created.task_id)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                told = await ask(context.session, "tasks/get", taskId=created.task_id)
                self.seen.append(told)
                if told["status"] == "input_required":
                    said = {key: {"action": "accept", "content": self.answers} for key in told["inputRequests"]}
                    acked = await ask(context.session, "tasks/update", taskId=created.task_id, inputResponses=said)
                    assert acked["resultType"] == "complete"
                elif told["status"] == "completed":
                    return types.CallToolResult.model_validate(told["result"])
                elif told["status"] != "working":
                    return types.CallToolResult(content=[], structured_content={"status": told["status"]})


def client(host: Host, model: Gateway, tasks: ClientExtension, *options: str, **more: Any) -> Client:
    return client_of(host, model, *options, mode="2026-07-28", extensions=[tasks], **more)


def test_a_task_is_followed_to_its_end_and_asks_on_the_way(host: Host) -> None:
    tasks = Tasks()

    async def scenario(model: Gateway) -> None:
        async with client(host, model, tasks, elicitation_callback=person([])) as one:
            found = await call(one, "run_task", prompt="Do it.")
            assert (found["status"], found["text"]) == ("TASK_COMPLETED", "Done.")
            tasks.answers = {"decision": "deny", "reason": "Not again."}
            again = await call(one, "run_task", prompt="And again.", sessionId=found["sessionId"])
            assert again["denied"] == ["Run: echo model >> effects"]
            first = await ask(one.session, "tasks/get", taskId=tasks.created[0])  # the session has had another since
            assert (first["status"], first["result"]["structuredContent"]["text"]) == ("completed", "Done.")
            waited = await call(one, "run_task", prompt="x", sessionId=found["sessionId"], waitS=PATIENCE_S)
            assert waited["text"] == "Waited for."
            for method in ("tasks/get", "tasks/cancel"):  # of the server after this one, too
                with pytest.raises(MCPError, match="there is no such task"):
                    await ask(one.session, method, taskId="task_nobody")

    async def later(model: Gateway) -> None:
        async with client(host, model, tasks) as one:
            first, second = [await ask(one.session, "tasks/get", taskId=task) for task in tasks.created]
            assert (first["status"], first["result"]["structuredContent"]["text"]) == ("completed", "Done.")
            assert second["result"]["structuredContent"]["denied"] == ["Run: echo model >> effects"]
            assert first["createdAt"] < second["createdAt"]

    with gateway(use(EFFECT), say("Done."), use(EFFECT), say("Again."), say("Waited for.")) as model:
        asyncio.run(scenario(model))
        asyncio.run(later(model))
    assert effects(host) == "model\n"
    states = [told["status"] for told in tasks.seen]
    assert "input_required" in states
    (asked,) = next(told for told in tasks.seen if told["status"] == "input_required")["inputRequests"].values()
    assert asked["method"] == "elicitation/create"
    assert "echo model >> effects" in asked["params"]["message"]
    assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= tasks.seen[0].keys()


def test_a_task_is_cancelled(host: Host) -> None:
    tasks = Tasks()

    async def scenario(model: Gateway) -> None:
        os.mkfifo(host.workspace / "hold")
        async with client(host, model, tasks, "--approve-all") as one:
            running = asyncio.create_task(one.call_tool("run_task", {"prompt": "Do it."}))
            await anyio.to_thread.run_sync(write_to_pipe, host.workspace / "hold")
            await anyio.to_thread.run_sync(eventually, (host.workspace / "begun").exists, "a tool that runs")
            await ask(one.session, "tasks/cancel", taskId=tasks.created[0])
            await anyio.to_thread.run_sync(write_to_pipe, host.workspace / "hold")  # a running tool finishes
            assert (await running).structured_content == {"status": "cancelled"}
            await ask(one.session, "tasks/cancel", taskId=tasks.created[0])  # once more changes nothing

    with gateway(use(shell("cat hold; touch begun; cat hold")), say("Never asked.")) as model:
        asyncio.run(scenario(model))


def test_who_has_no_tasks_gets_none_and_who_asks_nobody_is_denied(host: Host) -> None:
    async def scenario(model: Gateway) -> None:
        async with client_of(host, model, mode="auto") as one:
            assert EXTENSION in (one.server_capabilities.extensions or {})
            assert (await call(one, "run_task", prompt="Do it."))["text"] == "Done."
            with pytest.raises(MCPError) as refused:
                await ask(one.session, "tasks/get", taskId="x")
            assert refused.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
        tasks = Tasks()
        async with client(host, model, tasks) as one:  # without elicitation
            found = await call(one, "run_task", prompt="Do it.")
            assert (found["text"], found["denied"]) == ("Done.", ["Run: echo model >> effects"])

    with gateway(use(EFFECT), say("Done.")) as model:
        asyncio.run(scenario(model))
    assert effects(host) == ""
