"""Messages on record (AH 5.1) and how many tokens they are taken for (AH 5.3)."""

from __future__ import annotations

import base64
import hashlib
import importlib
import random
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from agent_host.ids import MACHINE
from agent_host.thread import messages as tokens
from agent_host.thread.messages import (
    PER_MESSAGE_OVERHEAD,
    Message,
    TokenizerUnavailable,
    ToolCall,
    counter,
    decode,
    encode,
    estimate,
    message_id,
    message_tokens,
)
from tests.unit.thread.strategies import arguments, ids, messages

if TYPE_CHECKING:
    from pathlib import Path


@given(messages, ids, st.none() | ids, st.none() | ids)
def test_messages_come_back(message: Message, session_id: str, task_id: str | None, step_id: str | None) -> None:
    data = encode(message, MACHINE, session_id=session_id, task_id=task_id, step_id=step_id)
    assert decode(data) == message
    assert b"\n" not in data
    assert orjson.dumps(orjson.loads(data)) == data  # as a checkpoint gives it back


@given(messages)
def test_a_message_is_written_as_though_it_was_encoded_in_one_go(message: Message) -> None:
    data = encode(message, MACHINE, session_id="s", step_id="p")
    stamps = orjson.loads(data)
    plain: dict[str, Any] = {
        "messageId": stamps["messageId"],
        "sessionId": "s",
        "role": message.role,
        "content": message.content,
        "timestamp": stamps["timestamp"],
        "tokenCount": message.tokens,
    }
    if message.tool_calls:
        plain["toolCalls"] = [
            {"id": call.call_id, "name": call.name, "arguments": call.arguments}
            | ({"problem": call.problem} if call.problem else {})
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain |= {"toolCallId": message.tool_call_id, "isError": message.is_error}
    assert data == orjson.dumps(plain | {"stepId": "p", "branch": "main"})


@given(arguments, ids)
def test_a_call_under_another_id_is_not_encoded_again(given: dict[str, Any], call_id: str) -> None:
    call = ToolCall("c", "X", given, "a problem")
    assert call.arguments_json == orjson.dumps(given)
    renamed = call.change_id(call_id)
    assert renamed == ToolCall(call_id, "X", given, "a problem")
    assert renamed.arguments_json is call.arguments_json
    assert ToolCall("c", "X", given).change_id(call_id).arguments_json == call.arguments_json


def test_what_nests_too_deep_to_be_written_again_is_not_written() -> None:
    """A resume puts a record's message into JSON again, in one go."""
    nested: dict[str, Any] = {}
    for _ in range(500):
        nested = {"a": nested}
        try:
            data = encode(Message("assistant", "", 1, (ToolCall("c", "X", nested),)), MACHINE, session_id="s")
        except orjson.JSONEncodeError:
            break
        assert orjson.dumps(orjson.loads(data)) == data
    else:
        pytest.fail("there is no limit")


def test_a_lone_surrogate_is_not_written() -> None:
    with pytest.raises(orjson.JSONEncodeError):
        encode(Message("user", "\ud800", 1), MACHINE, session_id="s")


def test_the_wire_form_is_that_of_the_interface() -> None:
    call = ToolCall("c1", "ReadFile", {"path": "/f"})
    raw: dict[str, Any] = orjson.loads(
        encode(Message("assistant", "I look.", 7, (call,)), MACHINE, session_id="s", task_id="t", step_id="p")
    )
    message_id, stamp = raw.pop("messageId"), raw.pop("timestamp")
    assert message_id.startswith("msg_")
    assert stamp.endswith("Z")
    assert datetime.fromisoformat(stamp).tzinfo is not None
    assert raw == {
        "sessionId": "s",
        "role": "assistant",
        "content": "I look.",
        "tokenCount": 7,
        "toolCalls": [{"id": "c1", "name": "ReadFile", "arguments": {"path": "/f"}}],
        "taskId": "t",
        "stepId": "p",
        "branch": "main",
    }
    result = orjson.loads(encode(Message("tool", "no", 1, tool_call_id="c1", is_error=True), MACHINE, session_id="s"))
    assert (result["toolCallId"], result["isError"]) == ("c1", True)
    assert "taskId" not in result


def test_a_message_names_the_one_that_it_follows() -> None:
    first = encode(Message("user", "x", 1), MACHINE, session_id="s")
    spaced = b'{"role": "user", "messageId": "msg_1"}'  # as another program may have written it
    assert "parentId" not in orjson.loads(first)
    assert orjson.loads(encode(Message("user", "x", 1), MACHINE, session_id="s", parent=first))[
        "parentId"
    ] == message_id(first)
    assert message_id(first) == orjson.loads(first)["messageId"]
    assert message_id(spaced) == "msg_1"


def test_ids_are_fresh() -> None:
    message = Message("user", "x", 1)
    found = {orjson.loads(encode(message, MACHINE, session_id="s"))["messageId"] for _ in range(50)}
    assert len(found) == 50


# --- tokens -----------------------------------------------------------------------------------------------------------

PROSE = (
    "The checkpoint is written after each completed step, before the next call of the model, and the program does not "
    "go on until the disk has taken it. A crash in between loses nothing that anybody was told of. "
)
CODE = """def advance(sizes, start, kept, budget):
    if kept <= budget:
        return start, kept
    while start < len(sizes) - 1 and kept > budget:
        kept -= sizes[start]
        start += 1
    return start, kept
"""
_BYTES = random.Random(7).randbytes(600)
HEX, BASE64 = _BYTES.hex(), base64.b64encode(_BYTES).decode()
LISTING = "".join(
    f"-rw-r--r-- 1 root root {n * 3571 % 99991:6} Nov 22 02:{n:02} file_{n:03}.py\n" for n in range(10, 40)
)
CHINESE = "检查点在每个步骤之后写入磁盘，然后才调用模型。"


def test_prose_is_counted_on_the_high_side() -> None:
    words = len(PROSE.split())
    assert words < estimate(PROSE) < 2 * words


@pytest.mark.parametrize(
    # What today's tokenizers make of such text: about so many characters a token.
    ("text", "fewest", "most"),
    [
        (PROSE, 3.0, 4.8),
        (CODE, 1.8, 4.2),
        (HEX, 1.2, 2.4),
        (BASE64, 1.1, 2.9),
        (LISTING, 1.5, 3.0),
        (CHINESE, 0.9, 1.7),
    ],
    ids=["prose", "code", "hex", "base64", "listing", "chinese"],
)
def test_characters_for_a_token_are_in_the_right_region(text: str, fewest: float, most: float) -> None:
    assert fewest < len(text) / estimate(text) < most


@pytest.mark.parametrize("text", [HEX, BASE64, LISTING])
def test_what_tools_print_costs_far_more_than_a_quarter_of_its_bytes(text: str) -> None:
    assert estimate(text) > 1.35 * len(text.encode()) / 4


@pytest.mark.parametrize("text", [PROSE, CODE, HEX + "\n", BASE64 + "\n", LISTING, CHINESE])
def test_the_estimate_is_linear(text: str) -> None:
    once = estimate(text)
    assert abs(estimate(text * 200) - 200 * once) <= 200


@given(st.text(max_size=200), st.text(max_size=200))
def test_text_put_together_costs_about_its_parts(first: str, second: str) -> None:
    assert abs(estimate(first + second) - estimate(first) - estimate(second)) <= 8, "where they meet"
    assert estimate(first) <= 2 * len(first)
    assert (estimate(first) == 0) == (first == "")


def test_long_runs_of_one_kind_are_not_nothing() -> None:
    assert estimate("a" * 6000) == 2000
    assert estimate("1" * 6000) == 1800
    assert estimate("=" * 600) == 210


def test_a_message_costs_its_text_its_calls_and_something_of_its_own() -> None:
    assert message_tokens(len, "") == PER_MESSAGE_OVERHEAD
    assert message_tokens(len, "abc") == PER_MESSAGE_OVERHEAD + 3
    assert message_tokens(len, "abc", ("{}", '{"a":1}')) > PER_MESSAGE_OVERHEAD + 3 + 2 + 7


def test_counters_are_had_by_name_and_never_by_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert counter("estimate") is estimate
    with pytest.raises(TokenizerUnavailable, match="'nope': choose auto, estimate, o200k_base, cl100k_base"):
        counter("nope")
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    with pytest.raises(TokenizerUnavailable, match="TIKTOKEN_CACHE_DIR"):
        counter("o200k_base")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(TokenizerUnavailable, match="no rank file"):
        counter("cl100k_base")


def rank_file(folder: Path, content: bytes = b"aGVsbG8= 0\n", encoding: str = "cl100k_base") -> Path:
    path = folder / tokens._RANK_FILES[encoding].name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("encoding", tokens.ENCODINGS)
def test_a_missing_rank_file_is_named_as_tiktoken_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str
) -> None:
    """tiktoken's own source says from where it loads an encoding, and which content it takes."""
    asked: list[tuple[str, str]] = []

    def ranks(url: str, expected_hash: str) -> dict[bytes, int]:
        asked.append((url, expected_hash))
        return {}

    monkeypatch.setattr("tiktoken_ext.openai_public.load_tiktoken_bpe", ranks)
    getattr(importlib.import_module("tiktoken_ext.openai_public"), encoding)()
    ((url, expected),) = asked
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(TokenizerUnavailable) as missing:
        counter(encoding)
    path = tmp_path / hashlib.sha1(url.encode()).hexdigest()  # as tiktoken.load names it
    assert f"save {url} as {path} (SHA-256 {expected})" in str(missing.value)
    assert f"with TIKTOKEN_CACHE_DIR={tmp_path}: python -c" in str(missing.value)


def test_a_damaged_rank_file_is_neither_used_nor_fetched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = rank_file(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tiktoken.load.read_file", lambda _: pytest.fail("nothing is downloaded"))
    with pytest.raises(TokenizerUnavailable, match="is damaged;"):
        counter("cl100k_base")
    assert path.exists()
    assert counter("auto", "cl100k_base") is estimate
    path.unlink()
    path.mkdir()
    with pytest.raises(TokenizerUnavailable, match="contains no rank file"):
        counter("cl100k_base")


def test_auto_counts_as_the_model_does_where_its_rank_file_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = rank_file(tmp_path)
    whole = tokens._RankFile(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    ranks = {b"o": 0, b"k": 1, b"ok": 2}
    made = tiktoken.Encoding("tiny", pat_str=r"[a-z]+|.", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tokens, "_RANK_FILES", {"cl100k_base": whole})
    monkeypatch.setattr("tiktoken.get_encoding", {"cl100k_base": made}.__getitem__)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert counter("auto", "cl100k_base")("ok") == counter("cl100k_base")("ok") == 1
    assert counter("auto", "cl100k_base")("kk") == 2
    for encoding in (None, "o200k_base", "estimate"):
        assert counter("auto", encoding) is estimate
