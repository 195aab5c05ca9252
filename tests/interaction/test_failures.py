"""What goes wrong outside the loop: policy, budget, approvals, the gateway. Each has its exit code and its one line."""

from __future__ import annotations

import re
import shlex
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Outcome

pytestmark = pytest.mark.slow


EFFECT = shell("echo ran >> effects")
USAGE = {"input_tokens": 100, "output_tokens": 10}


def effects(host: Host) -> int:
    path = host.workspace / "effects"
    return path.read_text().count("ran") if path.exists() else 0


def paused(outcome: Outcome, reason: str) -> dict[str, Any]:
    """The result of a session that can be resumed; stderr says why, and how."""
    result = outcome.result
    assert (outcome.code, result["status"], result["reason"]) == (3, "SESSION_PAUSED", reason), outcome
    assert len(outcome.lines) == 2
    outcome.names_once("agent-host: paused: ", reason)
    renewed = " --policy NEW" if reason == "POLICY_EXPIRED" else ""
    assert outcome.lines[1] == f"agent-host: resume with: agent-host resume {result['sessionId']}{renewed}"
    return result


def failed(outcome: Outcome, reason: str) -> dict[str, Any]:
    """The result of a task that failed for good."""
    result = outcome.result
    assert (outcome.code, result["status"], result["reason"]) == (1, "TASK_FAILED", reason), outcome
    outcome.names_once("agent-host: failed: ", reason)
    return result


# Policy (AH 8)


def test_a_policy_without_the_shell(host: Host) -> None:
    with gateway(use(EFFECT), say("No shell, then.")) as model:
        outcome = host.task(model.url, policy=host.policy(without=["Shell.Exec"]))
        (answer,) = model.results()
        assert "RunCommand" not in {tool["name"] for tool in model.bodies[0]["tools"]}
    assert answer.text.startswith("CAPABILITY_DENIED: ")
    assert "Shell.Exec" in answer.text
    assert outcome.code == 0
    assert outcome.result["toolCalls"] == [{"toolName": "RunCommand", "status": "denied", "code": "CAPABILITY_DENIED"}]
    assert effects(host) == 0


def test_a_policy_that_has_expired(host: Host) -> None:
    outcome = host.task("http://127.0.0.1:1", policy=host.policy(expires_in_s=-1))
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "policy.json expired at " in outcome.error
    assert host.checkpoints() == []


