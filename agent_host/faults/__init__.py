"""Fault suite: run whole sessions, kill them or make their disk fail, and check that no effect is lost or repeated.

`python -m agent_host.faults --all` runs every fault; docs/faults.md explains how to use it with your own scenarios.
"""
