"""A record of the journal, taken apart and checked: what a fold over the state may rely on."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from config.shapes import listed
from state.errors import Damaged
from state.record_shapes import record_problems
from state.store import BLOBS, DURABLE, KIND, MESSAGE

if TYPE_CHECKING:
    from state.journal import Record


class Change(NamedTuple):
    """One change of a session: its kind, its fields without the store's own, its message in encoded form, and the blobs
    that it brings along, by name."""

    kind: str
    fields: dict[str, Any]
    message: bytes | None
    blobs: dict[str, bytes]


def fields_of(record: Record) -> dict[str, Any]:
    """The record's fields; none where they are no JSON object."""
    try:
        fields = orjson.loads(record.fields)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def durable_of(opening: Record) -> int:
    """The last record that a journal took along from the one before and that was durable when it began, as its first
    record says; 0 where it took none."""
    durable = fields_of(opening).get(DURABLE, 0)
    return durable if type(durable) is int else 0


def change_of(record: Record) -> Change:
    """What `record` says. Raises Damaged with every problem of a record that is whole and of another shape."""
    fields = fields_of(record)
    kind, encoded = fields.pop(KIND, None), fields.pop(BLOBS, {})
    message = orjson.dumps(fields.pop(MESSAGE)) if MESSAGE in fields else record.message  # format J1 has it in there
    if not isinstance(kind, str):
        raise Damaged(f"record {record.seq} says no kind")
    problems = record_problems(kind, fields, message)
    blobs = _decoded(encoded)
    if blobs is None:
        problems.append(f"{BLOBS}: must be base64 by name")
    if problems or blobs is None:
        raise Damaged(f"record {record.seq} ({kind}) is whole and of another shape: {listed(problems)}")
    return Change(kind, fields, message, blobs)


def _decoded(encoded: object) -> dict[str, bytes] | None:
    """The content of each blob of a record; None where one has none."""
    if not isinstance(encoded, dict):
        return None
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in encoded.items()}
    except (binascii.Error, TypeError, ValueError):
        return None
