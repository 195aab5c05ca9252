"""The loop as the model sees it: what ends a task, what goes on, and what comes back for each call (AH 4)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, call, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Outcome, ToolAnswer

CALL = {"name": "RunCommand", "arguments": {"command": "echo ran >> effects"}}


def effects(host: Host) -> int:
    path = host.workspace / "effects"
    return path.read_text().count("ran") if path.exists() else 0


def codes(result: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return [(entry["toolName"], entry["status"], entry.get("code")) for entry in result["toolCalls"]]


# What a turn means (AH 4.4)


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
def test_text_without_calls_completes(host: Host, reason: str) -> None:
    with gateway(say("Done.", stop_reason=reason)) as model:
        outcome = host.task(model.url)
    assert (outcome.code, outcome.result["status"], outcome.result["text"]) == (0, "TASK_COMPLETED", "Done.")
    assert (outcome.result["stepCount"], outcome.stderr) == (1, "")


def test_calls_run_whatever_the_stop_reason(host: Host) -> None:
    reasons = ["end_turn", "stop_sequence", "max_tokens", "tool_use", "pause_turn"]
    with gateway(*(use(CALL, text="Now.", stop_reason=reason) for reason in reasons), say("Done.")) as model:
        outcome = host.task(model.url)
        for request in range(1, len(reasons) + 1):
            (answer,) = model.results(request)
            assert answer.text.startswith("Exit code: 0")
            assert not answer.is_error
    assert (outcome.code, outcome.result["text"], outcome.result["stepCount"]) == (0, "Done.", len(reasons) + 1)
    assert effects(host) == len(reasons)


def test_a_cut_answer_goes_on(host: Host) -> None:
    """Each cut is a step of its own, and the thread stays one that the gateway takes, an empty answer included. What
    paused is sent back as it is; a pause that says nothing is answered, as every cut is."""
    reasons = ["max_tokens", "pause_turn", "compaction"]
    cuts = [say(text, stop_reason=reason) for reason in reasons for text in ("It is lo", "")]
    with gateway(*cuts, say("ng.")) as model:
        outcome = host.task(model.url)
        roles = [message["role"] for message in model.bodies[-1]["messages"]]
    paused = ["assistant", "assistant", "user"]
    assert roles == ["user", *["assistant", "user"] * 2, *paused, *paused]
    assert (outcome.code, outcome.result["stepCount"]) == (0, len(cuts) + 1)
    assert outcome.result["text"].endswith("ng.")


def test_a_call_that_max_tokens_cut_is_answered_and_not_run(host: Host) -> None:
    cut = {"name": "RunCommand", "raw_arguments": '{"command": "echo ran >> eff'}
    with gateway(use(CALL, cut, stop_reason="max_tokens"), use(CALL), say("Done.")) as model:
        outcome = host.task(model.url)
        whole, part = model.results(1)
    assert (whole.is_error, part.is_error) == (False, True)
    assert part.text.startswith("INVALID_REQUEST: ")
    assert (outcome.code, effects(host)) == (0, 2)


@pytest.mark.parametrize("calls", [[], [CALL]])
def test_a_refusal_fails_the_task_and_runs_nothing(host: Host, calls: list[dict[str, Any]]) -> None:
    with gateway(use(*calls, text="I can't.", stop_reason="refusal")) as model:
        outcome = host.task(model.url)
        assert model.count == 1
    assert (outcome.code, outcome.result["status"]) == (1, "TASK_FAILED")
    assert outcome.result["reason"] == "LLM_GUARDRAIL_BLOCKED"
    assert "refused" in outcome.error
    assert effects(host) == 0
    assert host.checkpoints() == []


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
def test_an_answer_with_nothing_does_not_complete(host: Host, dialect: str) -> None:
    """A small model repeats what stands for its own empty answer."""
    with gateway(say(""), say("(no text)")) as model:
        outcome = host.task(model.url, "--dialect", dialect)
        assert "(no text)" in str(model.bodies[1])
    assert (outcome.code, outcome.result["reason"]) == (1, "LLM_EMPTY_ANSWER")


def test_a_call_as_text_is_one_also_with_what_stands_for_an_argument_left_out(host: Host) -> None:
    text = '```json\n{"name": "Grep", "arguments": {"pattern": "x", "glob": "", "path": null, "limit": 9.0}}\n```'
    with gateway(say(text), say(text)) as model:
        assert host.task(model.url).result["reason"] == "LLM_CALL_AS_TEXT"


# Several calls of one turn (AH 4.2)


def test_calls_run_at_once_and_answer_in_call_order(host: Host) -> None:
    """Each waits for the next one's file, so that they end in reverse order, and not at all one after another."""
    first = "until [ -e second ]; do sleep 0.01; done; echo one"
    second = "until [ -e third ]; do sleep 0.01; done; echo two; touch second"
    third = "echo three; touch third"
    missing = str(host.workspace / "missing")
    turn = use(shell(first), call("ReadFile", path=missing), shell(second), shell("exit 3"), shell(third))
    with gateway(turn, say("Done.")) as model:
        outcome = host.task(model.url)
        answers = model.results()
        called = [block["id"] for block in model.bodies[1]["messages"][-2]["content"] if block["type"] == "tool_use"]
    assert [answer.call_id for answer in answers] == called
    assert ["one" in answers[0].text, "two" in answers[2].text, "three" in answers[4].text] == [True] * 3
    assert answers[1].text.startswith("FILE_NOT_FOUND: ")
    assert answers[3].text.startswith("Exit code: 3")
    assert [answer.is_error for answer in answers] == [False, True, False, False, False]
    assert codes(outcome.result) == [
        ("RunCommand", "succeeded", None),
        ("ReadFile", "failed", "FILE_NOT_FOUND"),
        ("RunCommand", "succeeded", None),
        ("RunCommand", "succeeded", None),
        ("RunCommand", "succeeded", None),
    ]
    assert outcome.code == 0


