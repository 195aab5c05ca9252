"""Content-addressed files of a session: what a file held before the session first wrote to it."""

from __future__ import annotations

import hashlib
import os

from state import files
from state.locations import make_private_dir

UNAVAILABLE = "unavailable"


def sha256_hex(data: bytes) -> str:
    """The name of `data`."""
    return hashlib.sha256(data).hexdigest()


def put(directory: str, data: bytes) -> str:
    """Keep `data` under its hash; what is whole there already is not written again. Raises OSError."""
    name = sha256_hex(data)
    path = os.path.join(directory, name)
    if get(directory, name) is None:
        make_private_dir(directory)
        temporary = f"{path}.tmp"
        fd = files.open_new(temporary)
        try:
            files.write_all(fd, data)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    return name


def get(directory: str, name: str) -> bytes | None:
    """The content called `name`; None when it is missing or no longer what its name says."""
    try:
        data = files.read_bytes(os.path.join(directory, name))
    except OSError:
        return None
    return data if sha256_hex(data) == name else None
