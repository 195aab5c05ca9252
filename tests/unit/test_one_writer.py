"""One module writes into workspaces and their temporary directories; nothing else of the product writes by path."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tests.support.rows import each_row

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent_host", "config", "policy", "state", "tool_runtime")
WRITER = ("tool_runtime/files/writer.py", "tool_runtime/platform/directories.py")

ELSEWHERE = {
    "agent_host/batch/scheduler.py": "orders and marks in the batch's directory",
    "agent_host/batch/ledger.py": "results in the batch's directory",
    "agent_host/batch/engines.py": "the state directory, for a lock; parcels, before a session",
    "agent_host/batch/workspaces.py": "workspaces and sessions of a batch, before and behind their processes",
    "agent_host/chat/commands.py": "the new file that the user names for an export",
    "agent_host/chat/input_line.py": "the history of prompts, in the state directory",
    "agent_host/chat/local.py": "new files in the session's temporary directory: pictures that were pasted",
    "agent_host/host/own_policy.py": "a temporary directory of its own, for a bundle that is tried",
    "agent_host/host/machine_checks.py": "a nameless file in the state directory, to see whether it takes one",
    "agent_host/host/recording.py": "the new script that the user names, before a session begins",
    "agent_host/host/replay.py": "a temporary directory of its own, for the state of a replay",
    "agent_host/cli/replay.py": "nothing: it names the directory for temporary files",
    "agent_host/cli/main.py": "the null device",
    "agent_host/cli/protocols.py": "the ends of a pipe",
    "agent_host/clients/fork_server.py": "the pipe to a session's process",
    "agent_host/clients/warm_process.py": "standard streams",
    "agent_host/cli/sessions.py": "the folder of pages that the user asks for",
    "agent_host/cli/outputs.py": "the files that the user names, opened before a session begins",
    "agent_host/cli/pipeline.py": "the summary and the outputs of a pipeline's step, which its runner names",
    "agent_host/cli/__init__.py": "the null device",
    "agent_host/events/otel_export.py": "the state directory",
    "agent_host/events/sinks.py": "the state directory",
    "agent_host/faults/": "workspaces of its own, which no session has yet or has any more",
    "agent_host/rpc/questions.py": "the state directory",
    "agent_host/rpc/channels.py": "the socket of `serve`, where the user names it, and one in the state directory",
    "agent_host/services/session.py": "the state directory",
    "agent_host/services/workspace.py": "the state directory",
    "agent_host/session/tasks.py": "new files in the session's temporary directory, by its descriptor",
    "agent_host/tool_service/": "another service, with stores of its own",
    "state/": "the state directory, and a session's temporary directory as a whole, by `state.temporary`",
    "tool_runtime/sandbox/launcher.py": "the maps of users of its own process",
    "tool_runtime/sandbox/launching.py": "the null device",
    "tool_runtime/files/grep.py": "a nameless file",
    "tool_runtime/processes/orphan_reaper.py": "control groups",
    "tool_runtime/output/artifacts.py": "a nameless file",
    "tool_runtime/processes/guard.py": "control groups",
    "tool_runtime/platform/mounts.py": "file systems in memory of a mount namespace that no program is in yet",
    "tool_runtime/sandbox/supervisor.py": "the memory of a process that waits",
}
"""Modules, and packages with a slash, that write by path and into no workspace, and what they write."""

_OS_CALLS = frozenset((
    "rename", "renames", "replace", "unlink", "remove", "mkdir", "makedirs", "rmdir", "removedirs", "chmod", "lchmod",
    "chown", "lchown", "utime", "link", "symlink", "mkfifo", "mknod", "truncate", "setxattr", "removexattr",
))  # fmt: skip
_OS_FLAGS = frozenset(("O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND", "O_TMPFILE"))
_SHUTIL_READS = frozenset(("which", "disk_usage", "get_terminal_size"))
_PATH_CALLS = frozenset((
    "write_text", "write_bytes", "touch", "mkdir", "rmdir", "unlink", "symlink_to", "hardlink_to", "chmod", "lchmod",
    "rename",
))  # fmt: skip
_MODULES = ("os", "shutil", "tempfile")


def writes_in(code: str) -> list[str]:
    """What in a module's text writes by a path, or could: the line and what it says."""
    tree = ast.parse(code)
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            names = [alias.name for alias in node.names]
            found += [(node.lineno, f"{node.module}.{name}") for name in names if _is_write(node.module, name)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _MODULES:
            if _is_write(node.value.id, node.attr):
                found.append((node.lineno, f"{node.value.id}.{node.attr}"))
        elif isinstance(node, ast.Call) and _opens_to_write(node):
            found.append((node.lineno, ast.unparse(node)))
    return [f"{line}: {text}" for line, text in sorted(found)]


def _is_write(module: str, name: str) -> bool:
    if module == "shutil":
        return name not in _SHUTIL_READS
    return module == "tempfile" or name in _OS_CALLS or name in _OS_FLAGS


def _opens_to_write(node: ast.Call) -> bool:
    function = node.func
    if isinstance(function, ast.Attribute):
        is_replaced = function.attr == "replace" and len(node.args) == 1 and not node.keywords
        is_opened = function.attr in ("open", "fdopen") and any(map(_is_write_mode, _modes(node, 0, 1)))
        is_of_a_module = isinstance(function.value, ast.Name) and function.value.id in _MODULES
        return is_replaced or is_opened or (function.attr in _PATH_CALLS and not is_of_a_module)
    if not isinstance(function, ast.Name) or function.id != "open":
        return False
    return any(not isinstance(mode, ast.Constant) or _is_write_mode(mode) for mode in _modes(node, 1))


def _modes(node: ast.Call, *places: int) -> list[ast.expr]:
    modes = [node.args[place] for place in places if place < len(node.args)]
    return modes + [keyword.value for keyword in node.keywords if keyword.arg == "mode"]


def _is_write_mode(mode: ast.expr) -> bool:
    value = mode.value if isinstance(mode, ast.Constant) else None
    return isinstance(value, str) and set(value) <= set("rwaxbt+") and bool(set(value) & set("wax+"))


@functools.cache
def modules() -> dict[str, list[str]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): writes_in(path.read_text(encoding="utf-8")) for path in paths}
    return {path: writes for path, writes in found.items() if writes and path not in WRITER}


