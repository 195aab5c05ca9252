"""Messages of a server: repaired before the SDK's models read them (decision 0096), and its questions to a person.

The SDK rejects a whole answer for one field of it, and drops a message with an odd envelope, so that the call waits for
its timeout. Here a message is read as far as possible, and encoded again in the form that the SDK accepts:

- The answer to `tools/list` or `tools/call` becomes an empty one of that method. The server's own answer goes with it
  as a text, which `answer_in` reads; `source` takes it item by item.
- Whatever has the id of a waiting request and is no request itself is its answer, also where it is no JSON.
- A line, body or event may hold several messages, or begin with what the program printed, and a program may print a
  message over several lines. What is no message is noise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import orjson

from agent_host.contracts import PersonAnswer, PersonAsked
from config import json_text
from tool_runtime.remote.mcp import Asking, NotSent
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Id = int | str
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Send = Callable[[Mapping[str, Any]], Awaitable[Any]]
    _Elicited = types.ElicitResult | types.ErrorData

_ANSWER: Final = "agent-host/answer"
_LIST: Final = "tools/list"
_CALL: Final = "tools/call"
_COMPLETE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Needed in the newer era, ignored in the older one."""
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_OLDEST: Final = "2024-11-05"
_TOO_DEEP: Final = b'"[nested too deep]"'
_MAX_LEVELS: Final = json_text.MAX_DEPTH // 2
"""Of a message that nests too deep, so many levels are kept: more than any schema may have (`foreign_schema`)."""
_MAX_STARTS: Final = 8
_MAX_REPAIRED_BYTES: Final = 1024 * 1024  # of a message that is read in Python's own time, while nothing else runs
_MAX_NOISE_CHARS: Final = 500
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:(")|\\?\Z)|[\[{\]}]', re.DOTALL)
_START: Final = re.compile(r'(?:\[\s*)?\{\s*"(?:jsonrpc|id|method|params|result|error)"\s*:')
_FIRST_LINE: Final = re.compile(rb'\s*(?:[\[{][\s\[{]*\Z|(?:\[\s*)?\{\s*"[^"\\]*"\s*:)')
"""Of a message over several lines: brackets only, or a first field."""
_ID: Final = re.compile(rb'"id"\s*:\s*("?)([0-9]{1,18})\1')
_ENVELOPE: Final = frozenset({"jsonrpc", "id", "result", "error"})


class Incoming:
    """The messages of one connection. `noise` is the first text from the server that was no message."""

    def __init__(self) -> None:
        self._waiting: dict[Id, str] = {}
        self._unfinished = bytearray()
        self._levels = 0
        self._in_text = False
        self.noise = ""

    def note_sent(self, message: bytes) -> Id | None:
        """Note a message that goes to the server. Returns its id if it is a request that the server has to answer."""
        try:
            request = orjson.loads(message)
        except orjson.JSONDecodeError:
            return None
        key = _key(request.get("id")) if isinstance(request, dict) and "method" in request else None
        if key is not None:
            self._waiting[key] = str(request["method"])
        return key

    def messages(self, raw: bytes, to: Id | None = None) -> list[dict[str, Any]]:
        """Return the messages in a line or event in a form that the SDK takes. `to` is the request that the event
        belongs to: every answer in it is an answer to that one."""
        values = list(_values(raw))
        found = [message for one in values if (message := self._mend(one, to)) is not None]
        if not values and (key := self._unreadable_key(raw, to)) is not None:
            found.append(self._answer(key, _wrap_text(raw)))
        if not found and not self.noise and not any(map(_is_message, values)):
            self.noise = raw.decode("utf-8", "replace").strip()[:_MAX_NOISE_CHARS]
        return found

    def line(self, raw: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete with this line of a program. A message may be printed over several
        lines, unless its first line already has the id and the result."""
        if not raw.strip():
            return []
        if self._unfinished and any(map(self._is_expected, _values(raw))):
            self._unfinished.clear()
        if not self._unfinished:
            if not self._waiting or not _FIRST_LINE.match(raw) or self._unreadable_key(raw) is not None:
                return self.messages(raw)
            self._levels, self._in_text = 0, False
        self._unfinished += raw
        if len(self._unfinished) <= _MAX_REPAIRED_BYTES and self._is_open_after(raw):
            return []
        whole = bytes(self._unfinished)
        self._unfinished.clear()
        return self.messages(whole)

    def _is_expected(self, value: Any) -> bool:
        """True for a whole message, as opposed to a part of one that looks alike."""
        return _is_message(value) and ("jsonrpc" in value or _key(value.get("id")) in self._waiting)

    def _is_open_after(self, raw: bytes) -> bool:
        """True if brackets are open after this line. A text may continue from the line before."""
        for found in _TOKEN.finditer(b'"' + raw if self._in_text else raw):
            self._levels += (found[0] in (b"[", b"{")) - (found[0] in (b"]", b"}"))
            self._in_text = found[0].startswith(b'"') and found[1] is None
        return self._levels > 0

    def body(self, raw: bytes, to: Id, content_type: str) -> dict[str, Any]:
        """Return the answer in the body of an HTTP answer to the request `to`."""
        for message in self.messages(raw, to):
            if "method" not in message:
                return message
        if "json" in content_type or not content_type:
            return self._answer(to, _wrap_text(raw))
        error = {"code": _INVALID_REQUEST, "message": f"Unexpected content type: {content_type[:_MAX_NOISE_CHARS]}"}
        return self._answer(to, {"error": error})

    def _mend(self, message: Any, to: Id | None) -> dict[str, Any] | None:
        if not _is_message(message):
            return None
        method = message.get("method")
        if "result" not in message and "error" not in message and ("method" in message or "id" not in message):
            return _server_message(message, method) if isinstance(method, str) else None
        key = _key(message.get("id")) if to is None else to
        if key is None or key not in self._waiting:
            return None
        error, result = message.get("error"), message.get("result")
        if error is not None and result is None:
            return self._answer(key, {"error": _error(error)})
        if "result" not in message:  # its fields may be next to the id
            others = {name: value for name, value in message.items() if name not in _ENVELOPE}
            result = others or "[the answer has neither a result nor an error]"
        return self._answer(key, {"result": result})

    def _unreadable_key(self, raw: bytes, to: Id | None = None) -> Id | None:
        """The request that a text which is no JSON answers, by an id and a result that can be seen in it."""
        if b'"result"' not in raw and b'"error"' not in raw:
            return None
        found = _ID.search(raw)
        key = to if to is not None else int(found[2]) if found else None
        return key if key in self._waiting else None

    def _answer(self, key: Id, answer: dict[str, Any]) -> dict[str, Any]:
        method = self._waiting.pop(key, "")
        result = answer.get("result")
        if method in (_LIST, _CALL) and not (method == _CALL and _asks_for_input(result)):
            shell = {"tools": _names_of(result)} if method == _LIST else {"content": []}
            mended = {**shell, **_COMPLETE, "_meta": {_ANSWER: orjson.dumps(answer).decode()}}
            return {"jsonrpc": "2.0", "id": key, "result": mended}
        if "error" not in answer:
            answer = {"result": _handshake(method, result) if isinstance(result, dict) else {}}
        return {"jsonrpc": "2.0", "id": key, **answer}


def answer_in(meta: Any) -> dict[str, Any] | None:
    """Return the server's own answer from the `_meta` of a result of the SDK: {"result": anything}, or {"error":
    {"code": int, "message": str}}; None if there is none."""
    return orjson.loads(meta[_ANSWER]) if isinstance(meta, dict) and _ANSWER in meta else None


def _is_message(value: Any) -> bool:
    """True for a message, as opposed to a log line that happens to be JSON."""
    return isinstance(value, dict) and not value.keys().isdisjoint(("jsonrpc", "method", "result", "error"))


def _key(value: Any) -> Id | None:
    """An id as the SDK sends it: a number that came back as a text or with a fraction of zero is still that number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
        return int(value)
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _server_message(message: Mapping[str, Any], method: str) -> dict[str, Any]:
    mended: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    own_id = message.get("id")
    if isinstance(own_id, (int, str)) and not isinstance(own_id, bool):
        mended["id"] = own_id
    params = message.get("params")
    if isinstance(params, dict):
        is_usable = isinstance(params.get("_meta", {}), dict)
        mended["params"] = params if is_usable else {key: one for key, one in params.items() if key != "_meta"}
    return mended


def _error(error: Any) -> dict[str, Any]:
    fields = error if isinstance(error, dict) else {"message": error}
    code, message = fields.get("code"), fields.get("message")
    if isinstance(code, str) and re.fullmatch(r"-?[0-9]{1,9}", code):
        code = int(code)
    if not isinstance(message, str) or not message:
        rest = fields.get("data") if message is None else message
        rest = "the server gives no reason" if rest in (None, "", {}) else rest
        message = rest if isinstance(rest, str) else orjson.dumps(rest).decode()
    number = code if isinstance(code, int | float) and abs(code) < 1 << 53 else 0  # JSON writers take no more
    mended = {"code": int(number), "message": message}
    return {**mended, "data": fields["data"]} if "data" in fields else mended


def _wrap_text(raw: bytes) -> dict[str, Any]:
    """The answer for a text that is not JSON. It is a failure of the call only if it reports one."""
    text = raw.decode("utf-8", "replace").strip()
    if b'"error"' in raw and b'"result"' not in raw:
        return {"error": {"code": _PARSE_ERROR, "message": f"the answer is not JSON: {text}"}}
    note = "[the answer is not JSON, and is shown as received]" if text else "[the answer is empty]"
    return {"result": f"{note}\n{text}".strip()}


def _asks_for_input(result: Any) -> bool:
    if not isinstance(result, dict) or result.get("resultType") != "input_required":
        return False
    return bool(result.get("inputRequests")) or isinstance(result.get("requestState"), str)


def _names_of(result: Any) -> list[dict[str, Any]]:
    """The tools of a list as the SDK needs them in the newer era: it sends some arguments as headers too, and leaves
    out tools that declare such headers wrongly."""
    tools = result.get("tools") if isinstance(result, dict) else None
    found = []
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and isinstance(tool.get("name"), str):
            schema = tool.get("inputSchema")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            members = properties.items() if isinstance(properties, dict) else ()
            usable = {name: one for name, one in members if isinstance(one, dict)}
            found.append({"name": tool["name"], "inputSchema": {"type": "object", "properties": usable}})
    return found


def _handshake(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """The part of the answer to `initialize` or `server/discover` that this client uses; other results as they are."""
    if method not in ("initialize", "server/discover"):
        return result
    tools = capabilities.get("tools") if isinstance(capabilities := result.get("capabilities"), dict) else None
    changes = isinstance(tools, dict) and tools.get("listChanged") is True
    mended: dict[str, Any] = {"capabilities": {"tools": {"listChanged": changes}}, **_COMPLETE}
    if method == "initialize":
        version = result.get("protocolVersion")
        info = {"name": "server", "version": ""}
        return {**mended, "protocolVersion": version if isinstance(version, str) else _OLDEST, "serverInfo": info}
    versions = result.get("supportedVersions")
    if not isinstance(versions, list):
        return result  # the SDK then begins anew with `initialize`
    return {**mended, "supportedVersions": [one for one in versions if isinstance(one, str)]}


def _values(raw: bytes) -> Iterator[Any]:
    value: Any = None
    try:
        value = json_text.loads(raw)
    except json_text.TooDeep:
        if len(raw) <= _MAX_REPAIRED_BYTES:
            yield from _repair(_drop_depths(raw))
    except orjson.JSONDecodeError:
        yield from _repair(raw)
    yield from value if isinstance(value, list) else () if value is None else (value,)


def _repair(raw: bytes) -> Iterator[Any]:
    """The values in a text with broken UTF-8, NaN, line ends in strings, or other text around them."""
    text = raw.decode("utf-8", "replace")
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(text)
        yield from value if isinstance(value, list) else (value,)
        return
    if len(raw) > _MAX_REPAIRED_BYTES:
        return
    decoder = json.JSONDecoder(strict=False, parse_constant=str)
    place = 0
    for _ in range(_MAX_STARTS):
        found = _START.search(text, place)
        if found is None:
            return
        try:
            value, place = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            place = found.start() + 1
            continue
        for one in value if isinstance(value, list) else (value,):
            if _is_message(one):
                yield _make_writable(one)


def _make_writable(value: Any) -> Any:
    """A value of the standard library's reader without what JSON cannot carry."""
    if isinstance(value, dict):
        return {_make_writable(name): _make_writable(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_make_writable, value))
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return float(value) if isinstance(value, int) and abs(value) >= 1 << 63 else value


def _drop_depths(raw: bytes) -> bytes:
    kept: list[bytes] = []
    level = start = 0
    for found in _TOKEN.finditer(raw):
        if found[0] in (b"[", b"{"):
            level += 1
            if level == _MAX_LEVELS + 1:
                kept += raw[start : found.start()], _TOO_DEEP
        elif found[0] in (b"]", b"}"):
            if level == _MAX_LEVELS + 1:
                start = found.end()
            level -= 1
    return b"".join(kept if level > _MAX_LEVELS else (*kept, raw[start:]))


# Questions of a server to a person during a call: elicitation (TR 9). In the older era it is a request of the server,
# which does not name the call; in the newer one it is the answer to the call, which is then sent again with the
# person's answer. A server that asks outside of a call, or too often, gets no answer.

MAX_QUESTIONS: Final = 10  # of one call
_PAUSE_S: Final = 0.05
_MAX_MESSAGE_CHARS: Final = 65_536
_ONLY_IN_CALLS: Final = "questions are answered in the middle of a call only"
_TOO_MANY: Final = f"more than {MAX_QUESTIONS} questions in one call"


class _AskingCall:
    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.asked = 0


class ServerQuestions:
    """The questions of one connection. `source` is the name that people see."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._calls: list[_AskingCall] = []
        self._waiting: dict[asyncio.Future[PersonAnswer], set[_AskingCall]] = {}
        """The questions that wait, each with the calls that it may belong to and that are not over."""

    @asynccontextmanager
    async def during(self, asking: Asking | None) -> AsyncIterator[_AskingCall | None]:
        """A call that questions may be asked in; when it is over, those of no other call are taken back."""
        if asking is None:
            yield None
            return
        call = _AskingCall(asking)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)
            for calls in self._waiting.values():
                calls.discard(call)
            over = [question for question, calls in self._waiting.items() if not calls]
            for question in over:
                question.cancel()
            if over:
                await asyncio.wait(over)

    async def finish(self, send: Send, asking: Asking | None) -> Any:
        """The result of a call, which is sent again with the input that a server of the newer era requests. Raises what
        `send` raises, and ToolFault for a request that is not granted."""
        async with self.during(asking) as call:
            answer = await send({})
            for number in range(MAX_QUESTIONS):
                if not isinstance(answer, types.InputRequiredResult):
                    return answer
                fields: dict[str, Any] = {"request_state": answer.request_state}
                if answer.input_requests:
                    fields["input_responses"] = await self.answers(call, answer.input_requests)
                else:  # it only wants to be asked again
                    await asyncio.sleep(_PAUSE_S * 2 ** min(number, 3))
                try:
                    answer = await send(fields)
                except NotSent:
                    lost = "the connection was lost between a question and its answer"
                    raise ToolFault(FaultKind.INTERRUPTED, lost) from None
        if isinstance(answer, types.InputRequiredResult):
            raise ToolFault(FaultKind.SYSTEM, f"the server has not answered after {MAX_QUESTIONS} rounds of questions")
        return answer

    async def answer(self, context: Any, params: types.ElicitRequestParams) -> _Elicited:  # noqa: ARG002
        """See the SDK's ElicitationFnT, for a request of the server. It may belong to any of the calls that run."""
        if not self._calls:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_ONLY_IN_CALLS)
        return await self._ask(self._calls, params)

    async def answers(self, call: _AskingCall | None, wanted: types.InputRequests) -> types.InputResponses:
        """Answer the questions of a call, which is sent again with the answers. Raises ToolFault for a request that is
        not granted."""
        found: types.InputResponses = {}
        for key, one in wanted.items():
            if call is None or not isinstance(one, types.ElicitRequest):
                what = "a person" if isinstance(one, types.ElicitRequest) else "the host's model or its directories"
                raise ToolFault(FaultKind.SYSTEM, f"the server asks for more than the call: {what}, and gets none here")
            answer = await self._ask([call], one.params)
            if isinstance(answer, types.ErrorData):
                raise ToolFault(FaultKind.SYSTEM, answer.message)
            found[key] = answer
        return found

    async def _ask(self, calls: Sequence[_AskingCall], params: types.ElicitRequestParams) -> _Elicited:
        """The answer to a question of one of `calls`: it is asked for the last of them, and the timeouts of all
        stop."""
        latest = calls[-1]
        latest.asked += 1
        if latest.asked > MAX_QUESTIONS:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_TOO_MANY)
        with ExitStack() as clocks:
            for call in calls:
                clocks.enter_context(call.asking.paused())
            asking = asyncio.ensure_future(latest.asking.put(_question(self._source, params)))
            self._waiting[asking] = set(calls)
            try:
                await asyncio.wait([asking])
            except asyncio.CancelledError:
                asking.cancel()
                await asyncio.wait([asking])
                raise
            finally:
                del self._waiting[asking]
        if asking.cancelled():  # no call is left that it can belong to
            return types.ElicitResult(action="cancel")
        answer = asking.result()
        if answer.problem is not None:
            return types.ErrorData(code=types.INVALID_PARAMS, message=answer.problem)
        content = None if answer.content is None else dict(answer.content)
        return types.ElicitResult(action=answer.action, content=content)


def _question(source: str, params: types.ElicitRequestParams) -> PersonAsked:
    message = params.message[:_MAX_MESSAGE_CHARS]
    if isinstance(params, types.ElicitRequestURLParams):
        return PersonAsked(source, message, url=params.url)
    return PersonAsked(source, message, params.requested_schema)
