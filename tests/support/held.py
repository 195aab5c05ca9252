"""Runs small programs under a level of the sandbox, as root or as a plain user: `python -m tests.support.held`.

Reads {"level", "user", "kind", "abi", "path", "rows": [[name, code]]} from standard input; prints a line of JSON for
each row: its name, whether it got through, and what it printed. `kind` is `hostile` for programs of Python, `git` for
lines of a shell in a repository, `ordinary` for lines that get through by exit code 0, `arranged` for lines after which
a guarded place or what lies outside is another. `abi` masks Landlock's version; `path` is where ordinary work finds its
programs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import unicodedata
from contextlib import suppress
from typing import Any, Final

from agent_host.ids import MACHINE
from policy import CommandScope
from tool_runtime import sandbox as sandbox_levels
from tool_runtime.platform import linux_calls, linux_sandbox
from tool_runtime.processes.command import CommandOutcome, CommandParams, LocalCommand, run_command
from tool_runtime.sandbox import launching, protected_paths, session
from tool_runtime.sandbox.session import open_sandbox
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import RuntimeSettings, SandboxSettings
from tool_runtime.web import proxy

__all__ = ["launching", "protected_paths", "session", "unicodedata"]
NOBODY: Final = 65534
PYTHON: Final = "/usr/bin/python3"
"""One that every user may start."""
_NUMBERS: Final = {
    "x86_64": {
        "RENAMEAT2": 316, "NAME_TO_HANDLE": 303, "OPEN_BY_HANDLE": 304, "PTRACE": 101, "PROCESS_VM_READV": 310,
        "KEYCTL": 250, "ADD_KEY": 248, "BPF": 321, "USERFAULTFD": 323, "PERF": 298, "MOUNT": 165, "UNSHARE": 272,
        "CLONE": 56, "SETNS": 308, "PIVOT_ROOT": 155, "SYSLOG": 103, "FINIT_MODULE": 313, "CONNECT": 42,
        "SENDMMSG": 307, "INOTIFY_ADD": 254, "MSGGET": 68, "MSGCTL": 71,
    },
    "aarch64": {
        "RENAMEAT2": 276, "NAME_TO_HANDLE": 264, "OPEN_BY_HANDLE": 265, "PTRACE": 117, "PROCESS_VM_READV": 270,
        "KEYCTL": 219, "ADD_KEY": 217, "BPF": 280, "USERFAULTFD": 282, "PERF": 241, "MOUNT": 40, "UNSHARE": 97,
        "CLONE": 220, "SETNS": 268, "PIVOT_ROOT": 41, "SYSLOG": 116, "FINIT_MODULE": 273, "CONNECT": 203,
        "SENDMMSG": 269, "INOTIFY_ADD": 27, "MSGGET": 186, "MSGCTL": 187,
    },
}  # fmt: skip
_HOSTS: Final = {"allowed.test": "127.0.0.1", "public.test": "192.0.2.7"}
"""Where names lead that a scope allows: to this machine, and to an address that is nobody's."""
_MAX_PRINTED: Final = 1_000_000
_CREATE_QUEUE: Final = 0o1600
_BOTH: Final = {"PIDFD_GETFD": 438, "IO_URING_SETUP": 425, "FSOPEN": 430, "OPEN_TREE": 428}
_PRELUDE: Final = """
import ctypes, errno, fcntl, mmap, os, resource, shutil, signal, socket, stat, struct, subprocess, sys, time
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = _libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def number(x86_64, aarch64):
    return x86_64 if os.uname().machine == "x86_64" else aarch64
def breach():
    print("BREACH", flush=True)
    os._exit(0)
"""

