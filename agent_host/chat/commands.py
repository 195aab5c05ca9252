"""Input of a person in a conversation: commands, each a line that begins with a slash, and answers to questions."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.clients.markdown import session_markdown
from agent_host.clients.supervisor import RpcFailure, SessionGone
from agent_host.display_text import count_noun, one_line
from agent_host.errors import AgentHostError
from agent_host.host.options import state_option
from agent_host.terminal import hides_something, prompt_of, take
from config import json_text
from state import StateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.chat.conversation import Conversation
    from agent_host.host.own_policy import Proposal

    Run = Callable[[Conversation, str], Awaitable[None]]


class Command(NamedTuple):
    """A command: the name of its argument, and its effect."""

    run: Run
    argument: str
    about: str
    without: str
    """The reply if there is no session yet; empty for a command that needs none."""


COMMANDS: Final[dict[str, Command]] = {}
_PAGE: Final = 500
_AT_ONCE: Final = frozenset({"help", "quit"})
"""Commands that do not wait for a session that is being opened or resumed."""
_READ_ONLY: Final = "read-only"
_LAUNCH: Final = "launch"
_PLAN_FIRST: Final = "The person wants a plan first: read what you need and propose it. Change nothing yet."
_KEYS: Final = (
    ("Enter", "send; while a task runs the prompt waits in a queue"),
    ("Alt+Enter", "tell the running task (/steer)"),
    ("Ctrl-J", "a new line"),
    ("Esc", "stop at the next safe point; twice: end the running tools"),
    ("Ctrl-O", "all output of the last command"),
    ("Ctrl-T", "what the model thought"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-V", "paste a picture or a path"),
    ("Ctrl-C", "clear the line; on an empty one as Esc; twice: leave"),
    ("Ctrl-D", "leave"),
    ("@", "complete a path of the workspace"),
)


async def run_command(chat: Conversation, line: str) -> None:
    """Run the command of a line."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        chat.warn(
            one_line(f"/{name} is not a command{f': did you mean /{near[0]}?' if near else ''} (/help lists them)")
        )
        return
    try:
        if name not in _AT_ONCE:
            await chat.settled()
        if command.without and chat.session is None:
            chat.note(command.without)
            return
        await command.run(chat, argument.strip())
    except OSError as error:
        chat.warn(f"/{name}: {f'{error.filename}: {error.strerror}' if error.filename else error}")
    except (RpcFailure, SessionGone, AgentHostError, StateError) as error:
        chat.warn(f"/{name}: {error}")


def _command(argument: str = "", *, without: str = "") -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        about = (run.__doc__ or "").strip().rstrip(".")
        COMMANDS[run.__name__.strip("_")] = Command(run, argument, about[:1].lower() + about[1:], without)
        return run

    return register


