"""JSON-RPC 2.0 between bytes and values: requests of a line, and replies. Pure."""

from __future__ import annotations

import json
import os
import sys
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, Final

import orjson

from config import json_text
from config.lean_typing import NamedTuple
from config.shapes import Record, Text, first_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    """One request. `id_json` is the id as it is sent back, None for a notification; `fault` is set if it cannot be
    served."""

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
    """The requests of one line; a request's error is in its `fault`. Responses are separate, because a response gets no
    answer."""
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
        return _refuse(INVALID_REQUEST, f"a batch has {MAX_BATCH} requests at most, not {len(value)}")
    requests = tuple(_request(member) for member in value if not _is_response(member))
    return RpcLine(requests, is_batch=True, replies=tuple(_reply(member) for member in value if _is_response(member)))


def refuse_line(message: str) -> RpcLine:
    """A line that was not even read to its end."""
    return _refuse(INVALID_REQUEST, message)


def read_line(line: bytes | FramingError) -> RpcLine | None:
    """The requests of one line, or of the error in place of one; None for an empty line."""
    if isinstance(line, FramingError):
        return refuse_line(str(line))
    return parse(line) if line.strip() else None


def unknown_method(method: str, known: Iterable[str]) -> RpcError:
    """The error for a method that there is not."""
    return RpcError(METHOD_NOT_FOUND, f"there is no method {method[:100]!r}; known are: {', '.join(known)}")


def internal_error(error: Exception) -> RpcError:
    """The error for an unexpected exception; AGENT_HOST_DEBUG=1 shows its traceback."""
    if os.environ.get("AGENT_HOST_DEBUG") == "1":
        sys.excepthook(type(error), error, error.__traceback__)
    return RpcError(INTERNAL_ERROR, f"internal error: {type(error).__name__}: {error}", "INTERNAL_ERROR")


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
    """`value`, parsed again if an id is beyond 64 bits: it was read as a float, and must be sent back as it came."""
    members = value if isinstance(value, list) else [value]
    ids = (member.get("id") for member in members if isinstance(member, dict))
    return json.loads(line) if any(isinstance(one, float) and abs(one) >= _FIRST_ROUNDED for one in ids) else value


# Parameters of a method against their shape (`config.shapes`).

_MAX_LISTED: Final = 100
_MAX_LISTED_CHARS: Final = 200


class InvalidParams(Exception):
    """Parameters that do not fit their shape; `str()` names them and the reason."""


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
    """A string for people and models; lone surrogates in it are replaced later."""
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


# Bytes to messages and back, in either framing (interface section 2): one JSON object a line, or a Content-Length
# header before each, as language servers have it. Pure; it buffers the unfinished message.

MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_HEADER_BYTES: Final = 4096
_MAX_LENGTH_DIGITS: Final = 18
_BLANK: Final = b" \t\r\n"
_FIRST_BYTES: Final = b"content-"
_FIRST_FIELD: Final = b"content-length:"


class FramingError(Exception):
    """The error in place of a message that cannot be read; `str()` is the reason."""


class LineTooLong(FramingError):
    """A line is over the limit; the rest of it will be skipped."""


class Framing:
    """The messages of one client. Its first bytes apart from white space and a byte order mark determine its framing:
    `Content-`, in any case, begins a header, anything else a line. Until then it gets the framing of the client
    `before` it, if there was one, else lines."""

    def __init__(self, limit: int = MAX_LINE_BYTES, *, before: Framing | None = None) -> None:
        self._limit = limit
        self._has_headers: bool = before is not None and before._has_headers  # noqa: SLF001  of the same class
        self._first = b""  # too few to know
        self._splitter: LineSplitter | HeaderSplitter | None = None

    def feed(self, data: bytes) -> list[bytes | FramingError]:
        """The messages that `data` completes; FramingError in place of one that cannot be read."""
        if self._splitter is None:
            data = (self._first + data).removeprefix(BOM_UTF8).lstrip(_BLANK)
            begins = data[: len(_FIRST_BYTES)].lower()
            if begins == _FIRST_BYTES:
                self._splitter, self._has_headers = HeaderSplitter(self._limit), True
            elif _FIRST_BYTES.startswith(begins) or BOM_UTF8.startswith(data):
                self._first = data
                return []
            else:
                self._splitter, self._has_headers = LineSplitter(self._limit), False
            self._first = b""
        return list(self._splitter.feed(data))

    def end(self) -> bytes | FramingError | None:
        """Take the end of the stream: a last line without its newline, or an error for a message that was cut off; None
        when nothing is left."""
        if self._splitter is None:
            first, self._first = self._first, b""
            return first or None
        return self._splitter.end()

    def wrap(self, message: bytes) -> bytes:
        """One encoded message as it goes to the client."""
        if self._has_headers:
            return b"Content-Length: %d\r\n\r\n%s" % (len(message), message)
        return message + b"\n"


