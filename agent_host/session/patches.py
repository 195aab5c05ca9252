"""What the session has changed so far, as a patch: the first version of each file against the present one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent_host.diffs import hunks
from state.disk import LOCAL_DISK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def session_patch(baselines: Mapping[str, str | None], *, kept: Callable[[str], bytes | None], workspace: str) -> str:
    """A unified diff over all files that the session wrote or deleted, in the order of their paths; "" for none.

    `kept` gives the first version of a file by its name in `baselines`. Paths inside the workspace are shown relative
    to it. What cannot be shown (binary content, a first version that was too large to keep) has one line that says so.
    """
    return "".join(
        _file_patch(path, blob, kept, os.path.relpath(path, workspace) if _inside(path, workspace) else path)
        for path, blob in sorted(baselines.items())
    )


def _inside(path: str, workspace: str) -> bool:
    return path.startswith(workspace.rstrip(os.sep) + os.sep)


def _file_patch(path: str, blob: str | None, kept: Callable[[str], bytes | None], shown: str) -> str:
    shown = shown.replace(os.sep, "/").lstrip("/")
    before = None if blob is None else kept(blob)
    if blob is not None and before is None:
        return f"# {shown}: changed; its first version was not kept\n"
    after = _present(path)
    if before == after:
        return ""
    if not (_is_text(before) and _is_text(after)):
        return f"# {shown}: binary content differs\n"
    old, new = _quoted(f"a/{shown}"), _quoted(f"b/{shown}")
    header = f"diff --git {old} {new}\n"
    if before is None:
        old = "/dev/null"
        header += f"new file mode {_mode(path)}\n"
    if after is None:
        new = "/dev/null"
        header += "deleted file mode 100644\n"
    body = hunks(before or b"", after or b"").decode()
    return header + (f"--- {old}\n+++ {new}\n{body}" if body else "")  # an empty file has a header and no hunks


def _quoted(name: str) -> str:
    """A file name as git writes it: in quotes, C-style, when it holds what would break the line."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    return '"' + "".join(_ESCAPES.get(char, char) if char.isprintable() else _octal(char) for char in name) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\"}


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))


def _mode(path: str) -> str:
    """100755 for a program, else 100644: the two that git knows."""
    return "100755" if os.access(path, os.X_OK) else "100644"


def _present(path: str) -> bytes | None:
    try:
        return LOCAL_DISK.read(path) if os.path.isfile(path) else None
    except OSError:
        return None


def _is_text(data: bytes | None) -> bool:
    """True for UTF-8 without null bytes, and for no file at all."""
    if data is None:
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data