@_command()
async def help_(chat: Conversation, _: str) -> None:
    """List commands and keys."""
    rows = [(f"/{name} {one.argument}".rstrip(), one.about) for name, one in COMMANDS.items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {about}" for name, about in (*rows, ("", ""), *_KEYS)]
    chat.face.print("\n" + chat.paper.rows(lines, hang=width + 2))


@_command("[NAME]")
async def model(chat: Conversation, name: str) -> None:
    """Show the model, or switch to another one that the policy allows; `launch` switches back."""
    session = await chat.open_session()
    mode = await session.request("SetMode", {"model": name} if name else {})
    chat.note(f"model {mode['model']}")
    if not name:
        models = await asyncio.to_thread(chat.records.allowed_models)
        chat.note(f"the policy allows {', '.join(models)}" if models else "/model NAME asks another one")


@_command("[NAME_OR_FILE]")
async def policy(chat: Conversation, name: str) -> None:
    """Show the policy, or narrow the session by another one; `launch` switches back."""
    session = await chat.open_session()
    if name:
        chat.is_planning = False
    mode = await session.request("SetMode", {"policy": name} if name else {})
    shown = mode.get("policy", "that of the Session Service")
    suffix = "" if name in ("", _LAUNCH) else " (beside that of the launch)"
    chat.note(f"policy {shown}, sandbox {mode['sandbox']}{suffix}")


@_command()
async def plan(chat: Conversation, _: str) -> None:
    """Work under the read-only policy, to make a plan first; a second call approves it and switches back."""
    session = await chat.open_session()
    wanted = _LAUNCH if chat.is_planning else _READ_ONLY
    await session.request("SetMode", {"policy": wanted})
    chat.is_planning = not chat.is_planning
    if chat.is_planning:
        chat.notes.append(_PLAN_FIRST)
        chat.note("planning: files can only be read until you approve the plan with /plan")
    elif _PLAN_FIRST in chat.notes:  # the model has not read it yet
        chat.notes.remove(_PLAN_FIRST)
        chat.note("the policy of the launch applies again")
    else:
        chat.notes.append("The person approves the plan: you may act now, within the policy.")
        chat.note("the plan is approved: the policy of the launch applies again; say what to do, or `go`")


@_command(without="nothing was asked yet")
async def cost(chat: Conversation, _: str) -> None:
    """Show tokens and cost of the session."""
    session = await chat.open_session()
    usage = (await session.request("GetSessionState"))["tokenUsage"]
    cached = usage.get("cachedInputTokens", 0)
    lines = [
        f"tokens in   {usage['inputTokens']:,}" + (f" ({cached:,} from the cache)" if cached else ""),
        f"tokens out  {usage['outputTokens']:,}",
    ]
    if "remaining" in usage:
        lines.append(f"left        {usage['remaining']:,} of {usage['maxSessionTokens']:,}")
    if "cost" in usage:
        limit = f" of {usage['maxCost']}" if "maxCost" in usage else ""
        lines.append(f"cost        {usage['cost']:.4f}{limit} {usage.get('costCurrency', '')}")
    else:
        lines.append("cost        not known: the model has no price (docs/costs.md)")
    chat.face.print(chat.paper.rows(lines))


@_command(without="there is no conversation yet")
async def compact(chat: Conversation, _: str) -> None:
    """Make requests contain less of the conversation; the record keeps all of it."""
    session = await chat.open_session()
    await session.request("CompactContext")
    chat.note("the next request is compacted, and reports what it omits")


@_command(without="nothing was changed yet")
async def diff(chat: Conversation, _: str) -> None:
    """Show the changes of the session."""
    session = await chat.open_session()
    found = await session.request("GetPatchPreview")
    if found.get("unseen"):
        chat.warn(one_line(f"not all changes of commands are known: {found['unseen']}"))
    for file in found["files"]:
        path = file["filePath"].removeprefix(chat.workspace.rstrip("/\\") + "/")
        head = f"{file['status']} {path} +{file['additions']} −{file['deletions']}"
        chat.face.print("\n" + chat.paper.rows([one_line(head, 2000)]))
        if file["diff"]:
            chat.face.print(chat.paper.diff(file["diff"]))
        await chat.face.room()
    if not found["files"]:
        chat.note("nothing is changed")


@_command(without="there is nothing to undo")
async def undo(chat: Conversation, _: str) -> None:
    """Restore the files of the last step that changed some."""
    session = await chat.open_session()
    if chat.is_busy:
        chat.warn("a task runs: Esc stops it, then /undo")
        return
    lines, note = await asyncio.to_thread(chat.records.undo, session.session_id)
    chat.face.print(chat.paper.rows(lines))
    chat.notes += [note] if note else []


@_command("[TEXT]")
async def sessions(chat: Conversation, text: str) -> None:
    """Choose a session: verdict, title, age, workspace; type to search."""
    rows = await asyncio.to_thread(chat.records.sessions, text)
    if not rows:
        chat.note("no session is on record" + (f" with {text!r} in it" if text else ""))
        return
    chosen = await chat.face.pick("Which session?", rows)
    if chosen is not None:
        await resume(chat, chosen)


@_command("[ID]")
async def resume(chat: Conversation, session_id: str) -> None:
    """Continue the paused task, or a session by its id, the start of its id or `latest`."""
    if session_id:
        found = await asyncio.to_thread(chat.records.session_id_of, session_id)
        if chat.session is not None and found == chat.session.session_id:
            chat.note("that is this session")
        else:
            await chat.resume(found)
    elif chat.paused_task is not None:
        await chat.continue_task()
    elif chat.session is not None and not chat.session.is_alive:
        await chat.revive()
    else:
        await sessions(chat, "")


@_command()
async def new(chat: Conversation, _: str) -> None:
    """Start another session; this one stays recorded."""
    session = chat.session
    await chat.close_session()
    left = "" if session is None else f"; {session.session_id} stays on record"
    chat.note(f"the next prompt begins a new session{left}")


@_command("[clear]")
async def queue(chat: Conversation, argument: str) -> None:
    """Show the queued prompts, or clear them."""
    if argument == "clear" and chat.session is not None:
        for task_id in list(chat.queued):
            await chat.session.request("CancelTask", {"taskId": task_id})
            chat.queued.pop(task_id, None)
        chat.note("the queue is empty")
        return
    rows = [f"{number} {one_line(text, 300)}" for number, text in enumerate(chat.queued.values(), 1)]
    chat.face.print(chat.paper.rows(rows or ["nothing waits"]))


@_command("TEXT")
async def steer(chat: Conversation, text: str) -> None:
    """Send a message to the running task, which the model reads before its next turn."""
    if text:
        await chat.steer(text)
    else:
        chat.note("/steer TEXT tells the running task something")


@_command()
async def mcp(chat: Conversation, _: str) -> None:
    """Show MCP servers, and the number of their tools that the model sees."""
    rows = await asyncio.to_thread(chat.records.mcp_servers)
    chat.face.print(chat.paper.rows(rows or ["no MCP server is configured (docs/mcp.md)"]))


@_command("[FILE.md|FILE.json]", without="there is no conversation yet")
async def export(chat: Conversation, name: str) -> None:
    """Write the conversation into a file, as Markdown or JSON."""
    session = await chat.open_session()
    shown = await asyncio.to_thread(chat.records.transcript, session.session_id)

    def write() -> str:
        path = os.path.abspath(os.path.join(chat.workspace, os.path.expanduser(name or f"{session.session_id}.md")))
        text = session_markdown(shown, option=state_option(chat.records.state_dir), whole=True)
        if path.lower().endswith(".json"):
            text = json_text.dumps(shown.items, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
        with open(path, "x", encoding="utf-8", errors="replace") as file:  # never overwrite a file
            file.write(text)
        return path

    path = await asyncio.to_thread(write)
    chat.note(f"wrote {path} ({count_noun(len(shown.items), 'item')})")


@_command()
async def quit_(chat: Conversation, _: str) -> None:
    """Leave; the session stays resumable."""
    chat.face.leave()


# Questions of a session to the person: shown in full, and answered by keys typed after that.
#
# `y` allows the call once, `t` in this task, `s` in this session, `n` denies it, `r` denies it with a reason that the
# model reads, `e` edits the arguments, `a` proposes a line for the policy. If the question cannot show all of the call,
# `s` and `a` are not offered, because a person cannot agree in advance to something unseen.


_WORDS: Final = {
    "y": "y once",
    "t": "t this task",
    "s": "s this session",
    "n": "n no",
    "r": "r no, because…",
    "e": "e edit",
    "a": "a always",
}
_SCOPES: Final = {"y": "once", "t": "task", "s": "session"}
_TITLE: Final = "agent-host: a question waits"
_REASON_CHARS: Final = 4000
_PROPOSES_S: Final = 2.0
_FAILURES: Final = (RpcFailure, SessionGone)


class Questions:
    """The questions of a conversation, asked one after the other."""

    def __init__(self, conversation: Conversation) -> None:
        self._chat = conversation
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._shown: dict[str, str] = {}  # what was printed, by approval
        self.shown_diffs: set[str] = set()
        """Calls whose diff a question has shown."""
        self._asking: asyncio.Task[None] | None = None
        self._asked = ""

    def add(self, payload: Mapping[str, Any]) -> None:
        """Ask a question after the earlier ones are answered."""
        self._waiting[payload["approvalId"]] = payload
        self._ask_next()

    def resolve(self, payload: Mapping[str, Any]) -> None:
        """Close a question that was answered, here or by another client."""
        approval_id = payload["approvalId"]
        if self._waiting.pop(approval_id, None) is None:
            return
        by = payload.get("answeredBy", "chat")
        elsewhere = "" if by == "chat" else f" (answered by {one_line(str(by), 40)})"
        if payload["decision"] == "approved":
            scope = {"task": " for this task", "session": " for this session"}.get(payload["scope"], "")
            self._chat.note(f"allowed{scope}{', as edited' if payload.get('edited') else ''}{elsewhere}")
        else:
            self._chat.note(one_line(f"denied: {payload.get('reason', '')}{elsewhere}", 2000))
        if self._asked == approval_id:
            self._stop()
        self._ask_next()

    def withdraw(self) -> None:
        """Withdraw all questions, because their task is over or their process has ended."""
        self._waiting.clear()
        self._stop()

    async def look(self) -> None:
        """Ask the session's open questions that were missed."""
        session = self._chat.session
        state = {} if session is None else await session.request("GetSessionState")
        for payload in state.get("pendingApprovals", ()):
            if payload.get("approvalId") not in self._waiting:
                self.add(payload)

    def _stop(self) -> None:
        asking, self._asking, self._asked = self._asking, None, ""
        if asking is not None:
            asking.cancel()
            self._chat.face.call_attention("")

    def _ask_next(self) -> None:
        if self._asking is None and self._waiting and not self._chat.is_leaving:
            self._asked = next(iter(self._waiting))
            self._asking = asyncio.ensure_future(self._ask(self._waiting[self._asked]))
            self._asking.add_done_callback(self._report)

    def _report(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._chat.warn(f"the question could not be asked: {type(error).__name__}: {error}")

    async def _ask(self, payload: Mapping[str, Any]) -> None:
        chat, approval_id = self._chat, payload["approvalId"]
        text = chat.paper.question(payload)
        if self._shown.get(payload["toolCallId"]) == text:
            chat.note("the question above is still open")
        else:
            self._shown[payload["toolCallId"]] = text
            chat.face.print(text)
        if payload["details"].get("diff"):
            self.shown_diffs.add(payload["toolCallId"])
        chat.face.call_attention(_TITLE)
        ask = self._answer_form if payload.get("isQuestion") else self._answer_call
        while (answer := await ask(payload)) is not None:
            try:
                params = {"approvalId": approval_id, "answeredBy": "chat", **answer}
                reply = {} if chat.session is None else await chat.session.request("ApproveAction", params)
            except RpcFailure as error:
                chat.warn(f"not taken: {error}")
                continue
            except SessionGone:
                return
            if reply.get("status") == "not_found":
                chat.note("the question was answered already")
                self._waiting.pop(approval_id, None)
            break
        chat.face.call_attention("")

    async def _answer_call(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        chat = self._chat
        hides = hides_something(payload)
        proposal = None if hides else await self._proposal(payload)
        keys = "".join(key for key in _WORDS if not (key == "s" and hides) and not (key == "a" and proposal is None))
        if hides:
            chat.note("not all of it can be shown: it can be allowed once or for this task")
        while True:
            key = await chat.face.key("Allow? " + " · ".join(_WORDS[one] for one in keys), keys)
            if key in _SCOPES:
                return {"decision": "approved", "scope": _SCOPES[key]}
            if key == "n":
                return {"decision": "denied", "reason": "denied at the terminal"}
            if key == "r":
                reason = await chat.face.line("Why not? ")
                if reason is not None and reason.strip():
                    return {"decision": "denied", "reason": reason.strip()[:_REASON_CHARS]}
            elif key == "e":
                arguments = await self._edit(payload)
                if arguments is not None:
                    return {"decision": "approved", "arguments": arguments}
            elif proposal is not None and await self._always(proposal):
                return {"decision": "approved", "scope": "session"}

    async def _edit(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        chat = self._chat
        before = text = json.dumps(await self._arguments(payload), indent=2, ensure_ascii=False)
        while True:
            edited = await chat.face.line("Arguments (Ctrl-X Ctrl-E opens $EDITOR): ", text, lines=True)
            if edited is None or edited == text == before:
                return None
            text = edited
            try:
                arguments = json_text.loads(edited)
            except ValueError as error:
                chat.warn(f"not JSON: {error}")
                continue
            if isinstance(arguments, dict):
                return arguments
            chat.warn("the arguments are a JSON object")

    async def _arguments(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        call = self._chat.activity.calls.get(payload["toolCallId"])
        if call is not None and call.arguments is not None:
            return dict(call.arguments)
        page: dict[str, Any] = {"nextCursor": ""}
        while self._chat.session is not None and "nextCursor" in page:
            cursor = {"cursor": page["nextCursor"]} if page["nextCursor"] else {}
            page = await self._chat.session.request("GetTranscript", {"limit": _PAGE, **cursor})
            for item in page["items"]:
                if item["itemId"] == payload["toolCallId"]:
                    found = item.get("editedArguments", item["arguments"])
                    return found if isinstance(found, dict) else {}
        return {}

    async def _proposal(self, payload: Mapping[str, Any]) -> Proposal | None:
        chat = self._chat
        if chat.session is None or payload["details"].get("sandboxGrant"):
            return None
        session_id, tool = chat.session.session_id, str(payload["details"]["toolName"])
        with contextlib.suppress(*_FAILURES):
            arguments = await self._arguments(payload)
            trying = asyncio.ensure_future(asyncio.to_thread(chat.records.propose, session_id, tool, arguments))
            done, _ = await asyncio.wait({trying}, timeout=_PROPOSES_S)
            if done and trying.exception() is None:  # the question is asked even if this fails
                return trying.result()
        return None

    async def _always(self, proposal: Proposal) -> bool:
        chat = self._chat
        chat.face.print(chat.paper.rows(["", *proposal.lines]))
        if await chat.face.key("Write it? y yes · n no", "yn") != "y":
            return False
        try:
            done = await asyncio.to_thread(proposal.write)
        except OSError as error:
            chat.warn(f"it was not written: {error.strerror}")
            return False
        chat.note(done)
        if proposal.sets_default:
            chat.note(proposal.sets_default)
            if await chat.face.key("Make it your policy (host.policy)? y yes · n no", "yn") == "y":
                chat.note(await asyncio.to_thread(chat.records.make_default, proposal))
        return True

    async def _answer_form(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        chat, details = self._chat, payload["details"]
        fields = chat.records.form_fields(details)
        ask = "Open the page yourself, then y · n declines" if "url" in details else "Answer? y yes · n no"
        if await chat.face.key(ask, "yn") == "n":
            return {"decision": "denied", "reason": "declined at the terminal"}
        content: dict[str, Any] = {}
        for field in fields:
            problem: str | None = ""
            while problem is not None:
                if problem:
                    chat.warn(problem)
                asked, _, label = prompt_of(field, "").rpartition("\n")
                chat.face.print(chat.paper.quoted(asked))
                line = await chat.face.line(f"{label.strip()} ")
                if line is None:
                    return {"decision": "denied", "reason": "declined at the terminal"}
                problem = take(field, line, content)
        return {"decision": "approved", "arguments": content}