class LineSplitter:
    """Lines of a stream of bytes, without their newlines. Each byte is looked at once; memory is bounded by `limit`."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | LineTooLong]:
        """The lines that `data` completes; LineTooLong in place of a line as soon as it exceeds the limit."""
        *ends, rest = data.split(b"\n")
        for piece in ends:
            yield from self._take(piece)
            if not self._skipping:
                yield bytes(self._rest)
            self._rest.clear()
            self._skipping = False
        yield from self._take(rest)

    def end(self) -> bytes | None:
        """The last line if the stream ended without a newline; None if nothing is left."""
        left = bytes(self._rest) or None
        self._rest.clear()
        self._skipping = False
        return left

    def _take(self, piece: bytes) -> Iterator[LineTooLong]:
        if self._skipping:
            return
        self._rest += piece
        if len(self._rest) > self._limit:
            self._rest.clear()
            self._skipping = True
            yield LineTooLong(f"a line is longer than {self._limit} bytes")


class HeaderSplitter:
    """Messages with headers. A header is lines of `Name: value`, each ended by CRLF, or by LF alone, and an empty line.
    Only the field Content-Length counts; others are ignored.

    After a header that cannot be read everything is skipped until a line begins with `Content-Length:`. No line within
    a JSON text does, so no part of a message is treated as a header. Memory is bounded by `limit`, and that of a header
    by MAX_HEADER_BYTES.
    """

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()  # of a line of a header, or of a body
        self._header_bytes = 0
        self._has_fields = False
        self._length: int | None = None
        self._missing_bytes = 0  # of the body
        self._skips_body = False
        self._is_lost = False

    def feed(self, data: bytes) -> Iterator[bytes | FramingError]:
        """The messages that `data` completes; FramingError in place of a message as soon as the error is found."""
        self._rest += data
        before = -1
        while self._rest and len(self._rest) != before:
            before = len(self._rest)
            yield from self._take_body() if self._missing_bytes else self._take_line()

    def end(self) -> FramingError | None:
        """An error for a message that the end of the stream cuts off; skipped data already had its error."""
        partial = self._missing_bytes or self._has_fields or self._rest.strip()
        is_cut_off = partial and not self._skips_body and not self._is_lost
        self._begin_header()
        self._missing_bytes, self._skips_body, self._is_lost = 0, False, False
        self._rest.clear()
        return FramingError("the stream ended within a message") if is_cut_off else None

    def _begin_header(self) -> None:
        self._header_bytes, self._has_fields, self._length = 0, False, None

    def _take_line(self) -> Iterator[bytes | FramingError]:
        end = self._rest.find(b"\n")
        if self._is_lost:
            self._is_lost = self._rest[: len(_FIRST_FIELD)].lower() != _FIRST_FIELD
            if self._is_lost:  # its first bytes show that the rest is skipped as well
                del self._rest[slice(end + 1) if end >= 0 else slice(len(_FIRST_FIELD), None)]
                return
        line = bytes(self._rest[:end] if end >= 0 else self._rest)
        del self._rest[: len(line) + 1]
        try:
            self._check_header(line, is_whole=end >= 0)
            if end < 0:
                self._rest += line
            elif line.removesuffix(b"\r"):
                self._take_field(line.removesuffix(b"\r"))
            elif self._has_fields:
                yield from self._begin_body()
            else:  # empty lines between two messages
                self._header_bytes = 0
        except FramingError as error:
            self._begin_header()
            self._is_lost = True
            self._rest += b"\0" if end < 0 else b""  # the rest of this line is skipped as well
            yield error

    def _check_header(self, line: bytes, *, is_whole: bool) -> None:
        # Reported at once: a client that ends no line may wait for its answer.
        if 0 <= line.find(b"{") < MAX_HEADER_BYTES - self._header_bytes:
            raise FramingError("a message begins before its header has ended with an empty line")
        size = self._header_bytes + len(line) + is_whole
        if size > MAX_HEADER_BYTES:
            raise FramingError(f"a header is longer than {MAX_HEADER_BYTES} bytes")
        if is_whole:
            self._header_bytes = size

    def _take_field(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if not colon or not name.replace(b"-", b"").isalnum():
            raise FramingError("a header's line is not of the form `Name: value`")
        self._has_fields = True
        if name.lower() + colon != _FIRST_FIELD:
            return
        value = value.strip(b" \t")
        if self._length is not None:
            raise FramingError("a header has more than one Content-Length")
        if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
            raise FramingError("Content-Length is not a number of bytes")
        self._length = int(value)

    def _begin_body(self) -> Iterator[bytes | FramingError]:
        length = self._length
        if length is None:
            raise FramingError("a header has no Content-Length")
        self._begin_header()
        self._missing_bytes = length
        self._skips_body = length > self._limit
        if self._skips_body:
            yield FramingError(f"a message is longer than {self._limit} bytes")
        elif length == 0:
            yield b""

    def _take_body(self) -> Iterator[bytes]:
        if self._skips_body:
            skipped = min(self._missing_bytes, len(self._rest))
            self._missing_bytes -= skipped
            self._skips_body = self._missing_bytes > 0
            del self._rest[:skipped]
        elif len(self._rest) >= self._missing_bytes:
            message = bytes(self._rest[: self._missing_bytes])
            del self._rest[: self._missing_bytes]
            self._missing_bytes = 0
            yield message
