"""Calls as OpenAI's wires have them: names of tools in 64 characters of a small alphabet, made so that the way back is
known, and arguments as text."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from agent_host.thread.messages import ToolCall

_MAX_CHARS = 64
_HASH_CHARS = 16
_PLAIN = r"[A-Za-z0-9_-]{1,64}"
_MADE = rf"[A-Za-z0-9_-]*_[0-9a-f]{{{_HASH_CHARS}}}"


def sendable_name(name: str) -> str:
    """`name` where a gateway takes it; else what is left of it with a hash behind it. The same name always gives the
    same one, and no two names give one: a name that looks as if it were made here is made anew as well."""
    if re.fullmatch(_PLAIN, name) and not re.fullmatch(_MADE, name):
        return name
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _MAX_CHARS - _HASH_CHARS - 1]
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{kept}_{digest}"


def sent_arguments(call: ToolCall, written: str | None) -> bytes:
    """The arguments as a JSON string: `written`, which is one, where the model's own text is known."""
    return orjson.dumps(call.arguments_json.decode()) if written is None else written.encode()


class SentNames:
    """The tools that one session's requests have offered: what the model calls them, and what they are called here."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def offer(self, name: str) -> str:
        """The name under which a request offers the tool."""
        sent = sendable_name(name)
        if sent != name:
            self._real[sent] = name
        return sent

    def real(self, sent: str) -> str:
        """The tool that the model means; a name that nobody offered is left as it is."""
        return self._real.get(sent, sent)
