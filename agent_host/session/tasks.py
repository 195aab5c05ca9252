"""A task as it is asked for, and the record that it begins with (AH 4.1)."""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import CANCELLED, UsageError
from agent_host.events import EventType
from agent_host.loop import MAX_COST_OPTION, MODEL_OPTION, ResumeNote
from agent_host.safe_open import open_regular
from agent_host.session.reports import verdict
from agent_host.thread.messages import Message, decode, encodable, encode, message_tokens
from config.lean_typing import NamedTuple
from policy.rules import AS_THE_BUNDLE_SAYS, TaskOptions
from state.checkpoint import TaskQueued
from state.records import TaskStarted, TaskUnqueued

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.ids import Outside
    from agent_host.loop import LoopContext
    from agent_host.redaction import Scrubber
    from state.checkpoint import Checkpoint

_TITLE_CHARS = 80
ON_DISK: Final = "on disk"
"""In place of a blob's name: the content is what lies at the path when somebody looks."""
KINDS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""The media types of pictures with the ends of their names."""
_BEGINS: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


class NewTask(NamedTuple):
    """`max_steps` is 1 to 10,000; `options` narrow what the bundle allows; `model` is None for the session's, and
    `max_cost` where only the session's cost is limited."""

    task_id: str
    prompt: str
    max_steps: int
    options: TaskOptions = AS_THE_BUNDLE_SAYS
    model: str | None = None
    max_cost: float | None = None


class TaskRecord(NamedTuple):
    """The record that a task begins with, and the user's message in it."""

    record: TaskStarted
    message: Message


def record_of_task(
    task: NewTask,
    outside: Outside,
    *,
    session_id: str,
    scrubber: Scrubber,
    count: Callable[[str], int],
    parent: bytes | None = None,
) -> TaskRecord:
    """The record of `task` without the secrets of its prompt. `count` gives the tokens of a text; `parent` is the
    message before the prompt, None for the first."""
    prompt = scrubber.text(encodable(task.prompt))
    message = Message("user", prompt, message_tokens(count, prompt))
    encoded = encode(message, outside, session_id=session_id, task_id=task.task_id, parent=parent)
    return TaskRecord(TaskStarted(task.task_id, prompt, task.max_steps, encoded, _options_of(task)), message)


def _options_of(task: NewTask) -> dict[str, Any]:
    options = {} if task.options == AS_THE_BUNDLE_SAYS else task.options._asdict()
    own = {MODEL_OPTION: task.model, MAX_COST_OPTION: task.max_cost}
    return options | {name: value for name, value in own.items() if value is not None}


