"""What a call would do to a file, for the person who decides: read from the disk only when somebody is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.approval.screen import Act, Description, Screen, short_path
from agent_host.diffs import hunks
from agent_host.regular_files import open_real
from policy.names import CapabilityName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policy.facts import PathFacts

_MAX_DIFF_BYTES: Final = 64 * 1024
_MAX_DIFFED_BYTES: Final = 2 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 4 * 1024


class _Change(NamedTuple):
    """A write as the person sees it. `counted` is its part of the summary; `note` says why there is no diff."""

    counted: str
    diff: bytes = b""
    note: str | None = None
    fields: dict[str, Any] = {}  # noqa: RUF012  a NamedTuple's default, never changed


def describe_write(act: Act, facts: PathFacts, screen: Screen) -> Description:
    """A file that is made or written over: its diff against what is there. Reads the file."""
    created = facts.kind == "missing"
    before = b"" if created else _read(facts.real_path)
    known = before if isinstance(before, bytes) and not created else None
    content = act.spec.after(act.arguments, known) if act.spec.after is not None else None
    if content is None:
        change = _Change("cannot be made", note="the file is not as the edits need it, so that the call would fail")
    else:
        change = _change(before, content, short_path(facts.real_path, act.workspace), created=created)
    details: dict[str, Any] = {
        **_place(facts, screen),
        "action": "create" if created else "overwrite",
        "sizeBefore": None if created else facts.size_bytes,
        "sizeAfter": None if content is None else len(content),
        **change.fields,
    }
    if change.note is None:
        details["diff"] = screen.text(change.diff.decode("utf-8", "replace"), _MAX_DIFF_BYTES)
    else:
        details["note"] = change.note
    shown = screen.line(short_path(facts.real_path, act.workspace))
    return Description(f"Write: {shown} ({change.counted})", details | screen.others(act, act.spec.content))


def describe_delete(act: Act, facts: PathFacts, screen: Screen) -> Description:
    """A file that is taken away, or a directory with all that is in it."""
    details = {**_place(facts, screen), "exists": facts.kind != "missing", "sizeBytes": facts.size_bytes}
    shown = screen.line(short_path(facts.real_path, act.workspace))
    what = "Delete with all that is in it" if facts.tree else "Delete the link" if facts.kind == "link" else "Delete"
    return Description(f"{what}: {shown}", details | screen.others(act))


def describe_move(act: Act, facts: PathFacts, screen: Screen) -> Description:
    """A file that gets another name."""
    target = next((other for needed, other in facts.also if needed == CapabilityName.FILE_WRITE), facts)
    details = {
        **_place(facts, screen),
        "newPath": screen.path(target.real_path),
        "exists": target.kind != "missing",
        "sizeBytes": facts.size_bytes,
    }
    old, new = (screen.line(short_path(one.real_path, act.workspace)) for one in (facts, target))
    return Description(f"Move: {old} → {new}", details | screen.others(act))


def describe_file(act: Act, facts: PathFacts, screen: Screen) -> Description:
    """A file that is read and left as it is."""
    details = {**_place(facts, screen), "sizeBytes": facts.size_bytes}
    shown = screen.line(short_path(facts.real_path, act.workspace))
    return Description(f"Read: {shown}", details | screen.others(act))


def describe_upload(act: Act, facts: PathFacts | None, screen: Screen) -> Description:
    """Content that leaves the machine, from a file (which is read for its start) or from the arguments."""
    given = act.arguments.get("content")
    details: dict[str, Any] = {}
    if facts is not None:
        details = {**_place(facts, screen), "sizeBytes": facts.size_bytes, **_start(_head(facts), screen)}
        shown = screen.line(short_path(facts.real_path, act.workspace))
    else:
        data = given.encode("utf-8", "replace") if isinstance(given, str) else b""
        details = {"sizeBytes": len(data), **_start(data, screen)}
        shown = screen.line(str(act.arguments.get("name", "")) or "text of the model")
    return Description(f"Upload: {shown}", details | screen.others(act, "content"))


BY_DISPLAY: Mapping[str, Callable[[Act, PathFacts, Screen], Description]] = {
    "delete": describe_delete,
    "move": describe_move,
    "read": describe_file,
    "write": describe_write,
}


def _place(facts: PathFacts, screen: Screen) -> dict[str, str]:
    place = {"path": screen.path(facts.real_path)}
    if facts.requested != facts.real_path:
        place["requestedPath"] = screen.path(facts.requested)
    return place


def _change(before: bytes | str, after: bytes, name: str, *, created: bool) -> _Change:
    if isinstance(before, str):
        return _Change(f"{len(after)} bytes", note=before)
    if b"\0" in before or b"\0" in after:
        return _Change(f"binary, {len(after)} bytes", note="binary content is not shown", fields={"binary": True})
    if max(len(before), len(after)) > _MAX_DIFFED_BYTES:
        return _Change(f"{len(after)} bytes", note=f"files above {_MAX_DIFFED_BYTES} bytes are not compared")
    body = hunks(before, after)
    lines = body.split(b"\n")
    added = sum(line.startswith(b"+") for line in lines)
    removed = sum(line.startswith(b"-") for line in lines)
    label = name.encode("utf-8", "replace").replace(b"\n", b"\\n")
    old = b"/dev/null" if created else label
    header = b"--- %s\n+++ %s\n" % (old, label) if body else b""
    # A minus sign as print has it: the hyphen of a terminal is too short beside the plus.
    counted = f"+{added} −{removed}"
    return _Change(counted, header + body, fields={"additions": added, "deletions": removed})


def _read(path: str) -> bytes | str:
    """What is there now, or why it cannot be shown. A file that is larger by now than it may be is read no further."""
    try:
        with open(open_real(path), "rb") as handle:
            return handle.read(_MAX_DIFFED_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        return f"the present content cannot be read: {error.strerror}"


def _head(facts: PathFacts) -> bytes:
    try:
        with open(open_real(facts.real_path), "rb") as handle:
            return handle.read(_MAX_HEAD_BYTES + 3)
    except OSError:
        return b""


def _start(data: bytes, screen: Screen) -> dict[str, Any]:
    """The first bytes of what is sent, where they are text. A character that the cut goes through is left out."""
    if b"\0" in data:
        return {"binary": True}
    return {"start": screen.text(data[:_MAX_HEAD_BYTES].decode("utf-8", "ignore"), 2 * _MAX_HEAD_BYTES)}
