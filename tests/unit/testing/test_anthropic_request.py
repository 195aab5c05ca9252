from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

import orjson
import pytest

from agent_host.testing.dialects import ANTHROPIC, BadRequest, read_request
from agent_host.testing.gateway import Script
from tests.support.pictures import png
from tests.support.rows import each_row
from tests.unit.testing.support import assistant, body, call, result, user


def pictured(kind: str = "image/png", data: object = None, source: str = "base64") -> dict[str, Any]:
    """A user's message with an image."""
    told = b64encode(png()).decode() if data is None else data
    return {"type": "image", "source": {"type": source, "media_type": kind, "data": told}}


def with_result(*blocks: Any) -> dict[str, Any]:
    """A request whose last message is a tool result of these blocks."""
    message = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": list(blocks)}]}
    return body(user("a"), call("t"), message)


def test_images_are_seen_wherever_they_stand() -> None:
    view = read_request(with_result({"type": "text", "text": "a"}, pictured(), pictured()), {})
    assert (view.last_images, view.image_count, view.last_text) == (("image/png", "image/png"), 2, "a")
    view = read_request(body({"role": "user", "content": [pictured()]}, assistant("b"), user("c")), {})
    assert (view.last_images, view.image_count) == ((), 1)


@each_row(
    ("block", "problem"),
    [
        ({"type": "image"}, "source: must be an object of type base64"),
        (pictured(source="url"), "source: must be an object of type base64"),
        (pictured("image/bmp"), "media_type: must be one of image/png"),
        (pictured(data=""), "data: field required"),
        (pictured(data=1), "data: field required"),
        (pictured(data="no base64"), "data: is not base64"),
        (pictured("image/gif"), "does not appear to be image/gif"),
        (pictured(data="A" * (5 * 1024 * 1024 + 4)), "exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes"),
        ({"type": "text", "text": ""}, "text blocks must not be empty"),
        ("a", "must be an object with a type"),
    ],
)
def test_an_image_that_would_be_refused_is_refused(block: Any, problem: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(problem)) as refused:
        read_request(with_result(block), {})
    assert str(refused.value).startswith("messages.2.content.0.content.0")


def two_results(call_id: str) -> dict[str, Any]:
    return {"role": "user", "content": result(call_id)["content"] * 2}


@each_row(
    ("payload", "problem"),
    [
        ([], "the body must be a JSON object"),
        ({}, "model: field required"),
        ({"model": 1}, "model: must be of type str"),
        ({"model": "m", "max_tokens": True}, "max_tokens: must be of type int"),
        ({"model": "m", "max_tokens": 1, "messages": []}, "messages: at least one message"),
        (body({"role": "system", "content": "a"}), "messages.0: role must be one of user, assistant"),
        (body(assistant("a")), "messages.0: the first message must be the user's"),
        (body(user("")), "messages.0: content must be text or an array of blocks, and not empty"),
        (body({"role": "user", "content": []}), "and not empty"),
        (body({"role": "user", "content": ["a"]}), "messages.0.content.0: must be an object with a type"),
        (body({"role": "user", "content": [{"type": "text", "text": ""}]}), "text blocks must not be empty"),
        (body(user("a"), call("t")), "messages.1: tool_use without tool_result right after it: t"),
        (body(user("a"), call("t"), user("b")), "messages.1: tool_use without tool_result right after it: t"),
        (body(user("a"), call("t"), result("u")), "messages.1: tool_use without tool_result right after it: t"),
        (body(user("a"), result("t")), "messages.1: tool_result without tool_use right before it: t"),
        (body(user("a"), call("t"), two_results("t")), "messages.2: more than one tool_result for one tool_use"),
        (body(user("a"), call("t"), result("t"), call("t"), result("t")), "messages.3: tool_use ids must be unique"),
        (body({**call("t"), "role": "user"}, result("t")), "messages.0: tool_use blocks belong to the assistant"),
        (
            body(user("a"), {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": "x"}]}),
            "messages.1.content.0: the input of tool_use must be an object",
        ),
    ],
)
def test_bodies_that_the_real_endpoint_refuses_are_refused(payload: Any, problem: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(payload, {})
    assert problem in str(caught.value)


def test_results_may_come_in_any_order_and_beside_text() -> None:
    calls = {"role": "assistant", "content": call("t")["content"] + call("u")["content"]}
    text = {"type": "text", "text": "and now?"}
    results = {"role": "user", "content": [*result("u", "U")["content"], *result("t", "T")["content"], text]}
    view = read_request(body(user("a"), calls, results), {})
    assert view.last_text == "U\nT\nand now?"
    assert view.message_count == 3


def test_a_conversation_without_a_session_is_known_by_its_first_message() -> None:
    one = read_request(body(user("a")), {}).session
    assert one == read_request(body(user("a"), assistant("b"), user("c")), {}).session
    assert one != read_request(body(user("b")), {}).session
    assert read_request(body(user("a")), {"x-session-id": "s"}).session == "s"


SCRIPT = {"thinking": "hm", "redacted_thinking": "b3A=", "text": "Now.", "tool_calls": [{"name": "A"}, {"name": "B"}]}


def answered(content: list[dict[str, Any]], model: str = "m") -> dict[str, Any]:
    results = [result(block["id"])["content"][0] for block in content if block["type"] == "tool_use"]
    message = {"role": "assistant", "content": content}
    return body(user("a"), message, {"role": "user", "content": results}, model=model)


def scripted() -> list[dict[str, Any]]:
    wire, turn = ANTHROPIC, Script.from_turns([SCRIPT]).turns[0]
    content: list[dict[str, Any]] = orjson.loads(wire.message(turn, read_request(body(user("a"), model="m"), {})))[
        "content"
    ]
    return content


def test_thinking_that_comes_back_as_it_was_is_taken() -> None:
    content = scripted()
    assert [block["type"] for block in content] == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
    view = read_request(answered(content), {})
    assert (view.turn_index, view.position) == (1, 1)


@pytest.mark.parametrize(
    ("kept", "changes", "problem"),
    [
        ([2, 3, 4], {}, "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`"),
        ([2, 3, 4, 0, 1], {}, "Expected `thinking` or `redacted_thinking`"),
        ([0, 2, 3, 4], {}, "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest"),
        ([1, 0, 2, 3, 4], {}, "cannot be modified"),
        ([2, 0, 1, 3, 4], {"thinking": "Hm"}, "messages.1.content.1: "),
        ([0, 1, 3, 4], {"signature": "other"}, "cannot be modified"),
    ],
)
def test_thinking_that_is_missing_or_altered_is_refused(kept: list[int], changes: dict[str, str], problem: str) -> None:
    content = scripted()
    content[0] |= changes
    with pytest.raises(BadRequest) as caught:
        read_request(answered([content[place] for place in kept]), {})
    assert problem in str(caught.value)


def test_another_model_need_not_send_it() -> None:
    assert read_request(answered(scripted()[2:], model="other"), {}).turn_index == 1
