"""Content blocks of the Anthropic Messages dialect that go back as they came: thinking with its signature, redacted
thinking, what tools of the provider did, and kinds that are not known here."""

from __future__ import annotations

from typing import Any

import orjson

from agent_host.llm.surrogates import repaired, without_open_end
from config import json_text

# Deltas whose text is appended to a field of the block, and those whose value replaces one.
_APPENDED = {"thinking_delta": "thinking"}
_REPLACED = {"signature_delta": ("signature",), "compaction_delta": ("content", "encrypted_content")}


class OpaqueBlock:
    """One block. `start` is its JSON text in content_block_start, None where that cannot be had unchanged."""

    def __init__(self, start: str | None) -> None:
        self._start = start
        self._appended: dict[str, list[str]] = {}
        self._replaced: dict[str, Any] = {}
        self._input: list[str] = []
        self._known = True
        self._open_end = ""

    def add(self, delta: dict[str, Any]) -> None:
        """Take one delta. Raises KeyError, TypeError for one that is malformed."""
        kind = delta["type"]
        if kind in _APPENDED:
            field = _APPENDED[kind]
            self._appended.setdefault(field, []).append(delta[field])
        elif kind in _REPLACED:
            self._replaced |= {field: delta[field] for field in _REPLACED[kind] if field in delta}
        elif kind == "input_json_delta":
            self._input.append(delta["partial_json"])
        elif any(value for name, value in delta.items() if name != "type"):
            self._known = False

    def shown(self, part: dict[str, Any]) -> str:
        """The thinking in `part`, the start of this block or a delta, for a person to read; "" for none. The first half
        of a character waits for the second, and is not shown without it."""
        text = part.get("thinking") if part["type"] in ("thinking", "thinking_delta") else None
        if not isinstance(text, str):
            return ""
        text, self._open_end = without_open_end(self._open_end + text)
        return repaired(text)[0]

    def whole(self) -> str | None:
        """The block as JSON text; None where it cannot be sent back unchanged: it is malformed, or half of a character
        was in it, or a delta of an unknown kind."""
        if self._start is None or not self._known:
            return None
        try:
            block: dict[str, Any] = json_text.loads(self._start)
            if not (self._appended or self._replaced or self._input):
                return self._start
            for field, pieces in self._appended.items():
                block[field], replaced = repaired(block.get(field, "") + "".join(pieces))
                if replaced:
                    return None
            block |= self._replaced
            arguments = "".join(self._input)
            if arguments:
                json_text.loads(arguments)
                block["input"] = orjson.Fragment(arguments)
            return orjson.dumps(block).decode()
        except (TypeError, ValueError):  # orjson's own errors are of these kinds
            return None


def text_with(start: dict[str, Any], text: str, citations: list[Any]) -> str | None:
    """A text block with its other fields, None where it has none or they cannot be encoded."""
    beside = {name: value for name, value in start.items() if value is not None} | {"type": "text", "text": text}
    if citations:
        first = beside.get("citations")
        beside["citations"] = [*first, *citations] if isinstance(first, list) else citations
    if len(beside) == len(("type", "text")) or beside.get("citations") == []:
        return None
    try:
        return orjson.dumps(beside).decode()
    except orjson.JSONEncodeError:
        return None
