"""The key that placeholders of redacted values are made with: one for a state directory, so that a session that is
resumed goes on with the placeholders it had, and nobody who only sees events can try values out."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Final

from state.disk import LOCAL_DISK
from state.locations import FILE_MODE, make_private_dir

KEY_NAME: Final = "redaction.key"
_KEY_BYTES: Final = 32


def redaction_key(state_dir: str) -> bytes:
    """The key of this state directory, made when it is first asked for. Where it can be neither read nor kept the key
    is one for this process: placeholders of its sessions then differ from those before."""
    path = os.path.join(state_dir, KEY_NAME)
    with contextlib.suppress(OSError):
        return _read(path)
    made = secrets.token_bytes(_KEY_BYTES)
    try:
        make_private_dir(state_dir)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), FILE_MODE)
        with os.fdopen(fd, "wb") as handle:
            handle.write(made)
    except OSError:  # another process was faster, or nothing can be written here
        with contextlib.suppress(OSError):
            return _read(path)
    return made


def _read(path: str) -> bytes:
    """Raises OSError, also for what is no key."""
    key = LOCAL_DISK.read(path)
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return key
