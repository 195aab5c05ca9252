"""What errors of gateways mean: messages as servers word them, each status, and that no body raises (AH 6.4)."""

from __future__ import annotations

import time
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.errors import GatewayUnavailable
from agent_host.llm.dialects.openai_responses import failure_of
from agent_host.llm.errors import (
    KINDS,
    NAMES,
    STATUSES,
    WORDS,
    ErrorDetails,
    Kind,
    is_complete_answer,
    is_error,
    kind_of_answer,
    kind_of_event,
    limit_of,
    names_in,
    parse,
    read,
    read_value,
)
from policy.patterns import compile_shipped
from tests.support.rows import each_row
from tests.unit.llm.server_messages import AT, MESSAGES


@each_row(
    ("row", "message"),
    [(row, message) for row, messages in MESSAGES.items() for message in messages],
    ids=lambda value: value[:40] if isinstance(value, str) else "-",
)
def test_what_servers_say(row: tuple[str, str], message: str) -> None:
    kind, _ = row
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    assert kind_of_answer(AT.get(row, 400), read(orjson.dumps(body))) == kind
    assert kind_of_event(read_value(body), passing=True) == kind
    assert kind_of_event(ErrorDetails(f"invalid_request_error: {message}"), passing=False) == kind


def test_each_wording_has_a_message_that_it_finds() -> None:
    assert {(row.kind, row.server) for row in WORDS} == {*MESSAGES}
    for row in WORDS:
        pattern = compile_shipped(f"(?i){row.words}")
        assert any(pattern.search(said.encode()) for said in MESSAGES[row.kind, row.server]), row


def test_each_alternative_of_the_tables_is_of_a_known_kind() -> None:
    assert {*KINDS} == {*get_args(Kind)}
    assert {row.kind for row in WORDS} | {*NAMES} <= {*KINDS}
    names = [name for names in NAMES.values() for name in names]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)
    assert all({*reading.may, reading.otherwise} <= {*KINDS} for reading in STATUSES.values())


def test_each_code_of_a_failed_response_has_a_row() -> None:
    from openai.types.responses import ResponseError  # which takes a quarter of a second, in the worker that needs it

    for code in get_args(ResponseError.__annotations__["code"]):
        assert any(code in names for names in NAMES.values()), code
        fault = failure_of({"code": code, "message": "No."})
        kind = kind_of_event(read_value(fault.body), passing=fault.retryable)
        assert fault.retryable == issubclass(KINDS[kind].error, GatewayUnavailable), code


# The status at which each kind may be told by a name.
BY_NAME: dict[str, int] = {
    **dict.fromkeys(("too_long", "billing", "guardrail", "model", "image", "parameter"), 400),
    **dict.fromkeys(("too_large", "rate_limit", "credentials"), 400),
    "overloaded": 429,
}


