"""Artifacts that do not fit into memory: read from this disk, and sent, a piece at a time (AH 7.5)."""

from __future__ import annotations

import errno
import os
import threading
from base64 import b64encode
from typing import TYPE_CHECKING, Final

from agent_host import lenient_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from agent_host.contracts import Artifact

_PIECE_BYTES: Final = 384 * 1024


class StoredFile:
    """An artifact's open file on this disk, as a `Spooled`. It owns the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._guard = threading.Lock()  # a thread may be reading what its caller closes
        self.size = os.fstat(file.fileno()).st_size
        """See Spooled."""

    def pieces(self) -> Iterator[bytes]:
        """See Spooled."""
        for at in range(0, self.size, _PIECE_BYTES):
            with self._guard:
                if self._file.closed:
                    raise OSError(errno.EBADF, "the file was closed")
                self._file.seek(at)
                piece = self._file.read(_PIECE_BYTES)
            yield piece

    def close(self) -> None:
        """See Spooled."""
        with self._guard:
            self._file.close()


class UploadBody:
    """The JSON of an upload, encoded a piece at a time; base64 needs no escaping, so no JSON encoder sees it."""

    def __init__(self, fields: Mapping[str, str], artifact: Artifact) -> None:
        self._head = lenient_json.dumps(fields)[:-1] + b',"contentBase64":"'
        self._artifact = artifact

    def __len__(self) -> int:
        return len(self._head) + (self._artifact.size + 2) // 3 * 4 + 2

    def pieces(self) -> Iterator[bytes]:
        """See `services.http.Body`. Raises OSError."""
        yield self._head
        rest = b""
        for piece in _in_parts(self._artifact.pieces()):
            rest += piece
            whole = len(rest) // 3 * 3
            yield b64encode(rest[:whole])
            rest = rest[whole:]
        yield b64encode(rest) + b'"}'


def _in_parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), _PIECE_BYTES):
            yield piece[start : start + _PIECE_BYTES]
