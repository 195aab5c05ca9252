"""What only the provider reads of its answers goes back to it as it came: across steps, kills and resumes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

THOUGHT = 'First \\ I look at "a/b", é, 😀\n\tand then\u2028 at <b>.'


def sent(model: Gateway, message: int, request: int = -1) -> list[bytes]:
    """The content blocks of a message of a request, each as it would be encoded again."""
    return [orjson.dumps(block) for block in model.bodies[request]["messages"][message]["content"]]


def signed(session: str, turn: int, text: str = THOUGHT) -> bytes:
    """The block that the scripted gateway sends."""
    return orjson.dumps({"type": "thinking", "thinking": text, "signature": f"sig_{session}_{turn}"})


def test_thinking_goes_back_in_front_of_the_calls_it_led_to(host: Host) -> None:
    first = use(shell("echo one"), text="I look.", thinking=THOUGHT, redacted_thinking="b3BhcXVl=", chunk_chars=3)
    second = use(shell("echo two"), shell("echo three"), redacted_thinking="x" * 40_000)
    with gateway(first, second, say("Done.", thinking="hm")) as model:
        outcome = host.task(model.url)
        session = outcome.result["sessionId"]
        body = model.mock.requests[-1].body or b""
    assert outcome.code == 0, outcome.stderr
    thought, redacted, text, call = sent(model, 1)
    assert (thought, redacted) == (signed(session, 0), b'{"type":"redacted_thinking","data":"b3BhcXVl="}')
    assert (orjson.loads(text)["text"], orjson.loads(call)["type"]) == ("I look.", "tool_use")
    assert body.count(thought) == body.count(redacted) == 1
    assert [orjson.loads(block)["type"] for block in sent(model, 3)] == ["redacted_thinking", "tool_use", "tool_use"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_thinking_outlives_a_kill(host: Host) -> None:
    """The first block is in the snapshot by then, the second only in the journal; the large one is in a blob."""
    large = "".join(f"A long thought, {number}. " for number in range(1500))
    turns = [
        use(shell("echo one"), thinking=large, text="One."),
        use(shell("touch begun; until [ -e go ]; do sleep 0.01; done"), thinking=THOUGHT, redacted_thinking="cg=="),
        use(shell("echo three"), thinking="third"),
        say("Done."),
    ]
    with gateway(*turns) as model:
        process = host.start_task(model.url, "--session-id", "s1")
        eventually((host.workspace / "begun").exists, "the command has begun")
        process.kill()
        (host.workspace / "go").touch()
        outcome = host.resume("s1", "--gateway", model.url)
        assert outcome.code == 0, outcome.stderr
        bodies = [record.body or b"" for record in model.mock.requests]
    for body in bodies[2:]:
        for block in (signed("s1", 0, large), signed("s1", 1), b'{"type":"redacted_thinking","data":"cg=="}'):
            assert body.count(block) == 1
    assert signed("s1", 2, "third") in bodies[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_another_model_gets_no_thinking(host: Host) -> None:
    policy = host.policy(llm={"allowedModels": ["one", "two"]})
    slow = use(shell("touch begun; until [ -e go ]; do sleep 0.01; done"), thinking=THOUGHT)
    with gateway(slow, say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s1", "--model", "one", policy=policy)
        eventually((host.workspace / "begun").exists, "the command has begun")
        process.kill()
        (host.workspace / "go").touch()
        outcome = host.resume("s1", "--gateway", model.url, "--model", "two")
        assert outcome.code == 0, outcome.stderr
        kinds = [block["type"] for block in model.bodies[-1]["messages"][1]["content"]]
    assert (model.bodies[-1]["model"], kinds) == ("two", ["tool_use"])
