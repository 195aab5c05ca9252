"""docs/errors.md against the code: every number, every name, every reason."""

from __future__ import annotations

import re
from pathlib import Path

from agent_host.errors import ENDINGS, AgentHostError, ErrorCode, GatewayRejected, GatewayUnavailable
from agent_host.events import EventType
from agent_host.llm.errors import KINDS
from agent_host.loop.task import _ENDS
from agent_host.session.task_runner import _END_EVENTS
from tests.support import gateway_error_page
from tests.support.error_page import OF_CALLS, PAGE, REASONS, page, responses
from tool_runtime.families import ELSEWHERE
from tool_runtime.remote.backend import CODES

ROOT = Path(__file__).resolve().parents[2]

# What an error of the gateway may be called in place of its class's name.
MORE_NAMES: dict[type[AgentHostError], tuple[ErrorCode, ...]] = {
    GatewayUnavailable: (ErrorCode.RATE_LIMITED,),
    GatewayRejected: (ErrorCode.UNAUTHORIZED, ErrorCode.LLM_REFUSED),
}


def source(name: str) -> str:
    return (ROOT / "agent_host" / name).read_text(encoding="utf-8")


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.support.error_page"


def test_every_number_of_the_interface_is_there() -> None:
    assert {number for number, _ in responses()} == {
        *(-32001, -32002, -32003, -32004, -32005, -32010, -32011, -32012, -32020, -32030, -32031, -32041),
        *(-32600, -32601, -32602, -32603, -32700),
    }


def test_every_name_has_a_row() -> None:
    named = {name for _, name in responses()} | set(OF_CALLS) | {reason.name for reason in REASONS}
    assert named >= set(ErrorCode)


def test_an_error_of_the_gateway_has_the_names_that_the_page_knows() -> None:
    found = {(meant.error, meant.code) for meant in KINDS.values() if meant.code is not None}
    assert found == {(error, name) for error, names in MORE_NAMES.items() for name in names}
    assert {meant.error for meant in KINDS.values()} <= {*_ENDS}
    assert "ErrorCode" not in source("llm/client.py")


def test_every_reason_says_who_ended_the_task() -> None:
    assert {str(reason.name) for reason in REASONS} == {str(name) for name in ENDINGS}


def test_every_failure_inside_a_task_has_its_reason() -> None:
    documented = {(reason.event, reason.name, reason.goes_on) for reason in REASONS}
    for error, (status, goes_on) in _ENDS.items():
        for name in [error.code, *MORE_NAMES.get(error, ())]:
            assert (_END_EVENTS[status], name, goes_on) in documented, error


def test_sessions_fail_for_the_reasons_of_the_page() -> None:
    code = source("session/lifecycle.py")
    named = set(re.findall(r"\"reason\": ErrorCode\.(\w+)", code))
    session_ends = (EventType.SESSION_FAILED, EventType.SESSION_PAUSED)
    assert named <= {reason.name for reason in REASONS if reason.event in session_ends}
    assert {reason.name for reason in REASONS if reason.event is EventType.SESSION_FAILED} <= named


def test_every_code_of_a_call_has_a_row() -> None:
    files = [*(f"loop/{name}.py" for name in ("calls", "prepare", "recovery")), "judging/decisions.py"]
    named = {
        ErrorCode[name]
        for file in (*files, "loop/results.py")
        for name in re.findall(r"\bErrorCode\.(\w+)", source(file))
    }
    assert set(OF_CALLS) == named | {ErrorCode(name) for name in ELSEWHERE.values()} | CODES


def test_the_page_of_gateway_errors_is_made_from_the_tables() -> None:
    text = gateway_error_page.PAGE.read_text(encoding="utf-8")
    assert text == gateway_error_page.page(), "python -m tests.support.gateway_error_page"
