"""A family of tools: a table of rows over shared operations, as a provider. The list of tools costs nothing:
`operations`, with all that reads, searches and starts programs, is imported with the first call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Leftovers
from agent_host.errors import ErrorCode
from config.lean_typing import NamedTuple
from tool_runtime.output import artifacts, charset_of, decode_body, truncate_text, whole_end
from tool_runtime.tool import FaultKind, Tool, ToolFault, ToolOutput, cap, run_at_once, run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.contracts import ToolRequest, ToolSpec
    from tool_runtime.families.operations import Operations
    from tool_runtime.tool import CallContext
    from tool_runtime.web.http import HttpOutcome

    Work = Callable[[Operations, CallContext], ToolOutput]
    MakeOperations = Callable[..., Operations]
    """(settings of the family, more parameters of Operations by name)"""
    from tool_runtime.tool import CallContext


_FAILED: Final = (
    FaultKind.IS_DIRECTORY, FaultKind.NOT_REGULAR, FaultKind.RESPONSE_TOO_LARGE, FaultKind.CHANGED, FaultKind.EXISTS,
    FaultKind.NETWORK, FaultKind.SYSTEM, FaultKind.EXIT_NONZERO,
)  # fmt: skip
_DENIED: Final = (FaultKind.OUT_OF_SCOPE, FaultKind.PATH_CHANGED, FaultKind.ACCESS_DENIED)
DESKTOP: Final[Mapping[FaultKind, str]] = {
    **dict.fromkeys(_FAILED, ErrorCode.TOOL_EXECUTION_FAILED),
    **dict.fromkeys(_DENIED, ErrorCode.PERMISSION_DENIED),
    FaultKind.UNKNOWN_TOOL: ErrorCode.TOOL_NOT_FOUND,
    FaultKind.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    FaultKind.ADDRESS_REFUSED: ErrorCode.INVALID_REQUEST,  # TR 8.3 counts it among input validation
    FaultKind.NOT_FOUND: ErrorCode.FILE_NOT_FOUND,
    FaultKind.TOO_LARGE: ErrorCode.FILE_TOO_LARGE,
    FaultKind.TIMED_OUT: ErrorCode.TOOL_EXECUTION_TIMEOUT,
}
"""TR 7.3."""
ELSEWHERE: Final[Mapping[FaultKind, str]] = {
    **DESKTOP,
    FaultKind.INTERRUPTED: ErrorCode.TOOL_INTERRUPTED,
    FaultKind.RATE_LIMITED: ErrorCode.RATE_LIMITED,
    FaultKind.REFUSED: ErrorCode.CAPABILITY_DENIED,
}
"""Of tools from elsewhere (BT)."""


class ToolRow(NamedTuple):
    """One tool. `work` blocks: it runs in a thread, or at once for a small and `near` file; `run` is a coroutine
    instead. `leftover` removes the files that a call left when its process died; True if there were some. `check` is as
    in Tool."""

    spec: ToolSpec
    work: Work | None = None
    run: Callable[[Operations, CallContext], Awaitable[ToolOutput]] | None = None
    near: bool = False
    leftover: Callable[[Operations, ToolRequest], bool] | None = None
    check: Callable[[Mapping[str, Any]], str | None] | None = None

    def tool(self, operations: Operations, names: Mapping[FaultKind, str]) -> Tool:
        """The tool, ready to run."""
        if self.run is not None:
            return Tool(self.spec, cap(functools.partial(self.run, operations)), DESKTOP, None, names, check=self.check)
        if self.work is None:
            raise ValueError(f"nothing runs {self.spec.name}")
        work = functools.partial(self.work, operations)
        run = run_in_thread(work, operations.pool, operations.settings.file_timeout_s)
        return Tool(self.spec, run, DESKTOP, run_at_once(work) if self.near else None, names, check=self.check)


def name_errors(errors: Mapping[str, str], *rows: ToolRow) -> tuple[ToolRow, ...]:
    """The rows with the family's names of errors, but for tools that have names of their own."""
    return tuple(row._replace(spec=row.spec._replace(error_names=row.spec.error_names or errors)) for row in rows)


