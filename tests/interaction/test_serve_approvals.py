"""Approvals and events on the wire of `agent-host serve` (AH 10, 12; interface section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Serve, Servers

RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
EFFECT = shell("echo model >> effects")


def effects(host: Host) -> str:
    path = host.workspace / "effects"
    return path.read_text() if path.exists() else ""


def asking(servers: Servers, model: Gateway, *options: str) -> tuple[Serve, Client]:
    """A session whose commands need an approval."""
    return servers.session(model.url, *options, policy=servers.host.policy(grants=ASKS, approvalRules=RULES))


def question(client: Client, after: int = 0) -> str:
    """The id of the approval that is asked for behind the event of that number."""
    asked = client.event("approval_requested", after)
    eventually(lambda: client.ask("GetSessionState")["pendingApprovals"], "a call that waits")
    return str(asked["payload"]["approvalId"])


def answer(client: Client, approval_id: str, decision: str, **more: Any) -> str:
    told = client.call("ApproveAction", approvalId=approval_id, decision=decision, **more)
    assert (set(told), told["approvalId"], told["decision"]) == (
        {"approvalId", "decision", "status"},
        approval_id,
        decision,
    )
    return str(told["status"])


def test_what_waits_can_be_asked_for_and_is_answered_once(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        approval = question(client)
        state = client.ask("GetSessionState")
        assert state["task"]["status"] == "WAITING_FOR_APPROVAL"
        (waiting,) = state["pendingApprovals"]
        payload = client.event("approval_requested")["payload"]
        told = {key: value for key, value in payload.items() if key != "toolCallId"}  # which stands in the details
        assert {key: waiting[key] for key in told} == told
        assert (waiting["sessionId"], waiting["taskId"]) == (client.session_id, "a")
        assert waiting.keys() - told.keys() == {"sessionId", "taskId", "stepId"}
        assert answer(client, "unknown", "approved") == "not_found"
        assert effects(host) == ""
        assert answer(client, approval, "approved", reason="fine") == "delivered"
        assert answer(client, approval, "denied") == "not_found"
        client.event("approval_resolved", decision="approved")
        client.event("task_completed")
        assert answer(client, approval, "approved") == "not_found"
        client.call("Shutdown")
        serve.ended_well()
    assert effects(host) == "model\n"


def test_the_replay_of_a_question_runs_the_call_that_waits_and_no_other(servers: Servers) -> None:
    """SK 4.1: what the question says how to replay works where nobody could answer any more."""
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        question(client)
        replay = client.event("approval_requested")["payload"]["replay"]
        serve.kill()
        outcome = servers.host.run(*replay["command"].split()[1:], "--output", "json")
    assert (outcome.code, outcome.result["verdict"]) == (4, "denied"), outcome
    assert [one["replay"]["id"] for one in outcome.result["deniedApprovals"]] == [replay["id"]], "the second one"
    assert effects(servers.host) == "model\n"


def test_a_denial_is_told_to_the_model(servers: Servers) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        assert answer(client, question(client), "denied", reason="not today", scope="session") == "delivered"
        client.event("task_completed")
        (told,) = model.results()
        assert told.text == "APPROVAL_DENIED: not today"
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == ""


@pytest.mark.parametrize(("scope", "questions"), [("once", 3), ("task", 2), ("session", 1)])
def test_how_far_an_approval_reaches(servers: Servers, scope: str, questions: int) -> None:
    """Two calls of one task, and the same call in the next one."""
    with gateway(use(EFFECT), use(EFFECT), say("One."), use(EFFECT), say("Two.")) as model:
        serve, client = asking(servers, model)
        client.task()
        asked: set[str] = set()

        def answer_all(until: int) -> int:
            def over() -> bool:
                for one in client.ask("GetSessionState")["pendingApprovals"]:
                    asked.add(one["approvalId"])
                    answer(client, one["approvalId"], "approved", scope=scope)
                return client.kinds.count("task_completed") == until

            eventually(over, "the end of a task")
            return client.kinds.count("task_completed")

        answer_all(1)
        client.task("b")
        answer_all(2)
        assert len(asked) == questions
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == "model\n" * 3


def test_arguments_that_whoever_approved_has_changed(servers: Servers) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        approval = question(client)
        too_deep: Any = "x"
        for _ in range(190):
            too_deep = [too_deep]
        unfit = {"command": too_deep}
        wrong = client.refusal("ApproveAction", approvalId=approval, decision="approved", arguments=unfit)
        assert wrong.what == (-32602, "INVALID_REQUEST", False)
        edited = {"command": "echo person >> effects"}
        assert answer(client, approval, "approved", arguments=edited) == "delivered"
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == "person\n"


def test_nobody_answers_in_time(servers: Servers) -> None:
    configuration = servers.host.root / "user.toml"
    configuration.write_text(configuration.read_text() + "[approvals]\ntimeout_s = 0.2\n")
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        approval = client.event("approval_requested")["payload"]["approvalId"]
        assert client.event("approval_timeout")["payload"]["approvalId"] == approval
        assert answer(client, approval, "approved") == "not_found"
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == ""


@pytest.mark.slow
def test_a_bundle_says_how_long_an_answer_is_waited_for(servers: Servers) -> None:
    """The configuration's own time is five minutes."""
    policy = servers.host.policy(grants=ASKS, approvalRules=RULES, approvalTimeoutS=1)
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task()
        approval = client.event("approval_requested")["payload"]["approvalId"]
        told = client.event("approval_timeout")["payload"]
        assert told["approvalId"] == approval
        assert 1000 <= told["waitedMs"] < 20_000
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == ""


