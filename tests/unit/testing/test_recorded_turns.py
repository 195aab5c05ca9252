"""What `--record` makes of an answer that is an error: a turn that gives an error of the same meaning on each wire."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.host.recording import turn_of
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.llm.dialects.openai_chat import ChatDialect
from agent_host.llm.dialects.openai_responses import ResponsesDialect
from agent_host.testing.dialects import ANTHROPIC
from agent_host.testing.dialects.openai_chat import CHAT_COMPLETIONS
from agent_host.testing.dialects.openai_responses import RESPONSES
from agent_host.testing.gateway import stream_body
from agent_host.testing.script import RequestView, Script
from tests.support.rows import each_row

if TYPE_CHECKING:
    from agent_host.llm.dialects import Dialect
    from agent_host.testing.dialects import MockDialect as Wire

VIEW = RequestView("s", "m", "", 9, True, (), 1, 0, 0, "user", "hi", False, {})
WIRES = [(AnthropicDialect(), ANTHROPIC), (ChatDialect(), CHAT_COMPLETIONS), (ResponsesDialect(), RESPONSES)]


def stream(wire: Wire, turn: dict[str, Any]) -> bytes:
    return b"".join(stream_body(Script.from_turns([turn]).turns[0], wire, VIEW))


@each_row(("dialect", "wire"), WIRES, ids=["anthropic", "openai", "responses"])
@each_row(
    "turn",
    [
        {"text": "Half of", "thinking": "Hm.", "stream_error": {"type": "overloaded_error", "message": "Too busy"}},
        {"text": "No", "stream_error": {"type": "insufficient_quota", "message": "You exceeded your current quota"}},
        {"stream_error": {"type": "api_error", "message": "prompt is too long: 9 tokens > 8 maximum"}},
    ],
)
def test_an_error_in_the_middle_of_an_answer_is_the_same_turn_again(
    dialect: Dialect, wire: Wire, turn: dict[str, Any]
) -> None:
    assert turn_of(dialect, 200, {}, stream(wire, turn)) == turn


def test_a_response_that_failed_is_told_from_an_error_event() -> None:
    turn = {"text": "So", "stream_error": {"type": "rate_limit_exceeded", "message": "Later", "failed": True}}
    assert turn_of(ResponsesDialect(), 200, {}, stream(RESPONSES, turn)) == turn


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ({"type": "requests", "code": "rate_limit_exceeded", "message": "Slow"}, "rate_limit_exceeded"),
        (
            {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "No"},
            "context_length_exceeded",
        ),
        ({"type": "throttling_error", "code": "429", "message": "busy"}, "429"),
        ({"type": "overloaded_error", "message": "busy"}, "overloaded_error"),
        ({"code": 402, "message": "pay", "metadata": {"reason": "odd"}}, "402"),
    ],
)
def test_of_the_names_of_an_error_the_one_is_kept_that_means_what_all_mean(error: dict[str, Any], name: str) -> None:
    data = b'data: {"choices":[{"index":0,"delta":{"content":"So"}}]}\n\ndata: ' + json.dumps({"error": error}).encode()
    turn = turn_of(ChatDialect(), 200, {}, data + b"\n\n")
    assert turn == {"text": "So", "stream_error": {"type": name, "message": error["message"]}}
    assert turn_of(ChatDialect(), 200, {}, stream(CHAT_COMPLETIONS, turn)) == turn


def test_an_error_by_status_keeps_its_name_and_one_behind_status_200_its_body() -> None:
    quota = {"type": "insufficient_quota", "message": "You exceeded your current quota", "code": "insufficient_quota"}
    body = json.dumps({"error": quota}).encode()
    hints = {"retry-after": "1"}
    assert turn_of(ChatDialect(), 429, hints, body) == {
        "status": 429,
        "error": {"type": "insufficient_quota", "message": quota["message"]},
        "headers": hints,
    }
    assert turn_of(ChatDialect(), 200, {}, body) == {
        "garbage": body.decode(),
        "headers": {"content-type": "application/json"},
    }
    assert turn_of(AnthropicDialect(), 400, {}, b"<html>odd</html>")["error"]["message"] == "<html>odd</html>"
