"""`agent-host show SESSION_ID`: what a session was asked, what it did and what came of it, live or ended; and
`agent-host report`: many sessions as one page, and their own pages beside it."""

from __future__ import annotations

import os
from difflib import unified_diff
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.outputs import import_view, write_page
from agent_host.cli.shared import sandbox_in_words, state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.clients.markdown import session_markdown
from agent_host.display_text import count_noun, escape, one_line, tokens_in_words
from agent_host.errors import AgentHostError, SessionNotFound, UsageError
from agent_host.host.options import state_option
from agent_host.host.records import MARK_WORDS, session_id_of, stored_sessions
from config import json_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from agent_host.host.records import Item, StoredSession

_FOLDED_LINES = 6
_FOLDED_CHARS = 600
_ARGUMENT_BYTES = 300


def show(namespace: argparse.Namespace) -> int:
    """`agent-host show`; exit 2 for a step that there is not. Raises SessionNotFound."""
    if namespace.step is not None and (namespace.html is not None or namespace.markdown):
        raise UsageError("--step is for text and JSON: a page and Markdown have all steps")
    if namespace.full and namespace.html is None:
        raise UsageError("--full goes with --html FILE")
    state_dir = state_dir_of(namespace)
    session_id = session_id_of(state_dir, namespace.session_id)
    record = stored_sessions(state_dir).record(session_id)
    transcript = record.transcript()
    if namespace.html is not None:
        _, page = import_view()
        return write_page(
            namespace.html, lambda: page.session_page(transcript, state_dir=state_dir, full=namespace.full)
        )
    if namespace.markdown:
        answer(session_markdown(transcript, option=state_option(state_dir)))
        return exit_codes.COMPLETED
    items, turns = transcript.items, transcript.steps
    if namespace.step is not None:
        items = [item for item in items if item.get("step") == namespace.step]
        if not items:
            raise UsageError(f"--step {namespace.step}: session {session_id} has no such step")
    if namespace.output == "json":
        shown, is_whole = {item["stepId"] for item in items if "step" in item}, namespace.step is None
        row = {
            **record.row.to_wire(),
            **({} if transcript.sandbox is None else {"sandbox": transcript.sandbox}),
            "tasks": [record.whole_task(task_id) for task_id in record.task_ids],
            "steps": [step for step in turns if step["stepId"] in shown],
            "items": items,
            "messages": [one for one in record.conversation if is_whole or one.get("stepId") in shown],
            "waits": [wait.to_wire() for wait in transcript.waits],
            "doubts": [doubt.to_wire() for doubt in transcript.doubts],
        }
        answer(json_text.dumps(row, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        text = _text(items, {step["stepId"]: step for step in turns}, whole=namespace.step is not None)
        answer("".join([*_head(record.row, transcript.sandbox), *text]))
    return exit_codes.COMPLETED


def _head(session: StoredSession, sandbox: Mapping[str, Any] | None) -> Iterator[str]:
    status = f"{session.description}{', resumable' if session.resumable else ''}"
    held = f", held by process {session.pid}" if session.pid else ""
    tokens = "" if session.total_tokens is None else f", {session.total_tokens} tokens"
    yield f"{session.session_id}  {status}{held}, {session.step_count} steps{tokens}\n"
    yield f"workspace: {escape(session.workspace, keep='')}\n"
    if session.usage is not None:
        yield f"tokens: {tokens_in_words(session.usage)}\n"
    if sandbox is not None:
        yield sandbox_in_words(sandbox)


def _text(items: list[Item], turns: Mapping[str, dict[str, Any]], *, whole: bool) -> Iterator[str]:
    for step, of_step in groupby(items, key=lambda item: item.get("step")):
        shown = list(of_step)
        yield "\n" if step is None else f"\nstep {step}\n{_render_usage(turns.get(shown[0]['stepId']))}"
        for item in shown:
            yield from _item(item, whole=whole)


def _render_usage(turn: dict[str, Any] | None) -> str:
    return "" if turn is None else f"  {one_line(turn['model'])}: {tokens_in_words(turn)}\n"


def _item(item: Item, *, whole: bool) -> Iterator[str]:
    if item["kind"] == "mark":
        said = "".join(
            f": {escape(str(item[name]), keep='')}" for name in ("reason", "message", "text") if item.get(name)
        )
        level = f", commands in the {item['sandbox']['level']} sandbox" if "sandbox" in item else ""
        yield f"-- {item['timestamp']} {MARK_WORDS.get(item['mark'], item['mark'])}{level}{said}\n"
        if item.get("summary"):
            yield from _block("   the model's notes: ", item["summary"], whole=whole, indent="   ")
    elif item["kind"] == "message":
        who = "user" if item["role"] == "user" else "model"
        yield from _block(f"{who}: ", item["text"] or "(nothing)", whole=whole or item["role"] == "user", indent="  ")
    else:
        yield from _call(item, whole=whole)


def _call(item: Item, *, whole: bool) -> Iterator[str]:
    given = item.get("editedArguments", item["arguments"])
    edits = list(_edits(given))
    arguments = json_text.dumps({**given, "edits": f"{len(edits)}, below"} if edits else given).decode()
    shown = escape(arguments, keep="") if whole else one_line(arguments, _ARGUMENT_BYTES)
    outcome = item["status"] + (f" {item['code']}" if "code" in item else "")
    outcome = f"exit code {item['exitCode']}" if item.get("exitCode") else outcome
    yield f"  {one_line(item['toolName'])} {shown} — {outcome}\n"
    if "decision" in item:
        risk = f", risk {item['riskLevel']}" if "riskLevel" in item else ""
        yield f"    policy: {item['decision']} by {one_line(item.get('rule', ''))}{risk}\n"
    approval = item.get("approval")
    if approval is not None:
        edited = ", arguments edited" if approval.get("edited") or "editedArguments" in item else ""
        edited += f", by {one_line(approval['answeredBy'])}" if "answeredBy" in approval else ""
        yield f"    approval: {approval['decision']} ({approval['scope']}{edited}): {one_line(approval['reason'])}\n"
    grant = item.get("editedArguments", item["arguments"]).get("sandboxGrant")
    if isinstance(grant, dict):
        yield f"    asked of the sandbox: {one_line(json_text.dumps(grant).decode())}\n"
    yield from (f"    sandbox: {one_line(denial)}\n" for denial in item.get("denials", ()))
    for lines in edits:
        yield from _block("    ", "\n".join(lines), whole=whole, indent="    ")
    if item.get("output"):
        yield from _block("    ", item["output"], whole=whole, indent="    ")


def _edits(arguments: Any) -> Iterator[list[str]]:
    """The lines of each replacement of text that a call asks for, as a diff has them."""
    rows = arguments.get("edits") if isinstance(arguments, dict) else None
    for row in rows if isinstance(rows, list) else ():
        old, new = (row.get("oldText"), row.get("newText")) if isinstance(row, dict) else (None, None)
        if isinstance(old, str) and isinstance(new, str):
            yield list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))[2:]


