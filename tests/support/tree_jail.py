"""A jail whose workspace is a repository with protected files, links that lead outside, archives and hostile text.

The file programs are the machine's own. All of the workspace may be written, but for what steers other programs
(`is_protected`); what a line has changed is undone file by file, so that the next one finds the same.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from agent_host.judging import Environment, resolve_places
from agent_host.judging.facts import gather
from config.policies import template
from policy.bundle.builtin import PlaceholderValues, instantiate
from policy.decide import check_tool
from tests.support.jail_tree import make_tree
from tests.support.shell_jail import Jail
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from policy.facts import ShellName

FILE_PROGRAMS = (
    "ar", "awk", "base64", "bunzip2", "bzip2", "cat", "chmod", "cmp", "comm", "cp", "csplit", "curl", "cut", "date",
    "dd", "diff", "env", "file", "find", "fold", "git", "grep", "gunzip", "gzip", "head", "hexdump", "install",
    "join", "jq", "ln", "mkdir", "mktemp", "mv", "nice", "nl", "nohup", "objcopy", "od", "openssl", "paste", "patch",
    "rm", "rmdir", "sed", "seq", "shred", "shuf", "sleep", "sort", "split", "strip", "tac", "tar", "tee", "timeout",
    "touch", "tr", "truncate", "uniq", "unlink", "unxz", "unzip", "wc", "wget", "xargs", "xxd", "xz", "zcat", "zip",
)  # fmt: skip
STUBS = ("ls", "good", "tool")
BUILTINS = (
    ":", ".", "[", "alias", "autoload", "bind", "break", "builtin", "bindkey", "caller", "cd", "command", "complete",
    "coproc", "declare", "disable", "echo", "emulate", "enable", "eval", "exec", "exit", "export", "false", "fc",
    "float", "getln", "getopts", "hash", "history", "integer", "kill", "let", "limit", "local", "mapfile", "popd",
    "print", "printf", "pushd", "pwd", "read", "readarray", "readonly", "rehash", "return", "sched", "set", "setopt",
    "shift", "shopt", "source", "test", "time", "trap", "true", "typeset", "ulimit", "umask", "unalias", "unhash",
    "unset", "unsetopt", "vared", "wait", "whence", "zcompile", "zmodload", "zle", "zparseopts", "zstyle", "noglob",
    "nocorrect",
)  # fmt: skip
SHELLS = ("bash", "dash", "sh", "zsh")
BLOCKED = ("evil",)
_UNLISTED = (
    "evil", "cc", "ld", "make", "ranlib", "python3", "rename", "tree", "column", "ex", "ed", "vi", "less", "a", "x",
)  # fmt: skip
_NAMES = frozenset(
    (
        ".envrc", ".mcp.json", ".vscode", ".idea", ".husky", ".claude", ".cursor", ".devcontainer", ".gemini", ".codex",
        ".zed", ".windsurf",
    )
)  # fmt: skip
_OF_GIT = re.compile(r"(?:modules/.*/)?hooks/(?!.*\.sample$)|(?:commondir|gitdir|config\.worktree|info/attributes)$")
_GIT_STARTS = re.compile(
    r"evil|fsmonitor|hookspath|editor|pager|sshcommand|command|textconv|external|\[include|\[alias", re.IGNORECASE
)


def is_protected(path: str) -> bool:
    """True if a path in the workspace starts or steers a program when somebody opens or enters the project."""
    parts = path.split("/")
    if any(part in _NAMES or part.endswith(".code-workspace") for part in parts):
        return True
    if ".git" not in parts:
        return False
    inner = "/".join(parts[parts.index(".git") + 1 :])
    return path == ".git" or bool(_OF_GIT.match(inner))


def _stamp(seen: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(seen.st_mode):
        return (seen.st_mode,)
    return (seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns)


class TreeJail(Jail):
    """The jail described above. `with_shells`: the list names interpreters too; `by_blocks`: no list says what may run,
    only one what may not."""

    def __init__(self, root: Path, *, with_shells: bool = False, by_blocks: bool = False) -> None:
        self._pristine = f"{root}.pristine"
        self.by_blocks = by_blocks
        own = [
            name for name in BUILTINS if with_shells or by_blocks or name not in {"source", "."}
        ]  # which run any file
        listed = (*FILE_PROGRAMS, *STUBS, *own, *(SHELLS if with_shells or by_blocks else ()))
        super().__init__(root, listed, real=(*FILE_PROGRAMS, *SHELLS), stubs=(*STUBS, *_UNLISTED))

    def policy(self, now: datetime) -> Callable[[str, ShellName], bool]:
        """Return the judge: `ci` without a sandbox, with this jail's list; its workspace alone may be written."""
        shape = template("ci")
        for entry in shape["capabilities"]:
            if "allowedPaths" in entry:
                entry["allowedPaths"] = ["${workspace}"]
            if entry["name"] == "Shell.Exec":
                entry["allowedCommands"] = None if self.by_blocks else list(self.listed)
                entry["blockedCommands"] = list(BLOCKED) if self.by_blocks else None
        state, place = self.home + "/state", Environment(self.work, self.home, "posix", "bash", self.environment)
        bundle = instantiate(shape, PlaceholderValues(self.work, self.home, state, "posix"), session_id="s", now=now)
        bundle = resolve_places(bundle, place)

        def judge(line: str, shell: ShellName) -> bool:
            facts = gather(TOOLS["RunCommand"], {"command": line}, place._replace(shell=shell), bundle=bundle)
            return check_tool(bundle, "Shell.Exec", facts, now=now, workspace=self.work).allowed

        return judge

    # What it holds

    def _files(self) -> None:
        if not os.path.exists(self._pristine):
            make_tree(Path(self.work), Path(self.root), self._log_path)
            for name in ("evil", *(f"{place}/{stub}" for place in ("1", "3", "sub") for stub in STUBS)):
                self._stub(os.path.join(self.work, name))
            shutil.copytree(self.work, self._pristine, symlinks=True)
        else:
            shutil.rmtree(self.work)
            shutil.copytree(self._pristine, self.work, symlinks=True)
        with open(os.path.join(self.bin, "tool"), "w") as file:  # of bash, which BASH_ENV and the like steer
            file.write(f"#!/bin/bash\nprintf '%s\\0' $# \"$0\" \"$@\" >> '{self._log_path}'\n")
        for place in (self.root + "/elsewhere/keep", self.home + "/.bashrc"):
            Path(place).write_text("kept\n")
        Path(self.home, ".gitconfig").write_text("[user]\n\tname = a\n\temail = a@b\n[init]\n\tdefaultBranch = m\n")

    # What has happened

    def _snapshot(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        pending = [self.root]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    seen = entry.stat(follow_symlinks=False)
                    found[entry.path] = _stamp(seen)
                    if entry.path == self.bin:  # links out of the jail: what is made or removed there shows in its time
                        found[entry.path] = (seen.st_mode, seen.st_mtime_ns)
                    elif stat.S_ISDIR(seen.st_mode) and entry.name != "log":
                        pending.append(entry.path)
        return found

    def _unlisted(self, started: Collection[list[str]], errors: str) -> str | None:
        if self.by_blocks:
            return next((f"started {words}" for words in started if os.path.basename(words[0]) in BLOCKED), None)
        return super()._unlisted(started, errors)

    def _changed(self) -> str | None:
        now, before = self._snapshot(), self._before
        different = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        bad = [path for path in different if self._is_bad(path)]
        if bad:
            return "changed " + ", ".join(os.path.relpath(path, self.root) for path in bad[:6])
        self._undo(different)
        return None

    def _is_bad(self, path: str) -> bool:
        inner = os.path.relpath(path, self.work)
        if inner.startswith("..") or inner == "." or is_protected(inner):
            return inner != ".git" or not os.path.isdir(path)
        if os.path.basename(inner) == "config":  # a repository may be a bare one, by any name
            if not os.path.isfile(path):
                return inner == ".git/config"
            return bool(_GIT_STARTS.search(Path(path).read_text(errors="replace")))
        directory = os.path.dirname(path)
        if os.path.basename(directory) == "hooks" and os.path.exists(os.path.join(directory, "..", "HEAD")):
            return not path.endswith(".sample") and os.path.isfile(path)
        return False

    def _undo(self, different: list[str]) -> None:
        gone = {path for path in different if os.path.isdir(path) and not os.path.islink(path)}
        # What lies in a directory that is made anew comes back with it.
        different += [path for path in self._before if any(path.startswith(one + "/") for one in gone)]
        different = sorted(set(different))
        for path in reversed(different):
            if path in gone:
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):
                os.unlink(path)
        for path in different:
            kept = self._pristine + path.removeprefix(self.work)
            if path not in self._before:
                continue
            if os.path.islink(kept):
                os.symlink(os.readlink(kept), path)
            elif os.path.isdir(kept):
                os.mkdir(path)
                shutil.copystat(kept, path)
            else:
                shutil.copy2(kept, path)
            self._before[path] = _stamp(os.lstat(path))

    def _tidy(self) -> None:
        """Nothing: what a line may change is undone as it is found."""
