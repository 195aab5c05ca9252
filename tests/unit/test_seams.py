"""Time, chance, processes, sockets and threads reach a session by what composes it, and by the event loop it runs on
(decision 0110): a module that takes them for itself stands in `DIRECT` with the reason."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.support.house import modules, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

USES = {
    "clock": "time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns"
    " time.localtime datetime.now datetime.utcnow date.today",
    "sleep": "time.sleep",
    "chance": "os.urandom os.getrandom",
    "process": "subprocess.Popen subprocess.run subprocess.call subprocess.check_call subprocess.check_output os.fork"
    " os.execv os.execve os.posix_spawn os.posix_spawnp os.system os.popen asyncio.create_subprocess_exec"
    " asyncio.create_subprocess_shell",
    "socket": "socket.socket socket.socketpair socket.create_connection socket.create_server socket.getaddrinfo",
    "thread": "threading.Thread threading.Timer",
}
BY_NAME = {name: use for use, names in USES.items() for name in names.split()}
BELOW = {"_socket": "socket", "posix": "os"}
"""Modules in C that programs with a quick start import."""
MAY_USE = re.compile(
    r"\bos\.(?:urandom|getrandom|fork|exec|posix_spawn|system|popen)"
    r"|(?:import|from) [^\n]*\b(?:time|datetime|random|secrets|uuid|subprocess|_?socket|threading|asyncio|posix)\b"
)
"""The text of a module that is worth its walk."""
WHOLE_MODULES = {"random": "chance", "secrets": "chance", "uuid": "chance"}

NO_SESSION = {f"agent_host.{name}" for name in ("chat", "cli", "clients", "faults", "testing", "tool_service", "view")}
"""Packages that run no session: what shows one, starts its process or tests it, and a service of its own."""

_PROCESSES = "behind StartCommand, or what ends processes: the kernel is its other side"
_SANDBOX = "what holds processes, below what starts them"
_NAMES = "the name of a file that is gone again, or is put in another's place"
_FILE_TIMES = "compared with the times that the kernel gives files"
_NOT_WAITED = "work that no step and no record waits for: imports, look-aheads, what is left of others"
_OBSERVERS = "observers write beside the loop, which never waits for them"
DIRECT: dict[str, tuple[str, str]] = {
    "agent_host.batch.engines": ("process", "a session's process, in a task of Ray"),
    "agent_host.batch.workspaces": ("process", "git, for workspaces that sessions begin with"),
    "agent_host.ids": ("chance clock", "MACHINE, which composition hands in"),
    "state.disk": ("process sleep thread", "behind Disk and StartJob"),
    "state.file_store": ("clock", "the default of `now` for programs that only read"),
    "state.keys": ("chance", "the key of a state directory, which outlives sessions"),
    "state.temporary": ("chance", _NAMES),
    "agent_host.events.otel": ("thread", _OBSERVERS),
    "agent_host.events.otel_export": ("thread", _OBSERVERS),
    "agent_host.events.sinks": ("thread", _OBSERVERS),
    "agent_host.host.environment": ("thread", _NOT_WAITED),
    "agent_host.host.machine_checks": ("clock process sleep", "`doctor`, no session"),
    "agent_host.host.opening": ("thread", _NOT_WAITED),
    "agent_host.host.recording": ("chance", "the key of a recording gateway, no session"),
    "agent_host.http": ("thread", _NOT_WAITED),
    "agent_host.llm.deferred": ("thread", _NOT_WAITED),
    "agent_host.rpc.questions": ("chance socket", "the client's own way in"),
    "agent_host.rpc.channels": ("socket thread", "the client's own way in"),
    "agent_host.session.task_runner": ("thread", _NOT_WAITED),
    "agent_host.terminal": ("clock thread", _NOT_WAITED),
    "agent_host.workspace_changes.watch": ("clock", _FILE_TIMES),
    "tool_runtime.files.grep": ("process", "a search engine of the host, which has its twin in Python"),
    "tool_runtime.files.listing": ("clock", _FILE_TIMES),
    "tool_runtime.files.documents": ("thread", "a page that is read has a bound in time"),
    "tool_runtime.files.writer": ("chance", _NAMES),
    "tool_runtime.threads": ("thread", "the pool to which the event loop hands work"),
    "tool_runtime.web": ("socket", "looks a name up in the pool, as its addresses are to be judged"),
    "tool_runtime.platform.linux_sandbox": ("clock", _FILE_TIMES),
    "tool_runtime.platform.peers": ("process", "asks the kernel who is at the other end of a socket"),
    "tool_runtime.platform.posix": ("process", _PROCESSES),
    "tool_runtime.platform.windows": ("process", _PROCESSES),
    "tool_runtime.processes.command": ("chance clock process", _PROCESSES),
    "tool_runtime.processes.guard": ("clock process sleep thread", _PROCESSES),
    "tool_runtime.processes.orphan_reaper": ("clock process sleep", _PROCESSES),
    "tool_runtime.processes.background": ("thread", "programs that are talked to: MCP servers"),
    "tool_runtime.sandbox.helper_processes": ("clock process", _SANDBOX),
    "tool_runtime.sandbox.launcher": ("clock process socket", _SANDBOX),
    "tool_runtime.sandbox.launching": ("chance clock process sleep socket thread", _SANDBOX),
    "tool_runtime.sandbox.protected_paths": ("chance", _NAMES),
    "tool_runtime.web.proxy": ("socket", _SANDBOX),
    "tool_runtime.sandbox.session": ("process", _SANDBOX),
    "tool_runtime.sandbox.sockets": ("socket thread", _SANDBOX),
    "tool_runtime.sandbox.supervisor": ("clock socket thread", _SANDBOX),
}  # fmt: skip
"""Modules that take some of it for themselves. Rows only go: what is new is handed in."""


def uses_of(tree: ast.Module) -> Iterator[str]:
    """Each use in the code of a module, not what its annotations name."""
    names = {"datetime": "datetime", "date": "date"}
    for node in ast.walk(tree):
        for said in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(said, ast.expr):
                said.__dict__["is_annotation"] = True
                for part in ast.walk(said):
                    part.__dict__["is_annotation"] = True
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name: BELOW.get(one.name, one.name) for one in node.names}
            yield from (WHOLE_MODULES[one.name] for one in node.names if one.name in WHOLE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            whole = f"{node.module}"
            yield from ((WHOLE_MODULES[whole],) if whole in WHOLE_MODULES else ())
            yield from (BY_NAME[f"{whole}.{one.name}"] for one in node.names if f"{whole}.{one.name}" in BY_NAME)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not hasattr(node, "is_annotation"):
            value = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            use = BY_NAME.get(f"{names.get(value, value)}.{node.attr}")
            yield from (() if use is None else (use,))


def found() -> dict[str, str]:
    rows = defaultdict(set)
    for name, module in modules().items():
        is_of_session = not any(name == one or name.startswith(f"{one}.") for one in NO_SESSION)
        if is_of_session and MAY_USE.search(module.text):
            for use in uses_of(module.tree):
                rows[name].add(use)
    return {name: " ".join(sorted(uses)) for name, uses in rows.items()}


def test_time_chance_processes_and_sockets_are_handed_in() -> None:
    assert found() == {name: uses for name, (uses, _) in DIRECT.items()}


def test_the_finder_sees_each_way_to_a_clock() -> None:
    """Under another name, from its module, as an attribute of a package's module, and not in an annotation."""
    code = (
        "import time as t, secrets, subprocess\nfrom time import sleep\nfrom datetime import datetime\n"
        "import datetime as d, _socket as s\ndef f(p: subprocess.Popen) -> subprocess.Popen:\n"
        " t.monotonic(); datetime.now(); d.datetime.now(); s.socket(); now = t.monotonic\n"
    )
    assert sorted(uses_of(ast.parse(code))) == ["chance", "clock", "clock", "clock", "clock", "sleep", "socket"]


def test_only_what_composes_a_session_names_the_machine() -> None:
    naming = {
        name
        for name, module in modules().items()
        if re.search(r"\b(?:THIS_MACHINE|MACHINE|start_here)\b", module.text)
        for node in nodes_of(module)
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) in ("MACHINE", "THIS_MACHINE", "start_here")
    }
    packages = ("acp", "batch", "chat", "cli", "host", "mcp_server", "tool_service")
    roots = tuple(f"agent_host.{name}." for name in packages)
    assert {name for name in naming if not f"{name}.".startswith(roots)} == {"agent_host.ids"}
    assert {name for name in naming if name.startswith("agent_host.host.")} == {
        f"agent_host.host.{name}"
        for name in (
            *("dry_runs", "environment", "first_provider", "machine_checks", "opening", "records"),
            *("options", "own_policy", "undo"),
        )
    }