@each_row(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_names_tell_what_an_error_means(kind: Kind, name: str) -> None:
    code: str | int = int(name) if name.isdigit() else name.upper()
    for body in ({"error": {"message": "no", "code": code}}, {"error": {"message": "no", "type": str(code)}}):
        if kind in BY_NAME:
            assert kind_of_answer(BY_NAME[kind], read_value(body)) == kind
        assert kind_of_event(read_value(body), passing=kind != "failed") == kind
    if "_" in name:
        assert kind_of_event(ErrorDetails("", names_in(f"{name}: no")), passing=kind != "failed") == kind


@each_row(
    ("status", "kind"),
    [
        (300, "refused"), (400, "refused"), (401, "credentials"), (402, "billing"), (403, "credentials"),
        (404, "refused"), (405, "refused"), (408, "failed"), (409, "failed"), (412, "refused"), (413, "too_large"),
        (418, "refused"), (422, "parameter"), (429, "rate_limit"), (446, "guardrail"), (500, "failed"),
        (501, "failed"), (502, "failed"), (503, "overloaded"), (504, "failed"), (529, "overloaded"), (599, "failed"),
    ],
)  # fmt: skip
def test_a_status_alone(status: int, kind: Kind) -> None:
    assert kind_of_answer(status, ErrorDetails("")) == kind
    assert kind_of_answer(status, ErrorDetails("a text without a row")) == kind


@each_row(
    ("status", "body", "kind"),
    [
        # One minute's tokens are not enough for it: a retry would be refused as well.
        (413, {"message": "Request too large for x on tokens per minute", "code": "rate_limit_exceeded"}, "too_large"),
        (413, {"message": "Prompt is too long"}, "too_long"),
        (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, "billing"),
        # Gemini words a limit of requests a minute in the same way.
        (429, {"message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}, "rate_limit"),
        (429, {"message": "prompt is too long, or so they say"}, "rate_limit"),
        (429, {"message": "engine busy", "type": "engine_overloaded_error"}, "overloaded"),
        (402, {"message": "rate limit"}, "billing"),
        (403, {"message": "no credits", "code": "insufficient_credits"}, "billing"),
        (403, {"message": "Your input was flagged"}, "guardrail"),
        (500, {"message": "no", "type": "exceed_context_size_error"}, "too_long"),
        (500, {"message": "Your credit balance is too low"}, "failed"),
        (503, {"message": "litellm.APIConnectionError - over the maximum context length of 9000"}, "too_long"),
        (400, {"message": "Your request was blocked", "type": "invalid_request_error"}, "refused"),
        (400, {"message": "Could not process image", "type": "invalid_request_error"}, "refused"),
        (400, {"message": "No connected db.", "type": "no_db_connection", "code": "400"}, "credentials"),
        (403, {"message": "Top up first.", "details": {"error_code": "credits_required"}}, "billing"),
        (400, {"message": "Top up.", "details": [{"error_code": "CREDITS-REQUIRED"}]}, "billing"),
        (503, {"message": "Loading model", "type": "unavailable_error", "code": 503}, "loading"),
        (500, {"message": "Model x is currently loading"}, "loading"),
        (500, {"message": "error loading model: out of memory"}, "failed"),
        # A name counts before words, which may quote what was sent.
        (400, {"message": "flagged: 'prompt is too long'", "code": "content_filter"}, "guardrail"),
    ],
)  # fmt: skip
def test_status_names_and_words_together(status: int, body: dict[str, Any], kind: Kind) -> None:
    assert kind_of_answer(status, read_value({"error": body})) == kind


@each_row(
    "body",
    [
        {"type": "error", "error": {"type": "x", "message": "boom"}},
        {"error": {"message": "boom", "type": None, "param": None, "code": "x"}},
        {"error": "boom"},
        {"object": "error", "message": "boom", "type": "BadRequestError", "param": None, "code": 400},
        {"detail": "boom"},
        {"detail": {"error": {"message": "boom"}}},
        {"detail": [{"loc": ["body", "x"], "msg": "boom", "type": "missing"}]},
        {"errors": [{"message": "boom"}, {"message": "boom"}]},
        [{"error": {"code": 400, "message": "boom", "errors": [{"message": "boom"}], "status": "INVALID_ARGUMENT"}}],
        {"error": {"message": "boom", "code": 400, "metadata": {"raw": '{"error": {"message": "boom"}}'}}},
        {"error": '{"error": {"message": "boom"}, "user_id": "x"}'},
        {"message": {"action": "GUARDRAIL_INTERVENED", "actionReason": "boom"}},
        "boom",
    ],
)
def test_messages_are_found_in_every_shape(body: Any) -> None:
    assert read(orjson.dumps(body)).message in ("boom", '"boom"')


def test_all_that_is_said_is_read_once() -> None:
    raw = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens"}}
    body = {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": orjson.dumps(raw).decode()}}
    }
    said = read_value(body)
    assert said.message == "Provider returned error: prompt is too long: 9 tokens"
    assert said.names >= {"400", "invalid_request_error"}
    assert said.status == 400


def test_details_have_names_as_well() -> None:
    body = {"error": {"type": "x", "message": "m", "details": {"error_code": "credit_balance_too_low"}}}
    assert kind_of_answer(400, read_value(body)) == "billing"
    azure = {"error": {"message": "m", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}
    assert kind_of_answer(400, read_value(azure)) == "guardrail"


@each_row(
    ("message", "limit"),
    [
        ("prompt is too long: 213462 tokens > 200000 maximum", 200_000),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease", 200_000),
        ("This model's maximum context length is 16384 tokens. However, you requested 19591 tokens", 16_384),
        ("This model's maximum context length is 131,072 tokens.", 131_072),
        ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", 40_960),
        ("exceeds the available context size (133376 tokens), try increasing it", 133_376),
        ("The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
        ("too large for model with 131072 maximum context length", 131_072),
        ("maximum prompt length is 131072 but the request contains 537812 tokens", 131_072),
        ("prompt token count of 202345 exceeds the limit of 128000", 128_000),
        ("Your request exceeded model token limit: 262144 (requested: 310000)", 262_144),
        ("input token count is 39206 but model only supports up to 32768.", 32_768),
        ("loaded with context length of only 4096 tokens", 4096),
        ("longer than the maximum model length of 8192.", 8192),
        ("exceeds the context window of this model", None),
        ("prompt too long; exceeded max context length by 100918 tokens", None),
        ("", None),
    ],
)  # fmt: skip
def test_how_much_a_model_takes_is_read_where_it_is_said(message: str, limit: int | None) -> None:
    assert limit_of(ErrorDetails(message)) == limit


def test_a_limit_of_its_own_field_counts_first() -> None:
    body = {"error": {"message": "prompt is too long: 10 tokens > 2000 maximum", "n_ctx": 256, "n_prompt_tokens": 1407}}
    assert limit_of(read_value(body)) == 256
    assert limit_of(read_value({"error": {"message": "x", "n_ctx": True}})) is None


# --- bodies that nobody meant -----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("error", "message", "type", "code", "detail", "metadata", "raw", "status", "n_ctx", "x")),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values, st.integers(300, 599))
def test_no_json_raises(value: Any, status: int) -> None:
    said = read_value(value)
    assert kind_of_answer(status, said) in KINDS
    assert kind_of_event(said, passing=True) in KINDS
    assert limit_of(said) is None or limit_of(said) > 0  # type: ignore[operator]
    assert len(said.message) <= 4096
    assert isinstance(is_error(value), bool)
    assert isinstance(is_complete_answer(value), bool)


@given(st.binary(max_size=300), st.integers(300, 599))
def test_no_bytes_raise(body: bytes, status: int) -> None:
    said = read(body)
    assert kind_of_answer(status, said) in KINDS
    assert "\n" not in said.message
    parse(body)


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    """Halves of characters are in what an assembler puts together."""
    said = ErrorDetails(text + "\ud800", names_in(text))
    assert kind_of_event(said, passing=True) in KINDS
    limit_of(said)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 10_000 + b"]" * 10_000,
        orjson.dumps({"error": {"message": "x" * 65_000}}),
        orjson.dumps({"errors": [{"message": "a" * 40 + str(n), "code": n} for n in range(900)]}),
        orjson.dumps({"error": {"message": "request too large for " * 3000}}),
        orjson.dumps({"error": {"message": "violated " * 7000}}),
    ],
)
def test_a_body_as_large_as_can_be_costs_little(body: bytes) -> None:
    read(b"{}")
    kind_of_answer(400, ErrorDetails("x"))  # the patterns are compiled
    began = time.process_time()
    said = read(body)
    kind_of_answer(400, said)
    limit_of(said)
    assert time.process_time() - began < 0.2
    assert len(said.names) <= 1000