def _block(head: str, text: str, *, whole: bool, indent: str) -> Iterator[str]:
    """Text behind `head`, its further lines indented; cut to some lines unless `whole`."""
    lines = escape(text).rstrip("\n").split("\n")
    if not whole:
        cut = [line if len(line) <= _FOLDED_CHARS else line[:_FOLDED_CHARS] + "…" for line in lines[:_FOLDED_LINES]]
        more = len(lines) - len(cut)
        lines = [*cut, f"[… {more} more lines; --step N shows all]"] if more else cut
    yield f"{head}{lines[0]}\n"
    yield from (f"{indent}{line}\n" for line in lines[1:])


def report(namespace: argparse.Namespace) -> int:
    """`agent-host report`; exit 1 where a page could not be written. Raises UsageError, SessionNotFound."""
    state_dir = state_dir_of(namespace)
    if bool(namespace.sessions) == bool(namespace.all):
        raise UsageError("report needs the ids of sessions, or --all for all of them")
    rows = stored_sessions(state_dir).all()
    if not namespace.all:
        wanted = list(dict.fromkeys(session_id_of(state_dir, one) for one in namespace.sessions))
        found = {row.session_id: row for row in rows}
        missing = next((one for one in wanted if one not in found), None)
        if missing is not None:
            raise SessionNotFound(f"there is no session {missing} under {state_dir}; `agent-host sessions` lists all")
        rows = [found[one] for one in wanted]
    pages, _ = import_view()
    folder = f"{os.path.splitext(os.path.abspath(namespace.html))[0]}-sessions" if namespace.with_sessions else None
    failed = 0 if folder is None else _write_sessions(state_dir, rows, folder)
    name = None if folder is None else os.path.basename(folder)
    written = write_page(namespace.html, lambda: pages.sessions_page(rows, state_dir=state_dir, folder=name))
    return exit_codes.FAILED if failed else written


def _write_sessions(state_dir: str, rows: list[StoredSession], folder: str) -> int:
    """Write the page of each session into `folder`; returns how many could not be. Raises UsageError for the folder."""
    (_, page), sessions, failed = import_view(), stored_sessions(state_dir), 0
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--with-sessions {folder}: {error.strerror}") from error
    for row in rows:
        try:
            transcript = sessions.record(row.session_id).transcript()
            path = os.path.join(folder, f"{row.session_id}.html")
            failed += write_page(path, lambda: page.session_page(transcript, state_dir=state_dir), quiet=True) != 0  # noqa: B023  it is called at once
        except AgentHostError as error:
            notice(f"error: session {row.session_id} has no page: {error}")
            failed += 1
    answer(f"wrote {count_noun(len(rows) - failed, 'page')} to {folder}\n")
    return failed
