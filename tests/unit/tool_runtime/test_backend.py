"""Calls of the Backend Tool Service over real HTTP: each runs once whatever is lost on the way, and ends as one of this
machine would."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.capability_grants import GRANT_HEADER, CapabilityGrant, grant_key, sign
from agent_host.contracts import ToolRequest
from agent_host.errors import ErrorCode
from agent_host.http import RetryPolicy
from agent_host.ids import MACHINE
from agent_host.services.http import ServiceClient
from tests.support.tool_server import DROP, KEY, LOSE, RUN_ON, TOKEN, ToolServer, echo, never
from tool_runtime.remote import Definition
from tool_runtime.remote.backend import CAPABILITY, BackendSource, InvocationTerms
from tool_runtime.tool import CallContext, FaultKind, RuntimeSettings, ToolFault, ToolOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    Call = Callable[..., Any]

SESSION = "sess_1"
OVERLOADED = {"code": "RATE_LIMITED", "message": "the tenant has 8 calls under way", "retryable": True}


class Session:
    """One host's session with a server."""

    def __init__(self, server: ToolServer, folder: Path, *, token: str | None = TOKEN, retries: int = 3) -> None:
        self.server = server
        self.client = ServiceClient(server.url, token, outside=MACHINE, timeout_s=5)
        self.settings = RuntimeSettings(outside=MACHINE, workspace=str(folder), shell="/bin/sh")
        self.granted = ["Echo", "Slow", "Large", "Odd", "Gone"]
        self.timeout_s = 10.0
        self.retries = retries
        self.step = "step_1"

    @property
    def source(self) -> BackendSource:
        policy = RetryPolicy(self.retries, 0.001, 0.002, max_retry_after_s=0.01)
        terms = InvocationTerms(self.grant, GRANT_HEADER, "ws_1", self.timeout_s, policy, MACHINE)
        return BackendSource(self.client, terms)

    def grant(self, _tool: str) -> str:
        return sign(
            CapabilityGrant("acme", SESSION, tuple(self.granted), time.time() + 60),
            grant_key({"AGENT_HOST_GRANT_KEY": KEY}) or b"",
        )

    def context(self, tool: str = "Echo", key: str = "call_1", **arguments: Any) -> tuple[Definition, CallContext]:
        request = ToolRequest(tool, arguments, SESSION, "task_1", self.step, key, CAPABILITY)
        return Definition(tool, "d", {"type": "object"}), CallContext.make(request, self.settings)


@pytest.fixture
async def server() -> AsyncIterator[ToolServer]:
    async with ToolServer({"Echo": echo, "Slow": never}) as server:
        yield server


@pytest.fixture
async def session(server: ToolServer, tmp_path: Path) -> AsyncIterator[Session]:
    session = Session(server, tmp_path)
    yield session
    await session.client.aclose()


async def fault_of(call: Any) -> ToolFault:
    with pytest.raises(ToolFault) as caught:
        await call
    return caught.value


async def ready(session: Session) -> BackendSource:
    """A source that has listed its tools, and so knows the service's epoch."""
    source = session.source
    await source.list()
    return source


async def test_a_call_is_sent_as_the_specification_has_it(session: Session) -> None:
    output = await session.source.call(*session.context(text="hello"))
    assert output == ToolOutput("hello")
    ((method, path, headers, body),) = session.server.requests
    assert (method, path) == ("POST", "/tools/Echo/invoke")
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert headers["idempotency-key"] == "call_1"
    assert body == {
        "sessionId": SESSION,
        "taskId": "task_1",
        "stepId": "step_1",
        "workspaceId": "ws_1",
        "toolName": "Echo",
        "arguments": {"text": "hello"},
    }


async def test_the_tools_are_listed_and_what_cannot_be_used_says_why(session: Session) -> None:
    session.server.extra = [
        {"toolName": "NoSchema", "description": "d"},
        {"toolName": "Elsewhere", "description": "d", "inputSchema": {"type": "object"}, "requiresCapability": "X"},
        {"toolName": "Far", "description": "d", "inputSchema": {"$ref": "https://example.com/schema"}},
        "no tool",  # type: ignore[list-item]  # what no honest server lists
    ]
    listed = await session.source.list()
    assert [one.name for one in listed.definitions] == ["Echo", "Slow"]
    assert listed.rejected.keys() == {"NoSchema", "Elsewhere", "Far", "tools[5]"}
    assert "it needs X" in listed.rejected["Elsewhere"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"tools": 1}'])
