"""The schema of the Agent Client Protocol, from its npm package: a check of every message, in both directions."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.node_packages import FOLDER

SCHEMA = FOLDER / "@agentclientprotocol" / "sdk" / "schema" / "v1" / "schema.json"
_AGENT, _CLIENT, _BOTH = "agent", "client", "protocol"


class Recorder:
    """All messages of a connection, each checked as it comes. `side` is who sends: `client` or `agent`."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self._asked: dict[tuple[str, str], str] = {}

    def take(self, side: str, message: dict[str, Any], *, is_checked: bool = True) -> None:
        """Record a message; an AssertionError says what is wrong with it."""
        self.messages.append((side, message))
        other = _AGENT if side == _CLIENT else _CLIENT
        method = message.get("method")
        if method is not None:
            if "id" in message:
                self._asked[side, json.dumps(message["id"])] = method
            kind = "Request" if "id" in message else "Notification"
            problems = _problems(_name_of(method, other, kind), message.get("params", {}))
        elif "error" in message:
            problems = _problems("Error", message["error"])
        else:
            method = self._asked.pop((other, json.dumps(message["id"])))
            problems = _problems(_name_of(method, side, "Response"), message["result"])
        assert message["jsonrpc"] == "2.0", message
        assert not is_checked or not problems, (side, message, problems)

    def of(self, side: str) -> list[dict[str, Any]]:
        """The messages of one side."""
        return [message for sender, message in self.messages if sender == side]


def _name_of(method: str, served_by: str, kind: str) -> str:
    """The definition of a method's messages; an AssertionError for one that the protocol does not have."""
    found = [
        name
        for name, shape in _definitions().items()
        if shape.get("x-method") == method and shape["x-side"] in (served_by, _BOTH) and name.endswith(kind)
    ]
    assert len(found) == 1, (method, served_by, kind, found)
    return found[0]


def _problems(name: str, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:300]}" for error in _validator(name).iter_errors(value)]


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _closed()})


@cache
def _definitions() -> dict[str, Any]:
    definitions: dict[str, Any] = json.loads(SCHEMA.read_text("utf-8"))["$defs"]
    return definitions


@cache
def _closed() -> dict[str, Any]:
    """The definitions, closed: a member that none of them has is an error as well, since it would be a misspelt one.
    A definition that others extend is closed where they extend it."""
    definitions = copy.deepcopy(_definitions())
    objects: list[tuple[str, dict[str, Any]]] = []
    extended: set[str] = set()

    def walk(name: str, shape: Any, *, inside: bool) -> None:
        if not isinstance(shape, dict):
            return
        is_object = "properties" in shape
        if is_object and not inside:
            objects.append((name if shape is definitions.get(name) else "", shape))
        for key in ("allOf", "anyOf", "oneOf"):
            for one in shape.get(key, ()):
                if key == "allOf" and (is_object or inside) and "$ref" in one:
                    extended.add(one["$ref"].rsplit("/", 1)[1])
                walk(name, one, inside=inside or is_object)
        for one in (*shape.get("properties", {}).values(), shape.get("items")):
            walk(name, one, inside=False)

    for name, shape in definitions.items():
        walk(name, shape, inside=False)
    for name, shape in objects:
        if name not in extended and "additionalProperties" not in shape:
            shape["unevaluatedProperties"] = False
    return definitions
