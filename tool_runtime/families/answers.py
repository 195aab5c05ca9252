"""Answers that are a JSON object each, within the output limit of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from tool_runtime.output import artifacts, charset_of, decode_body, truncate_text, whole_end
from tool_runtime.tool import ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tool_runtime.tool import CallContext
    from tool_runtime.web.http import HttpOutcome

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