async def test_a_list_that_is_none_is_a_fault(session: Session, body: bytes) -> None:
    async def exchange(*_: Any, **__: Any) -> Any:
        return type("Answer", (), {"status": 200, "headers": {}, "body": body})()

    session.client.exchange = exchange  # type: ignore[method-assign]  # what no honest server answers
    assert "cannot be read" in str(await fault_of(session.source.list()))


@pytest.mark.parametrize("times", [1, 3])
async def test_a_call_whose_answer_was_lost_is_sent_again_and_runs_once(session: Session, times: int) -> None:
    source = await ready(session)
    session.server.faults.extend([LOSE] * times)
    assert (await source.call(*session.context(text="once"))).text == "once"
    assert [one.key for one in session.server.ran] == ["call_1"]
    sent = [
        headers.get("x-tool-service-epoch") for method, _, headers, _ in session.server.requests if method == "POST"
    ]
    assert sent == [None, *["epoch_1"] * times]


async def test_a_call_that_was_dropped_before_it_ran_is_sent_again(session: Session) -> None:
    source = await ready(session)
    session.server.faults.append(DROP)
    assert (await source.call(*session.context(text="once"))).text == "once"
    assert len(session.server.ran) == 1


async def test_a_service_that_has_forgotten_the_call_does_not_run_it_again(session: Session) -> None:
    source, server = await ready(session), session.server

    async def dies(arguments: dict[str, Any]) -> dict[str, Any]:
        server.forget()
        raise ConnectionError

    server.tools["Echo"] = dies
    fault = await fault_of(source.call(*session.context(text="once")))
    assert fault.kind is FaultKind.INTERRUPTED
    assert "the service has started anew" in str(fault)
    assert len(server.ran) == 1


async def test_without_an_epoch_a_lost_answer_is_asked_for_and_nothing_is_sent_again(session: Session) -> None:
    session.server.faults.append(LOSE)
    assert (await session.source.call(*session.context(text="once"))).text == "once"
    session.server.faults.append(DROP)
    fault = await fault_of(session.source.call(*session.context(key="call_2")))
    assert fault.kind is FaultKind.INTERRUPTED
    assert "inspect before you try again" in str(fault)
    assert [method for method, *_ in session.server.requests] == ["POST", "GET", "POST", "GET"]
    assert len(session.server.ran) == 1


async def test_a_call_that_never_got_an_answer_may_have_run(session: Session) -> None:
    source = await ready(session)
    session.server.faults.extend([LOSE] * 4)
    session.server.polls = 0
    assert (await source.call(*session.context(text="asked"))).text == "asked"  # in the end it is asked for
    assert len(session.server.ran) == 1


async def test_a_service_that_is_not_there_has_run_nothing(session: Session) -> None:
    source = await ready(session)
    await session.server.aclose()
    fault = await fault_of(source.call(*session.context()))
    assert fault.kind is FaultKind.NETWORK
    assert str(fault).startswith("the tool did not run: ")
    assert str(fault).endswith("; check BACKEND_TOOL_SERVICE_URL, and that the service runs")
    assert session.server.ran == []
    fault = await fault_of(source.list())
    assert "check BACKEND_TOOL_SERVICE_URL" in str(fault)


async def test_what_is_refused_before_it_runs_is_sent_again(session: Session) -> None:
    session.server.faults.extend([(429, {"retry_after": "0"}, OVERLOADED), (503, {}, OVERLOADED)])
    assert (await session.source.call(*session.context(text="at last"))).text == "at last"
    assert len(session.server.ran) == 1
    session.server.faults.extend([(429, {}, OVERLOADED)] * 4)
    fault = await fault_of(session.source.call(*session.context(key="call_2")))
    assert fault.kind is FaultKind.RATE_LIMITED
    assert "8 calls under way" in str(fault)
    assert len(session.server.ran) == 1


async def test_the_wait_that_the_service_asks_for_is_kept(session: Session) -> None:
    session.server.faults.append((429, {"retry_after": "0.05"}, OVERLOADED))
    source = BackendSource(
        session.client,
        InvocationTerms(session.grant, GRANT_HEADER, "ws_1", 10, RetryPolicy(3, 0, 0, max_retry_after_s=5), MACHINE),
    )
    began = time.monotonic()
    await source.call(*session.context())
    assert time.monotonic() - began >= 0.05


async def test_a_proxy_that_fails_says_nothing_of_the_call(session: Session) -> None:
    source = await ready(session)
    session.server.faults.extend([(502, {}, {"oops": 1}), (503, {}, b"<html>")])
    assert (await source.call(*session.context(text="once"))).text == "once"
    assert len(session.server.ran) == 1