_DRIVER: Final = """
import json
def _try(code):
    signal.alarm(15)
    try: exec(code, globals())
    # Others' files are as good as ours to root, and a refusal of any kind will do.
    except (OSError, subprocess.CalledProcessError, ValueError) as e: print(e)
    except SystemExit: pass
    except BaseException as e: print(repr(e))
def _dead():
    try: return open(f"/proc/{VICTIM_PID}/stat").read().rpartition(")")[2].split()[0] in "ZX"
    except OSError: return False
_was = _dead()
for _name, _code in _ROWS:
    _read, _write = os.pipe()
    _child = os.fork()
    if _child == 0:
        os.dup2(_write, 1); os.dup2(_write, 2); os.close(_read); os.close(_write)
        _try(_code)
        sys.stdout.flush()
        os._exit(0)
    os.close(_write)
    os.waitpid(_child, 0)
    os.set_blocking(_read, False)  # what it has left may hold the other end
    try: _printed = os.read(_read, 4096).decode("utf-8", "replace")
    except BlockingIOError: _printed = ""
    os.close(_read)
    if "BREACH" in _printed and not _was: time.sleep(0.02)  # a signal that got through is on its way
    _is = _dead()
    print(json.dumps([_name, "BREACH" in _printed or _is > _was, _printed[:400]]), flush=True)
    _was = _is
    for _entry in os.scandir(WS):
        try: shutil.rmtree(_entry) if _entry.is_dir(follow_symlinks=False) else os.unlink(_entry)
        except OSError: pass
"""


def rows_of(text: str) -> list[tuple[str, str]]:
    """The blocks of a table: a line `== name`, and code behind it."""
    rows: list[tuple[str, str]] = []
    for block in text.split("\n== ")[1:]:
        name, _, code = block.partition("\n")
        rows.append((name, code))
    return rows


def digest_of(place: str) -> str:
    """A file or a folder with all in it: names, kinds, modes of what is no link, and bytes."""
    found = hashlib.sha256()
    paths = [place] if os.path.lexists(place) else []
    for folder, folders, files in os.walk(place):
        folders.sort()
        paths += [os.path.join(folder, name) for name in sorted(folders + files)]
    for path in paths:
        status = os.lstat(path)
        content = b""
        if stat.S_ISREG(status.st_mode):
            with suppress(PermissionError), open(path, "rb") as file:
                content = file.read(_MAX_PRINTED)
        plain = f"{path}\0{status.st_mode}\0{len(content)}\0"
        found.update(plain.encode("utf-8", "surrogateescape") + content)
    return found.hexdigest()


def _victim() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", "read line", "VICTIM"], stdin=subprocess.PIPE)


