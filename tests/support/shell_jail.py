"""A directory of stub programs in which a shell line is really run, and what running it has started or changed.

Every word that a line may hold is the name of a stub, so an argument that a shell takes for a command shows too.
Programs that start others (`find`, `xargs`, `env`) are the real ones. A stub appends its name and arguments to a log.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import time
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tool_runtime.platform.environment import child_environment
from tool_runtime.platform.posix import shell_argv

if TYPE_CHECKING:
    from collections.abc import Collection

    from policy.facts import ShellName

PATIENCE_S = 3.0
_DEPTH = ("d1", "d2", "d3", "d4", "d5")  # a line may climb a few times and is still inside
# What a shell says of a name that it would start and does not find; not what scripts of programs (git has some) say.
_MISSING = re.compile(
    r"^(?:/\S*/)?(?:ba|da|)sh: (?:line )?\d+: (?:exec: )?(?P<name>(?!(?:command|type|declare|typeset): ).*?): "
    r"(?:command )?not found$"
    r"|^zsh:\d+: command not found: (?P<zsh>.*)$",
    re.MULTILINE,
)
_FILE_BYTES = 1 << 20

ALPHABET: dict[str, Any] = tomllib.loads(Path(__file__).with_name("shell_alphabet.toml").read_text("utf-8"))
LISTED_REAL: list[str] = ALPHABET["listed_real"]
"""Programs whose point is what they start or read: the machine's own are run where it has them."""
LISTED = tuple(dict.fromkeys((*LISTED_REAL, *ALPHABET["listed_stubs"], *ALPHABET["listed_builtins"])))
UNLISTED: list[str] = ALPHABET["unlisted"]


class Outcome(NamedTuple):
    """What running one line did that it may not do (None: nothing), and how many stubs and how long it took."""

    escape: str | None
    started: int
    seconds: float


