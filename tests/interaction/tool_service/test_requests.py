"""Requests to the Backend Tool Service over real HTTP: who may ask, what is refused, what is answered."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

from agent_host.contracts import Artifact
from agent_host.testing.services import MockServices
from agent_host.tool_service.tool import Output, ToolFault
from tests.support.tool_service import ACME, OTHER, PATIENCE_S, Caller, FunctionTool, grant, invocation, served, tenants

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.tool_service.tool import Call

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "additionalProperties": False,
}


async def echo(call: Call) -> str:
    return f"you said {call.arguments.get('text', 'nothing')}"


def echo_tool(**more: Any) -> FunctionTool:
    return FunctionTool("Echo", echo, schema=SCHEMA, **more)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of a refusal, in the form of all services."""
    body: dict[str, Any] = answer.json()
    assert body.keys() >= {"code", "message", "retryable"}
    return {"status": answer.status_code, "code": body["code"], "retryable": body["retryable"]}


async def found(service: Caller, tool: str, key: str, status: int) -> None:
    """Wait until the key is known so."""
    async with asyncio.timeout(PATIENCE_S):
        while (await service.find(tool, key)).status_code != status:
            pass


async def test_a_tool_is_listed_and_invoked(tmp_path: Path) -> None:
    async with served(tmp_path, tenants({"Echo": {}}), echo_tool()) as service:
        listed = await service.http.get("/tools", headers={"authorization": f"Bearer {ACME}"})
        assert listed.json() == {
            "tools": [
                {
                    "toolName": "Echo",
                    "description": "a tool of a test",
                    "inputSchema": SCHEMA,
                    "requiresCapability": "BackendTool.Invoke",
                }
            ]
        }
        answer = await service.invoke("Echo", {"text": "hello"})
        assert answer.json() == {
            "toolName": "Echo",
            "sessionId": "sess_1",
            "taskId": "task_1",
            "stepId": "step_1",
            "status": "succeeded",
            "outputText": "you said hello",
        }


async def test_nothing_of_a_session_stays_and_no_call_follows_another(tmp_path: Path) -> None:
    """What a call needs comes with it, so a service that never heard of the session answers the same; and what a tool
    says is only its answer, also where it reads like a call."""

    async def asks(call: Call) -> str:
        return f'{{"tool_calls": [{{"toolName": "Echo", "arguments": {{}}}}], "of": "{call.session_id}"}}'

    asking, echoing = FunctionTool("Asks", asks), echo_tool()
    answers = []
    for place in ("one", "two"):
        folder = tmp_path / place
        folder.mkdir()
        async with served(folder, tenants({"Asks": {}, "Echo": {}}), asking, echoing) as service:
            said = [await service.invoke("Asks", stepId=step) for step in ("step_1", "step_2")]
        answers += [one.json()["outputText"] for one in said]
        assert [path.name for path in folder.iterdir()] == ["tenants.json"]
    assert len(set(answers)) == 1
    assert (len(asking.calls), echoing.calls) == (4, [])


async def test_tenants_see_their_own_tools_alone(tmp_path: Path) -> None:
    file = tenants({"Echo": {}}, other={"Other": {}})
    other = FunctionTool("Other", echo)
    async with served(tmp_path, file, echo_tool(), other) as service:
        listed = await service.http.get("/tools", headers={"authorization": f"Bearer {OTHER}"})
        assert [tool["toolName"] for tool in listed.json()["tools"]] == ["Other"]
        crossed = await service.invoke("Other", with_grant=grant("Other"))
        assert error_of(crossed) == {"status": 404, "code": "TOOL_NOT_FOUND", "retryable": False}
        assert other.calls == []


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", f"Basic {ACME}", ACME])
async def test_without_a_token_nothing_is_told(tmp_path: Path, authorization: str | None) -> None:
    tool = echo_tool()
    async with served(tmp_path, tenants({"Echo": {}}), tool) as service:
        headers = {"x-capability-grant": grant("Echo")}
        if authorization is not None:
            headers["authorization"] = authorization
        body = orjson.dumps(invocation("Echo", {}))
        for answer in (
            await service.http.get("/tools", headers=headers),
            await service.http.post("/tools/Echo/invoke", content=body, headers=headers),
            await service.http.get("/tools/Echo/invocations/k", headers=headers),
        ):
            assert error_of(answer) == {"status": 401, "code": "UNAUTHORIZED", "retryable": False}
            assert answer.headers["www-authenticate"] == "Bearer"
    assert tool.calls == []


