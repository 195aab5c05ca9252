"""Pictures in a conversation: on record byte for byte, counted, and as many sent as gateways take."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_host.thread as pictures
from agent_host.ids import MACHINE
from agent_host.llm.dialects.anthropic import AnthropicRenderer
from agent_host.testing.dialects import images_in, read_request
from agent_host.thread import Thread
from agent_host.thread.messages import Message, ToolCall, decode, encode, image_tokens
from state.blobs import LARGE_BYTES, blobs_in, restore, sha256_hex, shorten
from state.record_shapes import RESULT, read_message
from tests.support.pictures import image

EACH = 100


def picture_result(call_id: str, *sizes: int) -> Message:
    images = tuple(image(640, 480, size) for size in sizes)
    tokens = EACH + len(images) * image_tokens(640, 480)
    return Message("tool", "a picture", tokens, tool_call_id=call_id, images=images)


def add(thread: Thread, name: str, *sizes: int) -> None:
    """A turn with a call for each picture."""
    calls = tuple(ToolCall(f"{name}_{n}", "ReadFile", {}) for n in range(len(sizes)))
    results = [picture_result(call.call_id, size) for call, size in zip(calls, sizes, strict=True)]
    thread.add_exchange(Message("assistant", "I look.", EACH, calls), results)


def new_thread(*, takes_images: bool = True) -> Thread:
    thread = Thread(AnthropicRenderer(), takes_images=takes_images)
    thread.add_task(Message("user", "Look.", EACH))
    return thread


def sent(thread: Thread) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = orjson.loads(b"[" + b"".join(thread.encode_window()) + b"]")
    read_request({"model": "m", "max_tokens": 1, "messages": messages}, {})
    return messages


def pictured(thread: Thread) -> list[int]:
    """How many pictures each turn's results have, oldest first."""
    return [len(list(images_in(message["content"]))) for message in sent(thread)[2::2]]


@pytest.mark.parametrize("size", [0, 10, LARGE_BYTES, 100_000])
def test_a_picture_comes_back_byte_for_byte(size: int) -> None:
    message = picture_result("c", size, size + 1)
    data = encode(message, MACHINE, session_id="s")
    assert decode(data) == message
    assert read_message(data, "message", RESULT)[1] == []
    short, parts = shorten(data)
    assert parts == [one.data for one in message.images if len(one.data) > LARGE_BYTES]
    kept = {sha256_hex(part): part for part in parts}
    assert read_message(short, "message", RESULT)[1] == []
    assert blobs_in(short) == list(kept)
    assert restore(short, kept.get) == (data, [])


def test_a_lost_picture_leaves_a_note() -> None:
    message = picture_result("c", 100_000)
    short, (part,) = shorten(encode(message, MACHINE, session_id="s"))
    whole, lost = restore(short, lambda _: None)
    assert lost == [sha256_hex(part)]
    left = decode(whole)
    said = f"[A picture of {len(part)} bytes here were damaged on disk and are lost]"
    assert (left.images, left.content) == ((), f"a picture\n{said}")
    assert read_message(whole, "message", RESULT)[1] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("data", "no base64"), ("data", 1), ("mediaType", "image/svg+xml"), ("width", -1), ("dataBlob", {"sha256": "x"})],
)
def test_what_is_no_picture_is_no_message(field: str, value: object) -> None:
    wire = orjson.loads(encode(picture_result("c", 10), MACHINE, session_id="s"))
    wire["images"][0][field] = value
    assert read_message(orjson.dumps(wire), "message", RESULT)[1][0].startswith(f"message.images[0].{field}")


