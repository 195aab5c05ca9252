"""A local agent host: one process per session that survives kill -9 and does no tool effect twice."""

from agent_host import own_packages

own_packages.settle()