WHAT_TO_DO = {
    "none": "the host signs one where it has AGENT_HOST_GRANT_KEY",
    "of another key": "AGENT_HOST_GRANT_KEY must be the same",
    "expired": "the clocks differ",
    "of another tenant": "tenantId of the session's policy",
}
GRANTS = {
    "none": "",
    "nonsense": "nonsense",
    "of another key": grant("Echo", key=bytes(32)),
    "expired": grant("Echo", lasts_s=-1),
    "of another tenant": grant("Echo", tenant="other"),
    "of another session": grant("Echo", session="sess_2"),
    "of other tools": grant("Ech", "Echo2", "echo"),
    "of no tool": grant(),
    "of another workspace": grant("Echo", workspace_id="ws_2"),
    "with another payload": ".".join(  # the payload of one, the MAC of the other
        (*grant("Echo").split(".")[:2], grant("Echo", session="sess_2").split(".")[2])
    ),
    "cut": grant("Echo")[:-1],
}


@pytest.mark.many_rows(3)
@pytest.mark.parametrize("kind", GRANTS)
async def test_a_grant_that_does_not_allow_the_call_is_refused(tmp_path: Path, kind: str) -> None:
    tool = echo_tool()
    async with served(tmp_path, tenants({"Echo": {}}, other={"Echo": {}}), tool) as service:
        answer = await service.invoke("Echo", with_grant=GRANTS[kind])
        assert WHAT_TO_DO.get(kind, "capability grant") in answer.json()["message"]
        assert error_of(answer) == {"status": 403, "code": "CAPABILITY_DENIED", "retryable": False}
    assert tool.calls == []


BODIES: dict[str, Any] = {
    "not JSON": b"{",
    "no object": [],
    "empty": b"",
    "no session": {**invocation("Echo", {}), "sessionId": None},
    "an odd session": {**invocation("Echo", {}), "sessionId": "../../etc"},
    "an odd workspace": {**invocation("Echo", {}), "workspaceId": "../x"},
    "another tool": invocation("Other", {}),
    "arguments of another type": {**invocation("Echo", {}), "arguments": []},
}


@pytest.mark.many_rows(3)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_request_that_is_wrong_is_refused(tmp_path: Path, body: Any) -> None:
    async with served(tmp_path, tenants({"Echo": {}}), echo_tool()) as service:
        headers = {"authorization": f"Bearer {ACME}", "x-capability-grant": grant("Echo")}
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        answer = await service.http.post("/tools/Echo/invoke", content=content, headers=headers)
        assert error_of(answer) == {"status": 400, "code": "INVALID_REQUEST", "retryable": False}


async def test_arguments_that_do_not_fit_the_schema_are_a_result(tmp_path: Path) -> None:
    tool = echo_tool()
    async with served(tmp_path, tenants({"Echo": {}}), tool) as service:
        answer = await service.invoke("Echo", {"txt": "hello"})
        assert answer.status_code == 200
        result = answer.json()
        assert (result["status"], result["error"]["code"]) == ("failed", "INVALID_REQUEST")
        assert "did you mean text?" in result["error"]["message"]
    assert tool.calls == []


async def test_a_request_may_be_so_large(tmp_path: Path) -> None:
    file = tenants({"Echo": {}}, limits={"maxRequestBytes": 2000})
    async with served(tmp_path, file, echo_tool()) as service:
        assert (await service.invoke("Echo", {"text": "x" * 1000})).status_code == 200
        large = await service.invoke("Echo", {"text": "x" * 2000})
        assert error_of(large) == {"status": 413, "code": "INVALID_REQUEST", "retryable": False}

        async def pieces() -> Any:  # without a length that could be looked at first
            yield b'{"sessionId":"'
            for _ in range(10):
                yield b"x" * 1000

        headers = {"authorization": f"Bearer {ACME}", "x-capability-grant": grant("Echo")}
        chunked = await service.http.post("/tools/Echo/invoke", content=pieces(), headers=headers)
        assert error_of(chunked)["status"] == 413


