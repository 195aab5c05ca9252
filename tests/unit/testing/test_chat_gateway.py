"""The mock gateway as a server of Chat Completions: one script, whichever wire asks."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_host.testing.dialects import BadRequest
from agent_host.testing.dialects.openai_chat import read_request
from agent_host.testing.gateway import FAILURE_HEADER, MockGateway, Script
from tests.support.pictures import png
from tests.support.rows import each_row
from tests.unit.testing import support
from tests.unit.testing.support import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "ReadFile", "parameters": {"type": "object"}}}


def system(text: str = "Be careful.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def calls(*ids: str, name: str = "ReadFile", arguments: str = "{}", **beside: Any) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": name, "arguments": arguments}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **beside}


def answer(call_id: str, text: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def picture(kind: str = "image/png", data: str | None = None) -> dict[str, Any]:
    told = b64encode(png()).decode() if data is None else data
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{told}"}}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if more.get("stream", True) else {}
    return {"model": "test-model", "messages": list(messages or (user(),)), "stream": True, **usage, **more}


@contextlib.asynccontextmanager
async def serve(*turns: dict[str, Any]) -> AsyncIterator[tuple[MockGateway, httpx.AsyncClient]]:
    async with MockGateway(Script.from_turns(turns)) as gateway, connect(gateway.url) as client:
        yield gateway, client


async def post(client: httpx.AsyncClient, *messages: Any, session: str = "", **more: Any) -> httpx.Response:
    return await client.post(PATH, json=body(*messages, **more), headers={"x-session-id": session} if session else {})


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    *data, done = response.content.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [orjson.loads(one.removeprefix("data: ")) for one in data if one != ": ping"]


async def test_a_stream_has_the_chunks_of_the_wire_in_order() -> None:
    turn = {
        "thinking": "hm", "redacted_thinking": "x", "text": "Hello there", "chunk_chars": 6,
        "tool_calls": [
            {"name": "ReadFile", "arguments": {"path": "a"}}, {"name": "T", "raw_arguments": "{", "id": "i"},
        ],
        "usage": {"input_tokens": 11, "output_tokens": 22, "cache_read_input_tokens": 3}, "pings": 2,
    }  # fmt: skip
    async with serve(turn) as (gateway, client):
        response = await post(client)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = chunks(response)
    assert all((one["object"], one["model"]) == ("chat.completion.chunk", "test-model") for one in found)
    deltas = [one["choices"][0]["delta"] for one in found[:-1]]
    first, second = deltas[5]["tool_calls"][0], deltas[8]["tool_calls"][0]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "id": "rs_0", "index": 0}]},
        {"content": "Hello "}, {"content": "there"},
        {"tool_calls": [{"index": 0, "id": first["id"], "type": "function",
                         "function": {"name": "ReadFile", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '":"a"}'}}]},
        {"tool_calls": [{"index": 1, "id": "i", "type": "function", "function": {"name": "T", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{"}}]},
        {},
    ]  # fmt: skip
    assert first["id"].startswith("call_0_0_t")
    assert second["id"] == "i"
    assert [one["choices"][0]["finish_reason"] for one in found[:-1]] == [None] * 10 + ["tool_calls"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == {
        "prompt_tokens": 14, "completion_tokens": 22, "total_tokens": 36,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
    }  # fmt: skip
    assert gateway.failures == []


async def test_counts_come_when_they_are_asked_for() -> None:
    async with serve({"text": "a"}) as (_, client):
        found = chunks(await post(client, stream_options=None))
    assert not any("usage" in one for one in found)


async def test_without_stream_the_answer_is_one_completion() -> None:
    turn = {
        "text": "hi",
        "thinking": "hm",
        "tool_calls": [{"name": "A", "arguments": {"x": 1}}],
        "stop_reason": "max_tokens",
    }
    async with serve(turn) as (_, client):
        completion = (await post(client, stream=False)).json()
    (choice,) = completion["choices"]
    assert (completion["object"], choice["finish_reason"]) == ("chat.completion", "length")
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("hi", "hm")
    assert message["tool_calls"][0]["function"] == {"name": "A", "arguments": '{"x":1}'}
    assert completion["usage"]["completion_tokens"] == 20


@each_row(
    ("scripted", "sent"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("pause_turn", "stop"), ("tool_use", "tool_calls"),
        ("max_tokens", "length"), ("model_context_window_exceeded", "length"), ("refusal", "stop"),
        ("content_filter", "content_filter"), ("", "stop"), ("of_tomorrow", "of_tomorrow"),
    ],
)  # fmt: skip
async def test_stops_of_scripts_are_said_in_words_of_the_wire(scripted: str, sent: str) -> None:
    async with serve({"text": "No.", "stop_reason": scripted}) as (_, client):
        found = chunks(await post(client))
    assert found[-2]["choices"][0]["finish_reason"] == sent
    assert found[1]["choices"][0]["delta"] == {"refusal" if scripted == "refusal" else "content": "No."}


async def test_one_script_serves_both_wires_and_a_conversation_may_change_between_them() -> None:
    turns: list[dict[str, Any]] = [{"tool_calls": [{"name": "A"}]}, {"tool_calls": [{"name": "B"}]}, {"text": "third"}]
    async with serve(*turns) as (gateway, client):
        (first,) = support.tool_ids(await support.post(client, support.user("go")))
        second = chunks(await post(client, user("go"), calls(first), answer(first)))[1]
        second_id = second["choices"][0]["delta"]["tool_calls"][0]["id"]
        assert (first, second_id) == ("toolu_0_0", "call_1_0")
        thread = [support.user("go"), support.call(first), support.result(first)]
        last = await support.post(client, *thread, support.call(second_id), support.result(second_id))
        assert support.text_of(last) == "third"
    assert gateway.failures == []


async def test_the_newest_tool_id_tells_the_position_of_a_shortened_thread() -> None:
    async with serve({"text": "a"}, {"text": "b"}, {"tool_calls": [{"name": "X"}]}, {"text": "fourth"}) as (_, client):
        found = chunks(await post(client, user("marker"), calls("call_2_0"), answer("call_2_0")))
    assert found[1]["choices"][0]["delta"] == {"content": "fourth"}


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        ({"status": 401}, {"type": "invalid_request_error", "code": "invalid_api_key"}),
        ({"status": 418}, {"type": "invalid_request_error", "code": None}),
        ({"status": 429}, {"type": "rate_limit_error", "code": "rate_limit_exceeded"}),
        ({"status": 502}, {"type": "server_error", "code": None}),
        ({"status": 429, "error": {"type": "insufficient_quota", "message": "scripted error"}},
         {"type": "insufficient_quota", "code": "insufficient_quota"}),
    ],
)  # fmt: skip
async def test_http_errors_have_the_body_of_the_wire(turn: dict[str, Any], error: dict[str, Any]) -> None:
    async with serve(turn) as (gateway, client):
        response = await post(client)
    assert response.status_code == turn["status"]
    assert response.json() == {"error": {"message": "scripted error", "param": None, **error}}
    assert gateway.failures == []


async def test_an_error_inside_the_stream_comes_behind_all_content() -> None:
    turn = {"text": "Hello", "stream_error": {"type": "overloaded", "message": "later"}}
    async with serve(turn) as (_, client):
        *_, content, error = (await post(client)).content.decode().strip().split("\n\n")
    assert orjson.loads(content.removeprefix("data: "))["choices"][0]["delta"] == {"content": "Hello"}
    assert orjson.loads(error.removeprefix("data: ")) == {
        "error": {"message": "later", "type": "overloaded", "param": None, "code": "overloaded"}
    }


@pytest.mark.parametrize("path", [PATH, "/v1/messages"])
async def test_an_empty_object_is_a_look_at_the_wire_and_no_failure(path: str) -> None:
    async with serve({"text": "a"}) as (gateway, client):
        response = await client.post(path, json={})
    assert response.status_code == 400
    assert "empty" in response.json()["error"]["message"]
    assert FAILURE_HEADER not in response.headers
    assert gateway.failures == []


# --- what scripts see of a request ------------------------------------------------------------------------------------


def test_a_request_as_scripts_see_it() -> None:
    view = read_request(body(system(), user("a"), max_completion_tokens=7, tools=[TOOL]), {"x-session-id": "s"})
    assert (view.session, view.model, view.system, view.max_tokens) == ("s", "test-model", "Be careful.", 7)
    assert (view.stream, view.tools, view.message_count) == (True, ("ReadFile",), 1)
    assert (view.last_role, view.last_text, view.last_tool_error, view.wants_usage) == ("user", "a", False, True)
    assert read_request(body(user("a"), max_tokens=8), {}).max_tokens == 8
    assert read_request(body(user("a")), {}).max_tokens is None
    assert read_request(body({"role": "developer", "content": "d"}, user("a")), {}).system == "d"


def test_the_results_of_a_turn_are_one_message_with_their_pictures() -> None:
    thread = [system(), user("a"), calls("i", "j"), answer("j", "first"), answer("i", "[error] second")]
    view = read_request(body(*thread), {})
    assert (view.message_count, view.last_role, view.last_text) == (3, "user", "first\nsecond")
    assert view.last_tool_error
    view = read_request(body(*thread, user([{"type": "text", "text": "of i:"}, picture(), picture()])), {})
    assert (view.message_count, view.last_text, view.last_images) == (3, "first\nsecond", ("image/png", "image/png"))
    view = read_request(body(*thread, user([picture()]), said("b"), user("note")), {})
    assert (view.message_count, view.last_text, view.last_images, view.image_count) == (5, "note", (), 1)
    assert not view.last_tool_error
    view = read_request(body(*thread, user("a note")), {})
    assert (view.message_count, view.last_text) == (4, "a note")
    view = read_request(body(user([{"type": "text", "text": "look"}, picture()])), {})
    assert (view.last_text, view.last_images) == ("look", ("image/png",))


def test_a_thread_without_a_session_is_known_by_its_first_message() -> None:
    keys = {read_request(body(system(one), user("a")), {}).session for one in "xy"}
    assert len(keys) == 1
    assert read_request(body(user("b")), {}).session not in keys


# --- what is refused --------------------------------------------------------------------------------------------------

LONG = "x" * 41


@each_row(
    ("payload", "problem"),
    [
        ([], "must be an object"),
        ({"messages": [user()]}, "you must provide a model parameter"),
        ({"model": "m"}, "messages: must be an array"),
        (body(system()), "at least one message of the user"),
        (body({"role": "function", "content": "a"}), r"messages\[0\].role: must be one of system"),
        (body("a"), r"messages\[0\].role"),
        (body(user("")), r"messages\[0\].content': expected a text"),
        (body(user([])), "not empty"),
        (body(user([{"type": "text", "text": ""}])), "or it is empty"),
        (body(user(None)), "expected a text"),
        (body({"role": "assistant", "content": None}), "expected a text"),
        (body(user(), {"role": "assistant", "content": "a", "tool_calls": []}), "and not empty"),
        (body({"role": "user", "content": "a", "tool_calls": [1]}), "of the assistant"),
        (body(user(), calls("i")), r"did not have response messages in front of messages\[2\]: i"),
        (body(user(), calls("i", "j"), answer("i"), user()), r"in front of messages\[3\]: j"),
        (body(user(), calls("i"), user(), answer("i")), r"in front of messages\[2\]: i"),
        (body(user(), calls("i"), answer("j")), "must be a response to a preceding message"),
        (body(user(), calls("i"), answer("i"), answer("i")), "must be a response to a preceding message"),
        (body(user(), answer("i")), "must be a response to a preceding message"),
        (body(user(), calls("i", "i"), answer("i"), answer("i")), "must be unique"),
        (body(user(), calls("i"), answer("i"), calls("i"), answer("i")), "must be unique"),
        (body(user(), calls(LONG), answer(LONG)), "1 to 40 characters"),
        (body(user(), calls(""), answer("")), "1 to 40 characters"),
        (body(user(), calls("i", name="a.b"), answer("i")), r"tool_calls\[0\].function.name"),
        (body(user(), calls("i", name="x" * 65), answer("i")), r"tool_calls\[0\].function.name"),
        (body(user(), calls("i", arguments="{"), answer("i")), "text of a JSON object"),
        (body(user(), calls("i", arguments="[]"), answer("i")), "text of a JSON object"),
        (body(user(), calls("i", arguments={}), answer("i")), "text of a JSON object"),  # type: ignore[arg-type]
        (body(user(), {"role": "assistant", "tool_calls": [{"id": "i"}]}), "must be of type function"),
        (body(user(), calls("i"), answer("i", "")), "expected a text"),
        (body(user(), calls("i"), answer("i", [picture()])), "a tool message has no part like this"),
        (body(user([{"type": "image_url", "image_url": {"url": "https://x/a.png"}}])), "must be a data URL"),
        (body(user([{"type": "image_url", "image_url": "x"}])), "must be a data URL"),
        (body(user([picture("image/bmp")])), "media_type: must be one of"),
        (body(user([picture("image/gif")])), "does not appear to be image/gif"),
        (body(user([picture(data="no base64")])), "is not base64"),
        (body(user(), max_tokens=1, max_completion_tokens=1), "at the same time"),
        (body(user(), max_completion_tokens=0), "must be a whole number from 1"),
        (body(user(), max_tokens=True), "must be a whole number from 1"),
        (body(user(), stream=False, stream_options={"include_usage": True}), "only allowed when 'stream'"),
        (body(user(), tools=[{"name": "X", "input_schema": {}}]), r"tools\[0\]: must be of type function"),
        (body(user(), tools=[{"type": "function", "function": {"name": "a/b"}}]), r"tools\[0\].function.name"),
        (body(user(), tools=[{"type": "function", "function": {"name": "a", "parameters": 1}}]), "must be an object"),
    ],
)
def test_a_request_that_would_be_refused_is_refused(payload: Any, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        read_request(payload, {})


async def test_a_refused_request_is_a_failure_in_the_words_of_the_wire() -> None:
    async with serve({"text": "a"}) as (gateway, client):
        response = await post(client, user(), calls("i"))
    assert (response.status_code, response.headers[FAILURE_HEADER]) == (400, "1")
    assert "did not have response messages" in response.json()["error"]["message"]
    (failure,) = gateway.failures
    assert "did not have response messages" in failure


@pytest.mark.parametrize(
    "turn", [{"thinking": "hm"}, {"redacted_thinking": "x"}, {"thinking": "hm", "redacted_thinking": "x"}]
)
async def test_reasoning_has_to_come_back_as_it_was_sent(turn: dict[str, str]) -> None:
    async with serve({**turn, "tool_calls": [{"name": "X"}]}, {"text": "b"}) as (gateway, client):
        message = (await post(client, stream=False)).json()["choices"][0]["message"]
        call_id = message["tool_calls"][0]["id"]
        sent = {name: message[name] for name in ("reasoning_content", "reasoning_details") if name in message}
        good = await post(client, user(), calls(call_id, **sent), answer(call_id))
        assert good.status_code == 200
        another_model = await post(client, user(), calls(call_id), answer(call_id), model="other")
        assert another_model.status_code == 200
        assert gateway.failures == []
        for name in sent:
            altered = {**sent, name: "altered"}
            missing = {other: value for other, value in sent.items() if other != name}
            for wrong in (altered, missing):
                bad = await post(client, user(), calls(call_id, **wrong), answer(call_id))
                assert (bad.status_code, "must be passed back" in bad.text) == (400, True)


# What a client may send in the place of anything else.
ANY = st.sampled_from(
    [None, True, 0, 1, 2.5, [], {}, [1], {"a": 1}, "", "a", "function", "text", "image_url", "{}", "call_1_0",
     "ReadFile", "data:image/png;base64,"]
)  # fmt: skip


def odd(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields, each as it should be or anything."""
    return st.fixed_dictionaries({}, optional={name: ANY | one for name, one in fields.items()})