async def test_a_call_that_goes_on_is_waited_for(session: Session) -> None:
    session.server.faults.append(RUN_ON)
    session.server.polls = 2
    assert (await session.source.call(*session.context(text="later"))).text == "later"
    assert [method for method, *_ in session.server.requests] == ["POST", "GET", "GET", "GET"]


async def test_a_call_has_a_longest_time(session: Session) -> None:
    session.timeout_s = 0.05
    fault = await fault_of(session.source.call(*session.context("Slow")))
    assert fault.kind is FaultKind.TIMED_OUT
    assert "inspect before you try again" in str(fault)


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (
            401,
            {"code": "UNAUTHORIZED", "message": "no", "retryable": False},
            "UNAUTHORIZED",
            "BACKEND_TOOL_SERVICE_TOKEN",
        ),
        (
            403,
            {"code": "CAPABILITY_DENIED", "message": "not yours", "retryable": False},
            "CAPABILITY_DENIED",
            "not yours",
        ),
        (404, {"code": "TOOL_NOT_FOUND", "message": "no tool", "retryable": False}, "TOOL_NOT_FOUND", "no tool"),
        (413, {"code": "INVALID_REQUEST", "message": "too much", "retryable": False}, "INVALID_REQUEST", "too much"),
        (404, b"<html>", "TOOL_NOT_FOUND", "HTTP 404"),
        (418, {"code": "TEAPOT", "message": "short", "retryable": False}, "TOOL_EXECUTION_FAILED", "TEAPOT: short"),
        (403, {"code": "POLICY_EXPIRED", "message": "late"}, "CAPABILITY_DENIED", "POLICY_EXPIRED: late"),
        (302, b"", "TOOL_EXECUTION_FAILED", "HTTP 302"),
    ],
)
async def test_errors_before_a_tool_runs_are_results(
    session: Session, status: int, body: Any, code: str, said: str
) -> None:
    session.server.faults.append((status, {}, body))
    fault = await fault_of(session.source.call(*session.context()))
    assert fault.code == code
    assert said in str(fault)
    assert fault.kind is (FaultKind.REFUSED if status == 403 else FaultKind.SYSTEM)
    assert session.server.ran == []


async def test_a_real_refusal_of_the_grant_is_a_denial(session: Session) -> None:
    session.granted = ["Other"]
    fault = await fault_of(session.source.call(*session.context()))
    assert (fault.kind, fault.code) == (FaultKind.REFUSED, ErrorCode.CAPABILITY_DENIED)
    assert session.server.ran == []


async def test_a_wrong_token_is_told_and_not_quoted(server: ToolServer, tmp_path: Path) -> None:
    session = Session(server, tmp_path, token="a-wrong-token-0123")
    fault = await fault_of(session.source.call(*session.context()))
    assert fault.code == ErrorCode.UNAUTHORIZED
    assert "a-wrong-token" not in str(fault)
    await session.client.aclose()


def answers(server: ToolServer, result: dict[str, Any]) -> None:
    """Have Echo give this."""

    async def run(_: dict[str, Any]) -> dict[str, Any]:
        return result

    server.tools["Echo"] = run


async def test_failures_and_denials_of_a_tool_keep_code_words_and_what_was_stored(session: Session) -> None:
    error = {"code": "TOOL_EXECUTION_FAILED", "message": "Database connection timeout"}
    uris = ["workspaces/ws_1/artifacts/art_1"]
    answers(session.server, {"status": "failed", "error": error, "outputText": "half", "artifactUris": uris})
    fault = await fault_of(session.source.call(*session.context()))
    assert (fault.code, str(fault)) == ("TOOL_EXECUTION_FAILED", "Database connection timeout")
    assert fault.partial is not None
    assert fault.partial.text == f"half\n[stored: {uris[0]}]"
    assert fault.partial.artifact_uris == tuple(uris)
    answers(session.server, {"status": "denied", "error": {"code": "PERMISSION_DENIED", "message": "no"}})
    fault = await fault_of(session.source.call(*session.context(key="call_2")))
    assert (fault.kind, fault.code) == (FaultKind.REFUSED, "PERMISSION_DENIED")


async def test_a_large_output_is_left_as_an_artifact_like_a_local_one(session: Session) -> None:
    text = "x" * 20_000
    output = await session.source.call(*session.context(text=text))
    assert output.text == text
    (artifact,) = output.artifacts
    assert (artifact.artifact_type, artifact.data) == ("tool_output", text.encode())