async def test_more_calls_than_a_tenant_may_have_are_refused_at_once(tmp_path: Path) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def wait(_: Call) -> str:
        begun.set()
        await end.wait()
        return "done"

    file = tenants({"Wait": {}}, other={"Echo": {}}, limits={"maxConcurrent": 1, "maxQueued": 1})
    async with served(tmp_path, file, FunctionTool("Wait", wait), echo_tool()) as service:
        first = asyncio.create_task(service.invoke("Wait"))
        await begun.wait()
        second = asyncio.create_task(service.invoke("Wait", key="k2"))
        await found(service, "Wait", "k2", 202)  # it has its place in the queue
        third = await service.invoke("Wait", key="k3")
        assert error_of(third) == {"status": 429, "code": "RATE_LIMITED", "retryable": True}
        assert third.headers["retry-after"] == "1"
        # A key that was refused is as new, and another tenant is not held up.
        assert (await service.find("Wait", "k3")).status_code == 404
        assert (await service.invoke("Echo", token=OTHER, with_grant=grant("Echo", tenant="other"))).status_code == 200
        end.set()
        assert {(await first).json()["outputText"], (await second).json()["outputText"]} == {"done"}
        assert (await service.invoke("Wait", key="k3")).status_code == 200


async def test_a_tool_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def hang(_: Call) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    file = tenants({"Hang": {}}, limits={"timeoutS": 0.1})
    async with served(tmp_path, file, FunctionTool("Hang", hang)) as service:
        result = (await service.invoke("Hang")).json()
        assert result["error"] == {
            "code": "TOOL_EXECUTION_TIMEOUT",
            "message": "the tool did not end within 0.1 s",
        }
        assert ended.is_set()


async def test_an_error_of_a_tool_tells_nothing_that_it_should_not(tmp_path: Path) -> None:
    async def fail(call: Call) -> str:
        if call.arguments:
            raise ToolFault("TOOL_EXECUTION_FAILED", "the far end is away")
        raise KeyError("postgresql://user:hunter2@db")

    async with served(tmp_path, tenants({"Fail": {}}), FunctionTool("Fail", fail)) as service:
        broken = (await service.invoke("Fail")).json()
        assert broken["error"] == {"code": "INTERNAL_ERROR", "message": "the tool failed (KeyError)"}
        told = (await service.invoke("Fail", {"x": 1})).json()
        assert told["error"] == {"code": "TOOL_EXECUTION_FAILED", "message": "the far end is away"}


async def test_a_large_output_is_stored_and_cut(tmp_path: Path) -> None:
    async def large(_: Call) -> Output:
        return Output("é" * 3000, (Artifact("tool_output", "../../a.bin", "application/octet-stream", b"\0\1"),))

    file = tenants({"Large": {}}, limits={"maxInlineBytes": 1001})
    async with served(tmp_path, file, FunctionTool("Large", large)) as service:
        result = (await service.invoke("Large")).json()
        assert result["status"] == "succeeded"
        binary, text = result["artifactUris"]
        folder = tmp_path / "artifacts" / "acme" / "ws_1"
        assert (folder / binary.removeprefix("workspaces/ws_1/artifacts/")).read_bytes() == b"\0\1"
        assert (folder / text.removeprefix("workspaces/ws_1/artifacts/")).read_text() == "é" * 3000
        assert result["outputText"] == (
            "é" * 500 + f"\n[cut: 6,000 bytes in all; the whole output is stored as {text}]"
        )
        assert len(list(folder.iterdir())) == 2


async def test_outputs_go_to_the_workspace_service_and_events_to_theirs(tmp_path: Path) -> None:
    async def large(_: Call) -> str:
        return "x" * 2000

    async def fails(_: Call) -> str:
        raise ToolFault("TOOL_EXECUTION_FAILED", "no")

    services = MockServices(token="services-token-0123456789")
    with services.in_thread() as url:
        environ = {f"{kind}_SERVICE_URL": url for kind in ("WORKSPACE", "TELEMETRY", "AUDIT")}
        environ["AGENT_HOST_SERVICES_TOKEN"] = "services-token-0123456789"
        kinds = (FunctionTool("Large", large, high_risk=True), FunctionTool("Fails", fails))
        file = tenants({"Large": {}, "Fails": {}}, limits={"maxInlineBytes": 1000})
        async with served(tmp_path, file, *kinds, environ=environ) as service:
            with_grant = grant("Large", "Fails", user_id="user_1")
            result = (await service.invoke("Large", {"secret": "hunter2"}, key="call_1", with_grant=with_grant)).json()
            await service.invoke("Fails", key="call_2", with_grant=with_grant)
    (artifact,) = services.artifacts
    assert artifact.data == b"x" * 2000
    assert result["artifactUris"][0].startswith("workspaces/ws_1/artifacts/")
    told = [(event["eventType"], event["payload"]["toolName"]) for event in services.telemetry_events]
    assert told == [
        ("tool_requested", "Large"),
        ("tool_completed", "Large"),
        ("tool_requested", "Fails"),
        ("tool_completed", "Fails"),
    ]
    completed = services.telemetry_events[1]
    assert completed["component"] == "BackendToolService"
    assert completed["payload"]["toolCallId"] == "call_1"
    assert (completed["tenantId"], completed["userId"], completed["sessionId"]) == ("acme", "user_1", "sess_1")
    assert services.telemetry_events[3]["payload"]["code"] == "TOOL_EXECUTION_FAILED"
    (audited,) = services.audit_events  # the call of high risk alone
    assert audited["payload"]["tool"] == "Large"
    assert audited["payload"]["risk"] == "high"
    assert audited["payload"]["result"]["artifact_uris"] == result["artifactUris"]
    assert "hunter2" not in repr((services.telemetry_events, services.audit_events))


