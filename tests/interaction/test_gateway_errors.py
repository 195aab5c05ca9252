"""Errors of the gateway by their meaning, over real HTTP: what a run makes of them, and what a resume does (AH 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import MODEL, call, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

LONG = "prompt is too long: 213462 tokens > 200000 maximum"


def events(host: Host, kind: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in host.event_log("s") if event["eventType"] == kind]


def models(served: Gateway) -> list[str]:
    return [str(body["model"]) for body in served.bodies]


def refusal(status: int, message: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "error": {"message": message, **more}, "times": "always"}


LASTING: dict[str, tuple[dict[str, Any], str]] = {
    "credit": (refusal(400, "Your credit balance is too low to access the API."), "add credit"),
    "a budget": (refusal(402, "Budget has been exceeded!"), "add credit"),
    "a quota": (refusal(429, "You exceeded your current quota", type="insufficient_quota"), "add credit"),
    "the model": (refusal(400, "claude-9 is not a valid model ID"), "--model"),
    "a parameter": (refusal(400, "max_tokens: 100000 > 64000, which is the maximum allowed"), "maxOutputTokens"),
    "the size": (refusal(413, "Request exceeds the maximum size"), "llm.images"),
    "no stream": (
        {"garbage": '{"type": "message", "content": []}', "headers": {"content-type": "application/json"}},
        "not an answer of this dialect",
    ),
    "an error": (
        {"garbage": '{"error": {"type": "billing_error"}}', "headers": {"content-type": "application/json"}},
        "add credit",
    ),
    "a stream": ({"text": "x", "stream_error": {"type": "billing_error", "message": "no"}}, "add credit"),
}


@pytest.mark.many_rows(4)
@pytest.mark.parametrize("kind", LASTING)
def test_what_a_user_can_put_right_is_said_and_does_not_cost_the_session(host: Host, kind: str) -> None:
    turn, advice = LASTING[kind]
    with gateway(use(shell("true")), {**turn, "times": "always"}) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert model.count == 2
    assert (outcome.code, outcome.result["status"], outcome.result["reason"]) == (1, "TASK_FAILED", "LLM_GATEWAY_ERROR")
    assert advice in outcome.lines[0]
    with gateway(use(shell("true")), say("Done.")) as model:
        assert host.resume("s", "--gateway", model.url).result["text"] == "Done."


def test_a_400_of_a_guardrail_ends_the_task(host: Host) -> None:
    message = "Violated guardrail policy"
    with gateway(refusal(400, message)) as model:
        outcome = host.task(model.url, "--session-id", "s")
    assert (outcome.code, outcome.result["reason"]) == (1, "LLM_GUARDRAIL_BLOCKED")
    assert message in host.history("s")[-1]["content"]
    assert host.checkpoints() == []


def test_a_400_that_says_nothing_known_can_be_resumed(host: Host) -> None:
    with gateway(refusal(400, "That is not allowed.")) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert model.count == 1
    assert (outcome.code, outcome.result["status"], outcome.result["reason"]) == (1, "TASK_FAILED", "LLM_REFUSED")
    assert "That is not allowed." in outcome.lines[0]
    with gateway(say("Done.")) as model:
        assert host.resume("s", "--gateway", model.url).result["text"] == "Done."


LOADING = {"status": 503, "error": {"message": "Loading model", "type": "unavailable_error"}}


def test_a_server_that_loads_its_model_is_waited_for(host: Host) -> None:
    host.configure(max_retries=1, max_wait_s=30)
    with gateway({**LOADING, "times": 4}, {"status": 529, "times": 2}, say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s").result["text"] == "Done."
    told = events(host, "llm_retry")
    assert len(told) == 6
    assert "loading the model (HTTP 503): Loading model" in told[0]["message"]


def test_a_server_is_waited_for_no_longer_than_was_said(host: Host) -> None:
    host.configure(max_retries=1, max_wait_s=0.2)
    with gateway({**LOADING, "times": "always"}) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert model.count > 2
    assert (outcome.code, outcome.result["status"]) == (3, "SESSION_PAUSED")


@pytest.mark.parametrize(
    ("settings", "turn", "requests"),
    [
        ({"max_retries": 0, "max_wait_s": 30}, LOADING, 1),
        ({"max_retries": 1, "max_wait_s": 30}, {"status": 500}, 2),
        ({"max_retries": 1, "max_wait_s": 30}, {"status": 429}, 2),
        ({"max_retries": 3, "max_wait_s": 0}, LOADING, 4),
    ],
)
def test_other_faults_are_not_waited_for(
    host: Host, settings: dict[str, Any], turn: dict[str, Any], requests: int
) -> None:
    host.configure(**settings)
    with gateway({**turn, "times": "always"}) as model:
        assert host.task(model.url, "--session-id", "s").result["status"] == "SESSION_PAUSED"
        assert model.count == requests


def test_another_model_is_asked_before_a_server_is_waited_for(host: Host) -> None:
    host.configure(max_retries=1, max_wait_s=30, fallback_models=["other"])
    policy = host.policy(llm={"allowedModels": [MODEL, "other"]})
    with gateway({**LOADING, "times": 2}, {**LOADING, "times": 3}, say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s", policy=policy)
        assert models(model) == [MODEL, MODEL, *["other"] * 4]
    assert outcome.result["text"] == "Done."


def asks(url: str, session_id: str) -> tuple[str, ...]:
    return ("run", "Do it.", "--gateway", url, "--session-id", session_id)


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_token_that_was_not_sent_is_named(host: Host, status: int) -> None:
    with gateway({"status": status, "times": "always"}) as model:
        unset = host.run(*asks(model.url, "a"), env={"LLM_GATEWAY_AUTH_TOKEN": ""}).stderr
        wrong = host.run(*asks(model.url, "b"), env={"LLM_GATEWAY_AUTH_TOKEN": "t"}).stderr
    assert "no token was sent: set LLM_GATEWAY_AUTH_TOKEN" in unset
    assert "no token" not in wrong
    assert ("check LLM_GATEWAY_AUTH_TOKEN" in wrong) == (status != 404)


def test_a_request_that_is_too_long_is_cut_and_sent_again(host: Host) -> None:
    (host.workspace / "file").write_text("word " * 2000)
    read = use(call("ReadFile", path="file"))
    too_long = {"status": 400, "error": {"message": LONG}}
    with gateway(read, read, read, too_long, say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s")
        sizes = [len(body["messages"]) for body in model.bodies]
    assert (outcome.code, outcome.result["text"]) == (0, "Done.")
    assert sizes[:4] == [1, 3, 5, 7]
    assert sizes[4] < 7
    (cut,) = events(host, "llm_window_cut")
    assert cut["droppedMessages"] >= 2


def test_a_session_that_was_killed_sends_what_the_cut_left(host: Host) -> None:
    (host.workspace / "file").write_text("word " * 2000)
    read = use(call("ReadFile", path="file"))
    turns = [
        read,
        read,
        {"status": 400, "error": {"message": LONG}},
        use(shell("kill -9 $PPID; sleep 60")),
        say("Done."),
    ]
    with gateway(*turns) as model:
        host.start_task(model.url, "--session-id", "s").finish()
        assert host.resume("s", "--gateway", model.url).result["text"] == "Done."
        cut, again = model.bodies[-2:]
    assert again["messages"][: len(cut["messages"])] == cut["messages"]
    assert len(again["messages"]) == len(cut["messages"]) + 2


def test_an_overloaded_model_gives_way_to_the_next(host: Host) -> None:
    host.configure(max_retries=1, fallback_models=["other"])
    policy = host.policy(llm={"allowedModels": [MODEL, "other"]})
    busy = {"status": 529, "error": {"message": "Overloaded"}, "times": 2}
    with gateway(busy, use(shell("true")), say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s", policy=policy)
        assert models(model) == [MODEL, MODEL, "other", "other"]
    assert (outcome.code, outcome.result["text"], outcome.result["model"]) == (0, "Done.", "other")
    (told,) = events(host, "llm_fallback")
    assert (told["model"], told["fallbackModel"]) == (MODEL, "other")
    assert [retry["attempt"] for retry in events(host, "llm_retry")] == [1, 2]


def test_a_resume_stays_with_the_model_that_took_over(host: Host) -> None:
    host.configure(max_retries=0, fallback_models=["other"])
    policy = host.policy(llm={"allowedModels": [MODEL, "other"]})
    busy = {"status": 503, "error": {"message": "Overloaded"}}
    with gateway(busy, use(shell("kill -9 $PPID; sleep 60")), say("Done.")) as model:
        host.start_task(model.url, "--session-id", "s", policy=policy).finish()
        assert host.resume("s", "--gateway", model.url, "--policy", policy).code == 0
        assert models(model) == [MODEL, "other", "other"]


def test_a_fallback_that_the_policy_does_not_allow_begins_no_session(host: Host) -> None:
    host.configure(fallback_models=["unheard-of"])
    with gateway(say("Never.")) as model:
        outcome = host.task(model.url, policy=host.policy())
        assert model.count == 0
    assert outcome.code == 2
    assert "llm.fallback_models" in outcome.error
    assert "unheard-of" in outcome.error


def test_a_built_in_allows_the_models_of_the_configuration(host: Host) -> None:
    host.configure(max_retries=0, fallback_models=["of-mine"])
    with gateway({"status": 529}, say("Done.")) as model:
        assert host.task(model.url, policy="ci").code == 0
        assert models(model)[1] == "of-mine"
        assert models(model)[0] != "of-mine"


def test_a_stop_that_nobody_knows_can_be_resumed(host: Host) -> None:
    with gateway(say("Half", stop_reason="of_next_year"), say("Whole.")) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert (outcome.code, outcome.result["reason"]) == (1, "LLM_GATEWAY_ERROR")
        assert "'of_next_year'" in outcome.lines[0]
        assert host.resume("s", "--gateway", model.url).result["text"].endswith("Whole.")


def test_a_gateway_that_asks_for_no_retry_gets_none(host: Host) -> None:
    limited = {"status": 429, "headers": {"x-should-retry": "false"}, "error": {"message": "Not before noon."}}
    with gateway(limited, say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert model.count == 1
        assert (outcome.code, outcome.result["reason"]) == (3, "RATE_LIMITED")
        assert host.resume("s", "--gateway", model.url).code == 0


def test_a_gateway_may_ask_for_a_retry_of_anything(host: Host) -> None:
    odd = {"status": 404, "headers": {"x-should-retry": "true", "retry-after-ms": "20"}, "error": {"message": "Wait."}}
    with gateway(odd, say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
    assert [retry["waitMs"] for retry in events(host, "llm_retry")] == [20]
