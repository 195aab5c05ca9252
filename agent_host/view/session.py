"""The page of one session, as a file or in the parts of a live page.

The values of templates are made here from a `Transcript` (`agent_host.read_transcript`) alone, so that a page, a
transcript and an event never disagree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host import UsageError
from agent_host.display_text import count_noun, escape, one_line, tokens_in_words
from agent_host.host.options import state_option
from agent_host.host.own_policy import DeniedCalls
from agent_host.host.records import MARK_WORDS
from agent_host.view import Budget, DiffRow, Shown, assets, cut_start, environment, rows_of_edits, rows_of_patch
from agent_host.view.timeline import cost_chart, draw, duration_text, seconds, tokens_chart
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from markupsafe import Markup

    from agent_host import Item, Transcript
    from agent_host.host.records import StoredSession

_MOST_PICTURES: Final = 4 * 1024 * 1024
_PICTURE_TYPES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_SAFE_ID: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_SUMMARY_BYTES: Final = 160
_MOST_NEEDS: Final = 50
_ENDED_BY: Final[Mapping[str, str]] = {
    "model": "by the model",
    "policy": "by the policy: nobody approved what it asks for",
    "limit": "by a limit of the task",
    "infrastructure": "by the infrastructure: a gateway, a service, a disk or a process",
    "person": "by a person",
}
_DOUBTS: Final[Mapping[str, str]] = {
    "interrupted": "Interrupted",
    "not_stored": "Not stored",
    "not_delivered": "Not delivered",
    "not_seen": "Not seen",
}


# One session


class Notice(NamedTuple):
    """Something that needs a person: the action, the reason, its command, and a link to the item."""

    title: str
    text: str
    commands: tuple[str, ...] = ()
    href: str = ""
    approval_id: str = ""
    can_answer: bool = False
    details: Shown | None = None


def session_page(transcript: Transcript, *, state_dir: str, full: bool = False) -> bytes:
    """Render the page of one session as a file. With `full` no text and no picture is left out."""
    values = session_values(transcript, state_dir=state_dir, full=full)
    return environment().get_template("session.html").render(c=values, **assets()).encode("utf-8", "replace")


def session_body(transcript: Transcript, *, state_dir: str, can_approve: bool = False) -> dict[str, Any]:
    """The same in the parts that a live page replaces when they change: HTML by the id of its element, in order;
    `can_approve`: open questions have buttons."""
    values = session_values(transcript, state_dir=state_dir, can_approve=can_approve)
    parts: Any = environment().get_template("parts.html").module
    return {
        "title": f"{values['title']} – {values['verdict']}",
        "parts": {"head": str(parts.head(values)), "more": str(parts.more(values))},
        "steps": [(group.id, str(parts.group(group))) for group in values["groups"]],
    }


def session_values(
    transcript: Transcript, *, state_dir: str, full: bool = False, can_approve: bool = False
) -> dict[str, Any]:
    """The context of the session template."""
    row, items = transcript.row, transcript.items
    ids = _ids_of(items)
    budget = Budget(full=full)
    files, why_no_files = _files(transcript, budget)
    texts = _Texts(items, budget, transcript)
    pictures = _pictures(transcript, full=full)
    # Objects, because templates access their members five times as fast as those of a dict.
    shown = [SimpleNamespace(**_fields_of_item(item, ids[item["itemId"]], texts, pictures)) for item in items]
    groups = _group_steps(items, shown, transcript)
    links = {item["itemId"]: f"#{ids[item['itemId']]}" for item in items}
    links |= {step["stepId"]: f"#step-{step['step']}" for step in transcript.steps}
    option = state_option(state_dir)
    return {
        "title": escape(row.title, keep="") or row.session_id,
        "row": row,
        "verdict": row.verdict,
        "ended_by": _ended_by(row),
        "prompt": escape(row.prompt),
        "answer": _last_words(items, texts, links),
        "tiles": _tiles(transcript, files),
        "needs": _needs(transcript, links, option, budget, can_approve=can_approve),
        "timeline": draw(transcript.waits, items, links),
        "charts": [one for one in (tokens_chart(transcript.steps), cost_chart(transcript.steps)) if one],
        "groups": groups,
        "approvals": _approvals(items, links),
        "denials": _denials(items, links, row, state_dir),
        "doubts": [(_DOUBTS[one.kind], escape(one.message, keep=""), links.get(one.item_id or "", ""))
                   for one in transcript.doubts],
        "files": files,
        "why_no_files": why_no_files,
        "sandbox": _sandbox(transcript),
        "is_cut": texts.is_cut,
        "full_command": f"agent-host show {row.session_id}{option} --html FILE --full",
    }  # fmt: skip


def _ids_of(items: Iterable[Item]) -> dict[str, str]:
    """The id of each item's element. Ids of calls come from a model, so any that is not a plain name is replaced by a
    hash."""
    found: dict[str, str] = {}
    for item in items:
        name = item["itemId"]
        if not _SAFE_ID.fullmatch(name):
            name = f"x{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}"
        found[item["itemId"]] = f"item-{name}"
    return found


class _Texts:
    """The texts of the items within a page's limit: first those of failed calls, then those of the conversation's start
    and end, then the others in order."""

    def __init__(self, items: Sequence[Item], budget: Budget, transcript: Transcript) -> None:
        self._diffs = {item["itemId"]: _diff_rows(item, transcript) for item in items}
        ends = {item["itemId"] for item in [*items[:2], *items[-4:]]}
        bad = {item["itemId"] for item in items if item.get("status") in ("failed", "denied") or item.get("exitCode")}
        found = [
            (item, name, text, budget.ends(text, tail=name != "arguments"))
            for item in items
            for name, text in _texts_in(item, has_diff=bool(self._diffs[item["itemId"]]))
        ]
        found.sort(key=lambda row: 0 if row[0]["itemId"] in bad else 1 if row[0]["itemId"] in ends else 2)
        self._shown = {
            (item["itemId"], name): budget.whole_or_ends(
                text, short, item.get("coloured") if name == "output" else None
            )
            for item, name, text, short in found
        }
        self.is_cut = any(shown.cut_from for shown in self._shown.values())
        for key, rows in self._diffs.items():
            self._diffs[key] = budget.diff(rows) if rows else None
            self.is_cut = self.is_cut or bool(rows and self._diffs[key] is None)

    def of(self, item: Item, name: str) -> Shown | None:
        return self._shown.get((item["itemId"], name))

    def diff(self, item: Item) -> list[DiffRow] | None:
        return self._diffs[item["itemId"]]


def _diff_rows(item: Item, transcript: Transcript) -> list[DiffRow] | None:
    if item["kind"] != "call" or item["status"] == "denied":
        return None
    rows = rows_of_edits(item.get("editedArguments", item["arguments"]))
    if not rows and "diffRef" in item:
        text = transcript.diff(item["diffRef"])
        rows = rows_of_patch(text) if text is not None and "\n@@ " in text else []
    return rows or None


def _texts_in(item: Item, *, has_diff: bool) -> Iterator[tuple[str, str]]:
    if item["kind"] == "message":
        yield "text", item["text"]
    elif item["kind"] == "mark":
        text = "\n".join(str(value) for value in (item.get("message"), item.get("text"), item.get("summary")) if value)
        yield "text", text
    else:
        given = item.get("editedArguments", item["arguments"])
        left_out = ("edits", "content") if has_diff else ()
        if isinstance(given, dict):
            given = {name: value for name, value in given.items() if name not in left_out}
        yield "arguments", _arguments_text(given)
        if item.get("output"):
            yield "output", item["output"]


def _arguments_text(arguments: Any) -> str:
    """Readable arguments: one line each, long texts unchanged."""
    if not isinstance(arguments, dict):
        return json_text.dumps(arguments).decode()
    lines = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json_text.dumps(value).decode()
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)


def _fields_of_item(
    item: Item, element: str, texts: _Texts, pictures: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": element, "kind": item["kind"], "time": item["timestamp"][11:19],
        "text": texts.of(item, "text"), "who": None, "tone": "",
    }  # fmt: skip
    if item["kind"] == "message":
        return {**shown, "who": "You" if item["role"] == "user" else "Model", "role": item["role"]}
    if item["kind"] == "mark":
        reason = item.get("reason")
        words = MARK_WORDS.get(item["mark"], item["mark"].replace("_", " "))
        return {
            **shown,
            "who": words[:1].upper() + words[1:],
            "mark": item["mark"],
            "tone": _TONES.get(item["mark"], ""),
            "reason": "" if reason is None else escape(str(reason), keep=""),
            "sandbox": item["sandbox"].get("level") if isinstance(item.get("sandbox"), dict) else None,
        }
    return {**shown, **_show_call(item, texts), "pictures": pictures.get(item["itemId"], [])}


_TONES: Final[Mapping[str, str]] = {
    "crashed": "bad", "task_failed": "bad", "session_failed": "bad", "checkpoint_failed": "bad",
    "session_paused": "warn", "llm_retry": "warn", "llm_fallback": "warn", "llm_window_cut": "warn",
    "artifact_upload_failed": "warn", "storage_limit_reached": "warn", "policy_expired": "warn",
    "task_cancelled": "warn", "session_cancelled": "warn", "context_summary_retry": "warn",
    "task_completed": "good", "session_resumed": "good",
}  # fmt: skip


def _show_call(item: Item, texts: _Texts) -> dict[str, Any]:
    status, exit_code = item["status"], item.get("exitCode")
    outcome = f"{status} {item['code']}" if "code" in item else status
    tone = {"failed": "bad", "denied": "bad", "open": "warn"}.get(status, "good")
    if exit_code and status == "succeeded":
        outcome, tone = f"exit code {exit_code}", "bad"
    ran = item.get("startedAt") and item.get("endedAt")
    spent = seconds(item["endedAt"]) - seconds(item["startedAt"]) if ran else None
    return {
        "tool": one_line(item["toolName"]),
        "summary": _brief(_action_of(item)),
        "outcome": escape(outcome, keep=""),
        "tone": tone,
        "spent": "" if spent is None else duration_text(max(spent, 0)),
        "arguments": texts.of(item, "arguments"),
        "is_edited": "editedArguments" in item,
        "output": texts.of(item, "output"),
        "diff": texts.diff(item),
        "is_open": status in ("failed", "denied", "open") or bool(exit_code),
        "decision": _decision_of(item),
        "approval": _approval_words(item),
        "denials": [one_line(line) for line in item.get("denials", ())],
        "changed": [escape(path, keep="") for path in item.get("pathsChanged", ())][:20],
        "images": [f"{one['mediaType']} {one['width']}×{one['height']}" for one in item.get("images", ())],
    }


def _brief(line: str) -> Markup:
    shown = cut_start(line, 2 * _SUMMARY_BYTES)
    return shown if len(shown) >= len(line) else shown + "…"


def _action_of(item: Item) -> str:
    given, found = item.get("editedArguments", item["arguments"]), item.get("summary") or ""
    if isinstance(given, dict):
        texts = (given.get(name) for name in ("command", "path", "url", "pattern", "query", "name", "id"))
        found = next((text for text in texts if isinstance(text, str)), found)
    return one_line(str(found), _SUMMARY_BYTES)


def _decision_of(item: Item) -> str:
    if "decision" not in item:
        return ""
    risk = f", risk {item['riskLevel']}" if "riskLevel" in item else ""
    level = f", sandbox {item['sandboxLevel']}" if item.get("sandboxLevel") else ""
    grant = ", by an earlier approval" if item.get("grantedBy") else ""
    return escape(f"{item['decision']} by {item.get('rule', 'no rule')}{grant}{risk}{level}", keep="")


_FACES: Final[Mapping[str, str]] = {
    "client": "by the client of the session", "command": "by a command", "chat": "in a chat", "acp": "in an editor",
    "view": "on the local page",
}  # fmt: skip


def _approval_words(item: Item) -> str:
    approval = item.get("approval")
    if approval is None:
        return ""
    by = _FACES.get(str(approval.get("answeredBy")), "without a person")
    wait = f" after {duration_text(approval['waitedMs'] / 1000)}" if approval.get("waitedMs") else ""
    scope = f" ({approval.get('scope', 'once')})" if approval["decision"] == "approved" else ""
    reason = one_line(str(approval.get("reason", "")))
    return escape(f"{approval['decision']}{scope} {by}{wait}: {reason}", keep="").rstrip(": ")


def _group_steps(
    items: Sequence[Item], shown: Sequence[SimpleNamespace], transcript: Transcript
) -> list[SimpleNamespace]:
    """Group the items by step; items between steps form their own groups."""
    usage = {step["step"]: step for step in transcript.steps}
    groups: list[SimpleNamespace] = []
    seen: set[int | None] = {None}
    last: object = ()
    for item, one in zip(items, shown, strict=True):
        step = item.get("step")
        if step != last:
            last = step
            is_first = step not in seen
            seen.add(step)
            name, words = f"at-{one.id}", ""
            if is_first and step is not None:
                name, words = f"step-{step}", _turn_words(usage.get(step, {}))
            groups.append(SimpleNamespace(id=name, step=step if is_first else None, turn=words, items=[]))
        groups[-1].items.append(one)
    return groups


def _turn_words(turn: Mapping[str, Any]) -> str:
    if "inputTokens" not in turn:
        return ""
    spent = f", {duration_text(turn['latencyMs'] / 1000)}" if turn.get("latencyMs") is not None else ""
    return f"{one_line(str(turn['model']))}: {tokens_in_words(turn)}{spent}"


# The top of the page


def _ended_by(row: StoredSession) -> str:
    by = row.ending.get("endedBy")
    if row.verdict == "running":
        return "a process works on it"
    why = "" if row.reason in (None, row.verdict) else f"{row.reason}: "
    return escape(f"{why}ended {_ENDED_BY.get(str(by), str(by))}", keep="") if by else ""


def _last_words(items: Sequence[Item], texts: _Texts, links: Mapping[str, str]) -> tuple[Shown | None, str] | None:
    """The model's last text and the link to it; None if its last turns have no text."""
    for item in reversed(items[-12:]):
        if item["kind"] == "message" and item["role"] == "assistant" and item["text"].strip():
            return texts.of(item, "text"), links[item["itemId"]]
    return None


