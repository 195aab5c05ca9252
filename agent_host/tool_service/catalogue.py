"""Which kinds of tools there are: those of this package, and those that installed packages bring."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from agent_host.errors import UsageError
from agent_host.tool_service.tool import ENTRY_POINTS
from agent_host.tool_service.tools.cloud_db import CloudDbQueryTool
from agent_host.tool_service.tools.object_read import ObjectReadTool
from agent_host.tool_service.tools.vault import VaultReadTool

if TYPE_CHECKING:
    from agent_host.tool_service.tool import BackendTool


def all_tools() -> dict[str, BackendTool]:
    """Every kind of tool, by name. Raises UsageError for an entry point that cannot be loaded, or brings a name
    again."""
    shipped: tuple[BackendTool, ...] = (CloudDbQueryTool(), VaultReadTool(), ObjectReadTool())
    found = {tool.name: tool for tool in shipped}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            tool: BackendTool = entry.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(f"the backend tool {entry.name} ({entry.value}) cannot be loaded: {error}") from error
        if tool.name in found:
            raise UsageError(f"the backend tool {entry.name} ({entry.value}) has the name of another: {tool.name}")
        found[tool.name] = tool
    return found
