"""What is kept of a turn that holds a secret, and what is made of it later (AH 8.7)."""

from __future__ import annotations

import pytest

from agent_host.loop import NOT_KEPT, clean_message, holds_secret, placeholder_problem
from agent_host.redaction import Scrubber
from agent_host.thread.messages import Message, ToolCall
from policy.redaction import Redaction
from tests.unit.policy.secret_samples import TOKENS

TOKEN = TOKENS["github-token"][0]
KNOWN = Scrubber(["s3cret-value"])
FOUND = Scrubber([], Redaction(key=lambda: b"k"))


@pytest.mark.parametrize(("scrubber", "secret"), [(KNOWN, "s3cret-value"), (FOUND, TOKEN)])
def test_what_is_kept_of_a_message_holds_no_secret(scrubber: Scrubber, secret: str) -> None:
    made = ToolCall("a", "RunCommand", {"command": f"login {secret}", "list": [secret]})
    other = ToolCall("b", "RunCommand", {"command": "ls"})
    message = Message("assistant", f"I use {secret}.", 7, (made, other))
    kept = clean_message(scrubber, message)
    assert secret not in repr(kept)
    assert (kept.role, kept.tokens, kept.tool_calls[1]) == ("assistant", 7, other)
    assert (kept.tool_calls[0].call_id, kept.tool_calls[0].name) == ("a", "RunCommand")
    assert kept.tool_calls[0].problem == NOT_KEPT
    assert kept.tool_calls[0].arguments["command"].startswith("login [redacted")
    assert [holds_secret(scrubber, call) for call in message.tool_calls] == [True, False]
    assert made.arguments["command"] == f"login {secret}", "the call that runs is the model's own"


def test_a_message_without_secrets_stays_as_it_is() -> None:
    calls = (ToolCall("a", "RunCommand", {"command": "ls"}, "cut at the end"),)
    message = Message("assistant", "text", 7, calls)
    assert clean_message(KNOWN, message) == message
    assert clean_message(KNOWN, message).tool_calls[0].problem == "cut at the end"


@pytest.mark.parametrize("key", ["content", "path"])
def test_a_placeholder_is_not_put_where_the_secret_was(key: str) -> None:
    placeholder = FOUND.text(TOKEN)
    assert placeholder.startswith("[redacted:github-token:")
    problem = placeholder_problem(ToolCall("a", "WriteFile", {key: f"key = {placeholder}"}))
    assert problem is not None
    assert problem.startswith(f"the arguments hold {placeholder}, ")


@pytest.mark.parametrize("text", ["", "[redacted]", "[redacted:x]", "[redacted:a b:123456]", "[redacted:x:12345]"])
def test_what_only_looks_like_a_placeholder_is_no_problem(text: str) -> None:
    assert placeholder_problem(ToolCall("a", "WriteFile", {"content": text})) is None
