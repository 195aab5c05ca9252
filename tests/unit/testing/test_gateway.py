from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

from agent_host.testing.gateway import FAILURE_HEADER, MockGateway, Script, ScriptError, serve_forever
from tests.unit.testing.support import assistant, body, call, connect, events, post, result, text_of, tool_ids, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    Serve = Callable[..., AbstractAsyncContextManager[tuple[MockGateway, httpx.AsyncClient]]]


@pytest.fixture
def serve() -> Serve:
    @contextlib.asynccontextmanager
    async def open_gateway(
        *turns: dict[str, Any], **options: Any
    ) -> AsyncIterator[tuple[MockGateway, httpx.AsyncClient]]:
        async with (
            MockGateway(Script.from_turns(turns), **options) as gateway,
            connect(gateway.url) as client,
        ):
            yield gateway, client

    return open_gateway


async def test_a_stream_has_the_events_of_the_dialect_in_order(serve: Serve) -> None:
    turn = {
        "thinking": "hm",
        "text": "Hello there",
        "chunk_chars": 6,
        "tool_calls": [{"name": "ReadFile", "arguments": {"path": "a"}}, {"name": "T", "raw_arguments": "{broken"}],
        "usage": {"input_tokens": 11, "output_tokens": 22, "cache_read_input_tokens": 3},
    }
    async with serve(turn) as (gateway, client):
        response = await post(client)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events(response.content)
    kinds = " ".join(event["type"].removeprefix("content_block_") for event in found)
    block = "start delta delta stop"
    assert kinds == f"message_start {block} {block} {block} {block} message_delta message_stop"
    assert [event["index"] for event in found if "index" in event] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert found[0]["message"]["model"] == "test-model"
    assert found[0]["message"]["usage"]["input_tokens"] == 11
    assert found[2]["delta"] == {"type": "thinking_delta", "thinking": "hm"}
    assert found[3]["delta"]["type"] == "signature_delta"
    assert [found[6]["delta"]["text"], found[7]["delta"]["text"]] == ["Hello ", "there"]
    call = found[9]["content_block"]
    assert call == {"type": "tool_use", "id": call["id"], "name": "ReadFile", "input": {}}
    assert call["id"].startswith("toolu_0_0_t")
    assert "".join(event["delta"]["partial_json"] for event in found[10:12]) == '{"path":"a"}'
    assert "".join(event["delta"]["partial_json"] for event in found[14:16]) == "{broken"
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 22
    assert found[-2]["usage"]["cache_read_input_tokens"] == 3
    assert gateway.failures == []


async def test_without_stream_the_answer_is_one_message(serve: Serve) -> None:
    calls = [{"name": "A", "arguments": {"x": 1}}, {"name": "B", "raw_arguments": "{", "id": "mine"}]
    async with serve({"text": "hi", "tool_calls": calls, "stop_reason": "max_tokens"}) as (_, client):
        message = (await post(client, stream=False)).json()
    assert message["content"] == [
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "toolu_0_0", "name": "A", "input": {"x": 1}},
        {"type": "tool_use", "id": "mine", "name": "B", "input": "{"},
    ]
    assert (message["stop_reason"], message["role"], message["type"]) == ("max_tokens", "assistant", "message")
    assert message["usage"]["output_tokens"] == 20


async def test_the_number_of_assistant_messages_is_the_position(serve: Serve) -> None:
    async with serve({"text": "one"}, {"text": "two", "repeat": 2}, {"text": "four"}) as (_, client):
        thread = [user("go")]
        for expected in ("one", "two", "two", "four"):
            for _again in range(2):  # a request that is sent again gets the same answer
                assert text_of(await post(client, *thread)) == expected
            thread += [assistant(expected), user("more")]


async def test_the_newest_tool_id_tells_the_position_of_a_shortened_thread(serve: Serve) -> None:
    turns = [{"tool_calls": [{"name": "T"}]}] * 3 + [{"text": "four"}]
    async with serve(*turns) as (_, client):
        assert tool_ids(await post(client, user("go"), call("toolu_1_0"), result("toolu_1_0"))) == ["toolu_2_0"]
        assert text_of(await post(client, user("go"), call("toolu_2_0"), result("toolu_2_0"))) == "four"
        assert text_of(await post(client, user("go"), call("toolu_1_0"), result("toolu_1_0"), assistant("x"))) == "four"


