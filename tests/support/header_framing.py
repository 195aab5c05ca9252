"""The wire of a client that frames its messages as language servers do, for a client that speaks lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = re.compile(rb"Content-Length: (\d+)\r\n\r\n")


class Headers:
    """`read` and `write` of a wire that carries `Content-Length: N`, an empty line, and N bytes."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        self._read, self._write = read, write
        self._rest = b""

    def read(self) -> bytes:
        """One line for each message that is there; b"" at the end. Raises AssertionError for anything else."""
        found = b""
        while not found:
            data = self._read()
            self._rest += data
            while (header := _HEADER.match(self._rest)) and len(self._rest) >= header.end() + int(header[1]):
                end = header.end() + int(header[1])
                found += self._rest[header.end() : end] + b"\n"
                self._rest = self._rest[end:]
            assert _HEADER.match(self._rest) or len(self._rest) < len("Content-Length: ") + 23, self._rest
            if not data:
                return found or self._rest
        return found

    def write(self, data: bytes) -> None:
        """Each line as a message."""
        for line in data.splitlines():
            self._write(framed(line))


def framed(message: bytes) -> bytes:
    """The message behind its header."""
    return b"Content-Length: %d\r\n\r\n%s" % (len(message), message)
