"""What the session has changed so far, as a patch: the first version of each file against the present one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent_host.diffs import hunks
from state.disk import LOCAL_DISK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def session_patch(
    baselines: Mapping[str, str | None],
    *,
    kept: Callable[[str], bytes | None],
    workspace: str,
    former: Sequence[str] = (),
) -> str:
    """A unified diff over all files that the session wrote or deleted, in the order of their paths; "" for none.

    `kept` gives the first version of a file by its name in `baselines`. Paths inside the workspace are shown relative
    to it. What cannot be shown (binary content, a first version that was too large to keep) has one line that says so.

    `former` are workspaces that the session had before, oldest first: a file that is gone from one of them is looked
    for at the same place in `workspace`, and is not taken for deleted when it is not there either.
    """
    placed, lost = _placed(baselines, workspace, former)
    return "".join(
        f"# {_shown(path, workspace)}: its workspace has moved, and it is in neither place\n"
        if path in lost
        else _file_patch(path, blob, kept, _shown(path, workspace))
        for path, blob in sorted(placed.items())
    )


def _placed(
    baselines: Mapping[str, str | None], workspace: str, former: Sequence[str]
) -> tuple[dict[str, str | None], set[str]]:
    """`baselines` by where their files are now, and those that are in no place where they should be."""
    placed = dict(baselines)
    lost: set[str] = set()
    for root in reversed(list(dict.fromkeys(former))):  # the oldest last: the oldest of several first versions counts
        if root == workspace or _inside(root, workspace) or _inside(workspace, root):
            continue  # it has not moved, the session works in more or less of it
        for path, blob in baselines.items():
            if not (_inside(path, root) and _is_gone(path)):
                continue
            moved = os.path.join(workspace, os.path.relpath(path, root))
            if moved in baselines or not _is_gone(moved):
                placed.pop(path, None)
                placed[moved] = blob
            elif blob is not None:
                lost.add(path)
    return placed, lost


def _shown(path: str, workspace: str) -> str:
    """The path as the patch names it."""
    shown = os.path.relpath(path, workspace) if _inside(path, workspace) else path
    return shown.replace(os.sep, "/").lstrip("/")


def _inside(path: str, workspace: str) -> bool:
    return path.startswith(workspace.rstrip(os.sep) + os.sep)


def _file_patch(path: str, blob: str | None, kept: Callable[[str], bytes | None], shown: str) -> str:
    before = None if blob is None else kept(blob)
    if blob is not None and before is None:
        done = "deleted" if _is_gone(path) else "changed"
        return f"# {shown}: {done}; its first version was not kept\n"
    try:
        after = None if _is_gone(path) else LOCAL_DISK.read(path)
    except OSError as error:
        return f"# {shown}: cannot be read: {error.strerror}\n"
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


def _is_gone(path: str) -> bool:
    """True where no file is: nothing, or a folder. What cannot be looked at may be there."""
    try:
        found = LOCAL_DISK.status(path)
    except OSError:
        return False
    return found is None or found.kind == "directory"


def _is_text(data: bytes | None) -> bool:
    """True for UTF-8 without null bytes, and for no file at all."""
    if data is None:
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data
