"""What a start may import: each of these costs as much as a good part of the whole start (see `benchmarks loop`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
HEAVY = {"pydantic", "re2", "tree_sitter", "tree_sitter_bash", "tenacity", "difflib", "rich", "click"}
HEAVY |= {"platformdirs", "jsonschema_rs"}


def imported_by(code: str) -> set[str]:
    """Top-level packages in a fresh process after `code`; what the interpreter's own start-up brings is not counted."""
    code = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_saying_the_version_needs_hardly_anything() -> None:
    found = imported_by("from agent_host.cli.main import main; assert main(['--version']) == 0")
    assert "agent_host" in found
    unwanted = {"asyncio", "httpx", "pydantic", "orjson", "argparse", "tomllib", "ssl", "state", "config", "policy"}
    assert not found & (unwanted | HEAVY)


def test_the_console_script_says_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_host.cli.main", "--version"],
        cwd=_ROOT, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("agent-host ")


def test_a_session_starts_without_what_only_some_sessions_need() -> None:
    found = imported_by("import agent_host.cli.serve, agent_host.api.tasks")
    assert {"asyncio", "orjson", "tool_runtime"} <= found
    assert not found & (HEAVY | {"httpx", "opentelemetry"})


def test_a_bundle_from_outside_costs_no_library() -> None:
    code = "from policy.bundle.problems import BundleProblems; from policy.bundle.validate import parse_bundle"
    found = imported_by(f'{code}\ntry: parse_bundle(b\'{{"schemaVersion": "1.0"}}\')\nexcept BundleProblems: pass')
    assert "policy" in found
    assert not found & (HEAVY | {"pydantic_core", "asyncio", "httpx"})


def test_a_client_of_a_service_costs_nothing_before_its_first_request() -> None:
    code = "from agent_host.services import approval, endpoints, http, observers, session"
    found = imported_by(f"{code}\nhttp.ServiceClient('http://127.0.0.1:1', 'token')")
    assert "agent_host" in found
    assert not found & ({"httpx", "httpcore", "h11", "email"} | HEAVY)


@pytest.mark.parametrize(
    "module", ["state.store", "state.lock", "config.load", "policy.check_llm", "agent_host.contracts"]
)
def test_the_lower_floors_need_no_network_and_no_event_loop(module: str) -> None:
    found = imported_by(f"import {module}")
    assert module.partition(".")[0] in found
    assert not found & ({"asyncio", "httpx", "socket", "ssl", "tomllib"} | HEAVY)


@pytest.mark.parametrize("module", ["agent_host", "state", "config", "agent_host.llm", "agent_host.testing"])
def test_packages_are_empty(module: str) -> None:
    found = imported_by(f"import {module}")
    assert found <= {module.partition(".")[0], "__future__"}
