"""The key that placeholders of redacted values are made with: one for a state directory, so that a session that is
resumed goes on with the placeholders it had, and nobody who only sees events can try values out."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import Final

from state.disk import LOCAL_DISK

KEY_NAME: Final = "redaction.key"
_KEY_BYTES: Final = 32


def redaction_key(state_dir: str) -> bytes:
    """The key of this state directory, made when it is first asked for; what is there and is no key, as after a power
    loss, is replaced. Where it can be neither read nor kept the key is one for this process: placeholders of its
    sessions then differ from those before."""
    path = os.path.join(state_dir, KEY_NAME)
    with contextlib.suppress(OSError):
        return _read(path)
    with contextlib.suppress(OSError):
        _make(path)
        return _read(path)
    return _of_this_process()


def _make(path: str) -> None:
    """Put a whole key there: never a part of one, and no second one in the place of another process's. Raises OSError
    where nothing can be put there."""
    made = f"{path}.{os.getpid()}-{threading.get_ident()}"
    try:
        fd = LOCAL_DISK.open_new(made)
        try:
            LOCAL_DISK.write(fd, os.urandom(_KEY_BYTES))
            LOCAL_DISK.sync(fd)
        finally:
            LOCAL_DISK.close(fd)
        try:
            LOCAL_DISK.link(made, path)
        except OSError:  # another process was faster, what lies there is no key, or the disk has no second names
            if not _is_key(path):
                LOCAL_DISK.replace(made, path)
    finally:
        LOCAL_DISK.remove(made)


def _read(path: str) -> bytes:
    """Raises OSError, also for what is no key."""
    key = LOCAL_DISK.read(path)
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return key


def _is_key(path: str) -> bool:
    try:
        _read(path)
    except OSError:
        return False
    return True


@functools.cache
def _of_this_process() -> bytes:
    return os.urandom(_KEY_BYTES)