@pytest.mark.parametrize(
    "change",
    [
        {"sessionId": "another"},
        {"toolName": "Other"},
        {"status": "done"},
        {"outputText": 7},
        {"artifactUris": ["x" * 5000]},
        {"more": 1},
        {"error": {"code": "X"}},
    ],
)
async def test_a_result_that_is_none_of_this_call_is_not_believed(session: Session, change: dict[str, Any]) -> None:
    answers(session.server, {"status": "succeeded", "outputText": "fine", **change})
    fault = await fault_of(session.source.call(*session.context()))
    assert fault.kind is FaultKind.INTERRUPTED
    assert "its result cannot be used" in str(fault)


async def test_words_of_the_service_become_one_line(session: Session) -> None:
    answers(session.server, {"status": "failed", "error": {"code": "a\nb", "message": "one\ntwo\x1b[2J"}})
    fault = await fault_of(session.source.call(*session.context()))
    assert str(fault) == "one two\N{REPLACEMENT CHARACTER}[2J"
    assert fault.code == ErrorCode.TOOL_EXECUTION_FAILED


@pytest.mark.parametrize("text", ["first", "second"])
async def test_an_id_that_an_earlier_step_had_is_another_call(session: Session, text: str) -> None:
    await session.source.call(*session.context(text="first"))
    session.step = "step_2"
    assert (await session.source.call(*session.context(text=text))).text == text
    assert [one.arguments["text"] for one in session.server.ran] == ["first", text]
    assert [one.key for one in session.server.ran] == ["call_1", "call_1.step_2"]
    found = await session.source.outcome(*session.context(text=text))
    assert found is not None
    assert found.text == text
    session.step = "step_3"
    assert await session.source.outcome(*session.context(text=text)) is None


async def test_what_is_refused_after_a_lost_answer_may_have_run(session: Session) -> None:
    source = await ready(session)
    denied = {"code": "CAPABILITY_DENIED", "message": "the key has changed", "retryable": False}
    session.server.faults.extend([LOSE, (403, {}, denied)])
    fault = await fault_of(source.call(*session.context()))
    assert fault.kind is FaultKind.INTERRUPTED
    assert "the key has changed" in str(fault)


# After a crash of the host.


async def test_a_stored_answer_is_used_and_a_running_call_is_waited_for(session: Session) -> None:
    await session.source.call(*session.context(text="stored"))
    session.server.polls = 2
    found = await session.source.outcome(*session.context(text="stored"))
    assert found is not None
    assert found.text == "stored"
    assert len(session.server.ran) == 1


async def test_nothing_is_known_of_a_call_that_never_came(session: Session) -> None:
    assert await session.source.outcome(*session.context()) is None
    assert [method for method, *_ in session.server.requests] == ["GET"]


async def test_a_service_that_cannot_be_asked_says_nothing_of_the_call(session: Session) -> None:
    session.granted = []
    fault = await fault_of(session.source.outcome(*session.context()))
    assert fault.kind is FaultKind.INTERRUPTED
    await session.server.aclose()
    fault = await fault_of(session.source.outcome(*session.context()))
    assert fault.kind is FaultKind.INTERRUPTED


async def test_a_cancelled_call_leaves_nothing_behind(session: Session) -> None:
    call = asyncio.ensure_future(session.source.call(*session.context("Slow")))
    await session.server.begun.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()
    assert len(asyncio.all_tasks()) <= 1 + len(session.server.requests)


async def test_a_grant_that_the_service_quotes_is_told_to_nobody(session: Session) -> None:
    grant = session.grant("Echo")
    source = BackendSource(
        session.client, InvocationTerms(lambda _: grant, GRANT_HEADER, "ws_1", 10, RetryPolicy(0, 0, 0), MACHINE)
    )
    answers(session.server, {"status": "succeeded", "outputText": f"with {grant}"})
    assert (await source.call(*session.context())).text == "with [redacted]"
    refused = {"code": "CAPABILITY_DENIED", "message": f"bad {grant}", "retryable": False}
    session.server.faults.append((403, {}, refused))
    assert str(await fault_of(source.call(*session.context(key="call_2")))) == "bad [redacted]"


async def test_any_key_and_name_is_one_part_of_a_path(session: Session) -> None:
    for key in ("..", "a:b", "x/y", "."):
        assert await session.source.outcome(*session.context(key=key)) is None
    paths = [path for _, path, *_ in session.server.requests]
    assert paths == [f"/tools/Echo/invocations/{part}" for part in ("%2E%2E", "a%3Ab", "x%2Fy", "%2E")]