def _tiles(transcript: Transcript, files: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """{name, value, note} of each total."""
    row, items = transcript.row, transcript.items
    moments = [seconds(item["timestamp"]) for item in items]
    spent: dict[str, float] = {}
    for wait in transcript.waits:
        if wait.ended_at is not None:
            spent[wait.on] = spent.get(wait.on, 0) + seconds(wait.ended_at) - seconds(wait.started_at)
    names = {"model": "model", "tool": "tools", "service": "services", "person": "person", "process": "no process"}
    long = [kind for kind in names if spent.get(kind, 0) >= 0.1]
    parts = ", ".join(f"{names[kind]} {duration_text(spent[kind])}" for kind in long)
    calls = [item for item in items if item["kind"] == "call"]
    bad = {name: sum(1 for one in calls if one["status"] == name) for name in ("failed", "denied", "open")}
    exits = sum(1 for one in calls if one["status"] == "succeeded" and one.get("exitCode"))
    notes = [f"{count} {name}" for name, count in bad.items() if count]
    notes += [f"{exits} with another exit code than 0"] if exits else []
    words = [", ".join(notes)] if notes else []
    usage = row.usage or {}
    tiles = [
        ("Time", duration_text(max(moments) - min(moments)) if moments else "–", parts),
        ("Steps", f"{len(transcript.steps):,}", ": ".join([count_noun(len(calls), "call"), *words])),
    ]
    if usage:
        cached = usage.get("cachedInputTokens") or 0
        total = usage["inputTokens"] + usage["outputTokens"]
        note = f"{usage['inputTokens']:,} in ({cached:,} cached), {usage['outputTokens']:,} out"
        tiles.append(("Tokens", f"{total:,}", note))
        cost = usage.get("cost")
        tiles.append(("Cost", "–" if cost is None else f"{cost:.4g} {usage.get('costCurrency', '')}",
                      "no price is known for the model" if cost is None else ""))  # fmt: skip
    added, deleted = (sum(one[name] for one in files) for name in ("additions", "deletions"))
    if files:
        tiles.append(("Files", f"{len(files):,}", f"+{added:,} −{deleted:,} lines"))
    return tiles


def _needs(
    transcript: Transcript, links: Mapping[str, str], option: str, budget: Budget, *, can_approve: bool
) -> list[Notice]:
    """List everything that waits for a person, the most urgent first."""
    row = transcript.row
    found = [_question(asked, links, option, budget, can_approve=can_approve) for asked in transcript.questions]
    if row.resumable and row.verdict != "running":
        words = "The session can continue where it stopped."
        found.append(Notice("Resume", words, (f"agent-host resume {row.session_id}{option}",)))
    for item in transcript.items:
        command = _replay_command(item, option)
        if command:
            words = escape(f"{item['toolName']}: {_action_of(item)}", keep="")
            found.append(Notice("No approver was present", words, (command,), links[item["itemId"]]))
    for doubt in transcript.doubts:
        if doubt.kind == "interrupted" and doubt.item_id is not None:
            text = escape(doubt.message, keep="")
            found.append(Notice("Look before you continue", text, (), links.get(doubt.item_id, "")))
    return found[:_MOST_NEEDS]


def _question(
    asked: Mapping[str, Any], links: Mapping[str, str], option: str, budget: Budget, *, can_approve: bool
) -> Notice:
    approval_id = str(asked["approvalId"])
    is_form = bool(asked.get("isQuestion"))
    details = budget.fit(_arguments_text(asked.get("details", {})))
    command = shlex.quote(approval_id)
    # A person must see all of a question to answer it, so there are no buttons if something is cut.
    is_complete = not details.cut_from and not any(mark in str(details.html) for mark in ("[… ", "…"))
    return Notice(
        f"{one_line(str(asked.get('title', 'A question')))} ({asked.get('riskLevel', 'no')} risk)",
        one_line(str(asked.get("actionSummary", ""))),
        () if is_form else (f"agent-host approve {command}{option}", f"agent-host deny {command}{option}"),
        links.get(str(asked.get("toolCallId")), ""),
        approval_id,
        can_approve and is_complete and not is_form,
        details,
    )


def _replay_command(item: Item, option: str) -> str:
    replay = item.get("approval", {}).get("replay")
    if not isinstance(replay, dict) or item["status"] != "denied":
        return ""
    return escape(f"{replay['command']}{option}", keep="") if isinstance(replay.get("command"), str) else ""


def _approvals(items: Iterable[Item], links: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    asked = [item for item in items if "approval" in item]
    return [
        (one_line(item["toolName"]), _action_of(item), _approval_words(item), links[item["itemId"]]) for item in asked
    ]


def _denials(
    items: Iterable[Item], links: Mapping[str, str], row: StoredSession, state_dir: str
) -> list[tuple[str, str, str, str, str, str]]:
    """{tool, action, why, command, entry, href} of each denied call. A `command` approves it; or a bundle needs the
    `entry`, with the command that tests such a bundle."""
    denials, option, lacking = [], state_option(state_dir), DeniedCalls(row.workspace, state_dir)
    for item in items:
        if item.get("status") != "denied":
            continue
        command = _replay_command(item, option)
        entry = None if command else lacking.entry(item)
        if entry is not None:
            command = f"agent-host policy rejudge {row.session_id} --policy ./own.json{option}"
        entry_text = "" if entry is None else one_line(json.dumps(entry, ensure_ascii=False), _SUMMARY_BYTES)
        why = one_line(str(item.get("message") or item.get("rule", "")))
        denials.append((one_line(item["toolName"]), _action_of(item), why, command, entry_text, links[item["itemId"]]))
    return denials


def _files(transcript: Transcript, budget: Budget) -> tuple[list[dict[str, Any]], str]:
    """The files that the session has changed, with their patches, or the reason why they are unknown."""
    try:
        patches = transcript.files()
    except UsageError as error:
        return [], escape(str(error), keep="")
    workspace, files = transcript.row.workspace, []
    for patch in patches:
        path = patch.file_path
        name = os.path.relpath(path, workspace) if workspace and path.startswith(workspace + os.sep) else path
        rows = rows_of_patch(patch.reading or patch.diff)
        shown = budget.diff(rows)
        missing = "" if shown is not None else f"{len(rows):,} lines are not shown"
        files.append({
            "path": escape(name, keep=""), "status": patch.status, "additions": patch.additions,
            "deletions": patch.deletions, "rows": shown, "note": escape(patch.note or "", keep="") or missing,
        })  # fmt: skip
    return files, ""


def _pictures(transcript: Transcript, *, full: bool) -> dict[str, list[dict[str, Any]]]:
    """Pictures as data URLs, by call; without `full` up to the page's limit."""
    found: dict[str, list[dict[str, Any]]] = {}
    left = _MOST_PICTURES
    for one in transcript.pictures():
        size = len(one.base64)
        if one.media_type not in _PICTURE_TYPES or not _BASE64.fullmatch(one.base64) or (size > left and not full):
            continue
        left -= size
        words = f"{one.media_type}, {one.width}×{one.height}"
        found.setdefault(one.item_id, []).append({"src": f"data:{one.media_type};base64,{one.base64}", "alt": words})
    return found


_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def _sandbox(transcript: Transcript) -> str:
    if transcript.sandbox is None:
        return ""
    why = transcript.sandbox.get("why")
    return escape(f"{transcript.sandbox.get('level')}{f' ({why})' if why else ''}", keep="")
