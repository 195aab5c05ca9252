"""What a start may import: each of these costs as much as a good part of the whole start (see `benchmarks loop`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bundles import of_a_user
from benchmarks.session import NEW_SESSION
from tests.support.process import gateway, say

_ROOT = Path(__file__).parents[2]
HEAVY = {"pydantic", "re2", "tree_sitter", "tree_sitter_bash", "tenacity", "difflib", "rich", "click"}
HEAVY |= {"platformdirs", "jsonschema_rs", "tiktoken", "regex", "requests"}
OWN = {"agent_host", "config", "policy", "state", "tool_runtime"}


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
    found = imported_by("import agent_host.cli.servers, agent_host.host.sessions")
    assert {"asyncio", "orjson", "tool_runtime"} <= found
    assert not found & (HEAVY | {"httpx", "opentelemetry"})


def test_commands_start_without_the_extras() -> None:
    of_extras = {"mcp", "tool_service"}
    names = [path.stem for path in (_ROOT / "agent_host/cli").glob("*.py") if path.stem not in of_extras]
    found = imported_by(f"import importlib\nfor one in {names}: importlib.import_module('agent_host.cli.' + one)")
    assert "agent_host" in found
    assert not found & {"boto3", "mcp", "mcp_types", "opentelemetry", "psycopg", "pypdf", "starlette", "uvicorn"}


# Serves until the reply to CreateSession, and says then what was imported.
_FIRST_REPLY = """
import sys, typing
named_tuples, new = [], typing.NamedTupleMeta.__new__
def note(cls, name, bases, body):
    named_tuples.append(f"{body['__module__']}.{name}")
    return new(cls, name, bases, body)
typing.NamedTupleMeta.__new__ = note
import agent_host.session.lifecycle as lifecycle
lifecycle.LiveSession.warm_up = lambda _: print(*sys.modules, ";", *named_tuples, file=sys.stderr)
from agent_host.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
# Of the host's own, what a session's first reply needs none of.
NOT_FOR_A_REPLY = {
    "agent_host.llm.client", "agent_host.loop.requests", "agent_host.loop.task",
    "agent_host.session.stored", "agent_host.workspace_changes", "policy.decide", "policy.facts", "state.loading",
    "state.record_shapes", "agent_host.llm.models", "config.providers",
}  # fmt: skip
NOT_FOR_A_REPLY |= {"bz2", "hmac", "httpx", "lzma", "pathspec", "secrets", "shlex", "shutil", "tomllib", "unicodedata"}


def test_a_first_reply_under_a_bundle_file_waits_for_nothing_that_comes_later(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(of_a_user(str(tmp_path))))
    for _ in range(2):  # the first start of a boot tries which levels of the sandbox work
        done = subprocess.run(
            [sys.executable, "-c", _FIRST_REPLY, "serve", "--gateway", "http://127.0.0.1:9", "--policy", str(policy),
             "--workspace", str(tmp_path), "--state-dir", str(tmp_path / "state")],
            cwd=_ROOT, capture_output=True, text=True, timeout=30,
            input=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "CreateSession", "params": NEW_SESSION}) + "\n",
        )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0])["result"]["status"] == "ready", done.stderr
    modules, _, named_tuples = done.stderr.partition(" ; ")
    assert {"agent_host.rpc.server", "policy.bundle.validate"} <= set(modules.split())
    assert not set(modules.split()) & (HEAVY | NOT_FOR_A_REPLY)
    # `config.lean_typing` has a cheaper NamedTuple, which takes no type variables.
    own = {name for name in named_tuples.split() if name.partition(".")[0] in OWN}
    assert own == {"agent_host.states.Transition"}


def test_a_bundle_from_outside_costs_no_library() -> None:
    code = "from policy.bundle import BundleProblems; from policy.bundle.validate import parse_bundle"
    found = imported_by(f'{code}\ntry: parse_bundle(b\'{{"schemaVersion": "1.0"}}\')\nexcept BundleProblems: pass')
    assert "policy" in found
    assert not found & (HEAVY | {"pydantic_core", "asyncio", "httpx"})


def test_a_client_of_a_service_costs_nothing_before_its_first_request() -> None:
    code = "from agent_host.ids import MACHINE\nfrom agent_host.services import http, session"
    found = imported_by(f"{code}\nhttp.ServiceClient('http://127.0.0.1:1', 'token', outside=MACHINE)")
    assert "agent_host" in found
    assert not found & ({"httpx", "httpcore", "h11", "email"} | HEAVY)


_ONE_TASK = """
import sys
from agent_host.cli.main import main
from agent_host.llm.client import LlmClient
read = LlmClient._read
async def note(*given):
    LlmClient._read = read
    print(*sys.modules, file=sys.stderr)
    return await read(*given)
LlmClient._read = note
print(*sys.modules, file=sys.stderr)
sys.exit(main(sys.argv[1:]))
"""


def test_httpx_comes_once_the_first_request_is_out_and_without_its_program(tmp_path: Path) -> None:
    with gateway(say("Done.")) as served:
        done = subprocess.run(
            [sys.executable, "-c", _ONE_TASK, "run", "hi", "--gateway", served.url, "--policy", "ci",
             "--workspace", str(tmp_path), "--state-dir", str(tmp_path / "state")],
            cwd=_ROOT, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, then = (
        {name.partition(".")[0] for name in line.split()} for line in done.stderr.splitlines() if "h11" in line
    )
    assert not before & ({"anyio", "httpcore", "httpx", "httpx_sse", "email", "http"} | HEAVY)
    assert {"httpx", "httpx_sse"} <= then
    assert not then & {"rich", "click"}


@pytest.mark.parametrize(
    "module", ["state.checkpoint", "state.disk", "config.load", "policy.rules", "agent_host.contracts"]
)
def test_the_lower_floors_need_no_network_and_no_event_loop(module: str) -> None:
    found = imported_by(f"import {module}")
    assert module.partition(".")[0] in found
    assert not found & ({"asyncio", "httpx", "socket", "ssl", "tomllib"} | HEAVY)


@pytest.mark.many_rows(5)
@pytest.mark.parametrize("module", sorted(path.stem for path in (_ROOT / "agent_host" / "cli").glob("[!_]*.py")))
def test_each_command_is_imported_by_an_interpreter_that_has_imported_nothing(module: str) -> None:
    """Most tests fork a process that has imported much already: an import that needs another one first works there."""
    assert "agent_host" in imported_by(f"import agent_host.cli.{module}")


@pytest.mark.parametrize("module", ["agent_host", "config", "agent_host.testing"])
def test_packages_are_empty(module: str) -> None:
    found = imported_by(f"import {module}")
    assert found <= {module.partition(".")[0], "__future__"}


@pytest.mark.parametrize("package", ["policy", "state", "agent_host.llm"])
def test_what_all_modules_of_a_package_use_needs_none_of_them(package: str) -> None:
    code = f"import sys, {package}\nprint(*(name for name in sys.modules if name.startswith('{package}.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
    assert not imported_by(f"import {package}") & ({"asyncio", "httpx", "socket", "ssl", "tomllib"} | HEAVY)