def test_what_was_approved_in_advance_is_not_asked(servers: Servers) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model, "--approve", "ask")
        client.task()
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == "model\n"


# A client that is slow


def completed_on_disk(host: Host, client: Client) -> None:
    """Until the task has ended, as the run log tells it."""
    log = host.records(client.session_id) / "events.jsonl"
    eventually(lambda: log.exists() and b'"task_completed"' in log.read_bytes(), "the end of the task")


@pytest.mark.slow
def test_a_client_that_stops_reading_holds_up_nothing(servers: Servers) -> None:
    """The task ends all the same; what the client missed it is told, or finds with GetEvents."""
    host = servers.host
    text = "".join(f"{number:07} " for number in range(40_000))
    with gateway(
        say(text, chunk_chars=64), use(call("ReadFile", path=str(host.workspace / "x"))), say("Done.")
    ) as model:
        serve, client = servers.session(model.url)
        client.stop_reading()
        client.send("StartTask", sessionId=client.session_id, taskId="a", prompt="Do it.")
        completed_on_disk(host, client)
        client.read_on()
        client.event("task_completed")
        told = client.ask("GetEvents", sinceId=0)
        assert len(told["events"]) > 1000
        heard = "".join(event["payload"]["text"] for event in told["events"] if event["eventType"] == "text_chunk")
        assert heard == text
        assert (
            "".join(event["payload"]["text"] for event in client.events if event["eventType"] == "text_chunk") == text
        )
        ids = [event["eventId"] for event in client.events]
        assert ids == sorted(set(ids))
        client.call("Shutdown")
        serve.ended_well()


@pytest.mark.slow
def test_a_client_that_never_reads_again(servers: Servers) -> None:
    """Its process ends all the same when it closes its side, or is told to."""
    with gateway(say(" ".join(map(str, range(70_000))), chunk_chars=64)) as model:
        serve, client = servers.session(model.url)
        client.stop_reading()
        client.send("StartTask", sessionId=client.session_id, taskId="a", prompt="Do it.")
        completed_on_disk(servers.host, client)
        serve.signal()
        eventually(lambda: not serve.alive, "the end of the process", within_s=15)
        client.read_on()
        assert serve.finish().code == 0


def test_what_waits_at_a_cancel_ends_with_its_own_event(servers: Servers) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        approval = question(client)
        client.call("CancelTask", sessionId=client.session_id, taskId="a")
        resolved = client.event("approval_resolved")["payload"]
        assert (resolved["approvalId"], resolved["decision"]) == (approval, "denied")
        assert "cancelled" in resolved["reason"]
        client.event("task_cancelled")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == ""


@pytest.mark.parametrize(("scope", "questions"), [("once", 2), ("task", 1), ("session", 1)])
def test_an_answer_covers_equal_calls_that_wait(servers: Servers, scope: str, questions: int) -> None:
    with gateway(use(EFFECT, EFFECT, shell("true")), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        client.event("approval_requested")
        eventually(lambda: len(client.ask("GetSessionState")["pendingApprovals"]) == 3, "three calls that wait")
        waiting = client.ask("GetSessionState")["pendingApprovals"]
        first, second, other = (one["approvalId"] for one in waiting)
        assert answer(client, first, "approved", scope=scope) == "delivered"
        client.event("tool_completed", status="succeeded")
        if questions == 2:
            assert answer(client, second, "approved") == "delivered"
        assert answer(client, other, "denied") == "delivered"
        client.event("task_completed")
        ended = [event["payload"] for event in client.events if event["eventType"] == "approval_resolved"]
        resolved = {one["approvalId"]: one for one in ended}
        assert {name: one["decision"] for name, one in resolved.items()} == {
            first: "approved", second: "approved", other: "denied",
        }  # fmt: skip
        assert (first in resolved[second]["reason"]) == (questions == 1)
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == "model\nmodel\n"


@pytest.mark.parametrize("arguments", [{}, {"command": 1}, {"command": "true", "colour": "red"}])
def test_edited_arguments_that_the_tool_refuses_spend_no_approval(servers: Servers, arguments: dict[str, Any]) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = asking(servers, model)
        client.task()
        approval = question(client)
        wrong = client.refusal("ApproveAction", approvalId=approval, decision="approved", arguments=arguments)
        assert (wrong.code, wrong.message.partition(": ")[0]) == (-32602, "arguments")
        assert answer(client, approval, "approved", arguments={"command": "echo person >> effects"}) == "delivered"
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == "person\n"
