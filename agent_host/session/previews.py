"""The door to comparing files: what a session changed, made of what is on record."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from agent_host.session.moves import workspaces
from agent_host.session.patches import as_text, preview
from agent_host.session.tasks import first_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.loop.context import LoopContext
    from agent_host.session.patches import FilePatch

__all__ = ["as_text", "preview_of"]


def preview_of(
    ctx: LoopContext, task_id: str | None = None, file_paths: Sequence[str] | None = None
) -> Callable[[], list[FilePatch]]:
    """The preview of what is on record now, to be made in any thread; see `patches.preview`, which raises
    LookupError for a task that the session does not know."""
    return functools.partial(
        preview,
        first_versions(ctx.state),
        kept=ctx.journal.store.kept,
        clean=ctx.scrubber.data,
        workspace=ctx.judge.environment.workspace,
        former=workspaces(ctx.state),
        task_id=task_id,
        file_paths=file_paths,
    )
