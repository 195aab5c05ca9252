"""`agent-host doctor`: what this machine has; each line is a check. Exit 1 when one fails that a run needs, or one of a
service that the environment names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.shared import scope_in_words, settings_of_options, state_dir_of
from agent_host.cli.streams import answer, notice
from agent_host.host.machine_checks import authorize, machine_checks

if TYPE_CHECKING:
    import argparse

    from agent_host.host.machine_checks import Check

_MARKS = {True: "ok  ", False: "FAIL", None: "-   "}


def doctor(namespace: argparse.Namespace) -> int:
    """Run every check and print a line for each; or have a person authorize this program at one MCP server."""
    if namespace.authorize is not None:
        answer(authorize(settings_of_options(namespace), state_dir_of(namespace), namespace.authorize, notice) + "\n")
        return exit_codes.COMPLETED
    checks = machine_checks(
        settings_of_options(namespace), state_dir_of(namespace, may_be_file=True), deep=namespace.deep
    )
    if namespace.output == "json":
        rows = [{name: value for name, value in check._asdict().items() if value is not None} for check in checks]
        answer(json.dumps({"ok": all(check.ok is not False for check in checks), "checks": rows}, indent=2) + "\n")
    else:
        answer("".join(map(_render, checks)))
    return exit_codes.FAILED if any(check.ok is False for check in checks) else exit_codes.COMPLETED


def _render(check: Check) -> str:
    lines = () if check.scope is None else scope_in_words(check.scope).splitlines()
    return f"{_MARKS[check.ok]}  {check.name:10} {check.found}\n" + "".join(f"      {line}\n" for line in lines)
