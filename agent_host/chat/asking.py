"""Questions of a session to the person: shown in full, and answered by keys that were typed after that.

`y` allows the call once, `t` in this task, `s` in this session, `n` denies it, `r` denies it with a reason that the
model reads, `e` edits the arguments, `a` proposes a line for the policy. Where the question cannot show all of the
call, `s` and `a` are not offered: nobody can agree for later to what they have not seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from agent_host.chat.commands import transcript
from agent_host.clients.connection import RpcFailure, SessionGone
from agent_host.display_text import one_line
from agent_host.terminal.question import hides_something
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.chat.conversation import Conversation
    from agent_host.host.own_policy import Proposal

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
        """Ask a question once those before it have their answers."""
        self._waiting[payload["approvalId"]] = payload
        self._go_on()

    def resolve(self, payload: Mapping[str, Any]) -> None:
        """A question has its answer, from wherever it came."""
        approval_id = payload["approvalId"]
        if self._waiting.pop(approval_id, None) is None:
            return
        self._chat.note(_answer_in_words(payload))
        if self._asked == approval_id:
            self._stop()
        self._go_on()

    def withdraw(self) -> None:
        """Take all questions back: their task is over, or their process has ended."""
        self._waiting.clear()
        self._stop()

    async def look(self) -> None:
        """Ask what waits in the session and was missed."""
        session = self._chat.session
        if session is None:
            return
        state = await session.request("GetSessionState")
        for payload in state.get("pendingApprovals", ()):
            if payload.get("approvalId") not in self._waiting:
                self.add(payload)

    def _stop(self) -> None:
        asking, self._asking, self._asked = self._asking, None, ""
        if asking is not None:
            asking.cancel()
            self._chat.face.call_attention("")

    def _go_on(self) -> None:
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
                reply = await self._send({"approvalId": approval_id, "answeredBy": "chat", **answer})
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

    async def _send(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._chat.session
        if session is None:
            return {}
        return await session.request("ApproveAction", params)

    async def _answer_call(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of the answer."""
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
        """The arguments as the person wants them, None if they are left as they are."""
        chat = self._chat
        before = await self._arguments(payload)
        text = json.dumps(before, indent=2, ensure_ascii=False)
        while True:
            edited = await chat.face.line("Arguments (Ctrl-X Ctrl-E opens $EDITOR): ", text, lines=True)
            if edited is None or (edited == text and edited == json.dumps(before, indent=2, ensure_ascii=False)):
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
        """The arguments of the call, whole."""
        call = self._chat.activity.calls.get(payload["toolCallId"])
        if call is not None and call.arguments is not None:
            return dict(call.arguments)
        for item in await transcript(self._chat):
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
            if done and trying.exception() is None:  # the question is asked, whatever becomes of this
                return trying.result()
        return None

    async def _always(self, proposal: Proposal) -> bool:
        """True if the line was written."""
        chat = self._chat
        chat.face.print(chat.paper.rows(["", *proposal.lines]))
        if await chat.face.key("Write it? y yes · n no", "yn") != "y":
            return False
        try:
            done = await asyncio.to_thread(chat.records.write, proposal)
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
        """The parameters of the answer to an MCP server's question."""
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
                asked, _, label = field.prompt.rpartition("\n")
                chat.face.print(chat.paper.quoted(asked))
                line = await chat.face.line(f"{label.strip()} ")
                if line is None:
                    return {"decision": "denied", "reason": "declined at the terminal"}
                problem = field.take(line, content)
        return {"decision": "approved", "arguments": content}


def _answer_in_words(payload: Mapping[str, Any]) -> str:
    by = payload.get("answeredBy", "chat")
    elsewhere = "" if by == "chat" else f" (answered by {one_line(str(by), 40)})"
    if payload["decision"] != "approved":
        return one_line(f"denied: {payload.get('reason', '')}{elsewhere}", 2000)
    scope = {"task": " for this task", "session": " for this session"}.get(payload["scope"], "")
    return f"allowed{scope}{', as edited' if payload.get('edited') else ''}{elsewhere}"
