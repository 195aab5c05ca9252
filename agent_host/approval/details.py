"""Details of a call, shown to the person who decides about it (AH 10.1, SK 4.1): from the facts that policy judged.

All text of the model goes through a `Screen`; the whole stays below some 128 KiB.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.display_text import LINE_BYTES, clip, json_size, one_line
from agent_host.safe_open import open_real
from agent_host.text_diff import compare
from config import json_text
from policy import SANDBOX_GRANT, CapabilityName
from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts
from policy.shell import parse_line
from policy.urls import UrlProblem, host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent_host.contracts import ToolSpec
    from policy import Widening
    from policy.facts import ActionFacts
    from policy.shell.findings import ParsedCommand, SimpleCommand

# Parts that all descriptions of a call share: the call as a value, and the only way to show its text to a person.


class DescribedCall(NamedTuple):
    """A call to describe; `workspace` is a real path."""

    spec: ToolSpec
    arguments: Mapping[str, Any]
    facts: ActionFacts
    workspace: str


class Description(NamedTuple):
    """A description of a call. `summary` is one line; `details` follow toolName and capability in the request's
    details."""

    summary: str
    details: dict[str, Any]


class Screen(NamedTuple):
    """Redacts secrets of this process first, then escapes, then cuts, so that no half of a secret is left at an end."""

    scrub: Callable[[str], str]

    def line(self, text: str, max_bytes: int = LINE_BYTES) -> str:
        """Return `text` on one line, in at most `max_bytes` of JSON."""
        return one_line(self.scrub(text), max_bytes)

    def text(self, text: str, max_bytes: int) -> str:
        """Return `text` with its line breaks, in at most `max_bytes` of JSON plus a note if it was cut."""
        return clip(self.scrub(text), max_bytes)

    def path(self, path: str) -> str:
        """Return a path, cut only in unusual cases."""
        return self.line(path, 2048)

    def others(self, act: DescribedCall, *described: str | None, max_bytes: int = 16 * 1024) -> dict[str, str]:
        """Return the arguments that the rest of the description does not show, so that none stays unseen."""
        grant = SANDBOX_GRANT if widening_of_facts(act.facts) is not None else None
        shown_already = (*act.spec.subjects, grant, *described)
        rest = {name: value for name, value in act.arguments.items() if name not in shown_already}
        if not rest:
            return {}
        shown = json_text.dumps(rest, option=orjson.OPT_INDENT_2).decode()
        return {"otherArguments": self.text(shown, max_bytes)}


def widening_of_facts(facts: ActionFacts) -> Widening | None:
    """Return the access beyond its sandbox that a call requests."""
    return facts.widening if isinstance(facts, CommandFacts | NamedToolFacts) else None


def short_path(path: str, workspace: str) -> str:
    """Return `path` relative to the workspace if it is inside it."""
    inside = path.startswith(workspace.rstrip(os.sep) + os.sep)
    return path[len(workspace.rstrip(os.sep)) + 1 :] if inside else path


_MAX_WORDS: Final = 60
_MAX_LISTED: Final = 20
_HOST = re.compile(
    r"(?:-[^=]*=)?(?:[A-Za-z][A-Za-z0-9+.-]*://(?:[^/@\s]*@)?(?P<url>\[[0-9A-Fa-f:.]+\]|[^/:?#\s]+)|[\w.-]+@(?P<ssh>[\w.-]+):)"
)
_MAX_HEADERS: Final = 50
# Parts of names of headers whose values may be credentials.
_SECRET_HEADERS: Final = (
    "auth", "cookie", "token", "secret", "key", "passw", "credential", "session", "signature", "csrf", "xsrf",
)  # fmt: skip


async def describe(act: DescribedCall, scrub: Callable[[str], str]) -> Description:
    """Describe `act` for a person, without the text that `scrub` removes. Files are read in a thread."""
    screen = Screen(scrub)
    shown = await _describe(act, screen)
    asked = widening_of_facts(act.facts)
    if asked is None:
        return shown
    opens = _listed(asked.lines, screen)
    grant = {"opens": opens, "reason": screen.text(asked.reason, 4 * 1024)}
    return Description(screen.line(f"{shown.summary} ({'; '.join(opens)})"), {"sandboxGrant": grant, **shown.details})


async def _describe(act: DescribedCall, screen: Screen) -> Description:
    facts, display = act.facts, act.spec.display
    if display == "command" and isinstance(facts, CommandFacts):
        return _command(act, facts, screen)
    if display == "request" and isinstance(facts, UrlFacts):
        return _request(act, facts, screen)
    path = facts if isinstance(facts, PathFacts) else None
    if display == "upload":
        return await asyncio.to_thread(describe_upload, act, path, screen)
    describer = BY_DISPLAY.get(display)
    if path is not None and describer is not None:
        return await asyncio.to_thread(describer, act, path, screen)
    return _arguments(act, screen)


def _arguments(act: DescribedCall, screen: Screen) -> Description:
    """Describe a call of a tool without a display of its own by its name and all its arguments."""
    shown: dict[str, Any] = {**screen.others(act, max_bytes=64 * 1024)}
    if act.spec.runs:
        shown["runs"] = [screen.line(word) for word in act.spec.runs[:_MAX_WORDS]]
        shown["toolSha256"] = act.spec.identity
    return Description(screen.line(" ".join([act.spec.name, *shown.get("otherArguments", "").split()])), {**shown})


# Commands


def _command(act: DescribedCall, facts: CommandFacts, screen: Screen) -> Description:
    # Never in a thread: the parser and its cache of the last lines belong to the loop.
    parsed = parse_line(facts)
    details: dict[str, Any] = {
        "command": screen.text(facts.command, 40 * 1024),
        "cwd": screen.path(facts.cwd),
        "shell": facts.shell,
        **_segments(parsed, screen),
        "writes": _targets(parsed, facts, "write", screen),
        "deletes": _targets(parsed, facts, "delete", screen),
        "reads": _targets(parsed, facts, "read", screen),
        "hosts": _hosts(parsed, screen),
        "dynamic": bool(parsed.dynamic),
        "doubts": _listed(map(str, (*parsed.dynamic, *parsed.opaque)), screen),
    }
    title, shown = "Run", ["cwd"]
    stdin = act.arguments.get("stdin")
    if facts.script is not None:
        details["skill"], details["script"] = screen.line(facts.script.skill), screen.path(facts.script.path)
        details["scriptSha256"], shown = facts.script.sha256, ["skill", "args", "cwd"]
    elif facts.argv:  # the line has all of them
        shown = ["args", "env", "working_dir"]
    else:
        title = "Run in the background" if act.arguments.get("background") is True else title
        if isinstance(stdin, str):
            details["stdinBytes"], details["stdin"] = _size(stdin), screen.text(stdin, 8 * 1024)
            shown.append("stdin")
    return Description(f"{title}: {screen.line(facts.command)}", details | screen.others(act, *shown))


def _segments(parsed: ParsedCommand, screen: Screen) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    room = 24 * 1024
    for one in parsed.commands:
        segment = _segment(one, screen)
        room -= (
            60 + json_size(segment["program"] or "") + sum(json_size(word or "") + 3 for word in segment["arguments"])
        )
        if room < 0:
            return {"segments": shown, "segmentsNotShown": len(parsed.commands) - len(shown)}
        shown.append(segment)
    return {"segments": shown}


def _segment(one: SimpleCommand, screen: Screen) -> dict[str, Any]:
    """Return {program, arguments, dynamic}; null is a value that is known only at run time."""
    words = [None if word is None else screen.line(word) for word in one.arguments[:_MAX_WORDS]]
    if len(one.arguments) > _MAX_WORDS:
        words.append(f"[… {len(one.arguments) - _MAX_WORDS} more]")
    return {
        "program": None if one.program is None else screen.line(one.program),
        "arguments": words,
        "dynamic": one.program is None or None in one.arguments,
    }


def _hosts(parsed: ParsedCommand, screen: Screen) -> list[Any]:
    words = (word for one in parsed.commands for word in one.arguments if word is not None)
    found = dict.fromkeys(match["url"] or match["ssh"] for match in map(_HOST.match, words) if match is not None)
    return _listed(found, screen)


def _listed(texts: Iterable[str | None], screen: Screen) -> list[Any]:
    """Return as many lines as a list may have, and the number of the others; None stays."""
    found = list(texts)
    listed = [None if one is None else screen.line(one) for one in found[:_MAX_LISTED]]
    return listed if len(found) <= _MAX_LISTED else [*listed, f"[… {len(found) - _MAX_LISTED} more]"]


def _targets(parsed: ParsedCommand, facts: CommandFacts, mode: str, screen: Screen) -> list[Any]:
    """Return the real paths of files that the line opens or passes to a program; null if known only at run time."""
    found: dict[str | None, None] = {}
    for one in parsed.files:
        if one.mode == mode:
            places = (facts.real_paths.get(each, each) for each in one.spellings(facts.cwd, facts.home))
            found.update(dict.fromkeys(tuple(places) or (one.path,)))
    return _listed(found, screen)


# Requests


def _request(act: DescribedCall, facts: UrlFacts, screen: Screen) -> Description:
    details: dict[str, Any] = {"method": screen.line(facts.method), "url": screen.text(facts.url, 8 * 1024)}
    try:
        details["host"] = host_of(facts.url)
    except UrlProblem as problem:
        details["note"] = screen.line(str(problem))
    shown = ["method"]
    headers = act.arguments.get("headers")
    if isinstance(headers, dict):
        shown.append("headers")
        details["headers"] = [_header(str(name), value, screen) for name, value in list(headers.items())[:_MAX_HEADERS]]
        if len(headers) > _MAX_HEADERS:
            details["headersNotShown"] = len(headers) - _MAX_HEADERS
    body = act.arguments.get("body")
    if isinstance(body, str):
        shown.append("body")
        details["bodyBytes"] = _size(body)
        details |= {"binary": True} if "\0" in body else {"body": screen.text(body, 8 * 1024)}
    for needed, file in facts.also:
        if needed == CapabilityName.FILE_WRITE:
            details |= {"saveTo": screen.path(file.real_path), "saveToExists": file.kind != "missing"}
        else:
            details["bodyFile"] = screen.path(file.real_path)
            if file.size_bytes is not None:
                details["bodyBytes"] = file.size_bytes
    return Description(f"{screen.line(facts.method)} {screen.line(facts.url)}", details | screen.others(act, *shown))


def _header(name: str, value: object, screen: Screen) -> dict[str, str]:
    shown = {"name": screen.line(name)}
    if not any(part in name.lower() for part in _SECRET_HEADERS):
        shown["value"] = screen.line(str(value))
    return shown


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


# Details of a file call for its approval; the disk is read only if an approval is requested.

_MAX_DIFFED_BYTES: Final = 2 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 4 * 1024


def describe_write(act: DescribedCall, facts: PathFacts, screen: Screen) -> Description:
    """Describe creating or overwriting a file: a diff against its present content. Reads the file."""
    created = facts.kind == "missing"
    before = b"" if created else _read(facts.real_path)
    known = before if isinstance(before, bytes) and not created else None
    content = act.spec.after(act.arguments, known) if act.spec.after is not None else None
    if content is None:
        counted, change = (
            "cannot be made",
            {"note": "the file is not as the edits need it, so that the call would fail"},
        )
    else:
        name = short_path(facts.real_path, act.workspace)
        counted, change = _change(before, content, "/dev/null" if created else name, name, screen)
    details: dict[str, Any] = {
        "action": "create" if created else "overwrite",
        "sizeBefore": None if created else facts.size_bytes,
        "sizeAfter": None if content is None else len(content),
        **change,
    }
    return _describe_path(act, facts, screen, "Write", details, f" ({counted})", act.spec.content)


def describe_delete(act: DescribedCall, facts: PathFacts, screen: Screen) -> Description:
    """Describe deleting a file, or a directory with all its content."""
    verb = "Delete with all that is in it" if facts.tree else "Delete the link" if facts.kind == "link" else "Delete"
    return _describe_path(act, facts, screen, verb, {"exists": facts.kind != "missing", "sizeBytes": facts.size_bytes})


def describe_move(act: DescribedCall, facts: PathFacts, screen: Screen) -> Description:
    """Describe renaming a file."""
    target = next((other for needed, other in facts.also if needed == CapabilityName.FILE_WRITE), facts)
    details = {
        "newPath": screen.path(target.real_path),
        "exists": target.kind != "missing",
        "sizeBytes": facts.size_bytes,
    }
    to = screen.line(short_path(target.real_path, act.workspace))
    return _describe_path(act, facts, screen, "Move", details, f" → {to}")


def describe_file(act: DescribedCall, facts: PathFacts, screen: Screen) -> Description:
    """Describe reading a file."""
    return _describe_path(act, facts, screen, "Read", {"sizeBytes": facts.size_bytes})


def describe_upload(act: DescribedCall, facts: PathFacts | None, screen: Screen) -> Description:
    """Describe an upload, of a file (whose first bytes are read) or of content from the arguments."""
    if facts is not None:
        head = _read(facts.real_path, _MAX_HEAD_BYTES + 3)
        details = {"sizeBytes": facts.size_bytes, **_start(head if isinstance(head, bytes) else b"", screen)}
        return _describe_path(act, facts, screen, "Upload", details, described="content")
    given = act.arguments.get("content")
    data = given.encode("utf-8", "replace") if isinstance(given, str) else b""
    details = {"sizeBytes": len(data), **_start(data, screen), **screen.others(act, "content")}
    return Description(f"Upload: {screen.line(str(act.arguments.get('name', '')) or 'text of the model')}", details)


def _describe_path(
    act: DescribedCall,
    facts: PathFacts,
    screen: Screen,
    verb: str,
    details: dict[str, Any],
    suffix: str = "",
    described: str | None = None,
) -> Description:
    """Describe a call on a file. `suffix` follows the path in the summary; `described` is the argument that `details`
    show."""
    place = {"path": screen.path(facts.real_path)}
    if facts.requested != facts.real_path:
        place["requestedPath"] = screen.path(facts.requested)
    shown = screen.line(short_path(facts.real_path, act.workspace))
    return Description(f"{verb}: {shown}{suffix}", {**place, **details, **screen.others(act, described)})


BY_DISPLAY: Mapping[str, Callable[[DescribedCall, PathFacts, Screen], Description]] = {
    "delete": describe_delete,
    "move": describe_move,
    "read": describe_file,
    "write": describe_write,
}


def _change(before: bytes | str, after: bytes, old: str, new: str, screen: Screen) -> tuple[str, dict[str, Any]]:
    """Return the change for the summary, and its details: a diff of the files, or a note why there is none."""
    size = f"{len(after)} bytes"
    if isinstance(before, str):
        return size, {"note": before}
    if b"\0" in before or b"\0" in after:
        return f"binary, {size}", {"binary": True, "note": "binary content is not shown"}
    if max(len(before), len(after)) > _MAX_DIFFED_BYTES:
        return size, {"note": f"files above {_MAX_DIFFED_BYTES} bytes are not compared"}
    found = compare(before, after)
    labels = tuple(name.encode("utf-8", "replace").replace(b"\n", b"\\n") for name in (old, new))
    diff = b"--- %s\n+++ %s\n" % labels + found.hunks if found.hunks else b""
    # A typographic minus sign: the hyphen of a terminal is too short next to the plus.
    counted = f"+{found.additions} −{found.deletions}"
    shown = screen.text(diff.decode("utf-8", "replace"), 64 * 1024)
    return counted, {"additions": found.additions, "deletions": found.deletions, "diff": shown}


def _read(path: str, most_bytes: int = _MAX_DIFFED_BYTES + 1) -> bytes | str:
    try:
        with open(open_real(path), "rb") as handle:
            return handle.read(most_bytes)
    except FileNotFoundError:
        return b""
    except OSError as error:
        return f"the present content cannot be read: {error.strerror}"


def _start(data: bytes, screen: Screen) -> dict[str, Any]:
    """Return the first bytes of the content if they are text. A character that would be cut in half is left out."""
    if b"\0" in data:
        return {"binary": True}
    start = screen.text(data[:_MAX_HEAD_BYTES].decode("utf-8", "ignore"), 2 * _MAX_HEAD_BYTES)
    return {"start": start if len(data) <= _MAX_HEAD_BYTES else f"{start}\n[… the rest is not shown]"}
