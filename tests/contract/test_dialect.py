"""What the client and the thread may expect of every Dialect (AH 6.2, 6.3), against the mock gateway's side of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.contracts import Subject, ToolSpec
from agent_host.llm import ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.llm.dialects.openai_chat import ChatDialect
from agent_host.llm.dialects.openai_responses import ResponsesDialect
from agent_host.llm.errors import read
from agent_host.testing.dialects import ANTHROPIC
from agent_host.testing.dialects.openai_chat import CHAT_COMPLETIONS
from agent_host.testing.dialects.openai_responses import RESPONSES
from agent_host.testing.gateway import Script
from agent_host.testing.script import ErrorBody
from agent_host.thread import Thread
from agent_host.thread.messages import Message, ToolCall
from state.checkpoint import TokenUsage
from tests.support.pictures import image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.llm.dialects import Dialect
    from agent_host.testing.dialects import MockDialect as GatewaySide
    from agent_host.testing.script import RequestView

SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = ToolSpec("ReadFile", "Reads a file.", SCHEMA, "File.Read", Subject("path", "path"), "none", "files")
TOKEN = "s3cr3t-t0ken"


@dataclass(frozen=True)
class Pair:
    """A dialect of ours and the gateway's end of the same wire format. `unneeded` of the last events of a stream may be
    missing: the answer is whole without them."""

    ours: Dialect
    theirs: GatewaySide
    unneeded: int = 0

    def request(self, thread: Thread, tools: Sequence[ToolSpec] = (TOOL,)) -> RequestView:
        """A request with the thread, as the gateway reads it."""
        head = self.ours.head(model="some-model", max_output_tokens=77, system="Be careful.", tools=tools)
        body = b"".join([head, *thread.encode_window(), self.ours.tail])
        return self.theirs.read(orjson.loads(body), {"x-session-id": "s"})

    def events(self, turn: dict[str, Any], view: RequestView | None = None) -> list[bytes]:
        read = Script.from_turns([turn]).turns[0]
        return list(self.theirs.stream_events(read, view or self.request(self.thread("hi"))))

    def assemble(
        self, events: Sequence[bytes], shown: list[str] | None = None, thoughts: list[str] | None = None
    ) -> ModelTurn:
        assembler = self.ours.assembler()
        for raw in events:
            name, data = "message", None
            for line in raw.decode().splitlines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = line.removeprefix("data: ")
            if data is None:  # a comment
                continue
            piece = assembler.feed(name, data)
            if piece and shown is not None:
                shown.append(piece)
            if assembler.thinking and thoughts is not None:
                thoughts.append(assembler.thinking)
        return assembler.finish()

    def thread(self, prompt: str) -> Thread:
        made = Thread(self.ours.renderer("some-model"))
        made.add_task(Message("user", prompt, 1))
        return made


@pytest.fixture(
    params=[
        Pair(AnthropicDialect(), ANTHROPIC),
        Pair(ChatDialect(), CHAT_COMPLETIONS, unneeded=2),  # the counts, and [DONE]
        Pair(ResponsesDialect(), RESPONSES),
    ],
    ids=lambda pair: pair.ours.name,
)
def pair(request: pytest.FixtureRequest) -> Pair:
    made: Pair = request.param
    return made


def result(call_id: str, text: str, *, is_error: bool = False) -> Message:
    return Message("tool", text, 1, tool_call_id=call_id, is_error=is_error)


def test_both_ends_agree_on_the_path(pair: Pair) -> None:
    assert pair.ours.path == pair.theirs.path
    assert pair.ours.path.startswith("/")


def test_a_request_says_all_that_it_must(pair: Pair) -> None:
    view = pair.request(pair.thread("fix it"))
    assert (view.model, view.max_tokens, view.stream, view.tools) == ("some-model", 77, True, ("ReadFile",))
    assert "Be careful." in view.system
    assert (view.last_role, view.last_text) == ("user", "fix it")
    assert pair.request(pair.thread("fix it"), tools=()).tools == ()


def test_the_head_is_the_same_in_every_call(pair: Pair) -> None:
    heads = {pair.ours.head(model="m", max_output_tokens=1, system="s", tools=[TOOL]) for _ in range(3)}
    assert len(heads) == 1


def test_a_session_under_another_bundle_still_knows_the_names_that_it_offered_tools_by(pair: Pair) -> None:
    """The client reads answers with the dialect that it began with; heads come from the one of the new bundle."""
    theirs = pair.theirs
    first, later = pair.ours.kept_for("5m"), pair.ours.kept_for("1h")
    tool = TOOL._replace(name="read.file")
    thread = pair.thread("x")
    head = later.head(model="m", max_output_tokens=77, system="s", tools=[tool])
    body = b"".join([head, *thread.encode_window(), later.tail])
    (offered,) = theirs.read(orjson.loads(body), {"x-session-id": "s"}).tools
    turn = Pair(first, theirs).assemble(pair.events({"tool_calls": [{"name": offered}]}))
    assert [call.name for call in turn.tool_calls] == ["read.file"]


def test_a_token_goes_into_the_headers_and_nowhere_else(pair: Pair) -> None:
    without, with_token = pair.ours.headers(None), pair.ours.headers(TOKEN)
    assert TOKEN in str(with_token)
    assert {name: value for name, value in with_token.items() if TOKEN not in value} == dict(without)
    assert without["content-type"] == "application/json"


def test_an_exchange_is_sendable_and_its_results_are_seen(pair: Pair) -> None:
    thread = pair.thread("go")
    calls = (ToolCall("c1", "ReadFile", {"path": "/a"}), ToolCall("c2", "ReadFile", {}, "broken"))
    thread.add_exchange(
        Message("assistant", "", 1, calls), [result("c1", "first"), result("c2", "second", is_error=True)]
    )
    view = pair.request(thread)
    assert view.last_text.index("first") < view.last_text.index("second")
    assert view.last_tool_error
    thread.add_exchange(Message("assistant", "Done.", 1), [])
    thread.add_note(Message("system", "by the way", 1))
    view = pair.request(thread)
    assert view.turn_index == 2
    assert "by the way" in view.last_text


@pytest.mark.parametrize("switched_on", [True, False])
def test_pictures_go_where_they_are_taken(pair: Pair, switched_on: bool) -> None:
    taken = pair.ours.takes_images and switched_on
    thread = Thread(pair.ours.renderer("some-model"), takes_images=taken)
    thread.add_task(Message("user", "look", 1))
    pictures = result("c", "Two pictures")._replace(images=(image(4, 3), image(5, 5, 1000)))
    thread.add_exchange(Message("assistant", "", 1, (ToolCall("c", "ReadFile", {}),)), [pictures])
    view = pair.request(thread)
    assert view.last_images == (("image/png", "image/png") if taken else ())
    assert view.last_text == ("Two pictures" if taken else "Two pictures; this model takes no images")


@pytest.mark.parametrize("empty", ["", " \n"])
def test_empty_texts_are_sendable(pair: Pair, empty: str) -> None:
    thread = pair.thread(empty)
    thread.add_exchange(Message("assistant", empty, 1), [])
    thread.add_note(Message("system", empty, 1))
    thread.add_exchange(Message("assistant", empty, 1, (ToolCall("c", "X", {}),)), [result("c", empty)])
    thread.add_note(Message("system", empty, 1))
    assert pair.request(thread).turn_index == 2


def test_an_answer_comes_back_whole(pair: Pair) -> None:
    calls = [{"name": "ReadFile", "arguments": {"path": "/ü", "n": [1, None]}, "id": "c1"}, {"name": "X", "id": "c2"}]
    usage = {"input_tokens": 100, "output_tokens": 7, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 2}
    turn = {"text": "Good morning", "tool_calls": calls, "usage": usage, "chunk_chars": 3, "pings": 3}
    shown: list[str] = []
    got = pair.assemble(pair.events(turn), shown)
    assert got.text == "".join(shown) == "Good morning"
    assert got.tool_calls == (ToolCall("c1", "ReadFile", {"path": "/ü", "n": [1, None]}), ToolCall("c2", "X", {}))
    assert got.usage == TokenUsage(142, 7, 40, 2)
    assert len(shown) == 4


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"thinking": "Hm. So.", "redacted_thinking": "ZGF0YQ=="},
        {"tool_calls": [{"name": "X", "raw_arguments": '{"a":1,"a":2}'}, {"name": "X", "raw_arguments": '{"a"'}]},
        {"tool_calls": (), "stop_reason": "max_tokens"},
        {"tool_calls": (), "stop_reason": "refusal"},
    ],
)
def test_an_answer_in_one_body_says_what_its_stream_says(pair: Pair, more: dict[str, Any]) -> None:
    """Of a gateway that does not heed `stream`."""
    same = {"name": "ReadFile", "arguments": {"path": "/ü", "n": [1, None]}, "id": "c1"}
    usage = {"input_tokens": 100, "output_tokens": 7, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 2}
    turn = {"text": "Good morning", "tool_calls": (same, {**same, "id": "c2"}), "usage": usage, **more}
    view = pair.request(pair.thread("hi"))
    body = pair.theirs.message(Script.from_turns([turn]).turns[0], view).decode()
    assembler, shown, thoughts = pair.ours.assembler(), [], []
    for name, data in pair.ours.events_of_answer(body):
        shown.append(assembler.feed(name, data) or "")
        thoughts.append(assembler.thinking)
    whole, streamed_thoughts = assembler.finish(), list[str]()
    streamed = pair.assemble(pair.events(turn, view), thoughts=streamed_thoughts)
    if pair.theirs.has_cache_marks and "raw_arguments" in str(more):  # this wire has objects there, and no texts
        streamed = streamed._replace(tool_calls=whole.tool_calls)
    assert whole == streamed
    assert ("".join(shown), "".join(thoughts)) == (streamed.text, "".join(streamed_thoughts))


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"content": 5, "choices": 5, "output": 5}',
        '{"content": [5], "choices": [5], "output": [5], "stop_reason": "end_turn"}',
        '{"type": "message", "content": [], "stop_reason": null}',
        '{"choices": [{"message": {"content": "x"}}]}',
        '{"output": [], "status": "in_progress"}',
        '{"content": [{"type": "text"',
    ],
)
def test_what_is_no_whole_answer_is_none(pair: Pair, body: str) -> None:
    assembler = pair.ours.assembler()

    def read_it() -> None:
        for name, data in pair.ours.events_of_answer(body):
            assembler.feed(name, data)

    with pytest.raises((LookupError, ValueError, StreamProtocolError)):
        read_it()


def test_a_field_that_an_object_has_twice_is_found_in_one_body() -> None:
    call = '{"type": "tool_use", "id": "t", "name": "X", "input": {"a": 1, "a": 2}}'
    assembler = AnthropicDialect().assembler()
    for name, data in AnthropicDialect().events_of_answer(f'{{"content": [{call}], "stop_reason": "tool_use"}}'):
        assembler.feed(name, data)
    (found,) = assembler.finish().tool_calls
    assert found.problem == "the arguments have the field 'a' twice"


@pytest.mark.parametrize(("calls", "meaning"), [([], "complete"), ([{"name": "X"}], "complete")])
def test_the_usual_ends_are_known_stop_reasons(pair: Pair, calls: list[dict[str, Any]], meaning: str) -> None:
    got = pair.assemble(pair.events({"text": "x", "tool_calls": calls}))
    assert got.meaning == meaning


def test_thinking_is_shown_apart_from_text(pair: Pair) -> None:
    turn = {"thinking": "First this.", "text": "Then that.", "redacted_thinking": "x", "chunk_chars": 4, "pings": 2}
    thoughts: list[str] = []
    shown: list[str] = []
    pair.assemble(pair.events(turn), shown, thoughts)
    assert ("".join(thoughts), "".join(shown)) == ("First this.", "Then that.")
    assert len(thoughts) == 3


def test_broken_arguments_keep_their_call(pair: Pair) -> None:
    turn = {"tool_calls": [{"name": "ReadFile", "raw_arguments": '{"path": "a.t'}], "stop_reason": "max_tokens"}
    (call,) = pair.assemble(pair.events(turn)).tool_calls
    assert (call.name, call.arguments) == ("ReadFile", {})
    assert call.problem
    assert call.call_id


def test_its_own_answer_can_be_sent_back(pair: Pair) -> None:
    """Several turns in a row, each answered: the gateway's ids stay unique and every call has its result."""
    thread = pair.thread("go")
    for number in range(3):
        view = pair.request(thread)
        assert view.turn_index == number
        got = pair.assemble(pair.events({"text": "x", "tool_calls": [{"name": "A"}, {"name": "B"}]}, view))
        answers = [result(call.call_id, call.name) for call in got.tool_calls]
        thread.add_exchange(Message("assistant", got.text, 1, got.tool_calls), answers)
    assert pair.request(thread).turn_index == 3


