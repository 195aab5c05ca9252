"""A conversation at the terminal: one session after the other, each in its own process.

`Conversation` connects a `Face` (the terminal) and a `SupervisedSession` (the process). It receives every event of the
session, prints final output, keeps unfinished output for the live lines, and passes the session's questions to the
person.

Its rules:

- Printed output is never redrawn. A terminal's scrollback belongs to the person, so only final output goes there: a
  block of Markdown when the next one begins (`activity`), a call when it has its result, a question when it is asked.
  Output that still changes is in a few lines below it, which only the face draws.
- Nothing is printed twice. A call is printed by its id, a question by its id, an answer by its text: if the process
  died or the gateway failed in the middle of an answer, the new one is compared with the printed text (`AnswerText`).
- The session does not wait for the terminal. A very slow face makes `on_event` wait; the supervisor then stops reading,
  and the session joins and drops pieces of its streams (docs/serve.md, "A slow client"). Dropped pieces are reported,
  and open questions are requested again.
- A listener must not wait for its session, so requests to the session run as separate tasks (`spawn`).

Starts and ends:

- A session starts with the first prompt and not with the program, so that no empty ones are left.
- If its process dies, `on_gone` reports it and a task resumes the session in another process at once, with the open
  task and the queued ones. A session whose process dies repeatedly is left resumable.
- If this program dies, the process of the session finishes its step at the end of its input and leaves the session
  resumable, as for any client. `chat --continue` continues the newest such session of the workspace.

Questions are asked one after the other, by `Questions._ask`, which awaits keys and lines of the face as if the person
were a function. A question that another client answers, or that ends with its task, cancels that wait.

Traps:

- An Escape stops only one task: a second Escape while the next queued task starts does not affect that one.
- A prompt that was typed while the session is being resumed waits for it (`_opening`), in order.
- The model reads about an undo with the next prompt, because the host has no other way to tell it something outside
  of a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, Final

from agent_host.chat.activity import BEGINS_AGAIN, Activity, AnswerText, CommandOutput, RunningCall, subject_of
from agent_host.chat.commands import Questions, run_command
from agent_host.chat.paper import compaction_in_words, end_in_words, result_line
from agent_host.clients.supervisor import RpcFailure, SessionGone, TooManySessions
from agent_host.display_text import one_line
from agent_host.ids import MACHINE
from agent_host.terminal import MarkdownBlocks

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from agent_host.chat import Face
    from agent_host.chat.local import LocalRecords
    from agent_host.chat.paper import Paper
    from agent_host.clients.supervisor import SessionSpec, SupervisedSession, Supervisor

_COMMAND: Final = re.compile(r"/[A-Za-z]*( .*)?")
"""A path does not match."""
_ENDS: Final = frozenset({"task_completed", "task_failed", "task_cancelled"})
_OVER: Final = _ENDS | {"session_paused", "session_failed"}
_DEATHS: Final = 5
_DEATHS_WITHIN_S: Final = 60.0
_NEXT_TASK_S: Final = 1.0
_FAILURES: Final = (RpcFailure, SessionGone, TooManySessions, OSError)
_AFTER_TEXT: Final = frozenset({"tool_requested", "task_completed"})
"""Events that follow the recording of their step's text."""
_NEWS: Final = {
    "llm_fallback": "another model is asked",
    "llm_window_cut": "the oldest messages are left out of requests",
    "policy_expired": "the policy bundle has expired",
    "approval_timeout": "the approval timed out, so the call was denied",
    "tools_unavailable": "tools are not available",
    "tools_hidden": "the policy hides tools",
    "tools_changed": "tools have changed",
    "checkpoint_failed": "the disk did not take a record",
    "storage_limit_reached": "the session may keep no more",
    "step_limit_approaching": "four fifths of the steps are used",
    "llm_server_read": "",
}
_STREAMS: Final = re.compile(r"^--- (stdout|stderr) ---\n", re.MULTILINE)
_COMMANDS: Final = frozenset({"RunCommand", "cp__exec", "run_script"})
_MARKS: Final = {
    "crashed": "the process of the session died here",
    "session_resumed": "the session was resumed",
    **dict.fromkeys(("session_paused", "task_failed", "task_cancelled", "session_failed"), ""),
}


