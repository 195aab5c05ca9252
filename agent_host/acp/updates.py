"""From what a session says to what an editor shows: events and items of a transcript as updates of ACP. Pure.

Paths are absolute, kinds are those of the protocol, and texts that the host itself writes are fit to be shown
(`display_text`). The content of a call replaces what an editor has of it, so each update has all of it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.display_text import clip, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Update = dict[str, Any]

_KIND_OF_TOOL: Final = {
    "FindFiles": "search",
    "Grep": "search",
    "cp__grep": "search",
    "grep": "search",
    "MoveFile": "move",
}
_KIND_OF_CAPABILITY: Final = {
    "File.Read": "read",
    "File.Write": "edit",
    "File.Delete": "delete",
    "Shell.Exec": "execute",
    "Network.Http": "fetch",
}
_PATHS: Final = ("path", "newPath", "dir", "bodyFile", "saveTo")
_FIRST_LINE: Final = "offset"
_TITLE_BYTES: Final = 300
_NOTICE_BYTES: Final = 4000
_MOST_DIFFS: Final = 50
_HUNK: Final = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@[^\n]*\n", re.MULTILINE)
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")


class Told(NamedTuple):
    """News for the person that is neither text of the model nor a call: a notice, or text if the client has none."""

    severity: str
    title: str
    description: str = ""


def text_update(kind: str, text: str, message_id: str | None = None) -> Update:
    """A piece of a message: `user_message_chunk`, `agent_message_chunk` or `agent_thought_chunk`."""
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    return update if message_id is None else {**update, "messageId": message_id}


def notice_update(told: Told, *, takes_notices: bool) -> Update:
    """The news as a notice, or as text of its own."""
    title, description = one_line(told.title, _NOTICE_BYTES), clip(told.description, _NOTICE_BYTES)
    if takes_notices:
        extra = {"description": description} if description else {}
        return {"sessionUpdate": "notice", "severity": told.severity, "title": title, **extra}
    body = f"{title}\n{description}" if description else title
    quoted = body.replace("\n", "\n> ")
    return text_update("agent_message_chunk", f"\n\n> **agent-host**: {quoted}\n\n")


# Calls of tools


def tool_kind(tool_name: str, capability: str | None) -> str:
    """The protocol's kind of a tool."""
    return _KIND_OF_TOOL.get(tool_name) or _KIND_OF_CAPABILITY.get(capability or "", "other")


def requested_call(payload: Mapping[str, Any], workspace: str) -> Update:
    """The call of a `tool_requested`."""
    name, decision = payload["toolName"], payload.get("decision")
    arguments = payload.get("arguments", {})
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": payload["toolCallId"],
        "title": title_of(name, payload.get("summary", "")),
        "name": name,
        "kind": tool_kind(name, payload.get("capability")),
        "status": "in_progress" if decision == "ALLOWED" else "pending",
        "content": edits_in(arguments, workspace),
        "locations": locations_in(arguments, workspace),
        **({"rawInput": arguments} if "arguments" in payload else {}),
    }


def completed_call(payload: Mapping[str, Any], workspace: str) -> Update:
    """The end of the call of a `tool_completed`."""
    places = [os.path.join(workspace, one) for one in payload.get("pathsChanged", ())]
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": payload["toolCallId"],
        "status": "completed" if payload["status"] == "succeeded" else "failed",
        "content": text_contents(payload.get("output", "")),
        "rawOutput": {name: payload[name] for name in ("code", "message", "exitCode", "images") if name in payload},
        **({"locations": [{"path": one} for one in places]} if places else {}),
    }


def title_of(tool_name: str, summary: str) -> str:
    """A call in one line."""
    return one_line(f"{tool_name}: {summary}" if summary else tool_name, _TITLE_BYTES)