def title_of(prompt: str) -> str:
    """The first line of a prompt that has anything in it, cut to 80 characters: the title of what was begun with it."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"


# Tasks that wait until the one before them is over: on record, so that a crash forgets none (interface section 2).

MAX_QUEUED = 16


class TaskQueue:
    """The queue of one session."""

    def __init__(self, ctx: LoopContext) -> None:
        self._ctx = ctx

    @property
    def first(self) -> NewTask | None:
        """The task that is next, None where none waits."""
        if not self._ctx.state.queue:
            return None
        queued = self._ctx.state.queue[0]
        options = dict(queued.options)
        model, max_cost = options.pop(MODEL_OPTION, None), options.pop(MAX_COST_OPTION, None)
        return NewTask(queued.task_id, queued.prompt, queued.max_steps, TaskOptions(**options), model, max_cost)

    def rows(self) -> list[dict[str, str]]:
        """{taskId, prompt} of each task that waits, the next one first."""
        return [{"taskId": queued.task_id, "prompt": queued.prompt} for queued in self._ctx.state.queue]

    def has(self, task_id: str) -> bool:
        """True if the task waits."""
        return any(queued.task_id == task_id for queued in self._ctx.state.queue)

    def add(self, task: NewTask) -> None:
        """Put a task behind those that wait; on return it is durable. Raises UsageError where 16 wait already,
        CheckpointWriteFailed, and then it does not wait."""
        ctx = self._ctx
        if len(ctx.state.queue) >= MAX_QUEUED:
            raise UsageError(f"{MAX_QUEUED} tasks are queued already: cancel one, or wait until one has started")
        prompt = ctx.scrubber.text(encodable(task.prompt))
        queued = TaskQueued(task.task_id, prompt, task.max_steps, _options_of(task))
        ctx.journal.record_durably(queued, TaskUnqueued(task.task_id))
        payload = {"position": len(ctx.state.queue), "maxSteps": task.max_steps}
        ctx.emitter.emit(EventType.TASK_QUEUED, payload, task_id=task.task_id)

    def cancel(self, task_id: str, why: str = "cancelled before it started") -> None:
        """Take a task out that waits."""
        self._leave(task_id, EventType.TASK_CANCELLED, message=why)

    def fail(self, task_id: str, reason: str, message: str) -> None:
        """Take a task out that could not begin."""
        self._leave(task_id, EventType.TASK_FAILED, reason=reason, message=message)

    def _leave(self, task_id: str, kind: EventType, **why: str) -> None:
        ctx = self._ctx
        is_failed = kind is EventType.TASK_FAILED
        how = verdict("failed" if is_failed else "cancelled", why.get("reason", CANCELLED), denied=False)
        if self.has(task_id):
            ctx.journal.checkpoint(None, TaskUnqueued(task_id))
        totals = {"stepCount": 0, "totalTokens": ctx.state.usage.total}
        ctx.emitter.emit(kind, {**totals, **why, **how}, task_id=task_id)


class Span(NamedTuple):
    """A file over a span of the session: blobs of its content `before` and `after`, None where it did not exist;
    `after` may be ON_DISK."""

    before: str | None
    after: str | None


class FirstVersions(NamedTuple):
    """First versions of files by their paths, for the session and for each task with its id, oldest first. A copy, so
    that another thread may read it while the session goes on. `unseen` says by task why not all that its commands
    changed is known."""

    session: Mapping[str, str | None]
    tasks: tuple[tuple[str, Mapping[str, str | None]], ...] = ()
    unseen: Mapping[str, str] = {}

    def unseen_in(self, task_id: str | None) -> str | None:
        """Why a preview of the task, for None of the session, may leave out changes; None where it does not."""
        if task_id is not None:
            return self.unseen.get(task_id)
        return "; ".join(dict.fromkeys(self.unseen.values())) or None


def first_versions(state: Checkpoint) -> FirstVersions:
    """The first versions on record in `state`."""
    tasks = [(task.task_id, dict(task.baselines)) for task in state.earlier_tasks]
    if state.task is not None:
        tasks.append((state.task.task_id, dict(state.task.baselines)))
    return FirstVersions(dict(state.baselines), tuple(tasks), dict(state.unseen))


def spans(versions: FirstVersions, task_id: str | None, places: Mapping[str, str]) -> dict[str, Span]:
    """The files that a task wrote or deleted, from what it found to what the next task that touched them found; for
    None those of the whole session up to now. By path; `places` has the present one of those that have moved. Raises
    LookupError for a task that the session does not know."""
    if task_id is None:
        return {path: Span(blob, ON_DISK) for path, blob in _move_versions(versions.session, places).items()}
    at = next((number for number, (known, _) in enumerate(versions.tasks) if known == task_id), None)
    if at is None:
        raise LookupError(f"the session has no task {task_id!r}")
    found, *later = (_move_versions(task, places) for _, task in versions.tasks[at:])
    return {
        path: Span(blob, next((task[path] for task in later if path in task), ON_DISK)) for path, blob in found.items()
    }


def _move_versions(first: Mapping[str, str | None], places: Mapping[str, str]) -> dict[str, str | None]:
    """`first` by present paths. Where two are one file now, the version that was recorded first counts."""
    placed: dict[str, str | None] = {}
    for path, blob in first.items():
        placed.setdefault(places.get(path, path), blob)
    return placed


# A session that goes on in another workspace: what the model reads of it, and where the session has been.

# In records of earlier versions the note's text is all that says it: the path has a line of its own.
_BEFORE = "[The session goes on in another workspace. It is now\n"
_BEHIND = "\nWhat lay in the one before may be there, or not: look before you rely on a path that was named earlier.]"


def workspaces(state: Checkpoint) -> list[str]:
    """Every workspace of the session that the model knows of, in that order; the last one is what it knows."""
    found = [str(state.identity.options.get("workspace", ""))]
    mark = orjson.dumps(_BEFORE)[1:-1]
    for data in state.thread:
        if mark in data:
            message = decode(data)
            if message.workspace is not None:
                found.append(message.workspace)
            elif message.role == "system" and message.content.startswith(_BEFORE):
                found.append(message.content.removeprefix(_BEFORE).removesuffix(_BEHIND))
    return found


def note_of_move(state: Checkpoint, workspace: str) -> ResumeNote | None:
    """The note that the model gets about `workspace`; None when that is the one it knows."""
    return None if workspaces(state)[-1] == workspace else ResumeNote(f"{_BEFORE}{workspace}{_BEHIND}", workspace)


class PromptPicture(NamedTuple):
    """A picture as its file has it."""

    media_type: str
    data: bytes


def picture_in(sent: Mapping[str, Any], path: str) -> PromptPicture:
    """A picture as a client sends it: {mediaType, data in base64}. Raises UsageError, which names it by `path`."""
    try:
        data = base64.b64decode(sent["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{path}.data: is not base64: {error}") from error
    if not data.startswith(_BEGINS[sent["mediaType"]]):
        raise UsageError(f"{path}: is not of the type {sent['mediaType']}")
    return PromptPicture(sent["mediaType"], data)


def keep_pictures(pictures: Sequence[PromptPicture], folder: str, new_id: Callable[[str], str]) -> str:
    """Write the pictures into `folder` under names of `new_id`, and return the lines that name them to the model. No
    link is followed to it, such as a command may have put in its place. Raises OSError."""
    lines = ["The user attached pictures; look at them with the tool that reads files:"]
    there = os.open(folder, _FOLDER) if os.open in os.supports_dir_fd else None
    try:
        for picture in pictures:
            name = f"{new_id('picture')}.{KINDS[picture.media_type]}"
            path = os.path.join(folder, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(open_regular(path if there is None else name, flags, there), "wb") as file:
                file.write(picture.data)
            lines.append(f"- {path} ({picture.media_type}, {len(picture.data)} bytes)")
    finally:
        if there is not None:
            os.close(there)
    return "\n".join(lines)


_FOLDER: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
