"""What each field of a message on record may hold: the ConversationMessage of interface section 3 (decision 0026)."""

from __future__ import annotations

import binascii
import re
from typing import TYPE_CHECKING, Any

import orjson

from config.shapes import COUNT, FLAG, OBJECT, TEXT, Leaf, ListOf, Record, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.shapes import Problem, Shape

ROLES = ("system", "user", "assistant", "tool")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def writable(value: Any) -> bool:
    """True if `value` does not nest too deep to be written again: orjson reads deeper than it writes."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _is_base64(text: str) -> bool:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return True


# In place of a large part; `state.large` takes it out and puts it back.
_BLOB = Record({"sha256": Leaf("a SHA-256", lambda value: type(value) is str and bool(_SHA256.fullmatch(value))),
                "bytes": COUNT})  # fmt: skip
_NAMED_CALL = Record({"id": TEXT, "name": TEXT, "arguments": OBJECT}, {"problem": TEXT, "argumentsBlob": _BLOB})
# What only the provider reads, as JSON text, and the order of text, calls and blocks (`agent_host.thread.blocks`).
_BLOCK = Record({"raw": TEXT, "dialect": TEXT, "model": TEXT}, {"holdsText": FLAG, "rawBlob": _BLOB})
_PLACE = Leaf(
    'a number of characters, "call" or "block"',
    lambda value: value >= 0 if type(value) is int else type(value) is str and value in ("call", "block"),
)
# A picture, whose data is base64 (`agent_host.contracts.Image`).
_IMAGE = Record(
    {
        "mediaType": one_of("image/png", "image/jpeg", "image/gif", "image/webp"),
        "width": COUNT,
        "height": COUNT,
        "bytes": COUNT,
        "data": Leaf("base64", lambda value: type(value) is str and _is_base64(value)),
    },
    {"dataBlob": _BLOB},
)
_OF_EVERY_MESSAGE: dict[str, Shape] = {
    "messageId": TEXT,
    "sessionId": TEXT,
    "content": TEXT,
    "timestamp": TEXT,
    "tokenCount": COUNT,
}
_MAY_BE: dict[str, Shape] = {"taskId": TEXT, "stepId": TEXT, "contentBlob": _BLOB}
_BY_ROLE = {
    "system": Record(_OF_EVERY_MESSAGE, {**_MAY_BE, "goesOn": FLAG, "workspace": TEXT}),
    "user": Record(_OF_EVERY_MESSAGE, _MAY_BE),
    "assistant": Record(
        _OF_EVERY_MESSAGE,
        {**_MAY_BE, "toolCalls": ListOf(_NAMED_CALL), "blocks": ListOf(_BLOCK), "order": ListOf(_PLACE)},
    ),
    "tool": Record(
        {**_OF_EVERY_MESSAGE, "toolCallId": TEXT},
        {**_MAY_BE, "isError": FLAG, "editedArguments": OBJECT, "images": ListOf(_IMAGE)},
    ),
}
_ANY_ROLE = Record({"role": one_of(*ROLES), **_OF_EVERY_MESSAGE}, _MAY_BE)


class Message:
    """The shape of a ConversationMessage of one of these `roles`: what it holds goes by its role."""

    def __init__(self, *roles: str) -> None:
        self._roles = frozenset(roles)
        self._said = Leaf(f"a message of {' or '.join(roles)}", lambda _: False)

    def fits(self, value: Any) -> bool:
        """See Shape."""
        role = value.get("role") if type(value) is dict else None
        return type(role) is str and role in self._roles and _BY_ROLE[role].fits(value)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        role = value.get("role") if type(value) is dict else None
        known = type(role) is str and role in _BY_ROLE
        if known and role not in self._roles:
            yield from self._said.problems(role, f"{path}.role")
        yield from (_BY_ROLE[str(role)] if known else _ANY_ROLE).problems(value, path)


_ANY = Message(*ROLES)
_MAY_NEST = frozenset(("toolCalls", "blocks", "contentBlob", "editedArguments", "images"))
RESULT = Message("tool")
"""What a call came to."""


def message_of(data: bytes, spoken: Message = _ANY) -> dict[str, Any] | None:
    """The message that `data` encodes; None where something is wrong with it, which `message_problems` says."""
    try:
        wire: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not spoken.fits(wire):
        return None
    # Others are sent as they are.
    return None if not _MAY_NEST.isdisjoint(wire) and not writable(wire) else wire


def message_problems(data: bytes, path: str, spoken: Message = _ANY) -> list[str]:
    """What is wrong with a message that `message_of` does not give."""
    try:
        wire = orjson.loads(data)
    except orjson.JSONDecodeError:
        return [f"{path}: must be an object, not broken JSON"]
    return list(map(str, spoken.problems(wire, path))) or [f"{path}: nests too deep to be written again"]
