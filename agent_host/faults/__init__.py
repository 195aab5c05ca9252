"""The fault suite: whole sessions are run, killed, and given a failing disk; no effect may be lost or done twice.

`python -m agent_host.faults --all` runs every fault; docs/faults.md says how to use it with scenarios of one's own.
"""