def test_calls_on_one_path_keep_their_order(host: Host) -> None:
    path = str(host.workspace / "notes")
    by_another_name = f"{host.workspace}/sub/../notes"
    calls = [
        call("WriteFile", path=path, content="x" * 500_000),
        call("WriteFile", path=by_another_name, content="short"),
        call("ReadFile", path=path),
        call("DeleteFile", path=by_another_name),
        call("WriteFile", path=path, content="last"),
    ]
    (host.workspace / "sub").mkdir()
    with gateway(use(*calls, chunk_chars=100_000), say("Done.")) as model:
        outcome = host.task(model.url)
        answers = model.results()
    assert answers[2].text == "short"
    assert [answer.is_error for answer in answers] == [False] * 5
    assert (host.workspace / "notes").read_text() == "last"
    assert outcome.code == 0


def test_a_refused_call_lets_nothing_by_that_waits_for_those_before_it(host: Host) -> None:
    path = str(host.workspace / "notes")
    calls = [
        call("WriteFile", path=path, content="x" * 500_000),
        call("DeleteFile", path=path),
        call("WriteFile", path=path, content="last"),
    ]
    with gateway(use(*calls, chunk_chars=100_000), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(without=["File.Delete"]))
        answers = model.results()
    assert [answer.is_error for answer in answers] == [False, True, False]
    assert (host.workspace / "notes").read_text() == "last"
    assert outcome.code == 0


# Calls that cannot be run


BAD_CALLS: list[tuple[dict[str, Any], str, str]] = [
    (call("Teleport", to="Mars"), "TOOL_NOT_FOUND", "Teleport"),
    (call("", to="Mars"), "TOOL_NOT_FOUND", ""),
    ({"name": "WriteFile", "raw_arguments": '{"path": "/tm'}, "INVALID_REQUEST", "JSON"),
    ({"name": "WriteFile", "raw_arguments": "[1]"}, "INVALID_REQUEST", "object"),
    ({"name": "WriteFile", "raw_arguments": '{"path": 3}'}, "INVALID_REQUEST", "path"),
    (call("WriteFile"), "INVALID_REQUEST", "path"),
    (call("WriteFile", path="WORKSPACE/a"), "INVALID_REQUEST", "content"),
    (call("WriteFile", path="WORKSPACE/a", content="x", colour="red"), "INVALID_REQUEST", "colour"),
    (call("ReadFile", path="./missing"), "FILE_NOT_FOUND", "missing"),
    (call("ReadFile", path=""), "INVALID_REQUEST", "path"),
    (call("ReadFile", path="/w\0"), "INVALID_REQUEST", "null"),
    (call("ReadFile", path="WORKSPACE/seen", offset=0), "INVALID_REQUEST", "offset"),
    (call("RunCommand", command="true", timeout=601), "INVALID_REQUEST", "timeout"),
    (call("RunCommand", command="true", cwd=7), "INVALID_REQUEST", "cwd"),
    (call("ReadFile", path="WORKSPACE"), "TOOL_EXECUTION_FAILED", "irectory"),
]


@pytest.fixture(scope="module")
def bad_calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, Outcome, list[ToolAnswer]]:
    """All of BAD_CALLS in one turn, with a good one behind them."""
    host = Host(tmp_path_factory.mktemp("bad"))
    turn = json.loads(
        json.dumps(use(*(bad for bad, _, _ in BAD_CALLS), CALL)).replace("WORKSPACE", str(host.workspace))
    )
    with gateway(turn, say("Done.")) as model:
        outcome = host.task(model.url)
        return host, outcome, model.results()


@pytest.mark.parametrize("place", range(len(BAD_CALLS)))
def test_a_bad_call_is_answered(bad_calls: tuple[Host, Outcome, list[ToolAnswer]], place: int) -> None:
    _, outcome, answers = bad_calls
    bad, code, said = BAD_CALLS[place]
    assert answers[place].is_error
    assert answers[place].text.startswith(f"{code}: ")
    assert said in answers[place].text
    assert codes(outcome.result)[place] == (bad["name"], "failed", code)


