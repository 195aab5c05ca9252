"""What a client of `agent-host serve` sees of text and thinking: live, tried again, and when it reads too slowly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.merged_events import MergedEvents
from tests.support.process import Host, eventually, gateway, say, shell, use
from tests.support.secrets import assert_not_kept, assert_nowhere, token

if TYPE_CHECKING:
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Servers

OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}


def merged(client: Client) -> MergedEvents:
    """The events of the session so far, by the rules of docs/events.md: GetEvents fills what the live stream lacks."""
    found = MergedEvents()
    for event in list(client.events):
        found.live(event)
    while (since := found.ask_since) is not None:
        found.reply(client.ask("GetEvents", sinceId=since))
    return found


def of(client: Client, *kinds: str) -> list[tuple[str, int, str]]:
    """(type, attempt, text) of the events of these types."""
    found = [event for event in client.events if event["eventType"] in kinds]
    return [(one["eventType"], one["payload"]["attempt"], one["payload"].get("text", "")) for one in found]


def completed_on_disk(host: Host, client: Client) -> None:
    """Until the task has ended, as the run log tells it."""
    log = host.records(client.session_id) / "events.jsonl"
    eventually(lambda: log.exists() and b'"task_completed"' in log.read_bytes(), "the end of the task")


# Text that is tried again


def test_text_and_thinking_of_a_failed_attempt_are_taken_back(servers: Servers) -> None:
    wrong = {"thinking": "Wrong thought.", "text": "Wrong words.", "stream_error": OVERLOADED}
    with gateway(wrong, {"status": 503}, say("Right words.", thinking="Right thought.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        found = merged(client)
        client.call("Shutdown")
        serve.ended_well()
    assert of(client, "text_chunk", "thinking_chunk", "llm_retry") == [
        ("thinking_chunk", 1, "Wrong thought."), ("text_chunk", 1, "Wrong words."), ("llm_retry", 1, ""),
        ("llm_retry", 2, ""),
        ("thinking_chunk", 3, "Right thought."), ("text_chunk", 3, "Right words."),
    ]  # fmt: skip
    step_id = client.event("step_started")["stepId"]
    assert (found.text(step_id), found.text(step_id, "thinking_chunk")) == ("Right words.", "Right thought.")
    log = [event["eventType"] for event in servers.host.event_log(client.session_id)]
    assert log.count("llm_retry") == 2
    assert not {"text_chunk", "thinking_chunk"} & set(log)


def test_a_client_that_lags_behind_a_retry_gets_what_takes_the_text_back(servers: Servers) -> None:
    """Both attempts wait for the client at once."""
    host = servers.host
    words = "".join(f"{number:07} " for number in range(30_000))
    wrong = {"text": words, "thinking": words, "chunk_chars": 64, "stream_error": OVERLOADED}
    with gateway(wrong, say(words[::-1], chunk_chars=64)) as model:
        serve, client = servers.session(model.url)
        client.stop_reading()
        client.send("StartTask", sessionId=client.session_id, taskId="a", prompt="Do it.")
        completed_on_disk(host, client)
        client.read_on()
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    told = of(client, "text_chunk", "thinking_chunk", "llm_retry")
    at = told.index(("llm_retry", 1, ""))
    assert {attempt for _, attempt, _ in told[:at]} == {1}
    assert {(kind, attempt) for kind, attempt, _ in told[at + 1 :]} == {("text_chunk", 2)}
    assert any("firstEventId" in event for event in client.events)
    found = merged(client)
    step_id = client.event("step_started")["stepId"]
    assert (found.text(step_id), found.text(step_id, "thinking_chunk")) == (words[::-1], "")


# A client that is slow


@pytest.mark.slow
def test_a_slow_client_knows_what_it_lost_and_gets_it_back(servers: Servers) -> None:
    """More waits than the client's queue holds, and no more than GetEvents keeps."""
    host = servers.host
    text = "".join(f"{number:015} " for number in range(1_500_000))
    with gateway(use(shell("true"), thinking="hm"), say(text, chunk_chars=8192)) as model:
        serve, client = servers.session(model.url)
        client.stop_reading()
        client.send("StartTask", sessionId=client.session_id, taskId="a", prompt="Do it.")
        completed_on_disk(host, client)
        client.read_on()
        ended = client.event("task_completed")
        found = merged(client)
        client.call("Shutdown")
        serve.ended_well()
    live = [event for event in client.events if event["eventId"] <= ended["eventId"]]
    lost = sum(event.get("droppedEvents", 0) for event in live)
    assert lost > 100
    assert lost + len(numbers(live)) == ended["eventId"]
    assert not found.is_incomplete
    assert numbers(found.events)[: ended["eventId"]] == list(range(1, ended["eventId"] + 1))
    steps = [event["stepId"] for event in found.events if event["eventType"] == "step_started"]
    assert found.text(steps[0], "thinking_chunk") == "hm"
    assert found.text(steps[1]) == text


def numbers(events: list[dict[str, Any]]) -> list[int]:
    """What the events cover, in their order."""
    return [n for event in events for n in range(event.get("firstEventId", event["eventId"]), event["eventId"] + 1)]


# Thinking


def test_thinking_is_streamed_as_it_comes(servers: Servers) -> None:
    thought = "First é, then 😀.\n"
    turns = [
        use(shell("true"), thinking=thought, text="I look.", redacted_thinking="b3BhcXVl", chunk_chars=5),
        say("Done.", redacted_thinking="b3BhcXVl"),
    ]
    with gateway(*turns) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        kept = client.ask("GetEvents", sinceId=0)["events"]
        client.call("Shutdown")
        serve.ended_well()
    heard = [event["payload"]["text"] for event in client.events if event["eventType"] == "thinking_chunk"]
    assert "".join(heard) == thought
    pieces = [event for event in kept if event["eventType"] == "thinking_chunk"]
    assert len(pieces) == -(-len(thought) // 5)
    assert "".join(piece["payload"]["text"] for piece in pieces) == thought
    assert {(piece["component"], piece["severity"]) for piece in pieces} == {("llm", "info")}
    assert {piece["stepId"] for piece in pieces} == {client.event("step_started")["stepId"]}
    assert "b3BhcXVl" not in json.dumps([client.events, kept])


@pytest.mark.parametrize("known", [True, False])
def test_a_secret_in_thinking_is_not_shown(servers: Servers, *, known: bool) -> None:
    secret = "a-token-of-the-gateway" if known else token(1)
    env = {"LLM_GATEWAY_AUTH_TOKEN": secret} if known else {}
    with gateway(say("Done.", thinking=f"The key is {secret} I see.", chunk_chars=400)) as model:
        serve = servers.start("--gateway", model.url, "--policy", "full", env=env)
        client = serve.on_streams()
        client.create()
        client.task()
        client.event("task_completed")
        kept = client.ask("GetEvents", sinceId=0)
        client.call("Shutdown")
        serve.ended_well()
    (piece,) = [event["payload"]["text"] for event in client.events if event["eventType"] == "thinking_chunk"]
    assert piece.startswith("The key is [redacted")
    assert_nowhere(json.dumps([client.events, kept]).encode(), "client", [secret])
    assert_not_kept(servers.host, [secret])