class Family:
    """A Provider of the tools of `rows`. `names` is as in Tool."""

    def __init__(
        self, rows: Sequence[ToolRow], make: Callable[[], Operations], names: Mapping[FaultKind, str] | None = None
    ) -> None:
        self._rows = {row.spec.name: row for row in rows}
        self._make = make
        self._names = names or {}
        self._tools: dict[str, Tool] = {}

    @functools.cached_property
    def _operations(self) -> Operations:
        return self._make()

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return tuple(row.spec for row in self._rows.values())

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        if name in self._rows and name not in self._tools:
            self._tools[name] = self._rows[name].tool(self._operations, self._names)
        return self._tools.get(name)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A program leaves processes, a write its temporary file, a move a second name."""
        row, operations = self._rows[request.tool_name], self._operations
        if row.spec.starts_program:
            return await operations.commands.end_leftovers(request)
        leftover = row.leftover
        if leftover is None:
            return Leftovers()
        try:
            return Leftovers(await operations.pool.run(lambda: leftover(operations, request)))
        except (ToolFault, KeyError, TypeError):  # if the call may no longer write there, nothing is touched
            return Leftovers()

    async def aclose(self) -> None:
        """See Provider."""
        if "_operations" in self.__dict__:
            await self._operations.aclose()


def given(call: CallContext, *names: str, **fields: str) -> dict[str, Any]:
    """The arguments `names` of a call, as far as it has them, and `fields`, by the names that they get."""
    wanted = {**dict(zip(names, names, strict=True)), **fields}
    return {field: call.arguments[name] for field, name in wanted.items() if name in call.arguments}


# Answers that are a JSON object each, within the output limit of the call.

_MARGIN_BYTES: Final = 128  # for fields about omissions
_MAX_LINE_CHARS: Final = 500


def answer(fields: Mapping[str, Any], **output: Any) -> ToolOutput:
    """A JSON object as the text; `output` are more fields of the output."""
    return ToolOutput(orjson.dumps(fields).decode(), capped=True, **output)


def fit_texts(
    call: CallContext, fields: Mapping[str, Any], *, cut: Mapping[str, str], stored: str | None = None, **output: Any
) -> ToolOutput:
    """The answer, with its longest texts cut if they are too long together. `cut` maps each text that may be cut to the
    field that reports it; the whole text `stored` is then an artifact."""
    if len(orjson.dumps(fields)) <= call.max_output_bytes:
        return answer(fields, **output)
    made = dict(fields)
    names = sorted(cut, key=lambda name: len(orjson.dumps(fields[name])))
    room = call.max_output_bytes - len(orjson.dumps({**fields, **dict.fromkeys(names, "")}))
    for place, name in enumerate(names):
        made[name] = _fit(fields[name], max(0, room // (len(names) - place)))
        room -= len(orjson.dumps(made[name]))
        if made[name] != fields[name]:
            made[cut[name]] = True
    if stored is not None and made[stored] != fields[stored]:
        output["artifacts"] = (artifacts.tool_output(call.request, fields[stored].encode(), part=stored),)
    return answer(made, **output)


def excerpt(call: CallContext, fields: dict[str, Any], name: str, text: str, start: int, most_chars: int) -> int:
    """Put the part of the text from `start` into the field `name`: up to `most_chars` characters, as many as fit in an
    answer with the other fields. Returns its end."""
    size = most_chars
    while True:
        fields[name] = text[start : start + size]
        if size == 1 or len(orjson.dumps(fields)) + _MARGIN_BYTES <= call.max_output_bytes:
            return start + len(fields[name])
        size = max(size * 3 // 4, 1)


def _fit(text: str, room: int) -> str:
    """The text in at most `room` bytes of JSON: its escapes decide how much of it that is."""
    limit, shorter = room, text
    while len(orjson.dumps(shorter)) > room and limit > 0:
        shorter = truncate_text(text, limit)
        limit = limit * 3 // 4
    return shorter


def fitting(call: CallContext, fields: Mapping[str, Any], rows: Sequence[Any]) -> int:
    """Return how many of the rows fit in an answer beside the fields, one at least."""
    room = call.max_output_bytes - len(orjson.dumps(fields)) - _MARGIN_BYTES
    if len(rows) < 2 or len(orjson.dumps(rows)) <= room:
        return len(rows)
    for place, row in enumerate(rows):
        room -= len(orjson.dumps(row)) + 1
        if room < 0:
            return max(place, 1)
    return len(rows)


def cut_line(line: bytes, start: int) -> str:
    """The line, or the part of a long one around the match, which begins at the byte `start`."""
    text = line.rstrip(b"\r").decode("utf-8", "replace")
    if len(text) <= _MAX_LINE_CHARS:
        return text
    at = len(line[:start].decode("utf-8", "replace"))
    begin = max(0, min(at - _MAX_LINE_CHARS // 4, len(text) - _MAX_LINE_CHARS))
    end = begin + _MAX_LINE_CHARS
    left, right = ("…" if begin else ""), ("…" if end < len(text) else "")
    return f"{left}{text[begin:end]}{right} [{len(text)} characters]"


def body_text(outcome: HttpOutcome) -> str:
    """The body as text; of one that is none, how large it is."""
    body = whole_end(outcome.body) if outcome.body_cut else outcome.body
    text = decode_body(body, charset_of(outcome.headers.get("content-type", "")))
    return f"[{len(outcome.body)} bytes that are no text]" if text is None else text
