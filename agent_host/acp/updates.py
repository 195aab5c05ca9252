"""Translation for editors: events and items of a transcript as updates of ACP. Pure.

Paths are absolute, kinds are those of the protocol, and texts that the host itself writes are safe to display
(`display_text`). The content of a call replaces what an editor has of it, so each update has all of it.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.acp.peer import AcpError
from agent_host.display_text import clip, one_line
from agent_host.rpc.messages import INVALID_PARAMS
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.acp.peer import RpcPeer

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


class Notice(NamedTuple):
    """News for the person that is neither text of the model nor a call: a notice, or text if the client has none."""

    severity: str
    title: str
    description: str = ""


class Features(NamedTuple):
    """The capabilities of the client that matter here. `forms` and `pages` are the elicitations that it takes."""

    notices: bool = False
    compactions: bool = False
    terminal_auth: bool = False
    forms: bool = False
    pages: bool = False


def text_update(kind: str, text: str, message_id: str | None = None) -> Update:
    """A piece of a message: `user_message_chunk`, `agent_message_chunk` or `agent_thought_chunk`."""
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    return update if message_id is None else {**update, "messageId": message_id}


def notice_update(notice: Notice, *, takes_notices: bool) -> Update:
    """The news as a notice, or as text of its own."""
    title, description = one_line(notice.title, _NOTICE_BYTES), clip(notice.description, _NOTICE_BYTES)
    if takes_notices:
        extra = {"description": description} if description else {}
        return {"sessionUpdate": "notice", "severity": notice.severity, "title": title, **extra}
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
    """The absolute locations that arguments name, with the first line to read if they have one."""
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


def news_of(event: Mapping[str, Any]) -> Iterator[Notice]:
    """The news in an event that is neither text nor a call."""
    kind, payload = event["eventType"], event["payload"]
    if kind in ("session_started", "session_resumed") and (sandbox := payload.get("sandbox")) is not None:
        level, why = sandbox.get("level", "none"), sandbox.get("why", "")
        if level == "none":
            yield Notice("warning", "Commands run without a sandbox", why)
        else:
            yield Notice("info", f"Commands run in the {level} sandbox", why)
    if kind == "tool_completed" and payload["status"] == "denied":
        yield Notice("warning", f"{payload['toolName']} was denied", payload.get("message", ""))
    if kind == "tool_completed" and payload.get("denials"):
        yield Notice("warning", f"The sandbox denied {payload['toolName']} something", "\n".join(payload["denials"]))
    if kind in _NEWS:
        yield Notice("warning" if event.get("severity") != "info" else "info", _NEWS[kind], payload.get("message", ""))


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


def compaction_of(event: Mapping[str, Any], *, takes_compactions: bool) -> Update | Notice:
    """The update of a `context_compacted`, live or as a mark of a transcript."""
    payload = event.get("payload", event)
    summary = payload.get("summary", "")
    if not takes_compactions:
        return Notice(
            "info", "Requests show less of the conversation from here on; the record keeps all of it", summary
        )
    compaction_id = str(event.get("itemId") or f"compaction-{event['eventId']}")
    update = {"sessionUpdate": "compaction_update", "compactionId": compaction_id, "status": "completed"}
    return {**update, "summary": [{"type": "text", "text": summary}]} if summary else update


# Items of a transcript

_MARKS: Final = {
    "crashed": Notice("warning", "The process of the session died here"),
    "session_resumed": Notice("info", "The session was resumed"),
    "session_paused": Notice("warning", "The session was paused"),
    "session_failed": Notice("error", "The session failed"),
    "task_failed": Notice("error", "The task failed"),
    "task_cancelled": Notice("info", "The task was cancelled"),
}


def updates_of_item(item: Mapping[str, Any], workspace: str, *, takes_compactions: bool) -> Sequence[Update | Notice]:
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


# Questions of a session to the person at the editor: a call that waits for approval, and elicitation of an MCP server
# during one. Pure but for the request itself. Anything that is not an answer is a denial.

_DETAILS_BYTES: Final = 32_000
_CUT: Final = ("more characters are not shown]", "more]", "…")
_OPTIONS: Final = {
    "allow_once": ("Allow", "once"),
    "allow_always": ("Allow the same in this session", "session"),
}
_DENY: Final = "reject_once"
NO_FORM: Final = "an MCP server asked something, and this editor shows no forms"


class ApprovalParams(NamedTuple):
    """The parameters of an ApproveAction without the id; `note` tells the user why there was no question."""

    params: Mapping[str, Any]
    note: str = ""


def denial(reason: str, note: str = "") -> ApprovalParams:
    """A denial in these words."""
    return ApprovalParams({"decision": "denied", "reason": reason}, note)


async def ask(
    peer: RpcPeer, session_id: str, payload: Mapping[str, Any], kind: str, features: Features
) -> ApprovalParams:
    """Ask the question of an `approval_requested`. Raises PeerGone."""
    try:
        if "isQuestion" in payload:
            return await _elicit(peer, session_id, payload, features)
        result = await peer.request(
            "session/request_permission",
            {"sessionId": session_id, "toolCall": _call_of(payload, kind), "options": _options(payload)},
        )
    except AcpError as error:
        return denial(f"the editor could not ask: {one_line(str(error))}")
    return _permission_in(result, payload)


def _call_of(payload: Mapping[str, Any], kind: str) -> dict[str, Any]:
    details = payload["details"]
    path, diff = details.get("path"), details.get("diff")
    has_diff = isinstance(path, str) and isinstance(diff, str)
    contents = diff_contents(path, diff) if has_diff else []
    return {
        "toolCallId": payload["toolCallId"],
        "title": title_of(payload["actionSummary"], ""),
        "kind": kind,
        "status": "pending",
        "content": [*contents, *text_contents(_text_of(payload, but=("diff",) if has_diff else ()))],
        **({"locations": [{"path": path}]} if isinstance(path, str) else {}),
    }


def _text_of(payload: Mapping[str, Any], but: tuple[str, ...] = ()) -> str:
    rows = {name: value for name, value in payload["details"].items() if name not in but and value not in (None, [])}
    shown = (f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in rows.items())
    why = [] if payload["description"] in ("", payload["actionSummary"]) else [payload["description"]]
    lines = [payload["title"], *why, f"risk: {payload['riskLevel']}", *payload["risks"], *shown]
    return clip("\n".join(lines), _DETAILS_BYTES)


def _options(payload: Mapping[str, Any]) -> list[dict[str, str]]:
    """Allow, deny, and allow for the session if the question shows all of what that would allow."""
    kinds = _OPTIONS if _is_whole(payload) else {"allow_once": _OPTIONS["allow_once"]}
    allowed = [{"optionId": kind, "name": name, "kind": kind} for kind, (name, _) in kinds.items()]
    return [*allowed, {"optionId": _DENY, "name": "Deny", "kind": _DENY}]


def _is_whole(payload: Mapping[str, Any]) -> bool:
    details = payload["details"]
    if "segmentsNotShown" in details or "headersNotShown" in details:
        return False
    ends = (line.rstrip() for line in _text_of(payload).splitlines())
    return not any(line.endswith(_CUT) for line in ends)


def _permission_in(result: Any, payload: Mapping[str, Any]) -> ApprovalParams:
    outcome = result.get("outcome") if isinstance(result, dict) else None
    chosen = outcome.get("optionId") if isinstance(outcome, dict) and outcome.get("outcome") == "selected" else None
    offered = {one["optionId"] for one in _options(payload)}
    if chosen in offered and chosen in _OPTIONS:
        return ApprovalParams({"decision": "approved", "scope": _OPTIONS[chosen][1]})
    return denial("denied by the user" if chosen == _DENY else "the editor gave no answer")


# Elicitation of an MCP server


async def _elicit(peer: RpcPeer, session_id: str, payload: Mapping[str, Any], features: Features) -> ApprovalParams:
    details = payload["details"]
    is_page = "url" in details
    if not (features.pages if is_page else features.forms):
        return denial(NO_FORM, f"{details.get('source', 'An MCP server')} asked: {details.get('question', '')}")
    asked: dict[str, Any] = {
        "sessionId": session_id,
        "toolCallId": payload["toolCallId"],
        "message": clip(f"{details.get('source', 'mcp')}: {details.get('question', '')}", _DETAILS_BYTES),
    }
    if is_page:
        asked |= {"mode": "url", "elicitationId": payload["approvalId"], "url": details["url"]}
    else:
        asked |= {"mode": "form", "requestedSchema": details.get("form", {"type": "object", "properties": {}})}
    result = await peer.request("elicitation/create", asked)
    action = result.get("action") if isinstance(result, dict) else None
    if action != "accept":
        return denial("declined by the user" if action == "decline" else "the user gave no answer")
    content = result.get("content")
    return ApprovalParams({"decision": "approved", "arguments": content if isinstance(content, dict) else {}})


# The prompt of an editor for the model: text, names of resources, the content of those that came along, and pictures.
#
# A `resource_link` is a name: the model may read what it names with its tools, under the policy; the host opens none.

MOST_BLOCKS: Final = 1000
_NAME_BYTES: Final = 4096
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_FENCE: Final = re.compile(r"`{3,}")


class Prompt(NamedTuple):
    """A prompt as `serve` takes it: text, and pictures, which are {mediaType, data}."""

    text: str
    pictures: Sequence[Mapping[str, str]] = ()


def prompt_in(blocks: Sequence[Mapping[str, Any]], *, takes_pictures: bool) -> Prompt:
    """The prompt that the blocks are. Raises AcpError for a block that is none, or is not advertised."""
    parts: list[str] = []
    pictures: list[dict[str, str]] = []
    is_text = False
    for place, block in enumerate(blocks):
        if takes_pictures and (picture := _picture(block, f"prompt[{place}]")) is not None:
            pictures.append(picture)
            block = {"type": "text", "text": f"[picture {len(pictures)}]"}  # noqa: PLW2901  its place in the text
        was_text, is_text = is_text, block.get("type") == "text"
        part = _part(block, f"prompt[{place}]")
        if was_text and is_text:  # editors cut one text at its mentions
            parts[-1] += part
        else:
            parts.append(part)
    text = "\n\n".join(part.strip("\n") for part in parts if part)
    if not text.strip():
        raise AcpError(INVALID_PARAMS, "prompt: is empty")
    return Prompt(text, pictures)


def _picture(block: Mapping[str, Any], path: str) -> dict[str, str] | None:
    if block.get("type") == "image":
        return {"mediaType": _text(block, "mimeType", path), "data": _text(block, "data", path)}
    resource = block.get("resource") if block.get("type") == "resource" else None
    if isinstance(resource, dict) and resource.get("mimeType") in _PICTURES and "blob" in resource:
        return {"mediaType": resource["mimeType"], "data": _text(resource, "blob", f"{path}.resource")}
    return None


def _part(block: Mapping[str, Any], path: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return _text(block, "text", path)
    if kind == "resource_link":
        return f"[{one_line(_text(block, 'name', path))}]({one_line(_text(block, 'uri', path), _NAME_BYTES)})"
    if kind == "resource":
        return _resource(block.get("resource"), f"{path}.resource")
    if kind in ("image", "audio"):
        raise AcpError(INVALID_PARAMS, f"{path}: this agent takes no {kind} (promptCapabilities)")
    raise AcpError(INVALID_PARAMS, f"{path}.type: must be text, resource_link or resource")


def _resource(resource: Any, path: str) -> str:
    if not isinstance(resource, dict):
        raise AcpError(INVALID_PARAMS, f"{path}: must be an object")
    uri = one_line(_text(resource, "uri", path), _NAME_BYTES)
    if "text" not in resource:
        _text(resource, "blob", path)
        return f"{uri} (binary, its content is not shown)"
    text = _text(resource, "text", path)
    fence = "`" * max([3, *(len(one) + 1 for one in _FENCE.findall(text))])  # no text can end its own block
    end = "" if text.endswith("\n") else "\n"
    return f"{uri}:\n{fence}\n{text}{end}{fence}"


def _text(block: Mapping[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise AcpError(INVALID_PARAMS, f"{path}.{name}: must be a string")
    return value


# Modes and options of a session, as an editor shows them: policy, model and sandbox of `SetMode`.
#
# The lists are suggestions. `serve` decides if a change applies: the chosen policy counts in addition to that of the
# launch, and the stricter decision wins; the sandbox goes no lower than the launch; the model has to be one that the
# launch allows.

POLICY: Final = "policy"
_ABOUT: Final = {
    "read-only": "Read files; change nothing and run nothing",
    "workspace": "Change files of the workspace; ask before commands",
    "ci": "Change the workspace and run commands without questions",
    "full": "Everything is allowed",
}
_TITLES: Final = {POLICY: ("Policy", "mode"), "model": ("Model", "model"), "sandbox": ("Sandbox", "_sandbox")}


class Choices(NamedTuple):
    """The values that each option can have, and those of the launch: by `policy`, `model` and `sandbox`."""

    known: Mapping[str, Sequence[str]]
    launch: Mapping[str, str]


class ChosenOptions:
    """The options of one session as they are now."""

    def __init__(self, choices: Choices, started: Mapping[str, Any]) -> None:
        """`started` is the session's report of its launch (`session_started`)."""
        self._known = choices.known
        self._launch = self._fields(choices.launch, started)
        self._now = dict(self._launch)

    def take(self, report: Mapping[str, Any]) -> None:
        """Take the result of SetMode."""
        self._now = self._fields(self._now, report)

    def take_mode(self, mode: Mapping[str, Any]) -> bool:
        """Take the options that are not as at the launch; True if that changes anything."""
        before, self._now = self._now, self._fields(self._launch, mode)
        return self._now != before

    @staticmethod
    def _fields(now: Mapping[str, str], report: Mapping[str, Any]) -> dict[str, str]:
        return {**now, **{name: value for name in now if isinstance(value := report.get(name), str)}}

    def check(self, name: str, value: str) -> None:
        """Raise AcpError for an option or a value that is not offered."""
        if name not in self._now:
            raise AcpError(INVALID_PARAMS, f"configId: there is no option {name[:100]!r}: {', '.join(self._now)}")
        if value not in self._values(name):
            raise AcpError(INVALID_PARAMS, f"{name}: {value[:100]!r} is not offered: {', '.join(self._values(name))}")

    @property
    def mode(self) -> str:
        """The mode, which is the policy."""
        return self._now[POLICY]

    def to_wire(self) -> dict[str, Any]:
        """The `modes` and `configOptions` of a session."""
        modes = {"currentModeId": self.mode, "availableModes": [_named("id", one) for one in self._values(POLICY)]}
        return {"modes": modes, "configOptions": self.config_options}

    @property
    def config_options(self) -> list[dict[str, Any]]:
        """The `configOptions` of a session."""
        return [
            {
                "id": name,
                "name": title,
                "category": category,
                "type": "select",
                "currentValue": self._now[name],
                "options": [_named("value", one) for one in self._values(name)],
            }
            for name, (title, category) in _TITLES.items()
            if name in self._now
        ]

    def _values(self, name: str) -> list[str]:
        return list(dict.fromkeys((*self._known.get(name, ()), self._now[name])))


def _named(key: str, value: str) -> dict[str, str]:
    about = {"description": _ABOUT[value]} if value in _ABOUT else {}
    return {key: value, "name": value, **about}
