"""One session of an editor: its turn, its questions, and the updates that the editor gets.

A turn is one prompt. It ends with the end of its task, and its answer is sent after all other updates of the session. A
task that is open when a prompt comes (a crash or a pause left it) is cancelled first: what it did is in the
conversation, so that nothing is done twice. `/continue` continues it instead.

Work that needs a request to the session in addition to an event (usage, the diff of a change, an answer) runs in a task
of its own, because a listener must not wait for its session; the turn ends once they are done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from agent_host.acp import updates
from agent_host.acp.peer import AcpError, PeerGone
from agent_host.clients.supervisor import RpcFailure, SessionGone, TooManySessions
from agent_host.ids import MACHINE
from agent_host.rpc.messages import INTERNAL_ERROR, INVALID_REQUEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from agent_host.acp.peer import RpcPeer
    from agent_host.clients.supervisor import SupervisedSession

AUTH_REQUIRED: Final = -32000
_TITLE_CHARS: Final = 80
_OUTPUT_CHARS: Final = 8192
_OUTPUT_EVERY_S: Final = 0.1
_MOST_DIFFED: Final = 20
_STOP_REASONS: Final = {
    "max_steps_exceeded": "max_turn_requests",
    "LLM_GUARDRAIL_BLOCKED": "refusal",
    "LLM_BUDGET_EXCEEDED": "max_tokens",
}
_ENDS: Final = frozenset({"task_completed", "task_failed", "task_cancelled", "session_paused", "session_failed"})


class _Turn:
    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.is_started = False
        self.is_cancelled = False
        self.end: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()


class EditorSession:
    """A `Listener` of one session. `reopen` starts a process for it again, `window_of` returns the window of a
    model."""

    def __init__(
        self,
        peer: RpcPeer,
        features: updates.Features,
        workspace: str,
        reopen: Callable[[EditorSession], Awaitable[None]],
        window_of: Callable[[str], int | None],
    ) -> None:
        self._peer = peer
        self._features = features
        self.workspace = workspace
        self._reopen = reopen
        self._window_of = window_of
        self.session_id = ""
        self._supervised: SupervisedSession | None = None
        self._may_send = False
        self._unsent: list[updates.Update] = []
        """Updates that came before the editor knew the session."""
        self.replayed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        """The payload of `session_started`, or an empty one."""
        self.is_closing = False
        self.has_title = False
        self.waits_for_answer = False
        """True if the replay ended with a call that waits for an approval."""
        self.options: updates.ChosenOptions = updates.ChosenOptions(updates.Choices({}, {}), {})
        self._turn: _Turn | None = None
        self.open_task: str | None = None
        """The task that a crash or a pause left open."""
        self._is_paused = False
        self._ended: dict[str, asyncio.Future[None]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[str, updates.Update] = {}
        """The calls of the turn, as they were requested."""
        self._spawned: set[asyncio.Task[None]] = set()
        self._outputs: dict[str, _Output] = {}

    def attach(self, supervised: SupervisedSession, result: Mapping[str, Any] | None = None) -> None:
        """Have this process for the session; `result` is that of ResumeSession."""
        self._supervised = supervised
        self.session_id = supervised.session_id
        open_task = None if result is None else result.get("incompleteTask")
        self.open_task = None if open_task is None else open_task["taskId"]
        self._is_paused = self.open_task is not None

    @property
    def supervised(self) -> SupervisedSession:
        """The session in its process."""
        if self._supervised is None:
            raise RuntimeError("the session is attached before anything is asked of it")
        return self._supervised

    @property
    def is_busy(self) -> bool:
        """True while a prompt of it runs."""
        return self._turn is not None

    # Requests of the editor

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the session, in another process if it has none. Raises AcpError."""
        with translated():
            if not self.supervised.is_alive:
                await self._reopen(self)
            return await self.supervised.request(method, params)

    async def prompt(self, prompt: updates.Prompt) -> str:
        """Run one prompt and return why it stopped. Raises AcpError."""
        return await self._take_turn(_Turn(MACHINE.new_id("task")), lambda turn: self._begin(turn, prompt))

    async def continue_task(self) -> str:
        """Continue the task that is open, and return why it stopped. Raises AcpError."""
        if not self.supervised.is_alive:
            with translated():
                await self._reopen(self)
        if self.open_task is None:
            raise AcpError(INVALID_REQUEST, "there is no task to continue")

        async def begin(_turn: _Turn) -> None:
            await self.request("ResumeSession")
            self._is_paused, self.open_task = False, None

        return await self._take_turn(_Turn(self.open_task), begin)

    async def continue_without_prompt(self) -> None:
        """Continue the open task without a prompt, so that it asks its question again. Raises AcpError."""
        await self.request("ResumeSession")
        self._is_paused = False

    def cancel(self) -> None:
        """Cancel the prompt that runs, if any: its answer is `cancelled`."""
        turn = self._turn
        if turn is not None and not turn.is_cancelled:
            turn.is_cancelled = True
            if turn.is_started:
                self._spawn(self._cancel(turn.task_id))

    async def set_option(self, option: str, value: str) -> None:
        """Change an option of the session. Raises AcpError."""
        self.options.check(option, value)
        self.options.take(await self.request("SetMode", {option: value}))

    async def close(self) -> None:
        """Forget what waits for the editor."""
        self.is_closing = True
        for task in [*self._questions.values(), *self._spawned]:
            task.cancel()
        for output in self._outputs.values():
            output.stop()

    async def _take_turn(self, turn: _Turn, begin: Callable[[_Turn], Coroutine[Any, Any, None]]) -> str:
        if self._turn is not None:
            raise AcpError(INVALID_REQUEST, "a prompt of this session is running: wait for its end, or cancel it")
        self._turn = turn
        running = asyncio.ensure_future(self._run(turn, begin))
        try:
            while True:
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if self.is_closing or running.cancelled() or task is None:
                        running.cancel()
                        raise
                    task.uncancel()
                    self.cancel()
        finally:
            self._turn = None
            self._calls.clear()

    async def _run(self, turn: _Turn, begin: Callable[[_Turn], Coroutine[Any, Any, None]]) -> str:
        try:
            with translated():
                await begin(turn)
        except AcpError:
            if turn.is_cancelled:
                return "cancelled"
            raise
        turn.is_started = True
        if turn.is_cancelled:
            await self._cancel(turn.task_id)
        end = await turn.end
        while waiting := [one for one in self._spawned if not one.done()]:
            await asyncio.wait(waiting)
        return "cancelled" if turn.is_cancelled else _stop_reason(end)

    async def _begin(self, turn: _Turn, prompt: updates.Prompt) -> None:
        if self.supervised.is_alive:
            await self._clear()
        await self.supervised.start_task(turn.task_id, prompt.text, pictures=prompt.pictures)
        if not self.has_title:
            self.has_title = True
            title = prompt.text.strip().partition("\n")[0][:_TITLE_CHARS]
            self.update({"sessionUpdate": "session_info_update", "title": title, "updatedAt": MACHINE.stamp()})

    async def _clear(self) -> None:
        """Cancel the task that a crash or a pause left open, so that another can start."""
        if self._is_paused:
            await self.supervised.request("ResumeSession", {"autoContinue": False})
            self._is_paused = False
        task_id, self.open_task = self.open_task, None
        if task_id is None:
            return
        over = self._ended[task_id] = asyncio.get_running_loop().create_future()
        try:
            await self.supervised.request("CancelTask", {"taskId": task_id, "force": True})
            await over
        except RpcFailure:  # it has ended meanwhile
            pass
        finally:
            del self._ended[task_id]

    async def _cancel(self, task_id: str) -> None:
        with contextlib.suppress(RpcFailure, SessionGone):  # it has ended meanwhile
            await self.supervised.request("CancelTask", {"taskId": task_id, "force": True})

    # Listener

    async def on_event(self, event: dict[str, Any]) -> None:
        """See Listener."""
        kind, payload = event["eventType"], event["payload"]
        if kind in ("session_started", "session_resumed") and not self.started.done():
            self.started.set_result(payload)
        if kind == "replay_finished":
            self.replayed.set_result(None)
            return
        self._show(kind, payload, event)
        for notice in updates.news_of(event):
            self.notify(notice)
        if kind in _ENDS:
            self._take_end(event)
        await self._peer.drain()

    def _show(self, kind: str, payload: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        match kind:
            case "text_chunk" | "thinking_chunk":
                part = "agent_message_chunk" if kind == "text_chunk" else "agent_thought_chunk"
                message_id = f"{event.get('stepId', 'step')}-{payload['attempt']}"
                self.update(updates.text_update(part, payload["text"], message_id))
            case "tool_requested":
                self._on_call(payload)
            case "tool_output_chunk":
                self._on_output(payload["toolCallId"], payload["text"])
            case "tool_completed":
                self._on_completed(payload, event.get("taskId"))
            case "llm_request_completed":
                self._spawn(self._show_usage(payload["inputTokens"] + payload["outputTokens"], payload["model"]))
            case "context_compacted":
                self._send(updates.compaction_of(event, takes_compactions=self._features.compactions))
            case "approval_requested":
                self._questions[payload["approvalId"]] = self._spawn(self._ask(payload))
            case "approval_resolved":
                self._on_answered(payload)
            case "mode_changed":
                if self.options.take_mode(payload):  # it was not asked for here
                    self.show_mode()
                    self.show_options()

    async def on_item(self, item: dict[str, Any]) -> None:
        """See Listener."""
        if item["kind"] == "message" and item["role"] == "user":
            self.has_title = True
        if item["kind"] == "call":
            waits = item["status"] == "open" and item.get("decision") == "APPROVAL_REQUIRED" and "approval" not in item
            self.waits_for_answer = self.waits_for_answer or waits
        for one in updates.updates_of_item(item, self.workspace, takes_compactions=self._features.compactions):
            self._send(one)
        await self._peer.drain()

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        """See Listener."""
        error = SessionGone(exit_code, last_words)
        for one in (self.started, self.replayed):
            if not one.done():
                one.set_exception(error)
                one.exception()  # there may be no waiter
        for task in self._questions.values():
            task.cancel()
        for output in self._outputs.values():
            output.stop()
        self._outputs.clear()
        self.open_task, self._is_paused = None, False  # the next process reports the open task
        if self.is_closing:
            return
        self.notify(updates.Notice("error", f"{error}", "The next prompt resumes the session: nothing is done twice."))
        for over in self._ended.values():
            over.set_exception(error)
        if self._turn is not None and not self._turn.end.done():
            self._turn.end.set_result({"eventType": "gone", "payload": {"message": str(error)}})

    async def on_resumed(self, result: dict[str, Any]) -> None:  # noqa: ARG002
        """See Listener."""
        self.notify(updates.Notice("info", "The session was resumed in another process"))

    # Updates to the editor

    def start_sending(self) -> None:
        """Send the retained updates, and retain no more: the editor has the session's id."""
        self._may_send = True
        unsent, self._unsent = self._unsent, []
        for update in unsent:
            self.update(update)

    def notify(self, notice: updates.Notice) -> None:
        """Send a text for the user."""
        self.update(updates.notice_update(notice, takes_notices=self._features.notices))

    def show_mode(self) -> None:
        """Show which mode the session has."""
        self.update({"sessionUpdate": "current_mode_update", "currentModeId": self.options.mode})

    def show_options(self) -> None:
        """Show all options of the session."""
        self.update({"sessionUpdate": "config_option_update", "configOptions": self.options.config_options})

    def answer_text(self, text: str) -> None:
        """Send a text as the answer to a command."""
        self.update(updates.text_update("agent_message_chunk", text, MACHINE.new_id("msg")))

    def _send(self, one: updates.Update | updates.Notice) -> None:
        if isinstance(one, updates.Notice):
            self.notify(one)
        else:
            self.update(one)

    def update(self, update: updates.Update) -> None:
        """Send one update, once the editor has the session's id."""
        if not self._may_send:
            self._unsent.append(update)
            return
        self._peer.notify("session/update", {"sessionId": self.session_id, "update": update})

    def _on_call(self, payload: Mapping[str, Any]) -> None:
        update = updates.requested_call(payload, self.workspace)
        if payload["toolCallId"] in self._calls:
            update["sessionUpdate"] = "tool_call_update"
        self._calls[payload["toolCallId"]] = update
        self.update(update)

    def _on_output(self, call_id: str, text: str) -> None:
        output = self._outputs.get(call_id)
        if output is None:
            output = self._outputs[call_id] = _Output(
                lambda shown: self._update_call(call_id, status="in_progress", content=updates.text_contents(shown))
            )
        output.add(text)

    def _update_call(self, call_id: str, **fields: Any) -> None:
        self.update({"sessionUpdate": "tool_call_update", "toolCallId": call_id, **fields})

    def _on_completed(self, payload: Mapping[str, Any], task_id: str | None) -> None:
        output = self._outputs.pop(payload["toolCallId"], None)
        if output is not None:
            output.stop()
        update = updates.completed_call(payload, self.workspace)
        edits = self._calls.get(payload["toolCallId"], {}).get("content", [])
        if payload["status"] == "succeeded":
            update["content"] = [*edits, *update["content"]]
        self.update(update)
        if payload.get("pathsChanged") and not edits:
            self._spawn(self._show_diffs(task_id, update))

    async def _show_diffs(self, task_id: str | None, update: updates.Update) -> None:
        """Show how the files that a call changed differ from their state when its task started."""
        paths = [one["path"] for one in update["locations"][:_MOST_DIFFED]]
        params = {"filePaths": paths, **({} if task_id is None else {"taskId": task_id})}
        with contextlib.suppress(RpcFailure, SessionGone):
            files = (await self.supervised.request("GetPatchPreview", params))["files"]
            paths = [os.path.join(self.workspace, file["filePath"]) for file in files]
            diffs = [
                one
                for path, file in zip(paths, files, strict=True)
                for one in updates.diff_contents(path, file["diff"])
            ]
            if diffs:
                self._update_call(update["toolCallId"], content=[*diffs, *update["content"]])

    async def _show_usage(self, used: int, model: str) -> None:
        with contextlib.suppress(RpcFailure, SessionGone):
            usage = (await self.supervised.request("GetSessionState"))["tokenUsage"]
            update: updates.Update = {
                "sessionUpdate": "usage_update",
                "used": used,
                "size": self._window_of(model) or 0,
            }
            if "cost" in usage:
                update["cost"] = {"amount": usage["cost"], "currency": usage["costCurrency"]}
            self.update(update)

    # Questions

    def _on_answered(self, payload: Mapping[str, Any]) -> None:
        asking = self._questions.pop(payload["approvalId"], None)
        if asking is not None:
            asking.cancel()
        if payload["decision"] == "approved":
            self._update_call(payload["toolCallId"], status="in_progress")

    async def _ask(self, payload: Mapping[str, Any]) -> None:
        approval_id = payload["approvalId"]
        kind = self._calls.get(payload["toolCallId"], {}).get("kind", "other")
        try:
            answer = await updates.ask(self._peer, self.session_id, payload, kind, self._features)
        except PeerGone:  # the question stays open, and is asked again after a resume
            return
        if answer.note:
            self.notify(updates.Notice("warning", updates.NO_FORM, answer.note))
        self._questions.pop(approval_id, None)
        with contextlib.suppress(SessionGone):
            try:
                await self._answer(approval_id, answer.params)
            except RpcFailure as error:  # no answer to the form
                refused = updates.denial(str(error)[:2000])
                self.notify(updates.Notice("warning", "The answer does not fit the question", str(error)))
                with contextlib.suppress(RpcFailure):
                    await self._answer(approval_id, refused.params)

    async def _answer(self, approval_id: str, params: Mapping[str, Any]) -> None:
        await self.supervised.request("ApproveAction", {"approvalId": approval_id, "answeredBy": "acp", **params})

    # Ends

    def _take_end(self, event: Mapping[str, Any]) -> None:
        kind, task_id = event["eventType"], event.get("taskId")
        if kind == "session_paused":
            self._is_paused = True
            self.open_task = task_id or self.open_task
        elif task_id == self.open_task:
            self.open_task = None
        over = self._ended.get(task_id or "")
        if over is not None and not over.done():
            over.set_result(None)
        turn = self._turn
        is_its_own = turn is not None and (task_id == turn.task_id or task_id is None)
        if turn is not None and is_its_own and not turn.end.done():
            turn.end.set_result(event)
        elif over is None and kind != "task_completed":
            self.notify(updates.Notice("warning", "The task has stopped", event["payload"].get("message", "")))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task


class _Output:
    """The output of a call as it comes: the end of it, shown at most so often."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._text = ""
        self._timer: asyncio.TimerHandle | None = None
        self._is_shown = False

    def add(self, text: str) -> None:
        self._text = (self._text + text)[-_OUTPUT_CHARS:]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_OUTPUT_EVERY_S, self._tick)
            self._show(self._text)
            self._is_shown = True
        else:
            self._is_shown = False

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        if not self._is_shown:
            self.add("")


def error_of(error: RpcFailure | SessionGone | OSError) -> AcpError:
    """The error of a session as one of the protocol."""
    if isinstance(error, RpcFailure):
        # Other numbers have another meaning in this protocol, so the name identifies the session's error.
        code = error.code if error.code in (INVALID_REQUEST, -32602) else INTERNAL_ERROR
        return AcpError(code, str(error), {"code": error.name, "retryable": error.retryable})
    return AcpError(INTERNAL_ERROR, str(error))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn exceptions of a session or its start into errors of the protocol."""
    try:
        yield
    except TooManySessions as error:
        raise AcpError(INTERNAL_ERROR, str(error)) from error
    except (RpcFailure, SessionGone, OSError) as error:
        raise error_of(error) from error


def _stop_reason(end: Mapping[str, Any]) -> str:
    kind, payload = end["eventType"], end["payload"]
    if kind == "task_completed":
        return "end_turn"
    if kind == "task_cancelled":
        return "cancelled"
    reason, message = payload.get("reason", ""), payload.get("message", "")
    if kind == "task_failed" and reason in _STOP_REASONS:
        return _STOP_REASONS[reason]
    if reason == "UNAUTHORIZED":
        raise AcpError(AUTH_REQUIRED, message or "the gateway refused the key")
    how = "; /continue continues the task" if kind == "session_paused" else ""
    raise AcpError(
        INTERNAL_ERROR, f"{message or reason or 'the task failed'}{how}", {"code": reason} if reason else None
    )
