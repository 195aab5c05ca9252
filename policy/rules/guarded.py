"""Tools that are off until the user's configuration names them, and that a person is asked about whenever they are
called (SK 2.2, 3.2): whatever a bundle grants, and however much was approved in advance without their name. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy.names import CapabilityName as Name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy.decision import RiskLevel

SETTING: Final = "skills.enabled_tools"
RULE: Final = "builtin.guardedTools"
_GUARDED: Final[Mapping[tuple[str, str], RiskLevel]] = {
    ("run_script", Name.SHELL_EXEC): "medium",
    ("write_file", Name.FILE_WRITE): "high",
    ("delete_file", Name.FILE_DELETE): "high",
    ("network_request", Name.NETWORK_HTTP): "high",
}
"""By name and capability, since a tool of an embedding program may have such a name; with the risk of every call
(SK 2.3)."""
GUARDED_TOOLS: Final = tuple(name for name, _ in _GUARDED)


def guarded_risk(tool_name: str, capability: str) -> RiskLevel | None:
    """The least risk of a call of a guarded tool; None for any other tool."""
    return _GUARDED.get((tool_name, capability))
