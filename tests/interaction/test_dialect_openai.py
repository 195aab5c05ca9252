"""Whole sessions over Chat Completions: what a user sees is what the Messages dialect gives, and what the gateway is
sent is what that wire wants."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pictures import png
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

OPENAI = ("--dialect", "openai")
EFFECT = shell("echo ran >> effects")
THOUGHT = 'First \\ I look at "a/b", é, 😀\n\tand then\u2028 at <b>.'


def effects(host: Host) -> int:
    path = host.workspace / "effects"
    return path.read_text().count("ran") if path.exists() else 0


def messages(model: Gateway, request: int = -1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = model.bodies[request]["messages"]
    return found


def retries(host: Host) -> list[dict[str, Any]]:
    return [event["payload"] for event in host.event_log("s") if event["eventType"] == "llm_retry"]


def test_a_session_of_text_calls_and_parallel_calls(host: Host) -> None:
    usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 40}
    one = use(call("WriteFile", path="a.txt", content="héllo"), text="I write.", usage=usage)
    both = use(call("ReadFile", path="a.txt"), call("ReadFile", path="missing.txt"), EFFECT, usage=usage)
    expects = {"last_contains": ["héllo", "FILE_NOT_FOUND"], "last_tool_error": True, "message_count": 5}
    with gateway(one, both, say("Done.", usage=usage, expect=expects)) as model:
        outcome = host.task(model.url, "--session-id", "s", *OPENAI)
        bodies, paths = model.bodies, {record.path for record in model.mock.requests}
        thread = messages(model)
    assert outcome.code == 0, outcome.stderr
    assert (outcome.result["text"], outcome.result["stepCount"], effects(host)) == ("Done.", 3, 1)
    assert outcome.result["usage"] == {"inputTokens": 420, "outputTokens": 30, "cachedInputTokens": 120}
    assert paths == {"/v1/chat/completions"}
    assert not any("prompt_cache_key" in body for body in bodies), "this is not OpenAI's own host"
    assert [message["role"] for message in thread] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "tool", "tool",
    ]  # fmt: skip
    ids = [one["id"] for one in thread[4]["tool_calls"]]
    assert [message["tool_call_id"] for message in thread[5:]] == ids == ["call_1_0", "call_1_1", "call_1_2"]
    assert [message["content"].startswith("[error] ") for message in thread[5:]] == [False, True, False]
    assert bodies[2]["messages"][: len(bodies[1]["messages"])] == bodies[1]["messages"], "a prefix that is cached"


def test_passing_trouble(host: Host) -> None:
    """Each kind once or twice, one after another: what was sent again was the same request."""
    turns: list[dict[str, Any]] = [
        {"status": 429, "headers": {"retry-after": "0"}},
        {"status": 500},
        use(EFFECT),
        {"text": "Cut of", "cut_after_events": 2},
        {"tool_calls": [EFFECT], "cut_after_bytes": 700},
        {"tool_calls": [EFFECT], "stop_reason": "error", "when": {"position": 2}, "times": 1},
        use(EFFECT),
        {"text": "So", "stream_error": {"type": "server_error", "message": "Overloaded"}, "times": 1},
        {"garbage": "data: {not json}\n\n"},
        say("Done."),
    ]
    with gateway(*turns) as model:
        outcome = host.task(model.url, "--session-id", "s", *OPENAI)
        bodies = model.bodies
    assert outcome.code == 0, outcome.stderr
    assert (outcome.result["text"], outcome.result["stepCount"], effects(host)) == ("Done.", 3, 2)
    assert [retry["attempt"] for retry in retries(host)] == [1, 2, 1, 2, 3, 1, 2]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[3] == bodies[4] == bodies[5] == bodies[6]
    assert outcome.stderr == ""


LASTING: dict[str, tuple[dict[str, Any], str, str]] = {
    "no money": (
        {"text": "So", "stream_error": {"type": "insufficient_quota", "message": "Pay."}}, "LLM_GATEWAY_ERROR", "Pay.",
    ),
    "401": ({"status": 401, "error": {"message": "bad key"}}, "UNAUTHORIZED", "bad key"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LASTING)
def test_a_lasting_fault_is_not_tried_again(host: Host, kind: str) -> None:
    turn, reason, said = LASTING[kind]
    with gateway({**turn}) as model:
        outcome = host.task(model.url, *OPENAI)
        assert model.count == 1
    assert (outcome.code, outcome.result["status"], outcome.result["reason"]) == (1, "TASK_FAILED", reason), outcome
    outcome.names_once("agent-host: failed: ", reason, said)


@pytest.mark.parametrize(
    ("turn", "stop", "said"),
    [
        ({"text": "I cannot.", "stop_reason": "refusal"}, "refusal", "I cannot."),
        ({"text": "I", "stop_reason": "content_filter"}, "content_filter", "content_filter"),
        ({"tool_calls": [EFFECT], "stop_reason": "content_filter"}, "content_filter", "content_filter"),
    ],
)
def test_a_refusal_ends_the_task_and_runs_nothing(host: Host, turn: dict[str, Any], stop: str, said: str) -> None:
    with gateway(turn) as model:
        outcome = host.task(model.url, "--session-id", "s", *OPENAI)
        assert model.count == 1
    assert (outcome.code, outcome.result["reason"]) == (1, "LLM_GUARDRAIL_BLOCKED"), outcome
    (answered,) = [one for one in host.event_log("s") if one["eventType"] == "llm_request_completed"]
    assert answered["payload"]["stopReason"] == stop
    outcome.names_once("the model refused to answer", said)
    assert effects(host) == 0


def test_an_end_that_nobody_knows_fails_clearly(host: Host) -> None:
    with gateway({"text": "I", "stop_reason": "of_tomorrow"}) as model:
        outcome = host.task(model.url, *OPENAI)
    assert outcome.code == 1
    assert "of_tomorrow" in outcome.result["message"]


def test_an_answer_that_was_cut_goes_on_and_a_cut_call_does_not_run(host: Host) -> None:
    cut = {
        "tool_calls": [{"name": "RunCommand", "raw_arguments": '{"command": "echo ran'}],
        "stop_reason": "max_tokens",
    }
    half = say("The answer is ", stop_reason="max_tokens")
    with gateway(cut, half, say("42.")) as model:
        outcome = host.task(model.url, *OPENAI)
        answer, note = messages(model, 1)[-1], messages(model, 2)[-1]
    assert outcome.code == 0, outcome.stderr
    assert outcome.result["text"] == "The answer is 42."
    assert effects(host) == 0
    assert answer["role"] == "tool"
    assert "not complete JSON" in answer["content"]
    assert (note["role"], "Go on where it stopped" in note["content"]) == ("user", True)


def test_pictures_follow_the_results(host: Host) -> None:
    (host.workspace / "a.png").write_bytes(png())
    look = use(call("ReadFile", path="a.png"), call("ReadFile", path="a.png"))
    with gateway(look, say("A picture.", expect={"last_images": ["image/png"] * 2, "image_count": 2})) as model:
        assert host.task(model.url, *OPENAI).code == 0
        *_, one, two, pictures = messages(model)
    assert (one["role"], two["role"], pictures["role"]) == ("tool", "tool", "user")
    assert [part["type"] for part in pictures["content"]] == ["text", "image_url"] * 2


def test_reasoning_goes_back_to_the_model_that_made_it(host: Host) -> None:
    first = use(shell("echo one"), text="I look.", thinking=THOUGHT, redacted_thinking="b3BhcXVl=", chunk_chars=3)
    second = use(shell("echo two"), redacted_thinking="x" * 40_000)
    with gateway(first, second, say("Done.", thinking="hm")) as model:
        outcome = host.run(
            "run",
            "Do it.",
            "--gateway",
            model.url,
            *OPENAI,
            "--policy",
            "full",
            "--output",
            "jsonl",
            "--session-id",
            "s",
        )
        thread = messages(model)
    assert outcome.code == 0, outcome.stderr
    details = [{"type": "reasoning.encrypted", "data": "b3BhcXVl=", "id": "rs_0", "index": 0}]
    assert (thread[2]["reasoning_content"], thread[2]["reasoning_details"]) == (THOUGHT, details)
    assert thread[4].keys() == {"role", "content", "tool_calls", "reasoning_details"}
    thoughts = [event["payload"]["text"] for event in outcome.events if event["eventType"] == "thinking_chunk"]
    assert "".join(thoughts) == THOUGHT + "hm"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_session_goes_on(host: Host) -> None:
    """What was done is not done again, what was under way comes back as interrupted, and the reasoning is the same."""
    large = " ".join(f"Thought {number}." for number in range(3000))
    turns = [
        use(EFFECT, thinking=large, text="One."),
        use(shell("touch begun; until [ -e go ]; do sleep 0.01; done"), EFFECT, thinking=THOUGHT),
        use(EFFECT, thinking="third"),
        say("Done."),
    ]
    with gateway(*turns) as model:
        process = host.start_task(model.url, "--session-id", "s", *OPENAI)
        eventually((host.workspace / "begun").exists, "the command has begun")
        eventually(lambda: effects(host) == 2, "the other command has run")
        process.kill()
        (host.workspace / "go").touch()
        outcome = host.resume("s", "--gateway", model.url)  # which remembers the dialect
        assert outcome.code == 0, outcome.stderr
        thread = messages(model)
        paths = {record.path for record in model.mock.requests}
    assert paths == {"/v1/chat/completions"}
    assert (outcome.result["text"], effects(host)) == ("Done.", 3)
    thoughts = [message["reasoning_content"] for message in thread if message["role"] == "assistant"]
    assert thoughts == [large, THOUGHT, "third"]
    interrupted = [
        message["content"]
        for message in thread
        if message["role"] == "tool" and "TOOL_INTERRUPTED" in message["content"]
    ]
    assert interrupted
    assert all(text.startswith("[error] ") for text in interrupted)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_session_may_go_on_over_another_wire(host: Host) -> None:
    slow = use(shell("touch begun; until [ -e go ]; do sleep 0.01; done"), thinking=THOUGHT)
    with gateway(use(EFFECT, thinking="hm", text="One."), slow, say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually((host.workspace / "begun").exists, "the command has begun")
        process.kill()
        (host.workspace / "go").touch()
        outcome = host.resume("s", "--gateway", model.url, "--model", "gpt-test", *OPENAI)
        assert outcome.code == 0, outcome.stderr
        thread = messages(model)
    assert [message["role"] for message in thread] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert thread[2].keys() == {"role", "content", "tool_calls"}
    assert thread[2]["tool_calls"][0]["id"].startswith("toolu_0_0")


def test_what_servers_differ_in_is_a_setting(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write('max_tokens_field = "max_tokens"\nprompt_cache_key = "always"\n')
    with gateway(say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s", *OPENAI).code == 0
        (body,) = model.bodies
    assert body["max_tokens"] > 0
    assert "max_completion_tokens" not in body
    assert body["prompt_cache_key"] == "s"


# --- auto -------------------------------------------------------------------------------------------------------------


def chosen(host: Host, session: str) -> list[dict[str, Any]]:
    return [one["payload"] for one in host.event_log(session) if one["eventType"] == "llm_dialect_chosen"]


def test_auto_takes_what_the_url_says_and_tells_it(host: Host) -> None:
    with gateway(say("Done."), say("Done.")) as model:
        url = f"{model.url}/v1/chat/completions"
        outcome = host.run("run", "Do it.", "--gateway", url, "--dialect", "auto", "--session-id", "s")
        assert [record.path for record in model.mock.requests] == ["/v1/chat/completions"]
    assert (outcome.code, outcome.text) == (0, "Done.\n")
    outcome.names_once("notice  the gateway speaks openai: its URL says so")
    assert chosen(host, "s") == [{"dialect": "openai", "message": "the gateway speaks openai: its URL says so"}]


def test_auto_asks_once(host: Host) -> None:
    with gateway(say("Done.")) as model:
        for session in ("s1", "s2"):
            assert host.task(model.url, "--dialect", "auto", "--session-id", session).code == 0
        sizes = [record.body_bytes for record in model.mock.requests]
    assert [size == 2 for size in sizes] == [True, False, False], "an empty object, and two real requests"
    assert [re.sub(r".*: ", "", chosen(host, session)[0]["message"]) for session in ("s1", "s2")] == [
        "it reads what is posted to /v1/messages",
        "as it was found to do",
    ]


def test_auto_with_a_script_asks_nobody(host: Host) -> None:
    script = host.script(say("Done."))
    outcome = host.run("run", "Do it.", "--gateway", f"mock:{script}", "--dialect", "auto")
    assert outcome.code == 0
    outcome.names_once("the scripted gateway speaks all")


def test_auto_and_nobody_there(host: Host) -> None:
    outcome = host.run("run", "Do it.", "--gateway", "http://127.0.0.1:1", "--dialect", "auto", "--session-id", "s")
    assert (outcome.code, outcome.text) == (1, "")
    assert "--dialect auto: the gateway at http://127.0.0.1:1/v1/messages cannot be asked" in outcome.error
    assert host.checkpoints() == []


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("dialect", ["openai", "auto"])
def test_doctor_tries_the_dialect(host: Host, dialect: str) -> None:
    with gateway(say("ok", thinking="hm")) as model:
        url = f"{model.url}/v1/chat/completions" if dialect == "auto" else model.url
        outcome = host.run("doctor", "--gateway", url, "--dialect", dialect, "--model", "my-model")
        (body,) = model.bodies
    (line,) = [line for line in outcome.text.splitlines() if " gateway " in line]
    assert line.startswith("ok")
    assert f"{model.url}/v1/chat/completions answers with model my-model" in line
    assert ("the gateway speaks openai" in line) == (dialect == "auto")
    assert (body["model"], body["max_completion_tokens"]) == ("my-model", 16)


@pytest.mark.slow
def test_doctor_says_that_it_is_another_wire(host: Host) -> None:
    wrong = {"garbage": f"data: {json.dumps({'type': 'message_start', 'message': {}})}\n\n"}
    with gateway(wrong) as model:
        outcome = host.run("doctor", "--gateway", model.url, *OPENAI)
    (line,) = [line for line in outcome.text.splitlines() if " gateway " in line]
    assert "does not speak the wire 'openai'" in line