def test_every_cut_stream_is_noticed(pair: Pair) -> None:
    events = pair.events({"text": "Hello", "chunk_chars": 2, "tool_calls": [{"name": "X", "arguments": {"a": 1}}]})
    needed = len(events) - pair.unneeded
    for end in range(needed, len(events) + 1):
        whole = pair.assemble(events[:end])
        assert (whole.text, whole.tool_calls[0].arguments) == ("Hello", {"a": 1})
    for cut in range(needed):
        with pytest.raises(StreamProtocolError):
            pair.assemble(events[:cut])


def test_assemblers_share_nothing(pair: Pair) -> None:
    events = pair.events({"text": "Hello"})
    pair.assemble(events)
    with pytest.raises(StreamProtocolError):
        pair.ours.assembler().finish()
    assert pair.assemble(events).text == "Hello"


def test_an_error_in_the_stream_is_a_fault_with_its_text(pair: Pair) -> None:
    events = pair.events({"text": "Hello"})
    with pytest.raises(StreamFault, match="all full"):
        pair.assemble([*events[:2], pair.theirs.error_event(ErrorBody("all full"), pair.request(pair.thread("hi")))])


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_the_human_part_of_an_error_is_found(pair: Pair, status: int) -> None:
    assert read(pair.theirs.error(status, ErrorBody("because"))).message == "because"


def test_sessions_are_told_apart_by_their_header_alone(pair: Pair) -> None:
    view = pair.request(pair.thread("go"))
    assert replace(view, session="other") != view
    assert view.session == "s"


def test_a_malformed_event_leaves_nothing_of_what_was_read_behind(pair: Pair) -> None:
    """A retry holds the error while it reads the next answer, so no frame may hang on it or on what led to it."""
    name = {"anthropic": "content_block_delta", "responses": "response.created"}.get(pair.ours.name, "message")
    with pytest.raises(StreamProtocolError) as caught:
        pair.ours.assembler().feed(name, '{"half": "\\ud800",}')
    error = caught.value.__cause__
    while error is not None:
        assert error.__traceback__ is None
        error = error.__cause__ or error.__context__