async def test_when_matches_the_last_message_and_the_first_match_wins(serve: Serve) -> None:
    turns = (
        {"text": "by position"},
        {"when": {"last_contains": ["a", "b"]}, "text": "both"},
        {"when": {"last_matches": "^x.*y$"}, "text": "pattern"},
        {"when": {"last_contains": "a"}, "text": "a, twice", "times": 2},
        {"when": {"last_tool_error": True}, "text": "tool error"},
        {"when": {"session": "s2"}, "text": "session"},
        {"when": {"model": "other"}, "text": "model"},
    )
    async with serve(*turns) as (_, client):
        assert text_of(await post(client, user("b a"))) == "both"
        assert text_of(await post(client, user("x\ny"))) == "pattern"
        answers = [text_of(await post(client, user("a"), session="s")) for _ in range(3)]
        assert answers == ["a, twice", "a, twice", "by position"]
        failed = result("toolu_0_0", "oh", is_error=True)
        assert text_of(await post(client, user("q"), call("toolu_0_0"), failed)) == "tool error"
        assert text_of(await post(client, user("q"), session="s2")) == "session"
        assert text_of(await post(client, user("q"), model="other")) == "model"


async def test_tool_calls_of_a_when_turn_take_no_position_and_their_ids_stay_unique(serve: Serve) -> None:
    again = {"when": {"last_contains": "INTERRUPTED"}, "tool_calls": [{"name": "T"}, {"name": "T"}]}
    async with serve({"tool_calls": [{"name": "T"}]}, {"tool_calls": [{"name": "T"}]}, {"text": "end"}, again) as (
        _,
        client,
    ):
        thread = [user("go")]
        ids: list[str] = []
        for outcome in ("INTERRUPTED", "INTERRUPTED", "fine", "INTERRUPTED", "fine"):
            new = tool_ids(await post(client, *thread))
            ids += new
            blocks = [block for call_id in new for block in call(call_id)["content"]]
            results = [block for call_id in new for block in result(call_id, outcome)["content"]]
            thread += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        assert text_of(await post(client, *thread)) == "end"
        assert text_of(await post(client, thread[0], *thread[-2:])) == "end"
    assert len(ids) == len(set(ids)) == 8


async def test_a_failing_turn_is_served_so_often_per_session_and_then_the_next(serve: Serve) -> None:
    limited = {"status": 429, "times": 2, "headers": {"retry-after": "7"}}
    async with serve({"text": "one"}, limited, {"status": 500}, {"text": "two"}) as (gateway, client):
        thread = [user("go"), assistant("one"), user("more")]
        for session in ("a", "b"):
            assert text_of(await post(client, user("go"), session=session)) == "one"
            statuses = [(await post(client, *thread, session=session)).status_code for _ in range(5)]
            assert statuses == [429, 429, 500, 200, 200]
    assert gateway.failures == []


async def test_a_failing_turn_may_be_served_always(serve: Serve) -> None:
    async with serve({"status": 503, "times": "always"}, {"text": "never"}) as (_, client):
        assert [(await post(client)).status_code for _ in range(4)] == [503] * 4


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ({"model": "m"}, "expect.model: is 'test-model', wanted 'm'"),
        ({"max_tokens": 5}, "expect.max_tokens: is 64, wanted 5"),
        ({"stream": False}, "expect.stream: is True, wanted False"),
        ({"message_count": 2}, "expect.message_count: is 1, wanted 2"),
        ({"position": [2, 3]}, "expect.position: is 1, wanted 2 or 3"),
        ({"session": "z"}, "expect.session: is 's', wanted 'z'"),
        ({"system_contains": "rule"}, "expect.system_contains: lacks 'rule' in 'be good'"),
        ({"last_contains": ["h", "FAILED"]}, "expect.last_contains: lacks 'FAILED' in 'hi'"),
        ({"last_matches": "^x"}, "expect.last_matches: '^x' finds nothing in 'hi'"),
        ({"last_role": "assistant"}, "expect.last_role: is 'user', wanted 'assistant'"),
        ({"last_tool_error": True}, "expect.last_tool_error: is False, wanted True"),
        ({"tools": ["A", "B"]}, "expect.tools: lacks 'B'; offered: 'A'"),
        ({"tools_absent": ["A", "C"]}, "expect.tools_absent: offered all the same: 'A'"),
        ({"headers": {"X-Session-Id": "t"}}, "expect.headers: X-Session-Id is 's', wanted 't'"),
        ({"headers": {"x-none": True}}, "expect.headers: x-none is absent, wanted present"),
        ({"headers": {"x-session-id": False}}, "expect.headers: x-session-id is present, wanted absent"),
        ({"model": "m", "stream": False}, "expect.model: is 'test-model', wanted 'm'; expect.stream: is True"),
    ],
)
async def test_an_unmet_expectation_fails_the_run_and_tells_the_client(
    serve: Serve, expect: dict[str, Any], difference: str
) -> None:
    heard: list[str] = []
    async with serve({"text": "a", "expect": expect}, on_failure=heard.append) as (gateway, client):
        response = await post(client, session="s", system="be good", tools=[{"name": "A"}])
    assert response.status_code == 400
    assert response.headers[FAILURE_HEADER] == "1"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert len(gateway.failures) == 1
    assert gateway.failures[0].startswith("request 1 (session s): turn 1: ")
    assert difference in gateway.failures[0]
    assert response.json()["error"]["message"] == f"mock gateway: {gateway.failures[0]}"
    assert heard == gateway.failures


