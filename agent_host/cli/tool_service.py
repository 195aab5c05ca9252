"""`agent-host tool-service`: the Backend Tool Service (BT); its URL is the first line on stdout."""

from __future__ import annotations

import gc
import importlib.util
import os
from typing import TYPE_CHECKING, Final

from agent_host.cli import exit_codes
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer
from agent_host.errors import UsageError

if TYPE_CHECKING:
    import argparse


_PACKAGES: Final = ("starlette", "uvicorn", "httptools", "psycopg", "psycopg_pool", "prometheus_client", "boto3")
"""Modules of the extra."""


def tool_service(namespace: argparse.Namespace) -> int:
    """Serve until a signal comes; calls that run are let end. Raises UsageError for what cannot be served."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"`agent-host tool-service` needs {', '.join(missing)}: install agent-host[backend]")
    from agent_host.tool_service.server import ServiceOptions, serve

    gc.enable()
    artifacts = namespace.artifacts or os.path.join(state_dir_of(namespace), "tool-service", "artifacts")
    options = ServiceOptions(
        tenants=os.path.abspath(namespace.tenants),
        host=namespace.host,
        port=namespace.port,
        workers=namespace.workers,
        drain_s=namespace.drain_s,
        artifacts=os.path.abspath(artifacts),
    )
    serve(options, lambda url: answer(f"{url}\n"))
    return exit_codes.COMPLETED
