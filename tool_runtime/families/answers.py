"""Answers that are a JSON object each, within the output limit of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import ErrorCode
from tool_runtime.output import artifacts, charset_of, decode_body
from tool_runtime.output.truncate import truncate_text, whole_end
from tool_runtime.tool import FaultKind, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Artifact
    from tool_runtime.tool import CallContext
    from tool_runtime.web.http import HttpOutcome

_MARGIN_BYTES: Final = 128
"""For fields that say what was left out."""
_MAX_LINE_CHARS: Final = 500


def answer(fields: Mapping[str, Any], **more: Any) -> ToolOutput:
    """The fields as they are; `more` is for the output."""
    return ToolOutput(orjson.dumps(fields).decode(), capped=True, **more)


def fit_texts(
    call: CallContext, fields: Mapping[str, Any], *, cut: Mapping[str, str], stored: str | None = None, **more: Any
) -> ToolOutput:
    """The fields, their longest texts cut where they are too long together. `cut` maps each text that may be cut to the
    field that says so; the whole of the text `stored` is then an artifact."""
    data = orjson.dumps(fields)
    if len(data) <= call.max_output_bytes:
        return ToolOutput(data.decode(), capped=True, **more)
    made = dict(fields)
    names = sorted(cut, key=lambda name: len(orjson.dumps(fields[name])))
    room = call.max_output_bytes - len(orjson.dumps({**fields, **dict.fromkeys(names, "")}))
    for place, name in enumerate(names):
        shorter, was_cut = _fit(fields[name], max(0, room // (len(names) - place)))
        room -= len(orjson.dumps(shorter))
        made[name] = shorter
        if was_cut:
            made[cut[name]] = True
    kept: tuple[Artifact, ...] = ()
    if stored is not None and made[stored] != fields[stored]:
        kept = (artifacts.tool_output(call.request, fields[stored].encode(), part=stored),)
    return ToolOutput(orjson.dumps(made).decode(), capped=True, artifacts=kept, **more)


def excerpt(call: CallContext, fields: dict[str, Any], name: str, text: str, start: int, most_chars: int) -> int:
    """Put the part of the text that begins at `start` into the field `name`: up to `most_chars` characters, and as many
    as fit in an answer with the other fields. Gives where it ends."""
    size = most_chars
    while True:
        fields[name] = text[start : start + size]
        if size == 1 or len(orjson.dumps(fields)) + _MARGIN_BYTES <= call.max_output_bytes:
            return start + len(fields[name])
        size = max(size * 3 // 4, 1)


def _fit(text: str, room: int) -> tuple[str, bool]:
    """The text in at most `room` bytes of JSON, and whether it was cut. Its escapes decide how much of it that is."""
    limit, shorter = room, text
    while len(orjson.dumps(shorter)) > room and limit > 0:
        shorter = truncate_text(text, limit)
        limit = limit * 3 // 4
    return shorter, shorter != text


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
    """The line, or of a long one what is around the match, which begins at the byte `start`."""
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


# Each family's words for a fault: one table a family.

DESKTOP: Final[Mapping[FaultKind, str]] = {
    FaultKind.UNKNOWN_TOOL: ErrorCode.TOOL_NOT_FOUND,
    FaultKind.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    FaultKind.NOT_FOUND: ErrorCode.FILE_NOT_FOUND,
    FaultKind.IS_DIRECTORY: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.NOT_REGULAR: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.TOO_LARGE: ErrorCode.FILE_TOO_LARGE,
    FaultKind.RESPONSE_TOO_LARGE: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.OUT_OF_SCOPE: ErrorCode.PERMISSION_DENIED,
    FaultKind.PATH_CHANGED: ErrorCode.PERMISSION_DENIED,
    FaultKind.CHANGED: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.EXISTS: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.ACCESS_DENIED: ErrorCode.PERMISSION_DENIED,
    FaultKind.ADDRESS_REFUSED: ErrorCode.INVALID_REQUEST,  # TR 8.3 counts it among input validation
    FaultKind.NETWORK: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.SYSTEM: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.TIMED_OUT: ErrorCode.TOOL_EXECUTION_TIMEOUT,
    FaultKind.EXIT_NONZERO: ErrorCode.TOOL_EXECUTION_FAILED,
}
"""TR 7.3."""
ELSEWHERE: Final[Mapping[FaultKind, str]] = {
    **DESKTOP,
    FaultKind.INTERRUPTED: ErrorCode.TOOL_INTERRUPTED,
    FaultKind.RATE_LIMITED: ErrorCode.RATE_LIMITED,
    FaultKind.REFUSED: ErrorCode.CAPABILITY_DENIED,
}
"""Of tools from elsewhere (BT)."""