async def test_met_expectations_change_nothing(serve: Serve) -> None:
    expect = {
        "model": "test-model",
        "max_tokens": 64,
        "stream": True,
        "message_count": 3,
        "position": 2,
        "session": "s",
        "system_contains": ["be", "good"],
        "last_contains": "done",
        "last_matches": "d.n",
        "last_role": "user",
        "last_tool_error": False,
        "tools": "A",
        "tools_absent": "B",
        "headers": {"x-session-id": "s", "content-type": True, "x-none": False},
    }
    async with serve({"text": "a"}, {"text": "b", "expect": expect}) as (gateway, client):
        system = [{"type": "text", "text": "be good"}]
        blocks = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "done"}]}],
        }
        response = await post(client, user("a"), call("t"), blocks, session="s", system=system, tools=[{"name": "A"}])
    assert text_of(response) == "b"
    assert gateway.failures == []


async def test_a_long_message_is_shown_by_its_end(serve: Serve) -> None:
    async with serve({"text": "a", "expect": {"last_contains": "z"}}) as (gateway, client):
        await post(client, user("start" + "-" * 5000 + "finish"))
    assert "finish' (5011 characters)" in gateway.failures[0]
    assert "start" not in gateway.failures[0]


async def test_running_off_the_end_fails_the_run(serve: Serve) -> None:
    async with serve({"text": "a"}) as (gateway, client):
        response = await post(client, user("a"), assistant("a"), user("b"))
    assert response.status_code == 400
    assert "it has 1 by position, answer 2 is asked for" in response.json()["error"]["message"]
    assert len(gateway.failures) == 1


async def test_placeholders_are_filled_from_variables_and_the_turn(serve: Serve) -> None:
    tool = {"name": "T", "arguments": {"path": "${workspace}/x", "list": ["${turn}", 1]}}
    turn = {
        "text": "in ${workspace}, $${workspace}",
        "tool_calls": [tool],
        "expect": {"last_contains": "at ${workspace}"},
    }
    async with serve(turn, variables={"workspace": "/w"}) as (gateway, client):
        message = (await post(client, user("at /w"), stream=False)).json()
        assert text_of(await post(client, user("at /w"))) == "in /w, ${workspace}"
    assert message["content"][0]["text"] == "in /w, ${workspace}"
    assert message["content"][1]["input"] == {"path": "/w/x", "list": ["0", 1]}
    assert gateway.failures == []


async def test_when_may_use_placeholders(serve: Serve) -> None:
    when = {"last_contains": "${word}${turn}"}
    async with serve({"text": "no"}, {"text": "yes", "when": when}, variables={"word": "w"}) as (_, client):
        assert text_of(await post(client, user("w0"))) == "yes"
        assert text_of(await post(client, user("w1"))) == "no"


def test_an_unknown_placeholder_is_an_error_before_anything_runs() -> None:
    with pytest.raises(ScriptError, match="workspace"):
        MockGateway(Script.from_turns([{"text": "${workspace}"}]))


async def test_sessions_at_once_do_not_disturb_each_other(serve: Serve) -> None:
    async def session(client: httpx.AsyncClient, name: str) -> list[str]:
        thread = [user(f"go {name}")]
        texts: list[str] = []
        while len(texts) < 5:
            response = await post(client, *thread)
            if response.status_code == 429:
                texts.append("429")
                continue
            texts.append(text_of(response))
            thread += [assistant(texts[-1]), user("more")]
        return texts

    turns = [
        {"text": "0"},
        {"status": 429, "delay_ms": 1},
        {"text": "1", "chunk_delay_ms": 1},
        {"text": "2"},
        {"text": "3"},
    ]
    async with serve(*turns) as (gateway, client):
        answers = await asyncio.gather(*(session(client, str(number)) for number in range(12)))
    assert answers == [["0", "429", "1", "2", "3"]] * 12
    assert gateway.failures == []
    assert len({record.session for record in gateway.requests}) == 12