WHERE = ("before the tool", "before the model call")


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Host, Outcome]]:
    """Two sessions side by side whose policy expires on the way: while the model answers, while a command runs."""
    for life_s in (0.9, 8.0):  # the second only where the start, or the way to the tool, took longer than the first
        slow_model = use(EFFECT, delay_ms=int(life_s * 1000) + 200)
        slow_command = use(shell(f"sleep {life_s + 0.2}; echo ran >> effects"))
        hosts = [Host(tmp_path_factory.mktemp("expired")) for _ in WHERE]
        with gateway(slow_model) as first, gateway(slow_command) as second:
            running = [
                host.start_task(model.url, "--session-id", "s", policy=host.policy(expires_in_s=life_s))
                for host, model in zip(hosts, (first, second), strict=True)
            ]
            outcomes = [process.finish() for process in running]
            asked = first.count, second.count
        if all(outcome.code != 2 for outcome in outcomes) and effects(hosts[1]):
            break
    assert asked == (1, 1)
    return dict(zip(WHERE, zip(hosts, outcomes, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("at", WHERE)
def test_a_policy_that_expires_on_the_way(expired: dict[str, tuple[Host, Outcome]], at: str) -> None:
    host, outcome = expired[at]
    ran = 0 if at == "before the tool" else 1
    result = paused(outcome, "POLICY_EXPIRED")
    assert (result["stepCount"], effects(host)) == (1, ran)
    assert "session_paused" in [event["eventType"] for event in host.event_log("s")]

    host.policy()
    with gateway(use(EFFECT), say("Done.")) as model:
        again = host.resume("--gateway", model.url)
        (answer,) = model.results()
    assert answer.text.startswith("Exit code: 0" if ran else "POLICY_EXPIRED: ")
    assert (again.code, again.result["status"], again.result["resumedFromStep"]) == (0, "TASK_COMPLETED", 1)
    assert effects(host) == ran
    assert host.checkpoints() == []


@pytest.mark.slow
@pytest.mark.parametrize("at", WHERE)
def test_an_expiry_is_told(expired: dict[str, tuple[Host, Outcome]], at: str) -> None:
    assert "policy_expired" in [event["eventType"] for event in expired[at][0].event_log("s")]


def test_a_model_that_is_not_allowed(host: Host) -> None:
    outcome = host.task("http://127.0.0.1:1", "--model", "other-model", policy=host.policy())
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "other-model" in outcome.error
    assert "test-model" in outcome.error, "what is allowed is named"


def test_a_second_allowed_model(host: Host) -> None:
    policy = host.policy(llm={"allowedModels": ["first", "second"]})
    with gateway(say("Done.", expect={"model": "second", "max_tokens": 4096})) as model:
        assert host.task(model.url, "--model", "second", policy=policy).code == 0
    with gateway(say("Done.", expect={"model": "first"})) as model:
        assert host.task(model.url, policy=policy).code == 0


def test_a_policy_without_model_calls(host: Host) -> None:
    with gateway(say("Never.")) as model:
        outcome = host.task(model.url, policy=host.policy(without=["LLM.Call"]))
        assert model.count == 0
    failed(outcome, "CAPABILITY_DENIED")
    assert "LLM.Call" in outcome.error


# Budget (AH 6.5)


def test_a_budget_that_covers_no_call(host: Host) -> None:
    with gateway(say("Never.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm={"maxSessionTokens": 50}))
        assert model.count == 0
    result = failed(outcome, "LLM_BUDGET_EXCEEDED")
    assert (result["stepCount"], result["usage"]["inputTokens"]) == (0, 0)
    assert "50" in outcome.error


def test_a_budget_that_runs_out_lets_the_step_end(host: Host) -> None:
    with gateway(use(EFFECT, usage={"input_tokens": 9_000, "output_tokens": 2_000}), say("Never.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm={"maxSessionTokens": 10_000}))
        assert model.count == 1
    result = failed(outcome, "LLM_BUDGET_EXCEEDED")
    assert result["usage"] == {"inputTokens": 9_000, "outputTokens": 2_000, "cachedInputTokens": 0}
    assert (result["stepCount"], effects(host)) == (1, 1)
    assert host.checkpoints() == []


# The gateway (AH 6.4)


def retries(host: Host) -> list[dict[str, Any]]:
    return [event["payload"] for event in host.event_log("s") if event["eventType"] == "llm_retry"]


@pytest.mark.slow
def test_retry_after_is_honoured(host: Host) -> None:
    limited = {"status": 429, "headers": {"retry-after": "1"}, "error": {"message": "Slow down."}}
    with gateway(limited, say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s")
        first, second = model.mock.requests
    assert (outcome.code, outcome.result["stepCount"]) == (0, 1)
    assert [retry["waitMs"] for retry in retries(host)] == [1000]
    assert "Slow down." in retries(host)[0]["message"]
    assert second.first_byte_ns - first.body_end_ns >= 1_000_000_000


def test_passing_trouble(host: Host) -> None:
    """Each kind once or twice, one after another: what was sent again was the same request."""
    turns = [
        {"status": 500, "times": 2},
        use(EFFECT),
        {"text": "Cut of", "cut_after_events": 3},
        {"text": "Cut off", "tool_calls": [EFFECT], "cut_after_bytes": 700},
        {"text": "Cut", "cut_after_events": 0},
        use(EFFECT),
        {"status": 529, "error": {"message": "Overloaded"}},
        {"text": "So", "stream_error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"garbage": "event: message_start\ndata: {not json}\n\n"},
        say("Done."),
    ]
    with gateway(*turns) as model:
        outcome = host.task(model.url, "--session-id", "s")
        bodies = model.bodies
    assert outcome.code == 0, outcome.stderr
    result = outcome.result
    assert (result["text"], result["stepCount"], effects(host)) == ("Done.", 3, 2)
    assert len(retries(host)) == 8
    assert [retry["attempt"] for retry in retries(host)] == [1, 2, 1, 2, 3, 1, 2, 3]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[3] == bodies[4] == bodies[5] == bodies[6]
    assert outcome.stderr == ""


UNAVAILABLE: dict[str, tuple[dict[str, Any], str, str]] = {
    "429": ({"status": 429}, "RATE_LIMITED", "429"),
    "500": ({"status": 500}, "LLM_GATEWAY_ERROR", "500"),
    "cut": ({"text": "Cut off", "cut_after_events": 3}, "LLM_GATEWAY_ERROR", "broke off|failed"),
    "garbage": ({"garbage": [0, 255, 254, 10, 10]}, "LLM_GATEWAY_ERROR", "UTF-8|broke off"),
    "nothing": ({"garbage": ""}, "LLM_GATEWAY_ERROR", "broke off"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNAVAILABLE)
def test_lasting_trouble_pauses(host: Host, kind: str) -> None:
    turn, reason, said = UNAVAILABLE[kind]
    with gateway({**turn, "times": "always"}) as model:
        outcome = host.task(model.url)
        assert model.count == 4, "one try and three more"
    result = paused(outcome, reason)
    assert re.search(said, outcome.lines[0])
    assert result["stepCount"] == 0
    assert any(name.endswith(".json") for name in host.checkpoints())


def test_a_resume_completes_with_the_right_totals(host: Host) -> None:
    begun = [use(EFFECT, usage=USAGE)]
    with gateway(*begun, {"status": 500, "times": "always"}) as model:
        outcome = host.task(model.url)
    result = paused(outcome, "LLM_GATEWAY_ERROR")
    assert result["usage"] == {"inputTokens": 100, "outputTokens": 10, "cachedInputTokens": 0}
    assert result["stepCount"] == 1

    with gateway(*begun, say("Done.", usage=USAGE)) as model:
        again = host.resume("--gateway", model.url, result["sessionId"])
        assert model.count == 1
    assert again.code == 0
    assert again.error.startswith(f"agent-host: resuming {result['sessionId']} in ")
    assert {key: again.result[key] for key in ("status", "text", "stepCount", "resumedFromStep", "toolCalls")} == {
        "status": "TASK_COMPLETED",
        "text": "Done.",
        "stepCount": 2,
        "resumedFromStep": 1,
        "toolCalls": [{"toolName": "RunCommand", "status": "succeeded", "exitCode": 0}],
    }
    assert again.result["taskId"] == result["taskId"]
    assert again.result["usage"] == {"inputTokens": 200, "outputTokens": 20, "cachedInputTokens": 0}
    assert effects(host) == 1
    assert host.checkpoints() == []


def test_nothing_listens(host: Host) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        outcome = host.task(f"http://127.0.0.1:{free.getsockname()[1]}")
    paused(outcome, "LLM_GATEWAY_ERROR")
    assert "connect" in outcome.lines[0].lower()


def test_a_gateway_that_never_answers(host: Host) -> None:
    host.configure(read_timeout_s=0.2, max_retries=1)
    began = time.monotonic()
    with gateway({"hang": True, "times": "always"}) as model:
        outcome = host.task(model.url)
        assert model.count == 2
    paused(outcome, "LLM_GATEWAY_ERROR")
    assert "in time" in outcome.lines[0]
    assert time.monotonic() - began < 30


REJECTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "401": ({"status": 401, "error": {"message": "invalid x-api-key"}}, "UNAUTHORIZED", "LLM_GATEWAY_AUTH_TOKEN"),
    "403": ({"status": 403}, "UNAUTHORIZED", "403"),
    "404": ({"status": 404}, "LLM_REFUSED", "404"),
    "HTML": (
        {"garbage": "<html>Welcome</html>", "headers": {"content-type": "text/html"}},
        "LLM_GATEWAY_ERROR",
        "text/html",
    ),
}


@pytest.mark.parametrize("kind", REJECTED)
def test_a_lasting_refusal_is_not_tried_again(host: Host, kind: str) -> None:
    turn, reason, said = REJECTED[kind]
    with gateway({**turn, "times": "always"}) as model:
        outcome = host.task(model.url)
        assert model.count == 1
    result = failed(outcome, reason)
    assert said in outcome.lines[0]
    if kind == "401":  # what a user can put right does not cost the session
        with gateway(say("Done.")) as model:
            assert host.resume("--gateway", model.url, result["sessionId"]).code == 0


def test_a_blocked_prompt(host: Host) -> None:
    blocked = {"status": 400, "error": {"message": "Blocked by guardrail: That is not allowed."}, "times": "always"}
    with gateway(use(EFFECT), blocked) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert model.count == 2
    result = failed(outcome, "LLM_GUARDRAIL_BLOCKED")
    assert "That is not allowed." in outcome.error
    assert (result["stepCount"], len(result["toolCalls"])) == (1, 1)
    assert "That is not allowed." in host.history("s")[-1]["content"], "the next attempt is to know"
    assert host.checkpoints() == []


# Approvals (SK 4)

RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]


@pytest.fixture
def asking(host: Host) -> Path:
    """A policy that wants approval for commands, by rule, and for deletions, without one."""
    grants = {
        "Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"},
        "File.Delete": {"requiresApproval": True},
    }
    return host.policy(grants=grants, approvalRules=RULES)


def test_nobody_to_approve(host: Host) -> None:
    """The built-in default policy, as a first user runs into it."""
    with gateway(use(EFFECT), say("It needs your approval.")) as model:
        outcome = host.task(model.url, policy="workspace")
        (answer,) = model.results()
    assert answer.text.startswith("APPROVAL_REQUIRED: ")
    assert (outcome.code, outcome.result["status"], effects(host)) == (4, "TASK_COMPLETED", 0)
    assert outcome.result["toolCalls"] == [{"toolName": "RunCommand", "status": "denied", "code": "APPROVAL_REQUIRED"}]
    (denied,) = outcome.result["deniedApprovals"]
    assert denied["toolName"] == "RunCommand"
    assert denied["replay"]["request"] == {"toolName": "RunCommand", "arguments": EFFECT["arguments"]}
    assert re.fullmatch(r"replay_[0-9a-f]{32}", denied["replay"]["id"])
    assert denied["replay"]["approve"] == "shell-exec"
    outcome.names_once("--approve shell-exec")
    outcome.names_once(denied["replay"]["command"])


@pytest.mark.slow
def test_the_replay_says_what_to_do(host: Host) -> None:
    with gateway(use(EFFECT), say("It needs your approval."), say("never asked for"), say("Done.")) as model:
        outcome = host.task(model.url, policy="workspace")
        (denied,) = outcome.result["deniedApprovals"]
        again = host.run(*shlex.split(denied["replay"]["command"])[1:], "--output", "json")
    assert (again.code, again.result["deniedApprovals"], effects(host)) == (0, [], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ([], set()),
        (["--approve", "shell"], {"RunCommand"}),
        (["--approve", "RunCommand"], {"RunCommand"}),
        (["--approve", "DeleteFile"], {"DeleteFile"}),
        (["--approve-all"], {"RunCommand", "DeleteFile"}),
    ],
)
def test_approved_in_advance(host: Host, asking: Path, options: list[str], allowed: set[str]) -> None:
    victim = host.workspace / "victim"
    victim.touch()
    with gateway(use(EFFECT, call("DeleteFile", path=str(victim))), say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s", *options, policy=asking)
    denied = {"RunCommand", "DeleteFile"} - allowed
    assert outcome.code == (4 if denied else 0)
    assert (effects(host) == 1, not victim.exists()) == ("RunCommand" in allowed, "DeleteFile" in allowed)
    assert {entry["toolName"] for entry in outcome.result["deniedApprovals"]} == denied
    assert len(outcome.lines) == 2 * len(denied)
    kinds = [event["eventType"] for event in host.event_log("s")]
    assert kinds.count("approval_requested") == kinds.count("approval_resolved") == 2


@pytest.mark.slow
def test_a_resume_is_given_what_was_approved_once_more(host: Host, asking: Path) -> None:
    with gateway({"status": 500, "times": "always"}) as model:
        outcome = host.task(model.url, "--approve", "shell", policy=asking)
    assert outcome.code == 3
    outcome.names_once("resume with: agent-host resume", "--approve shell")
    with gateway(use(EFFECT), say("Done.")) as model:
        again = host.resume("--gateway", model.url)
        assert (again.code, effects(host)) == (4, 0), "it held for the process that was told"
    with gateway({"status": 500, "times": "always"}) as model:
        outcome = host.task(model.url, "--approve", "shell", "--session-id", "s", policy=asking)
    with gateway(use(EFFECT), say("Done.")) as model:
        again = host.resume("s", "--gateway", model.url, "--approve", "shell")
    assert (again.code, effects(host)) == (0, 1)


def test_an_approval_of_nothing_that_the_policy_knows(host: Host, asking: Path) -> None:
    outcome = host.task("http://127.0.0.1:1", "--approve", "shell", "--approve", "other", policy=asking)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "--approve other: this policy has no such rule, tool or capability; its rules: shell" in outcome.error
    assert host.checkpoints() == []


def test_a_url_that_cannot_be_one(host: Host) -> None:
    urls = ["http://", "http://:80", "http://[::1", "http://a\nb", "localhost:8080"]
    outcomes = [process.finish() for process in [host.start_task(url) for url in urls]]
    for outcome in outcomes:
        assert (outcome.code, outcome.stdout) == (2, b""), outcome
        assert "--gateway" in outcome.error
    assert host.checkpoints() == [], "a session that never had a task could not be resumed"


def test_a_port_that_cannot_be_one(host: Host) -> None:
    outcome = host.task("http://127.0.0.1:99999")
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "--gateway" in outcome.error
    assert host.checkpoints() == []


def test_a_password_in_the_url_is_a_secret(host: Host) -> None:
    host.configure(max_retries=0)
    outcome = host.task("http://me:hunter2@127.0.0.1:1")
    assert outcome.code == 3
    assert "hunter2" not in outcome.stderr
    files = [path for path in host.state.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"hunter2" in path.read_bytes()] == []


def test_the_resume_command_that_is_named_works(host: Host) -> None:
    elsewhere = host.root / "elsewhere"
    with gateway({"status": 500, "times": 4}, say("Done.")) as model:
        outcome = host.task(model.url, "--state-dir", elsewhere)
        assert outcome.code == 3
        advice = shlex.split(outcome.lines[-1].partition("resume with: agent-host ")[2])
        again = host.run(*advice)
    assert again.code == 0, again.stderr


@pytest.mark.slow
def test_a_slow_gateway_is_shown_as_it_speaks(host: Host) -> None:
    """Text is streamed, not shown at the end."""
    with gateway(say("word " * 40, chunk_chars=5, chunk_delay_ms=20)) as model:
        running = host.start("run", "Do it.", "--gateway", model.url, "--policy", "full")
        running.said("word word", on="stdout")
        assert running.alive
        assert running.printed().count("word") < 40
        outcome = running.finish()
    assert outcome.text == "word " * 40 + "\n"
    eventually(lambda: not running.alive, "the end")
