"""Arguments of calls go back to the provider as the model wrote them, where a wire sends them as text: across steps,
kills and resumes, since a cache is found by every byte."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import eventually, gateway, say, use

if TYPE_CHECKING:
    from tests.support.process import Gateway, Host

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell, SIGKILL")
LARGE = json.dumps({"path": "é.txt", "content": "line \U0001f600\n" * 3000})  # spaces, escapes, its own file on disk
SLOW = '{ "command" : "touch begun; until [ -e go ]; do sleep 0.01; done",\n  "timeout": 60 }'
FLOAT = '{"command":"echo 1","timeout":60.0}'


def written(tool: str, text: str) -> dict[str, Any]:
    return {"name": tool, "raw_arguments": text}


def arguments(model: Gateway, request: int) -> list[str]:
    """The arguments of each call in a request."""
    body = model.bodies[request]
    if "input" in body:
        return [item["arguments"] for item in body["input"] if item.get("type") == "function_call"]
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    return [call["function"]["arguments"] for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["openai", "responses"])
def test_arguments_go_back_byte_for_byte(host: Host, dialect: str) -> None:
    turns = [
        use(written("WriteFile", LARGE), written("RunCommand", FLOAT), thinking="hm"),
        use(written("RunCommand", SLOW), thinking="hm"),
        use(written("RunCommand", "{broken"), written("RunCommand", '{"command": "echo \\ud800"}')),
        say("Done."),
    ]
    with gateway(*turns) as model:
        process = host.start_task(model.url, "--session-id", "s", "--dialect", dialect)
        eventually((host.workspace / "begun").exists, "the command has begun")
        assert arguments(model, 1) == [LARGE, FLOAT]
        process.kill()
        (host.workspace / "go").touch()
        outcome = host.resume("s", "--gateway", model.url)
        assert outcome.code == 0, outcome.stderr
        assert arguments(model, 2) == [LARGE, FLOAT, SLOW]
        mended = ["{}", '{"command":"echo \ufffd"}']
        assert arguments(model, 3) == [LARGE, FLOAT, SLOW, *mended]
    assert (host.workspace / "é.txt").read_text().count("\n") == 3000


@pytest.mark.parametrize("dialect", ["openai", "responses"])
def test_arguments_with_a_secret_go_back_without_it(host: Host, dialect: str) -> None:
    """Also where its place tells it, which a text does not show; and nothing is said of a lost part of the answer."""
    secret = "Tr0ub4dor-and-3-horses"
    text = json.dumps({"path": "c.json", "content": json.dumps({"password": secret})})
    command = '{"command": "export API_TOKEN=ghp_0123456789abcdefghijABCDEFGHIJ012345"}'
    with gateway(use(written("WriteFile", text), written("RunCommand", command)), say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s", "--dialect", dialect)
        sent = model.mock.requests[1].body or b""
    assert outcome.code == 0, outcome.stderr
    assert b"[redacted:" in sent
    assert b"ghp_0123456789" not in sent
    events = host.event_log("s")
    assert "llm_block_dropped" not in {event["eventType"] for event in events}
    assert b"ghp_0123456789" not in b"".join(path.read_bytes() for path in host.state.rglob("*") if path.is_file())
