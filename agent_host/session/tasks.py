"""A requested task, and the record that it starts with (AH 4.1)."""

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
"""Instead of a blob's name: the content of the file at the time of reading."""
KINDS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""The media types of pictures, with their file name extensions."""
_BEGINS: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


class NewTask(NamedTuple):
    """A requested task. `max_steps` is 1 to 10,000; `options` narrow the bundle's permissions; `model` is None for the
    session's model, `max_cost` is None if the task has no limit of its own."""

    task_id: str
    prompt: str
    max_steps: int
    options: TaskOptions = AS_THE_BUNDLE_SAYS
    model: str | None = None
    max_cost: float | None = None


class TaskRecord(NamedTuple):
    """The first record of a task, and the user's message in it."""

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
    """Build the first record of `task`, with the secrets of its prompt redacted. `count` gives the tokens of a text;
    `parent` is the message before the prompt, None for the first."""
    prompt = scrubber.text(encodable(task.prompt))
    message = Message("user", prompt, message_tokens(count, prompt))
    encoded = encode(message, outside, session_id=session_id, task_id=task.task_id, parent=parent)
    return TaskRecord(TaskStarted(task.task_id, prompt, task.max_steps, encoded, _options_of(task)), message)


def _options_of(task: NewTask) -> dict[str, Any]:
    options = {} if task.options == AS_THE_BUNDLE_SAYS else task.options._asdict()
    own = {MODEL_OPTION: task.model, MAX_COST_OPTION: task.max_cost}
    return options | {name: value for name, value in own.items() if value is not None}