def test_bad_calls_do_not_touch_their_siblings(bad_calls: tuple[Host, Outcome, list[ToolAnswer]]) -> None:
    host, outcome, answers = bad_calls
    assert not answers[-1].is_error
    assert codes(outcome.result)[-1] == ("RunCommand", "succeeded", None)
    assert (outcome.code, outcome.result["text"]) == (0, "Done.")
    assert [path.name for path in host.workspace.iterdir()] == ["effects"]


def test_a_denied_call_says_why_and_the_task_goes_on(host: Host) -> None:
    outside = host.root / "secret"
    outside.write_text("s3cret")
    (host.workspace / "link").symlink_to(outside)
    calls = [
        call("ReadFile", path=str(outside)),
        call("ReadFile", path=str(host.workspace / "link")),
        call("ReadFile", path=f"{host.workspace}/../secret"),
        call("HttpRequest", url="http://192.0.2.1/"),
    ]
    with gateway(use(*calls), say("Then not.")) as model:
        outcome = host.task(model.url, policy=host.policy())
        answers = model.results()
        offered = {tool["name"] for tool in model.bodies[0]["tools"]}
    assert "HttpRequest" not in offered, "a tool without its capability is not offered"
    files = {"ReadFile", "ListDirectory", "FindFiles", "Grep", "WriteFile", "EditFile", "DeleteFile", "MoveFile"}
    assert offered == {*files, "RunCommand", "CommandOutput", "StopCommand", "ReadOutput"}
    for answer in answers:
        assert answer.is_error
        assert answer.text.startswith("CAPABILITY_DENIED: ")
        assert "s3cret" not in answer.text
    for answer in answers[:3]:
        assert "File.Read" in answer.text, "the rule that decided is named"
        assert "allowedPaths" in answer.text
    assert "Network.Http" in answers[3].text
    assert {entry[1:] for entry in codes(outcome.result)} == {("denied", "CAPABILITY_DENIED")}
    assert (outcome.code, outcome.result["deniedApprovals"]) == (0, [])


# Steps (AH 4.3)


def notices(host: Host, session_id: str) -> list[tuple[int, int]]:
    return [
        (event["payload"]["stepCount"], event["payload"]["maxSteps"])
        for event in host.event_log(session_id)
        if event["eventType"] == "step_limit_approaching"
    ]


def test_the_last_step_runs_its_calls_and_keeps_their_results(host: Host) -> None:
    with gateway(use(CALL, repeat=9)) as model:
        outcome = host.task(model.url, "--max-steps", "5", "--session-id", "s")
        assert model.count == 5
    result = outcome.result
    assert (outcome.code, result["status"], result["reason"]) == (1, "TASK_FAILED", "max_steps_exceeded")
    assert (result["stepCount"], len(result["toolCalls"]), effects(host)) == (5, 5, 5)
    assert "5 steps" in outcome.error
    assert "--max-steps" in outcome.error
    thread = host.history("s")
    assert thread[-1]["role"] == "tool"
    assert thread[-1]["content"].startswith("Exit code: 0")
    assert notices(host, "s") == [(4, 5)]


def test_a_task_that_ends_at_its_limit_is_complete(host: Host) -> None:
    with gateway(use(CALL), say("Done.")) as model:
        outcome = host.task(model.url, "--max-steps", "2", "--session-id", "s")
    assert (outcome.code, outcome.result["stepCount"]) == (0, 2)
    assert notices(host, "s") == [(1, 2)]


# The window (AH 5.4)


def first_text(model: Gateway, request: int) -> str:
    return "".join(block.get("text", "") for block in model.bodies[request]["messages"][0]["content"])


def test_a_small_window_keeps_the_thread_sendable(host: Host) -> None:
    """The gateway refuses a thread in which a call lacks its result; `complains` would say so."""
    (host.workspace / "long").write_text("word and another word\n" * 100)
    read = call("ReadFile", path=str(host.workspace / "long"))
    with gateway(use(read, read, CALL, repeat=12), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm={"maxInputTokens": 6000}))
        sizes = [len(body["messages"]) for body in model.bodies]
        assert first_text(model, 1) == "Do it."
        last = first_text(model, 12)
        heads = [json.dumps([body["system"], body["tools"]]) for body in model.bodies]
    assert (outcome.code, outcome.result["stepCount"], effects(host)) == (0, 13, 12)
    assert max(sizes) < 1 + 2 * 12
    assert len(set(heads)) == 1, "system prompt and tools are in every request, whatever is left out"
    assert '"name": "ReadFile"' in heads[0]
    assert last.startswith("Do it."), "the task stays in sight"
    assert "[Earlier conversation truncated — " in last
    assert "messages removed]" in last


def test_a_result_larger_than_the_window(host: Host) -> None:
    (host.workspace / "huge").write_text("word " * 20_000)
    read = call("ReadFile", path=str(host.workspace / "huge"))
    with gateway(use(CALL), use(read), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(llm={"maxInputTokens": 4000}))
        (answer,) = model.results()
    assert answer.text.startswith("word word")
    assert (outcome.code, outcome.result["text"]) == (0, "Done.")
