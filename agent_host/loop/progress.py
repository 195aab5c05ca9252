"""Detection of turns without progress: empty turns, and calls repeated without effect. Cancellation.

A small model, or a server with a wrong template, answers with nothing, or writes a call as text. Neither completes the
task. The model gets one note, and a second such turn in a row ends the task, resumable. A call repeated with the same
result gets a note first too.

The counts are in memory: a resumed process starts at zero, and its model has read the notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from agent_host.errors import ErrorCode
from agent_host.states import TaskEnd
from agent_host.thread.messages import NO_TEXT
from config.lean_typing import NamedTuple
from state.blobs import sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from agent_host.contracts import ToolRouter
    from agent_host.judging import Registry
    from agent_host.llm import Meaning
    from agent_host.thread.messages import ToolCall
    from state.checkpoint import Checkpoint


T = TypeVar("T")


class _Noise(NamedTuple):
    """A kind of turn without progress: the host's note after it, and the error code and message that end a task after
    `most` of them in a row."""

    note: str
    most: int
    code: ErrorCode
    message: str


NOISE: Final[Mapping[Meaning, _Noise]] = {
    "empty": _Noise(
        "[Your answer had no text and no tool call, so nothing was done. If the task is not done, call the next tool "
        "now; if it is, say in a few words what was done.]",
        2,
        ErrorCode.LLM_EMPTY_ANSWER,
        "the model answered with nothing, neither text nor a tool call, twice",
    ),
    "call_as_text": _Noise(
        "[Your answer has a tool call as plain text, which is not run. Call the tool by the tool-calling interface of "
        "the API, with its name and its arguments as an object, and not in the text of the answer.]",
        2,
        ErrorCode.LLM_CALL_AS_TEXT,
        "the model writes tool calls as plain text, though it was told how to call tools: see docs/gateways.md",
    ),
    "repeated": _Noise(
        "[Your answer was cut: it repeated one piece again and again. Go on with the task without it.]",
        1,
        ErrorCode.LLM_REPEATED_CALL,
        "the model's answer repeated one piece without end and was cut",
    ),
    "bad_answer": _Noise(
        "[Your final answer has to be JSON that fits the schema, and nothing else: answer again with that JSON alone.]",
        2,
        ErrorCode.ANSWER_SCHEMA,
        "the final answer does not fit the schema, though the model was asked twice",
    ),
}
"""Turns that do nothing for the task, by their meaning."""
# Beginnings of calls in the templates of common models.
_MARKS: Final = re.compile(
    r"<(?:tool_calls?|function_calls?|\|tool_calls?(?:_begin)?\||\|python_tag\||invoke name=|function=)|\[TOOL_CALLS\]"
)
_FENCE: Final = re.compile(r"```[\w-]*[ \t]*\n(.*?)\n?```", re.DOTALL)
_NAMES: Final = ("name", "tool", "tool_name", "function", "action")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "tool_input", "action_input")


class FinalAnswer(NamedTuple):
    """A final answer: its JSON, or the problem with it."""

    value: Any = None
    problem: str | None = None


def instruction_on(schema: str) -> str:
    """The note that describes the form of the final answer."""
    return (
        "\nThe user's program reads your final answer. It has to be one JSON value that fits this JSON Schema, and "
        f"nothing else, without a fence:\n{schema}\n"
    )


class AnswerForm:
    """The form of a final answer: JSON that `judge` accepts; it returns the problem with a value. `schema` is the JSON
    Schema, as JSON text."""

    def __init__(self, schema: str, judge: Callable[[Any], str | None]) -> None:
        self.schema = schema
        self._judge = judge

    def read(self, text: str) -> FinalAnswer:
        """The answer in a text. A model that puts it in a fence has answered."""
        body = text.strip()
        fenced = _FENCE.fullmatch(body)
        try:
            value = orjson.loads(body if fenced is None else fenced[1])
        except orjson.JSONDecodeError as error:
            return FinalAnswer(problem=f"it is not JSON: {error}")
        problem = self._judge(value)
        return FinalAnswer(value) if problem is None else FinalAnswer(problem=problem)

    def note(self, text: str) -> str:
        """The note that says why an answer does not fit."""
        return f"{NOISE['bad_answer'].note[:-1]} What is wrong with it: {self.read(text).problem}]"


def _has_call_as_text(text: str, tools: Registry, router: ToolRouter) -> bool:
    """True if the text as a whole, in a fence or not, is a call: one in the marks of a model's template, or one JSON
    object with the exact name of a tool and arguments that fit it."""
    text = text.strip()
    fenced = _FENCE.fullmatch(text)
    body = text if fenced is None else fenced[1].strip()
    if _MARKS.match(body):
        return True
    return any(_fits(name, arguments, tools, router) for name, arguments in _calls_in(body))


def _calls_in(body: str) -> Iterator[tuple[str, Any]]:
    if not body.startswith(("{", "[")) or len(body) > 1_000_000:
        return
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    for entry in value[:1] if isinstance(value, list) else [value]:
        inner = entry.get("function") if isinstance(entry, dict) else None
        call = inner if isinstance(inner, dict) else entry
        if isinstance(call, dict):
            name = next((call[key] for key in _NAMES if isinstance(call.get(key), str)), None)
            arguments = next((call[key] for key in _ARGUMENTS if key in call), None)
            if name is not None and arguments is not None:
                yield name, arguments


def _fits(name: str, arguments: Any, tools: Registry, router: ToolRouter) -> bool:
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return False
    if tools.get(name) is None or not isinstance(arguments, dict):
        return False
    return router.argument_problem(name, router.usable_arguments(name, arguments)) is None


class Progress:
    """Counts of one run of a task. A call made `repeat_note` times in a row with the same arguments and the same result
    gets a note, and `repeat_limit` times end the task (`[loop]` of the settings); 0: never. A model that makes many
    calls at once has not read the note, so its task continues. `form` is the form of the final answer, None for any
    text."""

    def __init__(self, repeat_note: int, repeat_limit: int, form: AnswerForm | None = None) -> None:
        self.form = form
        self._note_at = repeat_note
        self._limit = repeat_limit
        self._noise = self._in_a_row = 0
        self._last: tuple[str, bytes, str] | None = None
        self._noted_in: str | None = None  # the step whose results have the note

    def begin(self) -> None:
        """Reset the counts: a process starts or resumes a task."""
        self._noise = 0
        self.forget_calls()

    def meaning_without_calls(self, meaning: Meaning, text: str, tools: Registry, router: ToolRouter) -> Meaning:
        """The meaning of a turn without calls, given its dialect's `meaning`: an empty answer, or a call written as
        text, does not complete the task. A small model may repeat the marker that it reads for its own empty answer."""
        if meaning == "complete":
            if text.strip() in ("", NO_TEXT):
                return "empty"
            if _has_call_as_text(text, tools, router):
                return "call_as_text"
            if self.form is not None and self.form.read(text).problem is not None:
                return "bad_answer"
        return meaning

    def end_of_noise(self, meaning: Meaning, text: str) -> TaskEnd | None:
        """Count a turn with this text; returns the end of the task, None if the task continues."""
        noise = NOISE.get(meaning)
        self._noise = 0 if noise is None else self._noise + 1
        if noise is None or self._noise < noise.most:
            return None
        message = noise.message
        if meaning == "bad_answer" and self.form is not None:
            message = f"{message}: {self.form.read(text).problem}"
        return TaskEnd("failed", noise.code, f"{message}; resume to have it try again", resumable=True)

    def forget_calls(self) -> None:
        """Start a new row of calls, because something has changed."""
        self._in_a_row, self._last, self._noted_in = 0, None, None

    def note_of_call(self, step_id: str, call: ToolCall, text: str, tools: Registry) -> str:
        """Count a call with its result; returns a note for the model if it repeats without effect, else ""."""
        key = (call.name, call.arguments_json, sha256_hex(text.encode("utf-8", "replace")))
        if key != self._last:
            self.forget_calls()
        self._last = key
        self._in_a_row += 1
        if not self._note_at or self._in_a_row < self._note_at or self._noted_in is not None:
            return ""
        self._noted_in = step_id
        return _repeat_note(call.name, self._in_a_row, tools)

    def end_of_circle(self, step_id: str) -> TaskEnd | None:
        """The end of a task that repeats a call although its model has read the note; None if the task continues."""
        has_read = self._noted_in not in (None, step_id) or not self._note_at
        if self._last is None or not self._limit or self._in_a_row < self._limit or not has_read:
            return None
        text = f"{self._last[0]} was called {self._in_a_row} times in a row with the same arguments and result"
        message = f"the model goes round in a circle: {text} (loop.repeat_limit); resume to have it try again"
        return TaskEnd("failed", ErrorCode.LLM_REPEATED_CALL, message, resumable=True)


def is_wait(state: Checkpoint, call: ToolCall, duration_ms: int | None) -> bool:
    """True if the call took over 5 s, or read the output of a running command."""
    if (duration_ms or 0) > 5_000:
        return True
    command_id = call.arguments.get("id")
    row = state.commands.get(command_id) if call.name == "CommandOutput" and isinstance(command_id, str) else None
    return row is not None and "ended" not in row


def _repeat_note(name: str, times: int, tools: Registry) -> str:
    others = [spec.name for spec in tools if spec.name != name][:8]
    return (
        f"\n[You have called {name} {times} times in a row with the same arguments, and the result was the same each "
        f"time; once more changes nothing. Use other arguments or another tool ({', '.join(others)}), or, if the task "
        "is done or cannot be done, say so without a call.]"
    )


# Cancellation (AH 4.5): a request is honoured at safe points, and waiting without effects is cut short; by force, what
# tools have running is ended too.


class TaskCancelled(Exception):
    """The task stops here because it was asked to."""


class ToolStopped(Exception):
    """A running tool was killed; its effects so far are unknown."""


class Cancellation:
    """One request to stop. `resumable`: the task stays open in the checkpoint, as after a signal, so that a resume
    continues it; a client's CancelTask ends it for good. `time_limit` is the message of an end by the run's time limit,
    None for other reasons."""

    def __init__(self) -> None:
        self.requested = False
        self.resumable = False
        self.time_limit: str | None = None
        self._waiting: list[asyncio.Task[Any]] = []
        self._tools: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self._cut_short: set[asyncio.Task[Any]] = set()
        self._forced = False
        self._timer: asyncio.TimerHandle | None = None

    def request(self, *, resumable: bool, time_limit: str | None = None) -> None:
        """Ask the task to stop. Model calls and waits for approval end now, running tools finish first."""
        self.time_limit = time_limit if resumable else None
        if self.requested:
            self.resumable = self.resumable and resumable  # for good takes precedence over for now
            return
        self.requested = True
        self.resumable = resumable
        self._cut(dict.fromkeys(self._waiting))

    def force(self, *, grace_s: float) -> None:
        """After `request`: running tools have `grace_s` to finish, then they are ended with all that they started."""
        if self._timer is None and not self._forced:
            self._timer = asyncio.get_running_loop().call_later(grace_s, self._end_tools)

    def abandon(self) -> None:
        """After `force`, kill tools that take too long to end, without further grace and without waiting. Their effects
        are recorded as unknown."""
        for task, waiting in list(self._tools.items()):
            self._cut_short.add(task)
            task.cancel()
            waiting.cancel()

    def over(self) -> None:
        """The task that was to stop has stopped; the next one starts uncancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self.requested = self.resumable = self._forced = False
        self.time_limit = None
        self._timer = None

    def _end_tools(self) -> None:
        self._forced = True
        self._cut(self._tools)

    def _cut(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        for task in tasks:
            self._cut_short.add(task)
            task.cancel()

    def check(self) -> None:
        """A safe point. Raises TaskCancelled."""
        if self.requested:
            raise TaskCancelled

    async def interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is given up as soon as a stop is asked for. Raises TaskCancelled. The work runs
        in the caller's own task, which is cancelled for it, as `asyncio.timeout` does it."""
        if self.requested:
            work.close()
            raise TaskCancelled
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one
        self._waiting.append(task)
        try:
            return await work
        except asyncio.CancelledError:
            # Translate only if the whole task was not cancelled as well.
            if task in self._cut_short:
                self._cut_short.discard(task)
                if task.uncancel() == 0:
                    raise TaskCancelled from None
            raise
        finally:
            self._waiting.remove(task)
            if task in self._cut_short and task not in self._waiting:
                self._cut_short.discard(task)
                await _take_back(task)

    async def run_until_forced(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, a running tool, which only force ends. Raises ToolStopped, with `abandon` before the
        tool has ended; the router ends it then (`ToolRouter.aclose`)."""
        if self._forced:
            work.close()
            raise ToolStopped
        task = asyncio.ensure_future(work)
        waiting = asyncio.shield(task)
        self._tools[task] = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling() > 0:
                await _end(task)
            elif task in self._cut_short:
                raise ToolStopped from None
            raise
        finally:
            del self._tools[task]
            self._cut_short.discard(task)


async def _take_back(task: asyncio.Task[Any]) -> None:
    """Undo the cancellation of the task that runs, of which its work has made nothing, or which is still to come."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if task.uncancel() > 0:  # it was cancelled from elsewhere too
        raise asyncio.CancelledError


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait for its end; forward each further cancellation of the waiting task to it."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
