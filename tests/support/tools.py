"""The tools that the program brings along, by name."""

from __future__ import annotations

from agent_host.host.environment import BUILT_IN

TOOLS = {spec.name: spec for spec in BUILT_IN}