class Place:
    """A workspace and, outside of it, victims; and strangers that listen. All of the current user."""

    def __init__(self) -> None:
        self.root = tempfile.mkdtemp(prefix="held-")
        self.outside, self.workspace, self.temporary = (os.path.join(self.root, name) for name in ("out", "ws", "tmp"))
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("127.0.0.1", 0))
        self.reset()
        unix = os.path.join(self.root, "stranger")
        for path, kind in ((unix, socket.SOCK_STREAM), (f"{unix}-d", socket.SOCK_DGRAM)):
            self._sockets.append(socket.socket(socket.AF_UNIX, kind))
            self._sockets[-1].bind(path)
        self._abstract = f"held-{os.getpid()}"
        self._sockets.append(socket.socket(socket.AF_UNIX))
        self._sockets[-1].bind("\0" + self._abstract)
        for one in (self._sockets[1], self._sockets[3]):
            one.listen()
        self._terminal = os.openpty()
        descriptor, self._shared = tempfile.mkstemp(dir="/dev/shm")
        os.close(descriptor)
        self._queue = linux_calls.call(_NUMBERS[os.uname().machine]["MSGGET"], os.getpid(), _CREATE_QUEUE)
        self.victim = _victim()
        self.before = self.digest()

    def reset(self) -> None:
        """Victims and workspace as they are at first."""
        for directory in (self.outside, self.workspace, self.temporary):
            shutil.rmtree(directory, ignore_errors=True)
            if os.path.exists(directory):  # something in it is closed to its owner
                subprocess.run(["chmod", "-R", "u+rwx", directory], check=True)
                shutil.rmtree(directory)
            os.mkdir(directory)
        for name in ("hidden", "empty"):
            os.mkdir(os.path.join(self.outside, name))
        for name in ("victim", "secret", "hidden/inside"):
            with open(os.path.join(self.outside, name), "w", encoding="utf-8") as file:
                file.write(name)
        shutil.copy("/bin/true", os.path.join(self.outside, "hidden/program"))
        os.symlink("somewhere", os.path.join(self.outside, "hidden/link"))
        with suppress(OSError):  # some file systems have none
            os.setxattr(os.path.join(self.outside, "secret"), "user.held", b"x")

    def digest(self) -> str:
        """What there is outside: names, kinds, and bytes."""
        return digest_of(self.outside)

    def program(self, rows: list[tuple[str, str]]) -> str:
        """A program that tries rows one after the other, each in a process of its own, with what they have to know."""
        known: dict[str, Any] = {
            **_NUMBERS[os.uname().machine],
            **_BOTH,
            "WS": self.workspace,
            "OUT": self.outside,
            "HOST_PID": os.getpid(),
            "VICTIM_PID": self.victim.pid,
            "TCP": self._sockets[0].getsockname()[1],
            "UDP": self._datagrams.getsockname()[1],
            "QUEUE_KEY": os.getpid(),
            "SHARED": self._shared,
            "UNIX": os.path.join(self.root, "stranger"),
            "DGRAM": os.path.join(self.root, "stranger-d"),
            "ABSTRACT": self._abstract,
            "TERMINAL": os.ttyname(self._terminal[1]),
        }
        values = "".join(f"{name} = {value!r}\n" for name, value in known.items())
        return f"{_PRELUDE}{values}_ROWS = {rows!r}\n{_DRIVER}"

    def scope(self, name: str = "") -> CommandScope:
        """What the program of a row may do: its name says where that is more than usual."""
        hidden = (os.path.join(self.outside, "secret"), os.path.join(self.outside, "hidden"))
        writes = ("/",) if "(writes everywhere)" in name else (self.workspace, self.temporary)
        domains = None if "(any host)" in name else tuple(_HOSTS) if "(a host)" in name else ()
        return CommandScope(writes=writes, hidden=hidden, domains=domains)

    def close(self) -> None:
        """Away with all of it."""
        for one in (*self._sockets, self._datagrams):
            one.close()
        linux_calls.call(_NUMBERS[os.uname().machine]["MSGCTL"], self._queue, 0, None)
        os.unlink(self._shared)
        for descriptor in self._terminal:
            os.close(descriptor)
        self.victim.kill()
        self.victim.communicate()
        shutil.rmtree(self.root, ignore_errors=True)


def _params(place: Place, name: str, argv: list[str], environment: dict[str, str]) -> CommandParams:
    return CommandParams(
        argv,
        cwd=place.workspace,
        environment=environment,
        mark=f"held-{os.getpid()}",
        timeout_s=120,
        max_output_bytes=_MAX_PRINTED,
        artifact_max_bytes=_MAX_PRINTED,
        kill_grace_s=0.1,
        scope=place.scope(name),
    )