def test_no_module_writes_by_path_but_those_that_write_into_no_workspace() -> None:
    unknown = {path: writes for path, writes in modules().items() if not path.startswith(tuple(ELSEWHERE))}
    assert not unknown, "write by `tool_runtime.files.writer`, or say above why no workspace is written"


def test_each_module_of_the_list_is_needed() -> None:
    found = modules()
    assert [one for one in ELSEWHERE if not any(path.startswith(one) for path in found)] == []


@each_row(
    "line",
    [
        "open(p, 'w')", "open(p, mode='ab')", "open(p, 'r+b', opener=o)", "Path(p).open('x')", "p.write_text('x')",
        "p.write_bytes(b'')", "p.touch()", "p.mkdir()", "p.replace(q)", "p.unlink(missing_ok=True)", "p.symlink_to(q)",
        "os.open(p, os.O_WRONLY)", "os.open(p, flags | os.O_CREAT)", "os.rename(a, b)", "os.replace(a, b)",
        "os.unlink(p)", "os.mkdir(p)", "os.makedirs(p)", "os.rmdir(p)", "os.chmod(p, 1)", "os.utime(p)",
        "os.link(a, b)", "p.chmod(1)", "open(p, mode)",
        "os.symlink(a, b)", "shutil.rmtree(p)", "shutil.copy2(a, b)", "tempfile.mkdtemp()", "os.truncate(p, 0)",
        "from shutil import copyfile", "from os import replace as r", "from tempfile import NamedTemporaryFile",
        "f = os.remove", "os.mkfifo(p)", "os.setxattr(p, b'a', b'b')", "os.fdopen(fd, 'wb')",
    ],
)  # fmt: skip
def test_what_counts_as_a_write(line: str) -> None:
    assert writes_in(line)


@each_row(
    "line",
    [
        "open(p)", "open(p, 'rb')", "open(p, encoding='utf-8')", "text.replace('a', 'b')", "os.open(p, os.O_RDONLY)",
        "shutil.which('git')", "os.stat(p)", "stamp.replace(tzinfo=None)", "os.fdopen(fd, 'rb')",
    ],
)  # fmt: skip
def test_what_counts_as_none(line: str) -> None:
    assert not writes_in(line)