@given(st.binary(max_size=50))
def test_data_that_would_come_back_changed_stays_where_it_is(tail: bytes) -> None:
    wire = orjson.loads(encode(picture_result("c", 20_000), MACHINE, session_id="s"))
    wire["images"][0]["data"] = base64.b64encode(b"x" * 20_000 + tail).decode()
    odd = wire["images"][0]["data"].replace("=", "") + "=="
    wire["images"][0]["data"] = odd[: len(odd) // 4 * 4]
    data = orjson.dumps(wire)
    short, parts = shorten(data)
    kept = {sha256_hex(part): part for part in parts}
    assert restore(short, kept.get) == (data, [])


@pytest.mark.parametrize(
    ("width", "height", "tokens"), [(1, 1, 1), (640, 480, 410), (750, 2, 2), (8000, 8000, 4784), (0, 0, 0)]
)
def test_pictures_count_by_their_pixels(width: int, height: int, tokens: int) -> None:
    assert image_tokens(width, height) == tokens


def test_the_older_half_goes_when_there_are_too_many() -> None:
    thread = new_thread()
    for number in range(pictures.MAX_SENT):
        add(thread, f"c{number}", 10)
    assert pictured(thread) == [1] * 20
    assert thread.tokens == EACH + 20 * (2 * EACH + 410)
    add(thread, "more", 10)
    assert pictured(thread) == [0] * 11 + [1] * 10
    assert thread.tokens == EACH + 21 * 2 * EACH + 10 * 410
    text = sent(thread)[2]["content"][0]["content"]
    assert text == "a picture; not shown any more, newer pictures have taken its place: read it again to see it"


def test_nothing_before_the_newest_changes_for_many_steps() -> None:
    thread = new_thread()
    for number in range(21):
        add(thread, f"c{number}", 10)
    before = without_marks(thread)
    for number in range(21, 31):
        add(thread, f"c{number}", 10)
        assert without_marks(thread).startswith(before)
    add(thread, "more", 10)
    assert not without_marks(thread).startswith(before)


def without_marks(thread: Thread) -> bytes:
    """What is sent, but for the marks of the cache, which move on and are no part of what it keeps."""
    return b"".join(thread.encode_window()).replace(b',"cache_control":{"type":"ephemeral"}', b"")


@pytest.mark.slow
def test_what_a_request_has_of_pictures_is_bounded_in_bytes() -> None:
    thread = new_thread()
    for number in range(8):
        add(thread, f"c{number}", 3_500_000)
        assert sum(pictured(thread)) * 3_500_000 <= pictures.MAX_SENT_BYTES
    assert pictured(thread)[-1] == 1


def test_a_turn_with_too_many_pictures_has_the_last_ones() -> None:
    thread = new_thread()
    add(thread, "many", *[10] * 25)
    *_, results = sent(thread)
    assert [len(list(images_in([block]))) for block in results["content"]] == [0] * 5 + [1] * 20
    assert results["content"][0]["content"].startswith("a picture; not shown: too many")
    add(thread, "next", 10)
    assert pictured(thread) == [0, 1]


def test_a_model_that_takes_none_gets_a_notice() -> None:
    thread = new_thread(takes_images=False)
    add(thread, "c", 10)
    assert thread.tokens == EACH * 3
    assert sent(thread)[2]["content"][0]["content"] == "a picture; this model takes no images"


shapes = st.lists(st.lists(st.sampled_from([0, 10, 10_000]), max_size=6), max_size=30)


@pytest.mark.slow
@given(shapes, st.integers(0, 8000))
def test_a_resumed_thread_is_the_same(turns: list[list[int]], budget: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "MAX_SENT", 6)
        patch.setattr(pictures, "MAX_SENT_BYTES", 30_000)
        thread, record = new_thread(), [Message("user", "Look.", EACH)]
        for number, sizes in enumerate(turns):
            add(thread, f"c{number}", *sizes)
            calls = tuple(ToolCall(f"c{number}_{n}", "ReadFile", {}) for n in range(len(sizes)))
            record.append(Message("assistant", "I look.", EACH, calls))
            record += [picture_result(call.call_id, size) for call, size in zip(calls, sizes, strict=True)]
            thread.fit(budget)
            assert sum(pictured(thread)) <= 6 if thread.dropped == 0 else sent(thread)
        again = Thread(AnthropicRenderer())
        again.restore(record, dropped=thread.dropped)
    assert again.encode_window() == thread.encode_window()
    assert (again.tokens, again.picture_bytes) == (thread.tokens, thread.picture_bytes)