class Jail:
    """The tree below `root`: `bin` (all of PATH), `home`, and far down `here`, in which `out` may be written."""

    def __init__(
        self,
        root: Path,
        listed: tuple[str, ...] = LISTED,
        *,
        real: Collection[str] = LISTED_REAL,
        stubs: Collection[str] = (*LISTED, *UNLISTED),
    ) -> None:
        """`listed` are the programs that a line may start; those of `real` are the machine's own, if it has them."""
        self.root = str(root)
        self.listed = listed
        self._real, self._stubs = real, stubs
        self.bin = os.path.join(self.root, "bin")
        self.home = os.path.join(self.root, "home")
        self.work = os.path.join(self.root, *_DEPTH, "here")
        self.out = os.path.join(self.work, "out")
        self._log_path = os.path.join(self.root, "log", "started")
        self._shells = {name: path for name in ("bash", "sh", "dash", "zsh") if (path := shutil.which(name))}
        self.rebuild()

    @property
    def shells(self) -> dict[str, ShellName]:
        """The shells that this machine has, and the grammar that a line for each is judged by."""
        grammar: dict[str, ShellName] = {"bash": "bash", "sh": "sh", "dash": "sh", "zsh": "zsh"}
        return {name: grammar[name] for name in self._shells}

    def rebuild(self) -> None:
        """Everything as it is at the start."""
        for place in ("bin", "home", "log", "elsewhere", _DEPTH[0]):
            shutil.rmtree(os.path.join(self.root, place), ignore_errors=True)
        for place in (self.bin, self.home, self.out, os.path.dirname(self._log_path), self.root + "/elsewhere"):
            os.makedirs(place)
        for name in {*self._real, *self._stubs} - {".", ".."}:
            real = _found(name) if name in self._real else None
            if real is not None:
                os.symlink(os.path.realpath(real) if name != "sh" else real, os.path.join(self.bin, name))
            else:
                self._stub(os.path.join(self.bin, name))
        self._files()
        self._log = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._before = self._snapshot()

    def run(self, line: str, shell: str) -> Outcome:
        """Run `line` with what the runtime would run it with, wait for all that it starts, and look."""
        started = time.monotonic()
        alive, held = os.pipe()
        output = os.open(os.path.join(self.root, "log", "errors"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            process = subprocess.Popen(
                shell_argv(self._shells[shell], line),
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                pass_fds=(held,),
                start_new_session=True,
            )
            os.close(held)
            _ended(process, alive)
            errors = os.pread(output, 1 << 16, 0).decode(errors="replace")
        finally:
            os.close(alive)
            os.close(output)
        names = self._started()
        problem = self._unlisted(names, errors) or self._changed()
        if problem is not None:
            os.close(self._log)
            self.rebuild()
        self._tidy()
        return Outcome(problem, len(names), time.monotonic() - started)

    # What it holds

    def _stub(self, path: str) -> None:
        with open(path, "w") as file:
            # The name by which it was started, and not the file's: that tells ./ls from ls.
            file.write(f"#!/bin/sh\nprintf '%s\\0' $# \"$0\" \"$@\" >> '{self._log_path}'\n")
        os.chmod(path, 0o755)

    def _files(self) -> None:
        for name in ("evil", "ls", "good", "a"):  # what `./name` and an empty part of PATH would find
            self._stub(os.path.join(self.work, name))
        for place in ("1", "3"):  # what arithmetic would make of PATH
            os.mkdir(os.path.join(self.work, place))
            for name in ("evil", "ls", "good"):
                self._stub(os.path.join(self.work, place, name))
        contents = {"a.txt": "a\nb\n", "names": "evil\nbad x\n", "f.txt": "1 2 3\n", ".env": "x=1\n"}
        for name, text in contents.items():
            with open(os.path.join(self.work, name), "w") as file:
                file.write(text)
        os.makedirs(os.path.join(self.work, "sub"))
        os.symlink(self.root + "/elsewhere", os.path.join(self.work, "link"))
        with open(os.path.join(self.home, ".gitconfig"), "w") as file:
            file.write("[alias]\n\tx = !evil\n\tst = !evil\n[core]\n\tpager = evil\n\teditor = evil\n")
        for name in (".bashrc", ".profile", ".zshrc", ".kshrc"):
            with open(os.path.join(self.home, name), "w") as file:
                file.write("evil\n")

    @property
    def environment(self) -> dict[str, str]:
        """What a line finds in its environment."""
        own = {"PATH": self.bin, "HOME": self.home, "LANG": "C.UTF-8", "PWD": self.work}
        return child_environment(own, secret=frozenset(), passthrough=frozenset())

    # What has happened

    def _started(self) -> list[list[str]]:
        text = os.pread(self._log, 1 << 20, 0).decode(errors="replace")
        os.ftruncate(self._log, 0)
        parts = text.split("\0")[:-1]
        records: list[list[str]] = []
        while parts:
            # How many arguments there are comes first: one of them may look like anything.
            end = 2 + int(parts[0])
            records.append(parts[1:end])
            del parts[:end]
        return records

    def _unlisted(self, started: Collection[list[str]], errors: str) -> str | None:
        for words in started:
            directory, name = os.path.split(words[0])
            if directory != self.bin or name not in self.listed:
                return f"started {words}"
        missing = (found["name"] or found["zsh"] for found in _MISSING.finditer(errors))
        return next((f"looked for {name!r}" for name in missing if name not in self.listed), None)

    def _snapshot(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        pending = [self.root]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.path == self.out or entry.name == "log":
                        continue
                    seen = entry.stat(follow_symlinks=False)
                    found[entry.path] = (seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns)
                    if stat.S_ISDIR(seen.st_mode):
                        pending.append(entry.path)
        return found

    def _changed(self) -> str | None:
        now = self._snapshot()
        if now == self._before:
            return None
        different = sorted(path for path in now.keys() | self._before.keys() if now.get(path) != self._before.get(path))
        return "changed " + ", ".join(os.path.relpath(path, self.root) for path in different)

    def _tidy(self) -> None:
        with os.scandir(self.out) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)


_found = lru_cache(maxsize=None)(shutil.which)


def limits() -> None:
    """Bounds for the calling process and all that it starts: time of the processor, size of a file, no core files."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _ended(process: subprocess.Popen[bytes], alive: int) -> None:
    """Wait until nobody holds the pipe that the line's processes inherit; end what takes too long."""
    ready, _, _ = select.select([alive], [], [], PATIENCE_S)
    if not ready:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if not ready:
        select.select([alive], [], [], PATIENCE_S)