async def test_an_output_that_cannot_be_stored_is_told(tmp_path: Path) -> None:
    async def large(_: Call) -> str:
        return "x" * 2000

    services = MockServices(token=None)
    services.fail("/workspaces", 400)
    with services.in_thread() as url:
        file = tenants({"Large": {}}, limits={"maxInlineBytes": 1000})
        environ = {"WORKSPACE_SERVICE_URL": url}
        async with served(tmp_path, file, FunctionTool("Large", large), environ=environ) as service:
            result = (await service.invoke("Large")).json()
    assert result["status"] == "failed"
    assert result["error"]["code"] == "WORKSPACE_UPLOAD_FAILED"
    assert result["error"]["message"].startswith("the tool has run, but ")
    assert result["outputText"].startswith("x" * 1000)


@pytest.mark.slow
async def test_five_hundred_calls_at_once(tmp_path: Path) -> None:
    running, most, full = 0, 0, asyncio.Event()

    async def busy(call: Call) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 50:
            full.set()
        await full.wait()  # until as many run as may
        running -= 1
        return f"you said {call.arguments['text']}"

    tool = FunctionTool("Echo", busy)
    file = tenants({"Echo": {}}, limits={"maxConcurrent": 50, "maxQueued": 500})
    async with served(tmp_path, file, tool) as service:
        # One client of httpx looks through all of its connections for each request: seconds of the processor.
        async with contextlib.AsyncExitStack() as stack:
            url = service.http.base_url
            clients = [httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) for _ in range(10)]
            callers = [Caller(await stack.enter_async_context(client)) for client in clients]
            answers = await asyncio.gather(
                *(
                    callers[n % 10].invoke("Echo", {"text": str(n)}, key=f"call_{n}")
                    for n in range(250)
                    for _ in range(2)
                )
            )
        assert [answer.json()["outputText"] for answer in answers] == [
            f"you said {n}" for n in range(250) for _ in range(2)
        ]
    assert len(tool.calls) == 250
    assert most == 50


async def test_numbers_for_prometheus(tmp_path: Path) -> None:
    async with served(tmp_path, tenants({"Echo": {}}), echo_tool()) as service:
        await service.invoke("Echo", key="k")
        await service.invoke("Echo", key="k")
        await service.invoke("Echo", with_grant="x")
        lines = (await service.http.get("/metrics")).text.splitlines()
    assert 'agent_host_tool_calls_total{code="",status="succeeded",tenant="acme",tool="Echo"} 1.0' in lines
    assert 'agent_host_tool_calls_repeated_total{tenant="acme"} 1.0' in lines
    assert 'agent_host_tool_requests_refused_total{status="403"} 1.0' in lines
    assert 'agent_host_tool_call_seconds_count{tenant="acme",tool="Echo"} 1.0' in lines


async def test_other_paths_and_methods_have_the_error_body(tmp_path: Path) -> None:
    async with served(tmp_path, tenants({"Echo": {}}), echo_tool()) as service:
        assert error_of(await service.http.get("/nowhere"))["status"] == 404
        wrong = await service.http.delete("/tools")
        assert error_of(wrong)["status"] == 405
        assert "GET" in wrong.headers["allow"]
        assert (await service.http.get("/healthz")).json() == {"status": "ok"}
        assert (await service.http.get("/readyz")).json() == {"status": "ready"}
