"""Why a task ended, in the same words everywhere: result, events, list of sessions, transcript."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host


class Case(NamedTuple):
    turns: list[dict[str, Any]]
    verdict: str
    ended_by: str
    retryable: bool
    reason: str | None
    code: int


DENIED = use(shell("rm -rf x"))
CASES = {
    "done": Case([say("Done.")], "completed", "model", False, None, 0),
    "no token": Case([{"status": 401}], "failed", "infrastructure", False, "UNAUTHORIZED", 1),
    "unknown path": Case([{"status": 404}], "failed", "infrastructure", False, "LLM_REFUSED", 1),
    "away": Case([{"status": 503}], "paused", "infrastructure", True, "LLM_GATEWAY_ERROR", 3),
    "busy": Case([{"status": 429}], "paused", "infrastructure", True, "RATE_LIMITED", 3),
    "steps": Case([use(shell("true"))], "failed", "limit", False, "max_steps_exceeded", 1),
    "nothing": Case([say(""), say("")], "failed", "model", True, "LLM_EMPTY_ANSWER", 1),
    "refused": Case([say("No.", stop_reason="refusal")], "failed", "model", False, "LLM_GUARDRAIL_BLOCKED", 1),
    "denied": Case([use(shell("true")), say("Denied.")], "denied", "policy", False, None, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_verdict_everywhere(host: Host, name: str) -> None:
    case = CASES[name]
    host.configure(max_retries=0)
    rule = {"approvalRuleId": "r", "title": "May it?", "description": "It wants to."}
    asks = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "r"}}
    policy = host.policy(grants=asks, approvalRules=[rule]) if name == "denied" else "full"
    steps = "1" if name == "steps" else "9"
    with gateway(*case.turns) as model:
        done = host.run(
            "run", "Go.", "--gateway", model.url, "--policy", policy, "--max-steps", steps, "--output", "jsonl",
            "--session-id", "s",
        )  # fmt: skip
    expected = (case.verdict, case.ended_by, case.retryable)
    assert (done.code, done.last_line["reason"]) == (case.code, case.reason)
    ends = [event["payload"] for event in done.events if "verdict" in event["payload"]]
    (row,) = json.loads(host.run("sessions", "--output", "json").stdout)
    shown = json.loads(host.run("show", "s", "--output", "json").stdout)
    marks = [item for item in shown["items"] if "verdict" in item]
    for one in (done.last_line, *ends, row, shown, *marks):
        assert (one["verdict"], one["endedBy"], one["retryable"]) == expected
    assert ends
    assert marks
    assert case.verdict in host.run("sessions").text


@pytest.mark.slow
@pytest.mark.skipif("os.name == 'nt'", reason="SIGKILL")
def test_a_session_without_a_process_is_interrupted(host: Host) -> None:
    with gateway({"hang": True}) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually(lambda: model.count == 1, "the request")
        (live,) = json.loads(host.run("sessions", "--output", "json").stdout)
        process.interrupt(signal.SIGKILL)
        process.finish()
        (row,) = json.loads(host.run("sessions", "--output", "json").stdout)
    assert (live["verdict"], row["verdict"], row["endedBy"]) == ("running", "interrupted", "infrastructure")
    assert (row["retryable"], row["resumable"]) == (True, True)
