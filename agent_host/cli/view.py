"""`agent-host view`: the sessions of a state directory as a live page; its URL is the first line on stdout."""

from __future__ import annotations

import gc
import importlib.util
from typing import TYPE_CHECKING, Final

from agent_host.cli import exit_codes
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer
from agent_host.errors import UsageError

if TYPE_CHECKING:
    import argparse

_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")
"""Modules of the extra."""


def view(namespace: argparse.Namespace) -> int:
    """Serve until a signal comes. Raises UsageError for what cannot be served."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"`agent-host view` needs {', '.join(missing)}: install agent-host[view]")
    from agent_host.view.server import serve

    gc.enable()
    serve(
        state_dir_of(namespace),
        port=namespace.port,
        can_approve=namespace.allow_approve,
        on_ready=lambda url: answer(f"{url}\n"),
    )
    return exit_codes.COMPLETED