def title_of(prompt: str) -> str:
    """Return the title for a prompt: its first line that is not blank, cut to 80 characters."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"


# Tasks that wait until the one before them is over. They are recorded, so that a crash loses none (interface section
# 2).

MAX_QUEUED = 16


class TaskQueue:
    """The queue of one session."""

    def __init__(self, ctx: LoopContext) -> None:
        self._ctx = ctx

    @property
    def first(self) -> NewTask | None:
        """The next queued task, None if there is none."""
        if not self._ctx.state.queue:
            return None
        queued = self._ctx.state.queue[0]
        options = dict(queued.options)
        model, max_cost = options.pop(MODEL_OPTION, None), options.pop(MAX_COST_OPTION, None)
        return NewTask(queued.task_id, queued.prompt, queued.max_steps, TaskOptions(**options), model, max_cost)

    def rows(self) -> list[dict[str, str]]:
        """Return {taskId, prompt} of each queued task, the next one first."""
        return [{"taskId": queued.task_id, "prompt": queued.prompt} for queued in self._ctx.state.queue]

    def has(self, task_id: str) -> bool:
        """True if the task is queued."""
        return any(queued.task_id == task_id for queued in self._ctx.state.queue)

    def add(self, task: NewTask) -> None:
        """Add a task to the end of the queue; on return it is durable. Raises UsageError if 16 tasks are queued
        already, CheckpointWriteFailed; then it is not queued."""
        ctx = self._ctx
        if len(ctx.state.queue) >= MAX_QUEUED:
            raise UsageError(f"{MAX_QUEUED} tasks are queued already: cancel one, or wait until one has started")
        prompt = ctx.scrubber.text(encodable(task.prompt))
        queued = TaskQueued(task.task_id, prompt, task.max_steps, _options_of(task))
        ctx.journal.record_durably(queued, TaskUnqueued(task.task_id))
        payload = {"position": len(ctx.state.queue), "maxSteps": task.max_steps}
        ctx.emitter.emit(EventType.TASK_QUEUED, payload, task_id=task.task_id)

    def cancel(self, task_id: str, why: str = "cancelled before it started") -> None:
        """Remove a queued task."""
        self._leave(task_id, EventType.TASK_CANCELLED, message=why)

    def fail(self, task_id: str, reason: str, message: str) -> None:
        """Remove a queued task that could not start."""
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
    """A file over a span of the session: blobs of its content `before` and `after`, None if it did not exist; `after`
    may be ON_DISK."""

    before: str | None
    after: str | None


class FirstVersions(NamedTuple):
    """First versions of files by their paths, for the session and for each task with its id, oldest first. It is a
    copy, so that another thread may read it while the session continues. `unseen` has, by task, the reason why not all
    changes by its commands are known."""

    session: Mapping[str, str | None]
    tasks: tuple[tuple[str, Mapping[str, str | None]], ...] = ()
    unseen: Mapping[str, str] = {}

    def unseen_in(self, task_id: str | None) -> str | None:
        """Return the reason why a preview of the task, or for None of the session, may miss changes; None if it is
        complete."""
        if task_id is not None:
            return self.unseen.get(task_id)
        return "; ".join(dict.fromkeys(self.unseen.values())) or None


def first_versions(state: Checkpoint) -> FirstVersions:
    """Return the first versions recorded in `state`."""
    tasks = [(task.task_id, dict(task.baselines)) for task in state.earlier_tasks]
    if state.task is not None:
        tasks.append((state.task.task_id, dict(state.task.baselines)))
    return FirstVersions(dict(state.baselines), tuple(tasks), dict(state.unseen))


def spans(versions: FirstVersions, task_id: str | None, places: Mapping[str, str]) -> dict[str, Span]:
    """Return, by path, the files that a task wrote or deleted, from the content that it found to the content that the
    next task that touched them found; for None those of the whole session up to now. `places` has the present paths of
    files that have moved. Raises LookupError for a task that the session does not know."""
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
    """Return `first` by present paths. If two are one file now, the version that was recorded first counts."""
    placed: dict[str, str | None] = {}
    for path, blob in first.items():
        placed.setdefault(places.get(path, path), blob)
    return placed


# Sessions that continue in another workspace: the note to the model, and the workspaces so far.

# In records of earlier versions only the note's text has the workspace: the path is a line of its own.
_BEFORE = "[The session goes on in another workspace. It is now\n"
_AFTER = "\nWhat lay in the one before may be there, or not: look before you rely on a path that was named earlier.]"


def workspaces(state: Checkpoint) -> list[str]:
    """Return every workspace that the model was told about, in order; the last one is the current one for the model."""
    found = [str(state.identity.options.get("workspace", ""))]
    mark = orjson.dumps(_BEFORE)[1:-1]
    for data in state.thread:
        if mark in data:
            message = decode(data)
            if message.workspace is not None:
                found.append(message.workspace)
            elif message.role == "system" and message.content.startswith(_BEFORE):
                found.append(message.content.removeprefix(_BEFORE).removesuffix(_AFTER))
    return found


def note_of_move(state: Checkpoint, workspace: str) -> ResumeNote | None:
    """Return the note to the model about `workspace`; None if the model knows it as the current one."""
    return None if workspaces(state)[-1] == workspace else ResumeNote(f"{_BEFORE}{workspace}{_AFTER}", workspace)


class PromptPicture(NamedTuple):
    """A picture: its type and the bytes of its file."""

    media_type: str
    data: bytes


def picture_in(sent: Mapping[str, Any], path: str) -> PromptPicture:
    """Decode a picture that a client sent: {mediaType, data in base64}. Raises UsageError, which names it by `path`."""
    try:
        data = base64.b64decode(sent["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{path}.data: is not base64: {error}") from error
    if not data.startswith(_BEGINS[sent["mediaType"]]):
        raise UsageError(f"{path}: is not of the type {sent['mediaType']}")
    return PromptPicture(sent["mediaType"], data)


def keep_pictures(pictures: Sequence[PromptPicture], folder: str, new_id: Callable[[str], str]) -> str:
    """Write the pictures into `folder` under names of `new_id`, and return the lines that name them to the model. A
    link in place of the folder, which a command may have created, is not followed. Raises OSError."""
    lines = ["The user attached pictures; look at them with the tool that reads files:"]
    folder_fd = os.open(folder, _FOLDER) if os.open in os.supports_dir_fd else None
    try:
        for picture in pictures:
            name = f"{new_id('picture')}.{KINDS[picture.media_type]}"
            path = os.path.join(folder, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(open_regular(path if folder_fd is None else name, flags, folder_fd), "wb") as file:
                file.write(picture.data)
            lines.append(f"- {path} ({picture.media_type}, {len(picture.data)} bytes)")
    finally:
        if folder_fd is not None:
            os.close(folder_fd)
    return "\n".join(lines)


_FOLDER: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
