"""How deep JSON from outside may nest: one bound, whatever the interpreter's own is."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm import errors
from agent_host.llm.dialects import CallReader
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.llm.raw_json import loads_with_halves
from agent_host.rpc.messages import parse
from config.json_text import MAX_DEPTH, TooDeep, check_depth, loads, mend_halves
from policy.bundle import BundleProblems
from policy.bundle.validate import read_shape
from tests.support.rows import each_row
from tool_runtime.files.documents import NotANotebook, render
from tool_runtime.schema import advice_on

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]


def nested(depth: int, inside: str = "") -> str:
    """An object with `depth` levels, itself among them."""
    return '{"a":' + "[" * (depth - 1) + inside + "]" * (depth - 1) + "}"


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


values = st.recursive(
    st.none() | st.integers(0, 9) | st.text(alphabet='[]{}"\\,:a\u2028é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"\\a'), inner, max_size=3),
    max_leaves=20,
)


@given(values, st.integers(-2, 2), st.booleans())
def test_brackets_count_where_they_stand_in_no_string(value: Any, beyond: int, ascii_only: bool) -> None:
    around = max(0, MAX_DEPTH - depth_of(value) + beyond)
    text = "[" * around + json.dumps(value, ensure_ascii=ascii_only) + "]" * around
    for given_as in (text, text.encode()):
        if depth_of(value) + around > MAX_DEPTH:
            with pytest.raises(TooDeep):
                check_depth(given_as)
        else:
            assert loads(given_as) == orjson.loads(given_as)


def test_wide_is_not_deep() -> None:
    text = "[" + ",".join(["[]"] * 100_000) + "]"
    assert len(loads(text)) == 100_000
    assert loads(json.dumps("[" * 100_000)) == "[" * 100_000


def test_a_hostile_text_costs_its_length() -> None:
    text = b"[" + b",".join([b"[" * 190 + b"]" * 190] * 20_000) + b"]"
    began = time.process_time()
    check_depth(text)
    assert time.process_time() - began < 5


def passes(read: Callable[[str], Any], *refusals: type[Exception]) -> Callable[[str], bool]:
    def whether(text: str) -> bool:
        try:
            return bool(read(text) is not None)
        except refusals:
            return False

    return whether


READERS: dict[str, tuple[Callable[[str], bool], int]] = {
    "a request": (lambda text: is_served("1", text), 1),
    "a request with half a character": (lambda text: is_served('"\\ud800"', text), 1),
    "arguments of a call": (lambda text: CallReader().call("c", "X", text).problem is None, 0),
    "arguments of a call, whole": (lambda text: CallReader().call("c", "X", orjson.loads(text)).problem is None, 0),
    "an event with half a character": (passes(loads_with_halves, ValueError), 0),
    "a gateway's error": (passes(lambda text: errors.parse(text.encode())), 0),
    "a bundle": (lambda text: not read_shape_problems(text.encode()), 0),
    "a bundle in UTF-16": (lambda text: not read_shape_problems(text.encode("utf-16")), 0),
    "a bundle as a value": (passes(lambda text: read_shape(orjson.loads(text)), BundleProblems), 0),
    "a notebook": (passes(lambda text: render(f'{{"cells":[{text}]}}'.encode()), NotANotebook), 2),
    "a text for an object": (lambda text: advice_on(text, lambda value: isinstance(value, dict)) != "", 0),
}


def is_served(given_id: str, params: str) -> bool:
    line = f'{{"jsonrpc":"2.0","id":{given_id},"method":"m","params":{params}}}'
    return parse(line.encode()).requests[0].fault is None


def read_shape_problems(raw: bytes) -> bool:
    try:
        return bool(read_shape(raw)[1])
    except BundleProblems:
        return True


@each_row("name", READERS)
def test_every_reader_has_the_same_bound(name: str) -> None:
    reads, around = READERS[name]
    assert reads(nested(MAX_DEPTH - around))
    for depth in (MAX_DEPTH - around + 1, 253, 400, 900, 1000):
        assert not reads(nested(depth))


@pytest.mark.parametrize("depth", [100, 400, 900])
def test_a_whole_answer_is_taken_apart_however_deep_one_of_its_calls_nests(depth: int) -> None:
    block = f'{{"type":"tool_use","id":"c","name":"X","input":{nested(depth)}}}'
    events = dict(
        AnthropicDialect().events_of_answer(
            f'{{"content":[{block},{{"type":"text","text":"]"}}],"stop_reason":"end_turn"}}'
        )
    )
    assert orjson.loads(events["content_block_start"])["content_block"] == {"type": "text", "text": "]"}


OWN = {
    "agent_host/clients/__init__.py": "what our own client wrote",
    "agent_host/host/sessions.py": "an event of ours",
    "agent_host/host/dry_runs.py": "a bundle that was read before",
    "agent_host/host/environment.py": "settings that were read before",
    "agent_host/events/emitter.py": "an event of ours",
    "agent_host/events/otel_export.py": "a file of ours",
    "agent_host/faults/crash_run.py": "what our own program printed",
    "agent_host/llm/dialects/__init__.py": "a text that was measured before",
    "agent_host/llm/raw_json.py": "strings and numbers",
    "agent_host/redaction.py": "a record of ours",
    "policy/bundle/validate.py": "settings that were read before",
    "policy/redaction.py": "a record of ours",
    "tool_runtime/files/documents.py": "what our own program printed",
    "config/load.py": "a file of ours",
}


def test_the_standard_library_reads_nothing_from_outside_that_was_not_measured() -> None:
    """Its bound differs between interpreters; orjson's does not."""
    reads = re.compile(r"\bjson\.loads?\(|\bJSONDecoder\(")
    measures = re.compile(r"\bcheck_depth\(|\bjson_text\.loads\(")
    found = {
        str(path.relative_to(ROOT))
        for package in ("agent_host", "config", "policy", "state", "tool_runtime")
        for path in (ROOT / package).rglob("*.py")
        if reads.search(text := path.read_text("utf-8")) and not measures.search(text)
    }
    assert found - set(OWN) == set()


@each_row(
    ("text", "mended"),
    [
        ('{"a":"\\ud83d"}', {"a": "?"}),
        ('{"\\uDE00a":["\\ud800\\ud83d\\ude00"]}', {"?a": ["?😀"]}),
        ('{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a":"\\\\ud800"}', {"a": "\\ud800"}),
        ('{"a":"ü"}', {"a": "ü"}),
    ],
)
def test_half_of_a_character_is_a_question_mark(text: str, mended: Any) -> None:
    assert orjson.loads(mend_halves(text)) == mended


@each_row("text", ['{"a":"\\ud800', "\\ud800", "[" * 500 + '"\\ud800"' + "]" * 500])
def test_what_is_no_json_or_too_deep_is_not_mended(text: str) -> None:
    assert mend_halves(text) == text