PARTS = odd(type=ANY, text=ANY, image_url=odd(url=ANY))
CALLS = odd(id=ANY, type=st.just("function"), function=odd(name=st.just("X"), arguments=st.just("{}")))
MESSAGES = odd(
    role=st.sampled_from(["system", "user", "assistant", "tool"]), content=st.lists(ANY | PARTS, max_size=2),
    tool_calls=st.lists(ANY | CALLS, max_size=2), tool_call_id=ANY, reasoning_content=ANY, reasoning_details=ANY,
)  # fmt: skip
GOOD = st.sampled_from([system(), user(), said("a"), calls("i"), answer("i"), calls("i", reasoning_content="x")])
TOOLS = odd(type=st.just("function"), function=odd(name=ANY, parameters=ANY))
THREADS = st.lists(GOOD, min_size=1, max_size=4) | st.lists(GOOD | MESSAGES, max_size=4)
BODIES = odd(
    messages=THREADS, tools=st.lists(ANY | TOOLS, max_size=2), stream=ANY, stream_options=odd(include_usage=ANY),
    max_tokens=ANY, max_completion_tokens=ANY,
).map(lambda made: {"model": "m", "messages": [user()], **made})  # fmt: skip


@given(BODIES)
@example({"model": "m", "messages": [user(), calls("i"), answer("i")]})
@example({"model": "m", "messages": [{**calls("i"), "content": [{"type": "text", "text": "a"}]}, answer("i")]})
def test_any_request_is_read_or_refused(payload: Any) -> None:
    try:
        view = read_request(payload, {})
    except BadRequest:
        return
    assert view.message_count > 0
    assert view.turn_index >= view.position >= 0


def test_the_content_may_be_missing_beside_calls() -> None:
    """So LiteLLM sends it."""
    message = calls("i")
    del message["content"]
    assert read_request(body(user(), message, answer("i")), {}).last_text == "ok"
