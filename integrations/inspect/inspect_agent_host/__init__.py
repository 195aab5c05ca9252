"""agent-host as an agent of inspect_ai."""

from inspect_agent_host.agent import AgentHostError, agent_host
from inspect_agent_host.repairs import repairs

__all__ = ["AgentHostError", "agent_host", "repairs"]
