"""What the session has changed so far, as a patch: the first version of each file against the present one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from state import blobs, files

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_NEWLINE = "\\ No newline at end of file\n"
# difflib takes quadratic time on files with little in common; larger ones are shown as replaced whole.
_MAX_DIFFED_LINES = 20_000


def session_patch(baselines: Mapping[str, str | None], *, blob_dir: str, workspace: str) -> str:
    """A unified diff over all files that the session wrote or deleted, in the order of their paths; "" for none.

    Paths inside the workspace are shown relative to it. What cannot be shown (binary content, a first version that was
    too large to keep) has one line that says so.
    """
    return "".join(
        _file_patch(path, blob, blob_dir, os.path.relpath(path, workspace) if _inside(path, workspace) else path)
        for path, blob in sorted(baselines.items())
    )


def _inside(path: str, workspace: str) -> bool:
    return path.startswith(workspace.rstrip(os.sep) + os.sep)


def _file_patch(path: str, blob: str | None, blob_dir: str, shown: str) -> str:
    shown = shown.replace(os.sep, "/").lstrip("/")
    before = None if blob is None else blobs.get(blob_dir, blob)
    if blob is not None and before is None:
        return f"# {shown}: changed; its first version was not kept\n"
    after = _present(path)
    if before == after:
        return ""
    old, new = _text(before), _text(after)
    if old is None or new is None:
        return f"# {shown}: binary content differs\n"
    name_before = "/dev/null" if before is None else f"a/{shown}"
    name_after = "/dev/null" if after is None else f"b/{shown}"
    return _unified(old, new, name_before, name_after)


def _unified(old: str, new: str, name_before: str, name_after: str) -> str:
    from difflib import unified_diff

    old_lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if len(old_lines) + len(new_lines) > _MAX_DIFFED_LINES:
        rows = [f"--- {name_before}\n", f"+++ {name_after}\n"]
        rows.append(f"@@ -{min(1, len(old_lines))},{len(old_lines)} +{min(1, len(new_lines))},{len(new_lines)} @@\n")
        rows += ["-" + line for line in old_lines] + ["+" + line for line in new_lines]
    else:
        rows = list(unified_diff(old_lines, new_lines, name_before, name_after))
    return "".join(row if row.endswith("\n") else f"{row}\n{_NO_NEWLINE}" for row in rows)


def _present(path: str) -> bytes | None:
    try:
        return files.read_bytes(path) if os.path.isfile(path) else None
    except OSError:
        return None


def _text(data: bytes | None) -> str | None:
    """The content as text; None when it is not UTF-8 or has null bytes. No file is an empty text."""
    if data is None:
        return ""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
