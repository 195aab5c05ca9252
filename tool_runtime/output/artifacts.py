"""Artifacts (TR 7.2): what is too long for the thread, for the host to store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.contracts import Artifact, ToolRequest
from agent_host.text_diff import hunks
from tool_runtime.output.text import looks_binary

if TYPE_CHECKING:
    from agent_host.contracts import Spooled

PLAIN: Final = "text/plain; charset=utf-8"
DIFF: Final = "text/x-diff; charset=utf-8"


def tool_output(request: ToolRequest, content: bytes | Spooled, *, part: str, content_type: str = PLAIN) -> Artifact:
    """The full output of a call; `part` says which output, as `stdout` or `body`."""
    name = f"{request.tool_name}-{request.tool_call_id}-{part}.txt"
    return Artifact("tool_output", name, content_type, content, part=part)


def file_diff(request: ToolRequest, data: bytes) -> Artifact:
    """The unified diff that a write made."""
    return Artifact("file_diff", f"{request.tool_name}-{request.tool_call_id}.diff", DIFF, data)


# The diff artifact of a write (TR 4.2).


def make_diff(before: bytes | None, after: bytes, path: str) -> bytes:
    """The diff that turns `before` (None: no file) into `after`; empty when they are the same."""
    if before == after:
        return b""
    name = path.encode("utf-8", "replace")
    header = b"--- %s\n+++ %s\n" % (b"/dev/null" if before is None else name, name)
    if looks_binary(before or b"") or looks_binary(after):
        return header + b"Binary files differ: %d and %d bytes\n" % (len(before or b""), len(after))
    return header + hunks(before or b"", after)


def size_note(before_bytes: int, after_bytes: int, path: str) -> bytes:
    """The text in place of a diff when the earlier content was too large to keep."""
    name = path.encode("utf-8", "replace")
    return b"--- %s\n+++ %s\nReplaced %d bytes by %d bytes\n" % (name, name, before_bytes, after_bytes)
