"""Fields of a message or a call that only its provider reads, put together from the deltas of a stream: they go back as
they came, under the names that they came under."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import orjson

from agent_host.llm.raw_json import elements
from agent_host.llm.surrogates import repaired
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_Kind = Literal["text", "list", "value"]
# Of the fragments of one entry of a list, what is said in several of them; of all else the last counts.
_IN_PIECES = frozenset({"text", "summary", "data", "thinking"})


class OpaqueFields:
    """A text grows with each delta, a list gets more entries, anything else is replaced. `replaced` counts halves of
    characters that became U+FFFD, `dropped` fields that cannot be sent back unchanged; both are known after `whole`."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._pieces: dict[str, list[str]] = {}
        self.replaced = 0
        self.dropped = 0

    def add(self, name: str, value: Any, raw: str) -> bool:
        """Take a field of a delta, whose JSON text is `raw`. Returns whether there is anything in it."""
        if value is None or value in ("", [], {}):
            return False
        kind: _Kind = "text" if isinstance(value, str) else "list" if isinstance(value, list) else "value"
        if kind == "value" or self._kinds.get(name) != kind:
            self._pieces[name] = []
        self._kinds[name] = kind
        self._pieces[name] += [value] if kind == "text" else elements(raw) if kind == "list" else [raw]
        return True

    def whole(self) -> str | None:
        """The fields as a JSON object, those left out that cannot be read; None where there are none."""
        members: list[str] = []
        for name, kind in self._kinds.items():
            try:
                members.append(f"{orjson.dumps(name).decode()}:{self._value(name, kind)}")
            except (ValueError, TypeError, KeyError):  # orjson's own errors are of these kinds
                self.dropped += 1
        return f"{{{','.join(members)}}}" if members else None

    def _value(self, name: str, kind: _Kind) -> str:
        pieces = self._pieces[name]
        if kind == "text":
            text, count = repaired("".join(pieces))
            self.replaced += count
            return orjson.dumps(text).decode()
        if kind == "list":
            pieces = [_joined(group) for group in _grouped(name, pieces)]
        value = f"[{','.join(pieces)}]" if kind == "list" else pieces[0]
        json_text.loads(value)
        return value


def _grouped(name: str, entries: Iterable[str]) -> Iterable[list[str]]:
    """The entries of a list, those together that are fragments of one: of `reasoning_details` (OpenRouter) such with
    one type and index, of `thinking_blocks` (LiteLLM) those up to a signature. A signature holds for the whole only."""
    groups: list[list[str]] = []
    by_key: dict[Any, list[str]] = {}
    for entry in entries:
        key = _fragment_of(name, entry)
        group = by_key.get(key) if key is not None else None
        if group is None:
            group = []
            groups.append(group)
            if key is not None:
                by_key[key] = group
        group.append(entry)
        if name == "thinking_blocks" and key is not None and orjson.loads(entry).get("signature"):
            del by_key[key]
    return groups


def _fragment_of(name: str, entry: str) -> Any:
    """What the fragments of one entry have in common; None for one that is whole."""
    value = orjson.loads(entry) if name in ("reasoning_details", "thinking_blocks") else None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    if name == "thinking_blocks":
        return value["type"] if value["type"] == "thinking" else None
    index = value.get("index")
    return (value["type"], index) if type(index) is int else None


def _joined(fragments: list[str]) -> str:
    """One entry; a single fragment is one as it stands."""
    if len(fragments) == 1:
        return fragments[0]
    whole: dict[str, Any] = {}
    for fragment in fragments:
        json_text.check_depth(fragment)
        for name, value in json.loads(fragment).items():
            if name in _IN_PIECES and isinstance(value, str) and isinstance(whole.get(name), str):
                whole[name] += value
            elif value is not None or name not in whole:
                whole[name] = value
    return orjson.dumps(whole).decode()
