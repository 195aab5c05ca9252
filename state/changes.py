"""A line of the journal, taken apart and checked: what a fold over the state may rely on."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import orjson

from config.lean_typing import NamedTuple
from config.shapes import listed
from state.errors import Damaged
from state.record_shapes import record_problems
from state.records import record_of
from state.store import BLOBS, DURABLE, KIND, MESSAGE, OPENED

if TYPE_CHECKING:
    from state.journal import Line
    from state.records import Record


class Change(NamedTuple):
    """One change of a session: its record, None for one that changes nothing, and the blobs that it brings along, by
    name."""

    record: Record | None
    blobs: dict[str, bytes]


def fields_of_line(line: Line) -> dict[str, Any]:
    """The line's fields; none where they are no JSON object."""
    try:
        fields = orjson.loads(line.fields)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def durable_of(opening: Line) -> int:
    """The last record that a journal took along from the one before and that was durable when it began, as its first
    record says; 0 where it took none."""
    durable = fields_of_line(opening).get(DURABLE, 0)
    return durable if type(durable) is int else 0


def change_of(line: Line) -> Change:
    """What `line` says. Raises Damaged with every problem of one that is whole and of another shape, UnknownVersion for
    a kind that this program does not have."""
    fields = fields_of_line(line)
    kind, encoded = fields.pop(KIND, None), fields.pop(BLOBS, {})
    message = orjson.dumps(fields.pop(MESSAGE)) if MESSAGE in fields else line.message  # format J1 has it in there
    if not isinstance(kind, str):
        raise Damaged(f"record {line.seq} says no kind")
    problems = record_problems(kind, fields, message)
    blobs = _decoded(encoded)
    if blobs is None:
        problems.append(f"{BLOBS}: must be base64 by name")
    if problems or blobs is None:
        raise Damaged(f"record {line.seq} ({kind}) is whole and of another shape: {listed(problems)}")
    return Change(None if kind == OPENED else record_of(kind, fields, message), blobs)


def _decoded(encoded: object) -> dict[str, bytes] | None:
    """The content of each blob of a record; None where one has none."""
    if not isinstance(encoded, dict):
        return None
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in encoded.items()}
    except (binascii.Error, TypeError, ValueError):
        return None
