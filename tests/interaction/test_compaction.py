"""Room in a request that is too long: what requests show, what stays on record, and what a resume sends (AH 5.4)."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import MODEL, Host, call, eventually, gateway, say, use

if TYPE_CHECKING:
    from tests.support.process import Gateway
    from tests.support.serve_process import Servers

WINDOW = {"maxInputTokens": 9000}
ASKS = {"last_contains": "Write down what is needed"}
LEFT_OUT = "characters of output were left out to make room"


def configure(host: Host, strategy: str, more: str = "") -> None:
    lines = [f'context_strategy = "{strategy}"', more, "retry_base_s = 0.01", "retry_max_s = 0.02"]
    (host.root / "user.toml").write_text("[llm]\n" + "\n".join(lines) + "\n")


def reads(host: Host, count: int) -> list[dict[str, Any]]:
    """Turns that read a file each, of some 700 tokens."""
    for number in range(count):
        (host.workspace / f"file{number}").write_text(f"content of {number}\n" * 200)
    return [use(call("ReadFile", path=str(host.workspace / f"file{number}"))) for number in range(count)]


def text_of(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"], ensure_ascii=False)


def compactions(model: Gateway, host: Host, session_id: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in host.event_log(session_id) if event["eventType"] == "context_compacted"]


def test_older_results_are_left_out_and_can_be_read_again(host: Host) -> None:
    configure(host, "clear_tool_results")
    again = use(call("ReadOutput", ref="results/toolu_0_0"))
    with gateway(*reads(host, 12), again, say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm={"maxInputTokens": 12_000}))
        (answer,) = model.results()
        last = text_of(model.bodies[11])
    assert (outcome.code, outcome.result["text"]) == (0, "Done.")
    assert LEFT_OUT in last
    assert "truncated" not in last
    assert "file0" in last, "the calls themselves stay"
    assert "content of 0" not in last
    assert answer.text.startswith("content of 0\ncontent of 0")
    found = compactions(model, host, outcome.result["sessionId"])
    assert [event["strategy"] for event in found] == ["clear_tool_results"] * len(found)
    assert found
    assert all(event["estimatedAfter"] < event["estimatedBefore"] for event in found)
    history = json.dumps(host.history(outcome.result["sessionId"]))
    assert LEFT_OUT not in history, "the record is whole"


@pytest.mark.parametrize(("minimum", "marks"), [(1, 2), (10**6, 0)])
def test_requests_below_the_least_that_a_model_caches_have_no_marks(host: Host, minimum: int, marks: int) -> None:
    (host.root / "user.toml").write_text(f'[models."*"]\ncache_minimum_tokens = {minimum}\n')
    with gateway(say("Done.")) as model:
        assert host.task(model.url).code == 0
        body = json.dumps(model.bodies[0])
    assert body.count("cache_control") == marks


def test_what_is_no_reference_of_the_session_is_refused(host: Host) -> None:
    with gateway(use(call("ReadOutput", ref="results/nothing")), say("Done.")) as model:
        host.task(model.url)
        (answer,) = model.results()
    assert answer.is_error
    assert "this session has stored nothing under 'results/nothing'" in answer.text


@pytest.mark.parametrize("counted", [5000, 0])
def test_a_summary_takes_the_place_of_the_older_part(host: Host, counted: int) -> None:
    configure(host, "summarize")
    notes = say("NOTES: read files 0 to 9.", when=ASKS, usage={"input_tokens": counted, "output_tokens": counted // 99})
    with gateway(notes, *reads(host, 12), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm=WINDOW))
        bodies = model.bodies
    assert (outcome.code, outcome.result["text"], outcome.result["stepCount"]) == (0, "Done.", 13)
    asked = [number for number, body in enumerate(bodies) if "Write down what is needed" in text_of(body)]
    assert asked
    first = asked[0]
    before, question, after = bodies[first - 1], bodies[first], bodies[first + 1]
    unmarked = [json.dumps(message).replace(', "cache_control": {"type": "ephemeral"}', "") for message in
                before["messages"]]  # fmt: skip
    again = [json.dumps(message).replace(', "cache_control": {"type": "ephemeral"}', "") for message in
             question["messages"]]  # fmt: skip
    assert again[: len(unmarked)] == unmarked, "it begins as the request before, which is in the cache"
    assert question["tools"] == before["tools"]
    shown = text_of(after)
    assert "Do it." in shown
    assert "[Your own notes on them:]\\nNOTES: read files 0 to 9." in shown
    assert len(after["messages"]) < len(before["messages"])
    found = compactions(model, host, outcome.result["sessionId"])
    assert {event["strategy"] for event in found} == {"summarize"}
    shown_to_people = host.run("show", outcome.result["sessionId"]).text
    assert "requests show less from here\n   the model's notes: NOTES: read files 0 to 9." in shown_to_people
    steps, for_notes = 13 * 100, sum(event["inputTokens"] for event in found)
    assert outcome.result["usage"]["inputTokens"] == steps + for_notes
    if counted:
        assert for_notes == counted * len(asked)
    else:  # a gateway that counts nothing makes no summary free: the estimate counts
        assert all(event["inputTokens"] > 3000 and event["outputTokens"] > 0 for event in found)


def test_a_summary_that_is_asked_for_again_takes_back_nothing_that_was_said(host: Host) -> None:
    configure(host, "summarize", "max_retries = 1")
    fails = {"status": 500, "when": ASKS, "times": 1}
    with gateway(fails, say("NOTES.", when=ASKS), *reads(host, 12), say("Done.")) as model:
        policy = host.policy(llm=WINDOW)
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", policy, "--session-id", "s")
    assert outcome.code == 0, outcome.stderr
    told = [event["eventType"] for event in host.event_log("s")]
    assert told.count("context_summary_retry") == 1
    assert "llm_retry" not in told
    assert told.index("context_summary_retry") < told.index("context_compacted")
    assert "retry   of a summary in" in outcome.stderr


@pytest.mark.many_rows(2)
@pytest.mark.parametrize(
    "answer",
    [
        use(call("ReadFile", path="x"), when=ASKS),
        say("", when=ASKS),
        say("cut", stop_reason="max_tokens", when=ASKS),
        {"status": 500, "times": "always", "when": ASKS},
        {"status": 403, "when": ASKS},
    ],
    ids=["calls", "empty", "cut", "fails", "refused"],
)
def test_without_a_summary_older_results_are_left_out(host: Host, answer: dict[str, Any]) -> None:
    configure(host, "summarize", "max_retries = 1")
    with gateway(answer, *reads(host, 12), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm=WINDOW))
        last = text_of(model.bodies[-1])
    assert (outcome.code, outcome.result["text"], outcome.result["stepCount"]) == (0, "Done.", 13)
    assert LEFT_OUT in last
    assert "Your own notes" not in last


def test_what_cannot_be_cleared_is_dropped(host: Host) -> None:
    configure(host, "clear_tool_results")
    think = {"text": "I think about it. " * 200, "usage": {"output_tokens": 900}}
    talk = [use(call("ReadFile", path=f"x{number}"), **think) for number in range(12)]
    with gateway(*talk, say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm=WINDOW))
        last = text_of(model.bodies[-1])
    assert outcome.code == 0
    assert "[Earlier conversation truncated" in last


@pytest.mark.parametrize("strategy", ["clear_tool_results", "summarize"])
def test_a_resume_sends_what_would_have_been_sent(host: Host, strategy: str) -> None:
    configure(host, strategy)
    notes = say("NOTES", when=ASKS)
    with gateway(notes, *reads(host, 12), {"hang": True}, say("Done.")) as model:
        running = host.start_task(model.url, "--session-id", "one", policy=host.policy(llm=WINDOW))
        eventually(lambda: model.count and model.mock.requests[-1].turn == 14, "the request that hangs")
        os.kill(running.pid, signal.SIGKILL)
        running.finish()
        hung = model.bodies[-1]
        outcome = host.resume("one")
        resumed = model.bodies[-1]
    assert (outcome.code, outcome.result["text"]) == (0, "Done.")
    *before, note = resumed["messages"]
    shown = json.dumps(hung["messages"]).replace(', "cache_control": {"type": "ephemeral"}', "")
    assert json.dumps(before).replace(', "cache_control": {"type": "ephemeral"}', "") == shown or resumed == hung, note
    assert LEFT_OUT in shown or "NOTES" in shown


def test_a_model_for_summaries_has_to_be_allowed(host: Host) -> None:
    configure(host, "summarize", 'summary_model = "other"')
    with gateway(say("x")) as model:
        refused = host.task(model.url, policy=host.policy())
    assert refused.code == 2
    assert f"llm.summary_model other is not in llmPolicy.allowedModels: {MODEL}" in refused.error


def test_another_model_may_write_the_summary(host: Host) -> None:
    configure(host, "summarize", 'summary_model = "other"')
    models = {**WINDOW, "allowedModels": [MODEL, "other"]}
    with gateway(say("NOTES", when=ASKS), *reads(host, 12), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm=models))
        asked = {body["model"] for body in model.bodies if "Write down what is needed" in text_of(body)}
        others = {body["model"] for body in model.bodies if "Write down what is needed" not in text_of(body)}
    assert (outcome.code, asked, others) == (0, {"other"}, {MODEL})


def test_a_client_may_ask_for_it(servers: Servers) -> None:
    with gateway(say("NOTES", when=ASKS), *reads(servers.host, 8), say("Done."), say("Next.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        client.event("task_completed")
        assert client.ask("CompactContext")["status"] == "scheduled"
        client.task("b", "Go on.")
        client.wait(lambda: client.kinds.count("task_completed") == 2, "the second end")
        last = text_of(model.bodies[-1])
        assert client.refusal("CompactContext", sessionId="nope").code == -32001
        client.call("Shutdown")
        serve.ended_well()
    assert "[Your own notes on them:]\\nNOTES" in last
    assert "Go on." in last