class Runner:
    """Runs rows one after the other; without a `sandbox` nothing is held."""

    def __init__(self, place: Place, sandbox: session.Sandbox | None, pool: DaemonPool, path: str) -> None:
        self._place = place
        self._path = path
        self._sandbox = sandbox
        self._pool = pool

    async def ordinary(self, name: str, code: str) -> dict[str, Any]:
        """Ordinary work in a repository, and whether it went on."""
        place = self._place
        make_repository(place.workspace)
        kept = [variable for variable in ("HOME", "RUSTUP_HOME") if variable in os.environ]
        environment = {variable: os.environ[variable] for variable in kept}
        if os.getuid():
            environment = {"HOME": place.outside}
        environment |= {"PATH": self._path, "TMPDIR": place.temporary}
        params = _params(place, name, ["/bin/bash", "-ec", code], environment)._replace(timeout_s=60)
        outcome = await run_command(LocalCommand, params, self._pool, None, self._sandbox)
        printed = _printed(outcome)
        place.reset()
        return {"name": name, "through": outcome.exit_code == 0, "printed": printed[-600:]}

    async def in_repository(self, name: str, code: str) -> dict[str, Any]:
        """A program that leaves something in a git directory of a workspace, and whether it steers git afterwards: by
        what is in the workspace's own, and by what starts when somebody works in each directory."""
        place = self._place
        ran, victim = os.path.join(place.outside, "ran"), os.path.join(place.workspace, "victim")
        top = make_commit(place.workspace)
        before, mine = steering_of(top), _told(victim)
        kept = [os.path.join(top, one) for one in ("hooks", "config", "info")]
        scope = CommandScope(
            writes=(place.workspace, place.temporary, "/dev/null"),
            guarded=tuple(kept),
            nested=(f"{place.workspace}/**/*.code-workspace",),
            judged=(kept[1],),
            given=(place.workspace,),
        )
        environment = {"PATH": "/usr/bin:/bin", "HOME": place.outside, "TMPDIR": place.temporary}
        line = code.replace("{E}", f"touch {ran}; false")
        params = _params(place, name, ["/bin/bash", "-c", line], environment)._replace(scope=scope, timeout_s=60)
        printed = _printed(await run_command(LocalCommand, params, self._pool, None, self._sandbox))
        through = steering_of(top) != before
        await self._pool.run(lambda: work_in(place.workspace, environment))
        new = (ran, os.path.join(place.workspace, "evil.code-workspace"))
        through = through or _told(victim) != mine or any(_told(one) != MISSING for one in new)
        place.reset()
        return {"name": name, "through": through, "printed": printed[-600:]}

    async def arranged(self, name: str, code: str) -> dict[str, Any]:
        """A line that arranges something for the host, and whether anything is another after it."""
        place, workspace = self._place, self._place.workspace
        make_repository(workspace, "printf '#!/bin/sh\\n' > .git/hooks/post-commit; printf ours > ours; mkdir .agent")
        places = tuple(os.path.join(workspace, one) for one in (".git/hooks", ".git/config", ".agent", ".claude"))
        before = [digest_of(one) for one in places]
        params = _params(place, name, ["/bin/bash", "-c", code], {"PATH": "/usr/bin:/bin"})
        params = params._replace(scope=place.scope(name)._replace(guarded=places))
        outcome = await run_command(LocalCommand, params, self._pool, None, self._sandbox)
        is_other = place.digest() != place.before or [digest_of(one) for one in places] != before
        printed = f"{_printed(outcome)[-300:]} {outcome.denials}"
        place.reset()
        return {"name": name, "through": is_other, "printed": printed[-600:]}

    async def hostile(self, rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """Attempts under one scope, and what came of each. A change outside that no attempt owns is one of them all."""
        place = self._place
        if place.victim.poll() is not None:
            place.victim = _victim()
        argv = [PYTHON, "-I", "-S", "-c", place.program(rows)]
        params = _params(place, rows[0][0], argv, {"PATH": "/usr/bin:/bin"})
        printed = _printed(await run_command(LocalCommand, params, self._pool, None, self._sandbox))
        found = [json.loads(line) for line in printed.splitlines() if line.startswith('["')]
        came = [{"name": name, "through": through, "printed": said} for name, through, said in found]
        if len(came) != len(rows):
            raise AssertionError(f"only {len(came)} of {len(rows)} rows were tried: {printed[-1000:]}")
        if place.digest() != place.before and not any(row["through"] for row in came):
            came = [
                {**row, "through": True, "printed": f"one of these changed what is outside: {row['printed']}"}
                for row in came
            ]
        place.reset()
        return came


def _printed(outcome: CommandOutcome) -> str:
    return (outcome.stdout.ends.render(_MAX_PRINTED) + outcome.stderr.ends.render(_MAX_PRINTED)).decode(
        "utf-8", "replace"
    )


def make_repository(path: str, line: str = "true") -> None:
    """An empty repository of git, with what a line of a shell makes in it."""
    subprocess.run(["git", "init", "-q", path], check=True)
    subprocess.run(["/bin/sh", "-c", line], cwd=path, check=True)


def make_commit(path: str) -> str:
    """A repository of git with a commit, and its git directory."""
    make_repository(path)
    for name in ("f", "victim"):
        with open(os.path.join(path, name), "w", encoding="utf-8") as file:
            file.write("mine\n")
    for words in ("config user.name A", "config user.email a@b", "add .", "commit -qm one"):
        subprocess.run(["git", "-C", path, *words.split()], check=True)
    return os.path.join(path, ".git")


def steering_of(top: str) -> dict[str, str]:
    """What a git directory has besides objects, heads and messages, by its path there."""
    found = {}
    for name in ("config", "commondir", "hooks", "info", "branches", "remotes"):
        for folder, folders, files in os.walk(os.path.join(top, name)):
            for one in (*folders, *files):
                found[os.path.join(folder, one)] = _told(os.path.join(folder, one))
        found[name] = _told(os.path.join(top, name))
    return found


MISSING: Final = "False False"


def _told(path: str) -> str:
    if not os.path.lexists(path) or os.path.islink(path) or os.path.isdir(path):
        return f"{os.path.islink(path)} {os.path.isdir(path)}"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


_WORK: Final = (
    "status", "rebase --continue", "cherry-pick --continue", "commit -q --allow-empty -m x", "checkout -q HEAD",
    "fetch",
)  # fmt: skip
_MAX_VISITED: Final = 30


def work_in(workspace: str, environment: dict[str, str]) -> None:
    """What somebody does later in each directory of a workspace, outside of any sandbox."""
    folders = [workspace]
    for folder, below, _ in os.walk(workspace):
        below[:] = [one for one in below if one != ".git"]
        folders += [os.path.join(folder, one) for one in below]
    for folder in folders[:_MAX_VISITED]:
        for words in _WORK:
            argv = ["git", "-c", "core.editor=true", *words.split()]
            subprocess.run(argv, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)


def become_plain() -> None:
    """Another user's rights from here on, where this is root's process."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        sys.executable = PYTHON


def mask(abi: int) -> None:
    """Have Landlock say that it is of this version at most."""
    real = linux_sandbox.abi()
    linux_sandbox.abi = lambda: min(abi, real)


async def main() -> None:
    """All rows, one after the other."""
    asked = json.load(sys.stdin)
    list(map(sandbox_levels.look, sandbox_levels.LEVELS))  # imports what another user may not read
    if asked["user"] == "plain":
        become_plain()
    if "abi" in asked:
        mask(asked["abi"])
    sandbox_levels.forget()  # this process became another user on its way
    vars(proxy)["resolve"] = lambda host, _port: [_HOSTS[host]] if host in _HOSTS else []
    pool, place, sandbox = DaemonPool(), Place(), None
    try:
        if asked["level"] != "none":
            settings = SandboxSettings(
                asked["level"],
                required=True,
                directory=os.path.join(place.root, "session"),
                caches=os.path.join(place.temporary, "caches"),
            )
            sandbox = open_sandbox(RuntimeSettings(outside=MACHINE, workspace=place.workspace, sandbox=settings), pool)
        runner = Runner(place, sandbox, pool, asked.get("path", ""))
        by_line = {"ordinary": runner.ordinary, "arranged": runner.arranged, "git": runner.in_repository}
        if asked["kind"] in by_line:
            for name, code in asked["rows"]:
                print(json.dumps(await by_line[asked["kind"]](name, code)), flush=True)
        else:
            scopes: dict[CommandScope, list[tuple[str, str]]] = {}
            for name, code in asked["rows"]:
                scopes.setdefault(place.scope(name), []).append((name, code))
            for rows in scopes.values():
                print(*(json.dumps(row) for row in await runner.hostile(rows)), sep="\n", flush=True)
    finally:
        place.close()
        if sandbox is not None:
            await sandbox.aclose()
        pool.close()


if __name__ == "__main__":
    asyncio.run(main())