def locations_in(arguments: Mapping[str, Any], workspace: str) -> list[dict[str, Any]]:
    """The absolute places that arguments name, with the first line to read if they say so."""
    found: list[dict[str, Any]] = []
    line = arguments.get(_FIRST_LINE)
    for name in _PATHS:
        path = arguments.get(name)
        if isinstance(path, str) and path and "\0" not in path:
            place: dict[str, Any] = {"path": os.path.normpath(os.path.join(workspace, path))}
            found.append({**place, "line": line} if name == "path" and type(line) is int and line > 0 else place)
    return found


def text_contents(text: str) -> list[dict[str, Any]]:
    """The content of a call that is text; none for no text."""
    return [{"type": "content", "content": {"type": "text", "text": text}}] if text else []


def diff_contents(path: str, diff: str) -> list[dict[str, Any]]:
    """A unified diff of one file as the protocol's diffs, one a hunk: the lines before and after it."""
    head, *hunks = _HUNK.split(diff)
    is_new = "--- /dev/null" in head
    return [_diff_of(path, hunk, is_new=is_new) for hunk in hunks[:_MOST_DIFFS]]


def edits_in(arguments: Mapping[str, Any], workspace: str) -> list[dict[str, Any]]:
    """The diffs of a call whose arguments are edits of a file."""
    path, edits = arguments.get("path"), arguments.get("edits")
    if not isinstance(path, str) or not isinstance(edits, list):
        return []
    place = os.path.normpath(os.path.join(workspace, path))
    pairs = [(one.get("oldText"), one.get("newText")) for one in edits[:_MOST_DIFFS] if isinstance(one, dict)]
    return [
        {"type": "diff", "path": place, "oldText": old, "newText": new}
        for old, new in pairs
        if isinstance(old, str) and isinstance(new, str)
    ]


def _diff_of(path: str, hunk: str, *, is_new: bool) -> dict[str, Any]:
    old: list[str] = []
    new: list[str] = []
    touched: tuple[list[str], ...] = ()
    for line in _LINE.findall(hunk):
        if line.startswith("\\"):  # the line before it has no newline
            for side in touched:
                side[-1] = side[-1].removesuffix("\n")
            continue
        touched = {"-": (old,), "+": (new,)}.get(line[:1], (old, new))
        for side in touched:
            side.append(line[1:])
    before = None if is_new and not old else "".join(old)
    return {"type": "diff", "path": path, "oldText": before, "newText": "".join(new)}


# News


def news_of(event: Mapping[str, Any]) -> Iterator[Told]:
    """The news in an event that is neither text nor a call."""
    kind, payload = event["eventType"], event["payload"]
    if kind in ("session_started", "session_resumed"):
        yield from _news_of_sandbox(payload.get("sandbox"))
    if kind == "tool_completed" and payload["status"] == "denied":
        yield Told("warning", f"{payload['toolName']} was denied", payload.get("message", ""))
    if kind == "tool_completed" and payload.get("denials"):
        yield Told("warning", f"The sandbox denied {payload['toolName']} something", "\n".join(payload["denials"]))
    if kind in _NEWS:
        yield Told("warning" if event.get("severity") != "info" else "info", _NEWS[kind], payload.get("message", ""))


_NEWS: Final = {
    "llm_retry": "The answer begins again: the gateway failed",
    "llm_fallback": "Another model is asked",
    "llm_window_cut": "The oldest messages are left out of requests",
    "llm_answer_repaired": "The answer held damaged characters",
    "policy_expired": "The policy bundle has expired",
    "approval_timeout": "An approval timed out, and the call was denied",
    "tools_unavailable": "Tools are not available",
    "tools_hidden": "Tools are hidden by the policy",
    "tools_changed": "Tools have changed",
    "checkpoint_failed": "The disk did not take a record",
    "storage_limit_reached": "The session may keep no more",
    "artifact_upload_failed": "An artifact was not stored",
    "step_limit_approaching": "Four fifths of the steps are used",
}


