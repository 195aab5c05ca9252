"""Checks of the answers of services: input from outside, so each value is checked before anything is done with it."""

from __future__ import annotations

import re
from typing import Any

from agent_host.errors import ServiceRejected

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_LINE = 300
MAX_URI_BYTES = 2048


def check_id(value: object, name: str) -> str:
    """An id that is safe in paths and URLs. Raises ServiceRejected for any other value of the field `name`."""
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise ServiceRejected(f"the service gave a {name} that is none: 1 to 128 of A-Z a-z 0-9 _ - are", status=200)


def check_uri(value: object, name: str) -> str:
    """A URI that can be shown and recorded: printable, at most 2 KiB. Raises ServiceRejected."""
    # What is printable holds no lone surrogate, so it can be encoded.
    if isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= MAX_URI_BYTES:
        return value
    raise ServiceRejected(f"the service gave a {name} that is no URI of at most {MAX_URI_BYTES} bytes", status=200)


def check_object(value: object, name: str) -> dict[str, Any]:
    """A JSON object. Raises ServiceRejected."""
    if isinstance(value, dict):
        return value
    raise ServiceRejected(f"{name} is not a JSON object", status=200)


def check_line(value: object) -> str | None:
    """Words for a person, in one short line; None for what is no text."""
    if not isinstance(value, str):
        return None
    line = " ".join(value.split())[:_MAX_LINE]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line) or None
