"""What a process does before its first session needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.app.sandboxing import look_ahead

if TYPE_CHECKING:
    from config.settings import Settings

__all__ = ["get_ready", "look_ahead"]


def get_ready(settings: Settings, state_dir: str) -> None:
    """For a process that runs one task: where the levels of the sandbox are to be tried, which another process takes
    its time for, import meanwhile what the first request needs."""
    if look_ahead(settings, state_dir):
        from agent_host.llm.deferred import import_client
        from agent_host.session.task_runner import import_loop

        import_client()
        import_loop()
