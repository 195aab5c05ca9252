"""A session that goes on in another workspace: what the model reads of it, and where the session has been."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agent_host.loop.context import ResumeNote
from agent_host.thread.messages import decode

if TYPE_CHECKING:
    from state.checkpoint import Checkpoint

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