async def test_requests_are_recorded_with_their_times(serve: Serve) -> None:
    async with serve({"text": "a"}, {"text": "b"}) as (gateway, client):
        await post(client, session="s")
        await post(client, user("a"), assistant("a"), user("b"))
        await client.post("/v1/messages", content=b"{")
    first, second, third = gateway.requests
    assert (first.number, first.session, first.turn, first.status, first.message_count) == (1, "s", 1, 200, 1)
    assert (second.turn, second.model, second.message_count) == (2, "test-model", 3)
    assert (third.session, third.turn, third.status, third.body_bytes) == (None, None, 400, 1)
    assert first.headers["x-session-id"] == "s"
    assert first.body is None
    assert 0 < first.first_byte_ns <= first.body_end_ns <= first.answer_start_ns <= first.answer_end_ns
    assert first.answer_end_ns <= second.first_byte_ns


async def test_bodies_are_kept_when_asked_for(serve: Serve) -> None:
    async with serve({"text": "a"}, keep_bodies=True) as (gateway, client):
        await post(client)
    kept = gateway.requests[0].body
    assert kept is not None
    assert orjson.loads(kept) == body()
    assert gateway.requests[0].body_bytes == len(kept)


async def test_connections_are_kept_alive(serve: Serve) -> None:
    async with serve({"text": "a"}, {"status": 500}, {"text": "b"}) as (gateway, client):
        for _ in range(3):
            await post(client)
        await post(client, user("a"), assistant("a"), user("b"))
        await client.get("/")
        network = client._transport._pool.connections  # type: ignore[attr-defined]
    assert len(network) == 1
    assert len(gateway.requests) == 5


async def test_large_bodies_arrive_whole(serve: Serve) -> None:
    async with serve({"text": "a", "expect": {"last_contains": "the end"}}) as (gateway, client):
        response = await post(client, user("x" * 8_000_000 + "the end"))
    assert text_of(response) == "a"
    assert gateway.requests[0].body_bytes > 8_000_000


async def test_bodies_over_the_limit_are_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_host.testing.http1.MAX_BODY_BYTES", 1000)
    async with serve({"text": "a"}) as (gateway, client):
        response = await post(client, user("x" * 1_000))
        assert text_of(await post(client)) == "a"
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"
    assert len(gateway.failures) == 1


async def test_other_addresses_are_not_found(serve: Serve) -> None:
    async with serve({"text": "a"}) as (gateway, client):
        assert (await client.get("/")).status_code == 404
        assert (await client.head("/v1/messages")).content == b""
        assert gateway.failures == []  # somebody looked whether the gateway is there
        response = await client.post("/v1/v1/messages", json={})
        assert response.json()["error"]["type"] == "not_found_error"
        (failure,) = gateway.failures
        assert failure.startswith("POST /v1/v1/messages is not served here; POST to /v1/messages or ")
        assert text_of(await client.post("/v1/messages?beta=true", json=body())) == "a"


async def test_a_client_may_ask_before_it_sends_the_body(serve: Serve) -> None:
    async with serve({"text": "a"}) as (gateway, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        sent = orjson.dumps(body(stream=False))
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {len(sent)}\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(sent)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


async def test_what_is_not_http_is_answered_and_dropped(serve: Serve) -> None:
    async with serve({"text": "a"}) as (gateway, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(b"\x16\x03\x01 not http\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
        await writer.wait_closed()
        assert text_of(await post(client)) == "a"


def test_importing_the_gateway_brings_no_heavy_packages() -> None:
    heavy = {"httpx", "pydantic", "tomllib", "difflib"}
    code = f"import sys, agent_host.testing.gateway; print(*{heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_in_thread_serves_code_without_an_event_loop() -> None:
    gateway = MockGateway(Script.from_turns([{"text": "a"}]))
    with gateway.in_thread() as url, httpx.Client(base_url=url) as client:
        assert text_of(client.post("/v1/messages", json=body())) == "a"
        assert len(gateway.requests) == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_in_thread_reports_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = MockGateway(Script.from_turns([{"text": "a"}]))
        with pytest.raises(OSError, match="in use"), gateway.in_thread(port=port):
            pass


async def test_serve_forever_says_where_and_closes_when_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("[[turn]]\ntext = '${a}'\nexpect.model = 'test-model'\n")
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    heard: list[str] = []
    serving = asyncio.create_task(
        serve_forever(path, variables={"a": "b"}, on_ready=ready.set_result, on_failure=heard.append)
    )
    async with asyncio.timeout(10), connect(await ready) as client:
        assert text_of(await post(client)) == "b"
        await post(client, model="other")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(httpx.TransportError):
            await post(client)
    assert len(heard) == 1
