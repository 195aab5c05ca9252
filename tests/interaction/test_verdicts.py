"""Why a task ended, in the same words everywhere: result, events, list of sessions, transcript, state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host
    from tests.support.serve_process import Servers

CASES: list[tuple[str, list[dict[str, Any]], tuple[str, ...], int, tuple[str, str, bool], str | None]] = [
    ("done", [say("Done.")], (), 0, ("completed", "model", False), None),
    ("no token", [{"status": 401}], (), 1, ("failed", "infrastructure", False), "UNAUTHORIZED"),
    ("away", [{"status": 503}], (), 3, ("paused", "infrastructure", True), "LLM_GATEWAY_ERROR"),
    ("busy", [{"status": 429}], (), 3, ("paused", "infrastructure", True), "RATE_LIMITED"),
    ("steps", [use(shell("true"))], ("--max-steps", "1"), 1, ("failed", "limit", False), "max_steps_exceeded"),
    ("nothing", [say(""), say("")], (), 1, ("failed", "model", True), "LLM_EMPTY_ANSWER"),
    ("refused", [{"text": "No.", "stop_reason": "refusal"}], (), 1, ("failed", "model", False), "LLM_GUARDRAIL_BLOCKED"),
    ("denied", [use(shell("rm -rf x")), say("Denied.")], (), 4, ("denied", "policy", False), None),
]
NAMES = ("verdict", "endedBy", "retryable")


def of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in NAMES)


@pytest.mark.parametrize(("turns", "options", "code", "expected", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_verdict_everywhere(
    host: Host, turns: list[dict[str, Any]], options: tuple[str, ...], code: int, expected: tuple[str, str, bool], reason: str | None
) -> None:
    host.configure(max_retries=0)
    policy = ("--policy", "workspace") if code == 4 else ()
    with gateway(*turns) as model:
        ended = host.run("Go.", *policy, *options, model=model)
    assert (ended.code, of(ended.result), ended.result["reason"]) == (code, expected, reason)
