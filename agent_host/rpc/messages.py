"""JSON-RPC 2.0 between bytes and values: what a line asks for, and what goes back. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from config import json_text
from config.lean_typing import NamedTuple
from config.shapes import Record, Text, first_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from config.shapes import Shape

MAX_BATCH: Final = 1000
_FIRST_ROUNDED: Final = 2.0**63
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603


class RpcError(NamedTuple):
    """An error to be answered: `code` as on the wire, `name` the documented one that goes into `data.code`."""

    code: int
    message: str
    name: str = "INVALID_REQUEST"
    retryable: bool = False
    details: Mapping[str, Any] | None = None


class RpcRequest(NamedTuple):
    """One request. `id_json` is the id as it goes back, None for a notification; `fault` where it cannot be served."""

    id_json: bytes | None
    method: str = ""
    params: Mapping[str, Any] = {}
    fault: RpcError | None = None


class RpcReply(NamedTuple):
    """The answer of the other side to a request of ours: the id as it came, and `result` or `error`, unchecked."""

    id: Any
    result: Any = None
    error: Any = None


class RpcLine(NamedTuple):
    """The messages of one line. A batch is answered by one array. `replies` are for a side that asks as well."""

    requests: Sequence[RpcRequest]
    is_batch: bool = False
    replies: Sequence[RpcReply] = ()


def parse(line: bytes) -> RpcLine:
    """The requests of one line; what is wrong with one is in its `fault`. Responses are apart from them: nobody answers
    a response."""
    try:
        value = _keep_exact_ids(json_text.loads(line), line)
    except json_text.TooDeep as error:
        return _refuse(PARSE_ERROR, f"this line cannot be read: {error}")
    except orjson.JSONDecodeError as error:
        value = _load_with_half_characters(line)
        if value is None:
            return _refuse(PARSE_ERROR, f"this line is not JSON in UTF-8: {error}")
    if not isinstance(value, list):
        return RpcLine((), replies=(_reply(value),)) if _is_response(value) else RpcLine((_request(value),))
    if not value:
        return _refuse(INVALID_REQUEST, "a batch needs at least one request")
    if len(value) > MAX_BATCH:
        return _refuse(INVALID_REQUEST, f"a batch holds {MAX_BATCH} requests at most, not {len(value)}")
    requests = tuple(_request(member) for member in value if not _is_response(member))
    return RpcLine(requests, is_batch=True, replies=tuple(_reply(member) for member in value if _is_response(member)))


def refuse_line(message: str) -> RpcLine:
    """A line that was not even read to its end."""
    return _refuse(INVALID_REQUEST, message)


def encode_result(id_json: bytes, result: Mapping[str, Any]) -> bytes:
    """The answer to one request."""
    return b'{"jsonrpc":"2.0","id":' + id_json + b',"result":' + json_text.dumps(result) + b"}"


def encode_fault(id_json: bytes, fault: RpcError) -> bytes:
    """The error object of one request (interface section 2)."""
    data: dict[str, Any] = {"code": fault.name, "retryable": fault.retryable}
    if fault.details:
        data["details"] = dict(fault.details)
    error = {"code": fault.code, "message": fault.message, "data": data}
    return b'{"jsonrpc":"2.0","id":' + id_json + b',"error":' + json_text.dumps(error) + b"}"


def encode_event(envelope: bytes) -> bytes:
    """The `SessionEvent` notification of one encoded envelope."""
    return b'{"jsonrpc":"2.0","method":"SessionEvent","params":' + envelope.rstrip(b"\n") + b"}"


def _refuse(code: int, message: str) -> RpcLine:
    return RpcLine((RpcRequest(b"null", fault=RpcError(code, message)),))


def _is_response(value: Any) -> bool:
    return isinstance(value, dict) and "method" not in value and ("result" in value or "error" in value)


def _reply(value: Any) -> RpcReply:
    return RpcReply(value.get("id"), value.get("result"), value.get("error"))


def _request(value: Any) -> RpcRequest:
    if not isinstance(value, dict):
        return _invalid(b"null", "a request is a JSON object")
    given = value.get("id")
    if isinstance(given, (bool, dict, list)):
        return _invalid(b"null", "an id is a string or a number")
    id_json = json_text.dumps(given) if "id" in value else None
    answer_to = id_json if id_json is not None else b"null"
    if value.get("jsonrpc") != "2.0":
        return _invalid(answer_to, 'a request says "jsonrpc": "2.0"')
    method = value.get("method")
    if not isinstance(method, str):
        return _invalid(answer_to, "a request names its method in a string")
    params = value.get("params", {})
    if isinstance(params, list):
        fault = RpcError(INVALID_PARAMS, "parameters are given by name, in an object")
        return RpcRequest(id_json, method, fault=fault)
    if not isinstance(params, dict):
        return _invalid(answer_to, "params is an object")
    return RpcRequest(id_json, method, params)


def _invalid(id_json: bytes, message: str) -> RpcRequest:
    return RpcRequest(id_json, fault=RpcError(INVALID_REQUEST, message))


def _load_with_half_characters(line: bytes) -> Any:
    """Decode JSON with half of a character in it (`"\\ud83d"`), as JavaScript writes a text that was cut within one;
    orjson refuses it. None for everything else that it refuses."""
    if b"\\u" not in line:
        return None

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(line.decode(), parse_constant=refuse)
    except ValueError:
        return None


def _keep_exact_ids(value: Any, line: bytes) -> Any:
    """`value`, read once more where an id is beyond 64 bits: it came as a float, and has to go back as it was sent."""
    members = value if isinstance(value, list) else [value]
    if not any(isinstance(member, dict) and _is_rounded(member.get("id")) for member in members):
        return value
    return json.loads(line)


def _is_rounded(given: Any) -> bool:
    return isinstance(given, float) and abs(given) >= _FIRST_ROUNDED


# Parameters of a method against their shape (`config.shapes`).

_MAX_LISTED: Final = 100
_MAX_LISTED_CHARS: Final = 200


class InvalidParams(Exception):
    """Parameters that break their shape; `str()` says which and why."""


class Params(Record):
    """An object with these members. Others are of a later version of the protocol, and have no effect."""

    def __init__(self, required: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        super().__init__(required, optional)
        self._members = {**required, **optional}

    def unknown(self, value: Mapping[str, Any], path: str = "") -> Iterator[str]:
        """The paths of members of `value`, which fits, that have no effect: `name`, or `taskOptions.name`."""
        for name, item in value.items():
            shape = self._members.get(name)
            if shape is None:
                yield path + name
            elif isinstance(shape, Params):
                yield from shape.unknown(item, f"{path}{name}.")


def params(required: Mapping[str, Shape] | None = None, optional: Mapping[str, Shape] | None = None) -> Params:
    """The shape of an object with these members."""
    return Params(required or {}, optional or {})


def name(most_chars: int = 1024) -> Text:
    """A string that is not empty and can be part of a path."""
    return Text(1, most_chars)


def prose(most_chars: int, *, least_chars: int = 0) -> Text:
    """A string for people and models; what half of a character it holds is replaced later on."""
    return Text(least_chars, most_chars, nul=True, halves=True)


def list_ignored(shape: Params, value: Mapping[str, Any]) -> list[str]:
    """The paths of unknown members of `value`, which fits, for the field `ignored` of a reply; sorted, the first 100,
    each cut at 200 characters."""
    unknown = list(shape.unknown(value))
    return [path[:_MAX_LISTED_CHARS] for path in sorted(unknown)[:_MAX_LISTED]] if unknown else unknown


def check(shape: Shape, value: Mapping[str, Any]) -> None:
    """Raises InvalidParams with the first problem of `value`. Members of no name that `shape` has are no problem."""
    problem = first_problem(shape, value)
    if problem is not None:
        raise InvalidParams(problem.sentence)
