"""Versions that each task of a session found and left at a path, for a preview to compare. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from agent_host.loop.context import ResumeNote
from agent_host.thread.messages import decode
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state.checkpoint import Checkpoint

ON_DISK: Final = "on disk"
"""In place of a blob's name: the content is what lies at the path when somebody looks."""


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
    None those of the whole session up to now. By path; `places` has the present one of those that have moved.

    Raises LookupError for a task that the session does not know.
    """
    if task_id is None:
        return {path: Span(blob, ON_DISK) for path, blob in _move_versions(versions.session, places).items()}
    at = next((number for number, (known, _) in enumerate(versions.tasks) if known == task_id), None)
    if at is None:
        raise LookupError(f"the session has no task {task_id!r}")
    found, *later = (_move_versions(task, places) for _, task in versions.tasks[at:])
    return {path: Span(blob, _found_next(path, later)) for path, blob in found.items()}


def _found_next(path: str, later: Iterable[Mapping[str, str | None]]) -> str | None:
    return next((task[path] for task in later if path in task), ON_DISK)


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
