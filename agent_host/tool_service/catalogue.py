"""Which kinds of tools there are: those of this package, and those that installed packages bring."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from agent_host.errors import UsageError
from agent_host.tool_service.tool import ENTRY_POINTS
from agent_host.tool_service.tools.cloud_db import CloudDbQueryTool
from agent_host.tool_service.tools.object_read import ObjectReadTool
from agent_host.tool_service.tools.vault import VaultReadTool

if TYPE_CHECKING:
    from agent_host.tool_service.tool import BackendTool


_NEEDED: Final = ("name", "description", "input_schema", "shape", "high_risk", "repeatable", "build")


def all_tools() -> dict[str, BackendTool]:
    """Every kind of tool, by name. Raises UsageError for an entry point that cannot be loaded, or brings a name
    again."""
    shipped: tuple[BackendTool, ...] = (CloudDbQueryTool(), VaultReadTool(), ObjectReadTool())
    found = {tool.name: tool for tool in shipped}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            tool: BackendTool = entry.load()
        except Exception as error:  # whatever a package of others raises when it is imported
            said = f"{type(error).__name__}: {error}"
            raise UsageError(f"the backend tool {entry.name} ({entry.value}) cannot be loaded: {said}") from error
        if isinstance(tool, type):
            raise UsageError(f"the backend tool {entry.name} ({entry.value}) is a class: name an instance of it")
        lacking = [name for name in _NEEDED if not hasattr(tool, name)]
        if lacking:
            raise UsageError(
                f"the backend tool {entry.name} ({entry.value}) is no BackendTool: it has no {', '.join(lacking)}"
            )
        if tool.name in found:
            raise UsageError(f"the backend tool {entry.name} ({entry.value}) has the name of another: {tool.name}")
        found[tool.name] = tool
    return found
