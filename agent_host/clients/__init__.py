"""Clients of session processes, shared by all user interfaces: fast starts, many processes, one connection each.

This module has the order that a client sends to a process that is to become a session process.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH_BYTES: Final = 8
_MOST_BYTES: Final = 1 << 28


class Order(dict[str, Any]):
    """The process to become: `arguments` of `agent-host`, `environment`, `directory`, `umask`, `limits` by name."""

    def encode(self) -> bytes:
        """Return its form on the control stream."""
        data = json.dumps(self).encode()
        return len(data).to_bytes(_LENGTH_BYTES, "big") + data

    @classmethod
    def read(cls, read: Callable[[int], bytes]) -> Order | None:
        """Read an order; `read` returns the requested number of bytes, or fewer at the end. None at the end."""
        length = int.from_bytes(read(_LENGTH_BYTES), "big")
        data = read(length) if 0 < length <= _MOST_BYTES else b""
        return cls(json.loads(data)) if data and len(data) == length else None
