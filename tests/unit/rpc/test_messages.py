"""JSON-RPC 2.0 to the letter: what a line asks for, and how it is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.rpc.messages import (
    MAX_BATCH,
    RpcError,
    RpcLine,
    encode_event,
    encode_fault,
    encode_result,
    parse,
    refuse_line,
)
from config.json_text import MAX_DEPTH
from tests.support.rows import each_row

IDS = st.none() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
PARSE, INVALID, PARAMS = -32700, -32600, -32602


def member(**changes: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {}, **changes}


def parsed(value: Any) -> RpcLine:
    return parse(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def codes(line: RpcLine) -> list[int | None]:
    return [None if request.fault is None else request.fault.code for request in line.requests]


@given(IDS, st.booleans())
def test_an_id_goes_back_as_it_came(given_id: Any, batch: bool) -> None:
    asked = member(id=given_id)
    (request,) = parsed([asked] if batch else asked).requests
    assert (request.fault, request.method) == (None, "m")
    assert request.id_json is not None
    answer = json.loads(encode_result(request.id_json, {"a": 1}))
    assert answer == {"jsonrpc": "2.0", "id": given_id, "result": {"a": 1}}
    assert type(answer["id"]) is type(given_id)


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**299])
def test_a_number_beyond_64_bits_among_others(number: int) -> None:
    line = parsed([member(id=1), 7, member(id=number), member(id="x")])
    assert [request.id_json for request in line.requests] == [b"1", b"null", str(number).encode(), b'"x"']


@pytest.mark.parametrize("given_id", [7, 10**25, "\ud83d"])
def test_a_request_nests_as_deep_as_every_reader_follows(given_id: Any) -> None:
    def request(depth: int) -> Any:
        deep = "[" * depth + "]" * depth
        line = f'{{"jsonrpc":"2.0","id":{json.dumps(given_id)},"method":"m","params":{{"x":{deep}}}}}'
        return parse(line.encode()).requests[0]

    assert request(MAX_DEPTH - 2).fault is None
    assert json.loads(request(MAX_DEPTH - 2).id_json) == given_id
    assert request(MAX_DEPTH - 1).fault == RpcError(PARSE, "this line cannot be read: it nests deeper than 200 levels")


def test_many_such_numbers_are_read_once() -> None:
    line = parsed([member(id=10**20 + number, params={"x": "y" * 10_000}) for number in range(MAX_BATCH)])
    assert line.requests[-1].id_json == str(10**20 + MAX_BATCH - 1).encode()


@pytest.mark.parametrize("unfit", [True, False, [], {}, [1]])
def test_what_is_no_id(unfit: Any) -> None:
    (request,) = parsed(member(id=unfit)).requests
    assert (request.id_json, request.fault and request.fault.code) == (b"null", INVALID)


def test_a_notification_has_no_answer() -> None:
    asked = member()
    del asked["id"]
    (request,) = parsed(asked).requests
    assert (request.id_json, request.fault) == (None, None)


@each_row(
    "line",
    [
        b"{", b"nonsense", b"\xff\xfe", b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}', b"[1,]",
        b'{"id":1e999}', b"[" * 5000 + b"]" * 5000, b'"\xed\xa0\x80"', b"\x00", b'{"a":"\n"}', b"\xef\xbb\xbf{}",
        b"'a'",
    ],
)  # fmt: skip
def test_a_line_that_is_no_json(line: bytes) -> None:
    read = parse(line)
    assert (codes(read), read.is_batch, read.requests[0].id_json) == ([PARSE], False, b"null")


@pytest.mark.parametrize("value", [1, "text", None, True, []])
def test_a_line_that_is_no_request(value: Any) -> None:
    read = parsed(value)
    assert (codes(read), read.is_batch, read.requests[0].id_json) == ([INVALID], False, b"null")


@each_row(
    ("changes", "code"),
    [
        ({"jsonrpc": "1.0"}, INVALID),
        ({"jsonrpc": 2.0}, INVALID),
        ({"jsonrpc": None}, INVALID),
        ({"method": None}, INVALID),
        ({"method": 1}, INVALID),
        ({"params": None}, INVALID),
        ({"params": "x"}, INVALID),
        ({"params": 3}, INVALID),
        ({"params": []}, PARAMS),
        ({"params": ["s"]}, PARAMS),
    ],
)
def test_a_request_that_is_none(changes: dict[str, Any], code: int) -> None:
    (request,) = parsed(member(id="me", **changes)).requests
    assert (request.id_json, request.fault and request.fault.code) == (b'"me"', code)


@pytest.mark.parametrize("name", ["jsonrpc", "method"])
def test_what_a_request_cannot_do_without(name: str) -> None:
    asked = member()
    del asked[name]
    assert codes(parsed(asked)) == [INVALID]
    del asked["id"]
    (request,) = parsed(asked).requests
    assert request.id_json == b"null"  # it is no notification either


def test_params_may_be_left_out() -> None:
    asked = member()
    del asked["params"]
    assert parsed(asked).requests[0].params == {}


def test_of_two_members_of_one_name_the_last_one_counts() -> None:
    (request,) = parse(b'{"jsonrpc":"2.0","id":1,"method":"a","method":"b","id":2}').requests
    assert (request.method, request.id_json) == ("b", b"2")


def test_a_batch_is_read_member_by_member() -> None:
    line = parsed([member(id=1), 1, {}, member(id=2, params=[]), member(id="é\u2028")])
    assert line.is_batch
    assert codes(line) == [None, INVALID, INVALID, PARAMS, None]
    assert [request.id_json for request in line.requests] == [b"1", b"null", b"null", b"2", '"é\u2028"'.encode()]


def test_a_batch_has_a_limit() -> None:
    assert len(parsed([member()] * MAX_BATCH).requests) == MAX_BATCH
    assert codes(parsed([member()] * (MAX_BATCH + 1))) == [INVALID]


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_line_is_read_and_answered_on_one_line(line: bytes) -> None:
    for request in parse(line).requests:
        if request.fault is not None and request.id_json is not None:
            answer = encode_fault(request.id_json, request.fault)
            assert b"\n" not in answer
            assert json.loads(answer)["error"]["code"] == request.fault.code


def test_a_fault_on_the_wire() -> None:
    fault = RpcError(-32031, "in use", "SESSION_HELD", retryable=True, details={"pid": 7})
    assert json.loads(encode_fault(b"3", fault)) == {
        "jsonrpc": "2.0",
        "id": 3,
        "error": {
            "code": -32031,
            "message": "in use",
            "data": {"code": "SESSION_HELD", "retryable": True, "details": {"pid": 7}},
        },
    }
    assert "details" not in json.loads(encode_fault(b"3", fault._replace(details={})))["error"]["data"]


def test_what_json_cannot_say_is_told_all_the_same() -> None:
    assert json.loads(encode_result(b"1", {"name": "a\udcff", "size": 2**70}))["result"]["size"] == 2**70


def test_a_line_that_was_not_read() -> None:
    line = refuse_line("too long")
    assert (codes(line), line.requests[0].id_json) == ([INVALID], b"null")


def test_an_event_on_the_wire() -> None:
    told = encode_event(b'{"eventId":1}\n')
    assert b"\n" not in told
    assert json.loads(told) == {"jsonrpc": "2.0", "method": "SessionEvent", "params": {"eventId": 1}}


def test_half_a_character_of_javascript_is_read() -> None:
    (request,) = parse(b'{"jsonrpc":"2.0","id":"\\ud83d","method":"m","params":{"prompt":"cut \\ud83d"}}').requests
    assert request.fault is None
    assert request.params == {"prompt": "cut \ud83d"}
    assert encode_result(request.id_json or b"", {}) == b'{"jsonrpc":"2.0","id":"\\ud83d","result":{}}'


@pytest.mark.parametrize("line", [b'{"a":"\\ud83d", "b": NaN}', b'{"a":"\\ud83d"', b'{"a":"\\ud83d \xff"}'])
def test_what_is_no_json_besides_stays_refused(line: bytes) -> None:
    (request,) = parse(line).requests
    assert request.fault is not None
    assert request.fault.code == -32700


@pytest.mark.parametrize(
    "response",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}',
        b'{"id":[],"result":null,"error":1}',
        b'[{"jsonrpc":"2.0","id":1,"result":{}},{"error":0}]',
    ],
)
def test_a_response_asks_for_nothing(response: bytes) -> None:
    assert parse(response).requests == ()


def test_a_response_among_requests_is_left_out() -> None:
    line = parse(b'[{"result":1,"id":1},{"jsonrpc":"2.0","id":2,"method":"m"},{"result":1,"method":"m"},{"id":3}]')
    assert [request.id_json for request in line.requests] == [b"2", b"null", b"3"]
    assert [request.fault is None for request in line.requests] == [True, False, False]