class Conversation:
    """See the module. `records` are this machine's stored sessions, `mode` the current options of the session."""

    def __init__(
        self, face: Face, paper: Paper, supervisor: Supervisor, spec: SessionSpec, records: LocalRecords
    ) -> None:
        self.face = face
        self.paper = paper
        self.records = records
        self.activity = Activity()
        self.answer = AnswerText()
        self.session: SupervisedSession | None = None
        self.task_id: str | None = None
        self.paused_task: str | None = None
        self.queued: dict[str, str] = {}
        self.mode: dict[str, str] = {}
        self.is_planning = False
        self.notes: list[str] = []
        self.last_output: tuple[str, CommandOutput, Mapping[str, Any]] | None = None
        self.last_thinking = ""
        self.is_leaving = False
        self._supervisor = supervisor
        self._spec = spec
        self._opening = asyncio.Lock()
        self._spawned: set[asyncio.Task[None]] = set()
        self._closing: SupervisedSession | None = None
        self._open_task: str | None = None  # from a process that died
        self._stopped: tuple[str, float] = ("", 0.0)
        self._deaths: list[float] = []
        self._reported: set[str] = set()
        self.printed: set[str] = set()
        """Printed calls, and steps whose text was printed."""
        self._has_gap = False
        self.questions = Questions(self)

    @property
    def workspace(self) -> str:
        """The project directory."""
        return self._spec.directory

    def diff_of(self, payload: Mapping[str, Any]) -> str:
        """The diff of a call, by its event or its item."""
        return "" if self.session is None else self.records.diff_of_call(self.session.session_id, payload)

    # What a person does

    @property
    def is_busy(self) -> bool:
        """True while a task runs."""
        return self.task_id is not None

    def submit(self, text: str) -> None:
        """Handle typed input: a command, or a prompt, which is queued if a task runs."""
        if _COMMAND.fullmatch(text.strip()):
            self.spawn(run_command(self, text.strip()))
        elif text.strip():
            self.spawn(self.send_prompt(text))

    async def send_prompt(self, text: str) -> None:
        """Give the session a prompt."""
        await self.settled()
        task_id = MACHINE.new_id("task")
        if self.is_busy:
            self.queued[task_id] = text
            self.face.refresh()
            if self.paper.plain:
                self.note("it waits for the task that runs")
        else:
            self.face.print(self.paper.prompt(text))
        notes, self.notes = self.notes, []
        prompt = "\n\n".join([*(f"[note of the host: {note}]" for note in notes), text])
        try:
            try:
                await self._start(task_id, prompt)
            except SessionGone:
                await self.revive()
                if not await self._has(task_id):
                    await self._start(task_id, prompt)
        except _FAILURES as error:
            self.queued.pop(task_id, None)
            self.notes = [*notes, *self.notes]
            self.warn(f"the prompt was not taken: {error}")

    async def _start(self, task_id: str, prompt: str) -> None:
        session = await self.open_session()
        paused, self.paused_task = self.paused_task, None
        if paused is not None:  # the prompt replaces it
            await session.request("ResumeSession", {"autoContinue": False})
            with contextlib.suppress(RpcFailure):
                await session.request("CancelTask", {"taskId": paused, "force": True})
        await session.start_task(task_id, prompt, {"queue": True})

    async def _has(self, task_id: str) -> bool:
        if self.session is None:
            return False
        with contextlib.suppress(RpcFailure):
            return "task" in await self.session.request("GetSessionState", {"taskId": task_id})
        return False

    async def steer(self, text: str) -> None:
        """Send a message to the running task; without a task it is a prompt."""
        if self.task_id is None or self.session is None:
            await self.send_prompt(text)
            return
        try:
            await self.session.request("SteerTask", {"taskId": self.task_id, "text": text})
        except _FAILURES as error:
            if isinstance(error, RpcFailure) and error.name == "NO_ACTIVE_TASK":
                await self.send_prompt(text)
            else:
                self.warn(f"the task did not get it: {error}")
        else:
            self.face.print(self.paper.prompt(text, steers=True))

    def interrupt(self) -> bool:
        """Stop the running task at the next safe point; a second time end its tools. False if nothing runs."""
        if self._closing is not None:
            self._closing.kill()
            return True
        task_id, now = self.task_id, time.monotonic()
        if task_id is None or self.session is None:
            return False
        stopped, at = self._stopped
        if stopped and stopped != task_id and now - at < _NEXT_TASK_S:
            return True
        force = stopped == task_id
        self._stopped = (task_id, now)
        self.note("ending the running tools" if force else "stopping at the next safe point; Esc again ends its tools")
        self.spawn(self._cancel(self.session, task_id, force=force))
        return True

    async def _cancel(self, session: SupervisedSession, task_id: str, *, force: bool) -> None:
        with contextlib.suppress(*_FAILURES):  # the task has ended meanwhile
            await session.request("CancelTask", {"taskId": task_id, "force": force})

    async def unfold(self) -> None:
        """Print the whole output of the last command."""
        if self.last_output is None:
            self.note("no output is folded")
            return
        call_id, output, payload = self.last_output
        lines = output.lines
        if not output.is_whole and self.session is not None:
            lines = await asyncio.to_thread(self.records.stored_output, self.session.session_id, payload) or lines
        self.face.print(self.paper.unfolded(f"output of {call_id}", lines))

    def unfold_thinking(self) -> None:
        """Print the model's last thinking."""
        thought = self.activity.thinking or self.last_thinking
        if thought:
            self.face.print(self.paper.unfolded("the model's thinking", thought.split("\n")))
        else:
            self.note("the model has not shown any thinking")

    async def picture_of_clipboard(self) -> str | None:
        """Store the clipboard's picture in a place that the session's tools may read; return its mention."""
        data = await asyncio.to_thread(self.records.picture)
        if data is None:
            self.note("there is no picture in the clipboard (or none of wl-paste, xclip and pngpaste is installed)")
            return None
        try:
            session = await self.open_session()
            return f"@{await asyncio.to_thread(self.records.keep_picture, session.session_id, data)} "
        except _FAILURES as error:
            self.warn(f"the picture was not taken: {error}")
            return None

    # Sessions

    async def warn_of_others(self) -> None:
        """Report the other processes in this workspace, while no session of this one is being opened."""
        async with self._opening:
            own = None if self.session is None else self.session.session_id
            lines = await asyncio.to_thread(self.records.other_processes, own)
        for line in lines:
            self.warn(line)

    async def open_session(self) -> SupervisedSession:
        """Return the session, a new one if there is none. Raises what `Supervisor.create` raises."""
        async with self._opening:
            if self.session is None:
                self.session = await self._supervisor.create(self._spec, self)
            return self.session

    async def settled(self) -> None:
        """Wait until a session that is being opened is open."""
        async with self._opening:
            pass

    async def resume(self, session_id: str, *, continues: bool = True) -> None:
        """Show a session's transcript and continue it; if that fails, keep the current session."""
        before = self.session
        await self.close_session()
        async with self._opening:
            if not await self._take(session_id, replay=True, continues=continues) and before is not None:
                await self._take(before.session_id, replay=False, continues=False)

    async def _take(self, session_id: str, *, replay: bool, continues: bool) -> bool:
        try:
            self.session, result = await self._supervisor.resume(session_id, self._spec, self, replay=replay)
        except _FAILURES as error:
            self.warn(f"session {session_id} cannot be resumed: {error}")
            return False
        self.mode = {}
        with contextlib.suppress(*_FAILURES):
            found = await self.session.request("GetSessionState")
            self.mode = {name: str(value) for name, value in (found.get("mode") or {}).items()}
            self.is_planning = self.mode.get("policy") == "read-only"
        await self._continue_open_task(result, continues=continues)
        return True

    async def _continue_open_task(self, result: Mapping[str, Any], *, continues: bool = True) -> None:
        """Continue the open task, or leave it paused."""
        open_task = result.get("incompleteTask")
        if self.session is None or (open_task is None and not result.get("queuedTasks")):
            return
        if open_task is not None:
            if not continues:
                self.paused_task = open_task["taskId"]
                return
            self.task_id = str(open_task["taskId"])
            self._show_queued(self.task_id)
            self.activity.begin()
        await self.session.request("ResumeSession")

    async def continue_task(self) -> None:
        """Continue the paused task."""
        if self.paused_task is None or self.session is None:
            return
        task_id, self.paused_task = self.paused_task, None
        try:
            if self.session.is_alive:
                await self.session.request("ResumeSession")
                self.task_id = task_id
                self.activity.begin()
            else:
                await self.revive()
        except _FAILURES as error:
            self.paused_task = task_id
            self.warn(f"the task cannot continue: {error}")

    async def close_session(self) -> None:
        """Close the session: its process finishes its step, and it stays resumable. An interrupt ends the process at
        once, which leaves the session resumable too."""
        async with self._opening:
            session, self.session = self.session, None
            self.questions.withdraw()
            if session is not None:
                self._closing = session
                if self.is_busy:
                    self.note("finishing the step that runs; Esc ends it at once")
                await session.close(grace_s=None)
                self._closing = None
            self.task_id = self.paused_task = None
            self.queued.clear()
            self.mode.clear()
            self.is_planning = False
            self.answer, self.activity = AnswerText(), Activity()
            self.printed.clear()
            self.last_output, self.last_thinking = None, ""
            self.face.refresh()

    async def aclose(self) -> None:
        """End the conversation."""
        self.is_leaving = True
        for task in [*self._spawned]:
            task.cancel()
        await self.close_session()
        await self._supervisor.aclose()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task; its failure is reported."""
        task = asyncio.ensure_future(work)
        self._spawned.add(task)
        task.add_done_callback(self._on_spawned_done)

    def _on_spawned_done(self, task: asyncio.Task[None]) -> None:
        self._spawned.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, _FAILURES):
            self.warn(str(error))
        elif error is not None:
            self.report({"exception": error})
        self.face.refresh()

    def report(self, context: Mapping[str, Any]) -> None:
        """Report once a failure in a key's or a task's handler; see `loop.set_exception_handler`."""
        error = context.get("exception")
        message = context.get("message", "") if error is None else f"{type(error).__name__}: {error}"
        if message not in self._reported:
            self._reported.add(message)
            self.warn(f"internal error: {message}")

    # Messages of the host

    def note(self, text: str) -> None:
        """Print a note."""
        self.face.print(self.paper.notice(text))

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.face.print(self.paper.warning(text))

    # Listener

    async def on_event(self, event: dict[str, Any]) -> None:
        """See Listener."""
        kind, payload = str(event["eventType"]), event["payload"]
        if event.get("droppedEvents"):
            self.warn(f"{event['droppedEvents']} events are not shown: the terminal was slow")
            for call in self.activity.calls.values():
                call.output.is_whole = False
            self._has_gap = True
            self.answer.take_back()
            self.spawn(self.questions.look())
        if self._has_gap and kind in _AFTER_TEXT and self.session is not None:
            self._has_gap = False
            await self._catch_up(self.session.session_id, event.get("taskId", ""))
        self.activity.take(kind, payload)
        if kind != "thinking_chunk":
            self._fold_thinking()
        if kind in _OVER:
            self._task_over(event)
        elif kind in _NEWS and (message := payload.get("message", _NEWS[kind])):
            text = f"{_NEWS[kind]}: {message}" if _NEWS[kind] and message != _NEWS[kind] else message
            self.note(one_line(text, 2000))
        else:
            self._follow(kind, event)
        self.face.refresh()
        await self.face.room()

    async def on_item(self, item: dict[str, Any]) -> None:
        """See Listener."""
        self._print_item(item)
        await self.face.room()

    async def _catch_up(self, session_id: str, task_id: str) -> Mapping[str, Any]:
        """Print recorded items of a task that were missed; return the mark of its end, if it has one."""
        end: Mapping[str, Any] = {}
        for item in await asyncio.to_thread(self.records.items, session_id, task_id):
            step_id = str(item.get("stepId", ""))
            if item["kind"] == "message" and item["role"] == "assistant" and step_id not in self.printed:
                self.printed.add(step_id)
                self._print_blocks([*self.answer.add(item["text"]), *self.answer.end()])
            elif item["kind"] == "call" and item["status"] != "open" and item["itemId"] not in self.printed:
                self._print_item(item)
            elif item["kind"] == "mark" and item["mark"] in _ENDS:
                end = item
        return end

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        """See Listener."""
        error = SessionGone(exit_code, last_words)
        self.questions.withdraw()
        self.answer.take_back()
        self._open_task, self.task_id = self.task_id, None
        self.activity.stop()
        if self.is_leaving or self.session is None:
            return
        now = time.monotonic()
        self._deaths = [*(at for at in self._deaths if now - at < _DEATHS_WITHIN_S), now]
        if len(self._deaths) >= _DEATHS:
            self.warn(f"{error}, {_DEATHS} times in a minute; the next prompt, or /resume, resumes the session")
            return
        self.warn(f"{error}; resuming the session{', the task continues' if self._open_task else ''}")
        self.spawn(self.revive())

    async def on_resumed(self, result: dict[str, Any]) -> None:
        """See Listener."""
        del result  # the next prompt resumed it

    async def revive(self) -> None:
        """Resume the session in another process, if its own has died."""
        async with self._opening:
            session = self.session
            if session is None or session.is_alive or self.is_leaving:
                return
            await session.close(grace_s=0.0)
            try:
                self.session, result = await self._supervisor.resume(session.session_id, self._spec, self, replay=False)
            except _FAILURES as error:
                self.session = None
                self.warn(f"the session cannot be resumed: {error}; try /resume {session.session_id}")
                return
            task_id, self._open_task = self._open_task, None
            if task_id is not None:
                end = await self._catch_up(session.session_id, task_id)
                if (result.get("incompleteTask") or {}).get("taskId") != task_id:
                    self.note(end_in_words(str(end.get("mark", "task_completed")), end))
            await self._continue_open_task(result)

    # Events

    def _follow(self, kind: str, event: Mapping[str, Any]) -> None:
        payload = event["payload"]
        match kind:
            case "session_started":
                self._warn_of_start(payload)
            case "task_started":
                self._task_started(event["taskId"])
            case "text_chunk" if not self._has_gap:
                self._print_blocks(self.answer.add(payload["text"]))
            case "llm_retry":
                self.answer.take_back()
                self.note(one_line(f"the gateway failed; asking again: {payload.get('message', '')}", 2000))
            case "llm_request_completed" if not self._has_gap:
                self._print_blocks(self.answer.end())
                self.printed.add(str(event.get("stepId", "")))
            case "tool_requested":
                self._print_blocks(self.answer.end())
                subject = subject_of(payload.get("arguments") or {}, str(payload.get("summary", "")), self.workspace)
                self.activity.calls[payload["toolCallId"]] = RunningCall(payload, subject)
            case "tool_completed":
                self._completed({"endedAt": event["timestamp"], **payload})
            case "approval_requested":
                self._print_blocks(self.answer.end())
                self.questions.add(payload)
            case "approval_resolved":
                self.questions.resolve(payload)
            case "context_compacted":
                self.note(compaction_in_words(payload))
            case "mode_changed":
                self.mode = {name: str(payload[name]) for name in ("policy", "model", "sandbox") if name in payload}

    def _print_blocks(self, blocks: Any) -> None:
        for block in blocks:
            if block is BEGINS_AGAIN:
                self.note("the text above was taken back; what follows is the answer")
            else:
                self.face.print(self.paper.answer(block))

    def _fold_thinking(self) -> None:
        activity = self.activity
        if activity.thinking_since is not None:
            seconds = time.monotonic() - activity.thinking_since
            self.last_thinking, activity.thinking = activity.thinking, ""
            activity.thinking_since = None
            self.face.print(self.paper.thinking(seconds, self.last_thinking))

    def _task_started(self, task_id: str) -> None:
        if task_id != self.paused_task:
            self.answer = AnswerText()
        self.task_id, self.paused_task = task_id, None
        self._show_queued(task_id)
        self.activity.begin()

    def _show_queued(self, task_id: str) -> None:
        text = self.queued.pop(task_id, None)
        if text is not None:
            self.face.print(self.paper.prompt(text))

    def _task_over(self, event: Mapping[str, Any]) -> None:
        kind, payload = event["eventType"], event["payload"]
        self._has_gap = False
        if kind == "session_paused":
            self.answer.take_back()  # the answer is requested again
        else:
            self._print_blocks(self.answer.end(is_whole=kind == "task_completed"))
        self.queued.pop(event.get("taskId", ""), None)
        if event.get("taskId") not in (self.task_id, None):
            return
        self.questions.withdraw()
        if kind == "task_completed":
            self.note(self.activity.summary())
        else:
            self.warn(end_in_words(kind, payload))
        self.paused_task, self.task_id = (self.task_id if kind == "session_paused" else None), None
        if self.paused_task is not None and self.session is not None:
            self.note("/resume continues the task; another prompt sets it aside")
        self.activity.stop()

    def _completed(self, payload: Mapping[str, Any]) -> None:
        call_id = payload["toolCallId"]
        call = self.activity.calls.pop(call_id, None) or RunningCall(payload, "")
        if payload.get("commandId"):
            self.activity.background.add(str(payload["commandId"]))
        if call_id in self.printed:
            return
        self.printed.add(call_id)
        call.output.end()
        if call.output.count:
            self.last_output = (f"{call.name} {call.subject}".strip(), call.output, payload)
        diff = "" if call_id in self.questions.shown_diffs else self.diff_of(payload)
        self._print_call(call.name, call.subject, payload, call.output, diff)

    def _print_call(
        self, name: str, subject: str, payload: Mapping[str, Any], output: CommandOutput, diff: str
    ) -> None:
        status, result, tail, hidden = payload["status"], result_line(payload), output.tail, output.hidden
        text = self.paper.call(name, subject, status=status, result=result, tail=tail, hidden=hidden, diff=diff)
        self.face.print(text)

    # Items of a transcript in the form of events, so that a continued conversation looks as before.

    def _print_item(self, item: Mapping[str, Any]) -> None:
        if item["kind"] == "message" and item["role"] == "user":
            self.face.print(self.paper.prompt(item["text"]))
        elif item["kind"] == "message":
            self.printed.add(str(item.get("stepId", "")))
            blocks = MarkdownBlocks()
            self._print_blocks(block for block in [*blocks.add(item["text"]), blocks.end()] if block.strip())
        elif item["kind"] == "call":
            if item["status"] != "open":
                self._print_recorded_call(item)
        elif item["mark"] == "task_steered":
            self.face.print(self.paper.prompt(str(item.get("text", "")), steers=True))
        elif item["mark"] == "context_compacted":
            self.note("requests show less of the conversation from here on; the record keeps all of it")
        elif item["mark"] in _MARKS:
            self.note(_MARKS[item["mark"]] or end_in_words(item["mark"], item))

    def _print_recorded_call(self, item: Mapping[str, Any]) -> None:
        self.printed.add(item["itemId"])
        arguments = item["arguments"] if isinstance(item["arguments"], dict) else {}
        subject = subject_of(arguments, "", self.workspace)
        output = CommandOutput()
        if item["toolName"] in _COMMANDS:  # the model got its streams, each under its name
            for text in _STREAMS.split(str(item.get("output", "")))[2::2]:
                output.add("all", text.rstrip("\n") + "\n" if text.strip() else "")
            self.last_output = (f"{item['toolName']} {subject}", output, item)
        self._print_call(item["toolName"], subject, item, output, self.diff_of(item))

    def _warn_of_start(self, payload: Mapping[str, Any]) -> None:
        sandbox = payload.get("sandbox") or {}
        if sandbox.get("level") == "none":
            self.warn(one_line(f"commands run without a sandbox: {sandbox.get('why', 'it is switched off')}", 1000))
        if payload.get("message"):
            self.warn(one_line(str(payload["message"]), 2000))