def _news_of_sandbox(sandbox: Mapping[str, Any] | None) -> Iterator[Told]:
    if sandbox is None:
        return
    level, why = sandbox.get("level", "none"), sandbox.get("why", "")
    if level == "none":
        yield Told("warning", "Commands run without a sandbox", why)
    else:
        yield Told("info", f"Commands run in the {level} sandbox", why)


def compaction_of(event: Mapping[str, Any], *, takes_compactions: bool) -> Update | Told:
    """The update of a `context_compacted`, live or as a mark of a transcript."""
    payload = event.get("payload", event)
    summary = payload.get("summary", "")
    if not takes_compactions:
        return Told("info", "Requests show less of the conversation from here on; the record keeps all of it", summary)
    compaction_id = str(event.get("itemId") or f"compaction-{event['eventId']}")
    update = {"sessionUpdate": "compaction_update", "compactionId": compaction_id, "status": "completed"}
    return {**update, "summary": [{"type": "text", "text": summary}]} if summary else update


# Items of a transcript

_MARKS: Final = {
    "crashed": Told("warning", "The process of the session died here"),
    "session_resumed": Told("info", "The session was resumed"),
    "session_paused": Told("warning", "The session was paused"),
    "session_failed": Told("error", "The session failed"),
    "task_failed": Told("error", "The task failed"),
    "task_cancelled": Told("info", "The task was cancelled"),
}


def updates_of_item(item: Mapping[str, Any], workspace: str, *, takes_compactions: bool) -> Sequence[Update | Told]:
    """An item of a transcript as an editor shows it again."""
    if item["kind"] == "message":
        kind = "user_message_chunk" if item["role"] == "user" else "agent_message_chunk"
        return [text_update(kind, item["text"], item["itemId"])]
    if item["kind"] == "call":
        return [_replayed_call(item, workspace)]
    mark = item["mark"]
    if mark == "context_compacted":
        return [compaction_of(item, takes_compactions=takes_compactions)]
    if mark == "task_steered":
        return [text_update("user_message_chunk", item["text"], item["itemId"])]
    return (
        [_MARKS[mark]._replace(description=item.get("message") or item.get("reason") or "")] if mark in _MARKS else []
    )


def _replayed_call(item: Mapping[str, Any], workspace: str) -> Update:
    name = item["toolName"]
    arguments = item["arguments"] if isinstance(item["arguments"], dict) else {}
    subject = next((str(arguments[one]) for one in ("command", "path", "url", "pattern") if one in arguments), "")
    status = {"succeeded": "completed", "open": "pending"}.get(item["status"], "failed")
    edits = edits_in(arguments, workspace) if status == "completed" else []
    places = locations_in(arguments, workspace)
    known = {one["path"] for one in places}
    changed = (os.path.join(workspace, one) for one in item.get("pathsChanged", ()))
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": item["itemId"],
        "title": title_of(name, subject),
        "name": name,
        "kind": tool_kind(name, _CAPABILITY_OF.get(name)),
        "status": status,
        "content": [*edits, *text_contents(item.get("output", ""))],
        "locations": [*places, *({"path": one} for one in changed if one not in known)],
        "rawInput": arguments,
    }


_CAPABILITY_OF: Final = {
    **dict.fromkeys(("ReadFile", "ListDirectory", "cp__read_file", "cp__list_files", "cp__list_dir"), "File.Read"),
    **dict.fromkeys(("read_file", "list_dir"), "File.Read"),
    **dict.fromkeys(("WriteFile", "EditFile", "cp__write_file", "write_file"), "File.Write"),
    **dict.fromkeys(("DeleteFile", "cp__delete_file", "delete_file"), "File.Delete"),
    **dict.fromkeys(("RunCommand", "cp__exec", "run_script"), "Shell.Exec"),
    **dict.fromkeys(("HttpRequest", "cp__fetch", "network_request"), "Network.Http"),
}
"""The capabilities of tools whose calls are shown again: a transcript names the tool alone."""
