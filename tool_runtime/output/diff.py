"""The diff artifact of a write (TR 4.2)."""

from __future__ import annotations

from agent_host.diffs import hunks
from tool_runtime.output.text import looks_binary


def unified(before: bytes | None, after: bytes, path: str) -> bytes:
    """The diff that turns `before` (None: no file) into `after`; empty when they are the same."""
    if before == after:
        return b""
    name = path.encode("utf-8", "replace")
    header = b"--- %s\n+++ %s\n" % (b"/dev/null" if before is None else name, name)
    if looks_binary(before or b"") or looks_binary(after):
        return header + b"Binary files differ: %d and %d bytes\n" % (len(before or b""), len(after))
    return header + hunks(before or b"", after)


def size_note(before_bytes: int, after_bytes: int, path: str) -> bytes:
    """What stands for a diff when the earlier content was too large to keep."""
    name = path.encode("utf-8", "replace")
    return b"--- %s\n+++ %s\nReplaced %d bytes by %d bytes\n" % (name, name, before_bytes, after_bytes)
