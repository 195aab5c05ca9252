"""What commands leave in git directories: whatever starts a program is put back, and the work of git goes on."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints, ToolResult
from policy.rules.command_scope import command_scope
from policy.scope import RepositoryFacts, ScopeFacts
from tests.unit.policy.helpers import bundle
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of
from tool_runtime.core import sandbox
from tool_runtime.settings import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from policy.scope import CommandScope

    Run = Callable[..., Awaitable[ToolResult]]

WORKING = [level for level in sandbox.LEVELS if sandbox.look(level).works]
pytestmark = pytest.mark.skipif("landlock" not in WORKING, reason="no level of the sandbox works here")
EVIL = "touch $OUT/RAN; false"
PERSON = ("status", "rebase --continue", "cherry-pick --continue", "commit -q --allow-empty -m x", "checkout -q HEAD",
          "fetch")  # fmt: skip
"""What somebody types there later."""


def git(where: Path, *words: str) -> str:
    ended = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "core.editor=true", *words],
        cwd=where, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return ended.stdout + ended.stderr


@pytest.fixture
def repository(workspace: Path) -> Path:
    git(workspace, "init", "-q", "-b", "main")
    git(workspace, "config", "user.name", "A")
    git(workspace, "config", "user.email", "a@b")
    (workspace / "f").write_text("1\n")
    git(workspace, "add", "f")
    git(workspace, "commit", "-qm", "one")
    return workspace


@pytest.fixture
def scope(repository: Path, tmp_path: Path) -> CommandScope:
    top = str(repository / ".git")
    names = (".vscode", ".envrc", "*.code-workspace")
    blocked = [f"{repository}/**/{name}" for name in names]
    granted = bundle(
        {"name": "File.Read"},
        {"name": "File.Write", "allowedPaths": [str(repository)], "blockedPaths": blocked},
        {"name": "File.Delete", "allowedPaths": [str(repository)], "blockedPaths": blocked},
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    facts = ScopeFacts(
        str(repository), tmp=str(temporary), devices=("/dev/null",), repository=RepositoryFacts(top, top, top)
    )
    return command_scope(granted, facts, "posix")


@pytest.fixture
def run(make_router: MakeRouter, scope: CommandScope, tmp_path: Path) -> Run:
    routers: dict[str, Any] = {}

    async def one(level: Any, command: str, **more: Any) -> ToolResult:
        if level not in routers:
            routers[level] = make_router(sandbox=SandboxSettings(level, directory=str(tmp_path / "session")))
        constraints = ToolConstraints(command_scope=scope)
        return await routers[level].execute(request("RunCommand", constraints, command=command, **more))  # type: ignore[no-any-return]  # of a router

    return one


HOSTILE = {
    "commondir": "git init -q --bare build/c; printf '[core]\\nbare = false\\nfsmonitor = {E}\\n' >> build/c/config;"
    " echo $PWD/build/c > .git/commondir",
    "a key of the configuration": "git config core.fsmonitor '{E}'",
    "an alias": "git config alias.status '!{E}'",
    "an include": "printf '[core]\\nfsmonitor = {E}\\n' > inc; git config include.path ../inc",
    "a key on the section's line": "printf '[core] fsmonitor = {E}\\n' >> .git/config",
    "a continued key": "printf '[co\\\\\\nre]\\n[core]\\nfs\\\\\\nmonitor = x\\n[core]fsmonitor = \"{E}\"' >> .git/config",
    "a remote with a helper": "git config remote.origin.url 'ext::sh -c {E}'; git config protocol.ext.allow always",
    "a configuration of the tree": "git config extensions.worktreeConfig true;"
    " printf '[core]\\nfsmonitor = {E}\\n' > .git/config.worktree",
    "another configuration moved there": "cp .git/config c; printf '[core]\\nfsmonitor = {E}\\n' >> c; mv c .git/config",
    "a configuration by a hard link": "ln .git/config l; printf '[core]\\nfsmonitor = {E}\\n' >> l",
    "a configuration that is a link": "cp .git/config c; printf '[core]\\nfsmonitor = {E}\\n' >> c; ln -sf ../c .git/config",
    "a rebase with exec": "mkdir .git/rebase-merge; cd .git/rebase-merge; git rev-parse HEAD | tee onto orig-head;"
    " echo refs/heads/main > head-name; echo 'exec {E}' > git-rebase-todo; : > done; : > interactive;"
    " echo 1 > msgnum; echo 1 > end",
    "a rebase with x behind blanks": "mkdir .git/rebase-merge; cd .git/rebase-merge;"
    " git rev-parse HEAD | tee onto orig-head; echo refs/heads/main > head-name; printf 'noop\\n \\tx\\t{E}\\n' >"
    " git-rebase-todo; : > interactive",
    "a rebase by a strategy of its own": "mkdir .git/rebase-merge; echo ../../x > .git/rebase-merge/strategy",
    "a rebase whose list is a link": "mkdir .git/rebase-merge; echo 'exec {E}' > t;"
    " ln -s ../../t .git/rebase-merge/git-rebase-todo",
    "a sequencer with a strategy": "mkdir .git/sequencer; printf '[options]\\nstrategy = evil\\n' > .git/sequencer/opts",
    "a sequencer with exec": "mkdir .git/sequencer; echo 'exec {E}' > .git/sequencer/todo",
    "a hook": "printf '#!/bin/sh\\n{E}\\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
    "hooks of a new name": "mv .git/hooks .git/h; mkdir .git/hooks; printf '#!/bin/sh\\n{E}\\n' > .git/hooks/post-commit;"
    " chmod +x .git/hooks/post-commit",
    "attributes": "echo '* filter=x' > .git/info/attributes",
    "an unknown name": "echo x > .git/unheard-of",
    "an unknown folder": "mkdir -p .git/unheard/of; echo x > .git/unheard/of/it",
    "branches": "mkdir -p .git/branches; echo 'ext::sh -c {E}' > .git/branches/x",
    "remotes": "mkdir -p .git/remotes; echo 'URL: ext::sh -c {E}' > .git/remotes/x",
    "a reflog that leads elsewhere": "rm -f .git/logs/HEAD; ln -s $PWD/victim .git/logs/HEAD",
    "a message that leads elsewhere": "ln -sf $PWD/victim .git/COMMIT_EDITMSG",
    "objects elsewhere": "cp -r .git/objects o; rm -rf .git/objects; ln -s ../o .git/objects",
    "a new module's configuration": "git init -q --bare .git/modules/NEW;"
    " printf '[core]\\nfsmonitor = {E}\\n' >> .git/modules/NEW/config",
    "a new module's hook": "git init -q --bare .git/modules/a/b; printf '#!/bin/sh\\n{E}\\n' >"
    " .git/modules/a/b/hooks/post-checkout; chmod +x .git/modules/a/b/hooks/post-checkout",
    "a new tree's configuration": "git worktree add -q tree; printf '[core]\\nfsmonitor = {E}\\n' >"
    " .git/worktrees/tree/config.worktree",
    "a new tree's commondir": "git worktree add -q tree; git init -q --bare build/c;"
    " echo $PWD/build/c > .git/worktrees/tree/commondir",
    "a new tree elsewhere": "git worktree add -q tree; echo /etc/.git > .git/worktrees/tree/gitdir",
    "a nested repository": "git init -q sub; git -C sub config core.fsmonitor '{E}'",
    "a nested hook": "git init -q sub; printf '#!/bin/sh\\n{E}\\n' > sub/.git/hooks/post-commit;"
    " chmod +x sub/.git/hooks/post-commit",
    "a nested unknown name": "git init -q a/b/sub; echo x > a/b/sub/.git/unheard-of",
    "nested attributes": "git init -q sub; echo '* filter=x' > sub/.git/info/attributes",
    "a nested repository that is a link": "git init -q --bare c; printf '[core]\\nfsmonitor = {E}\\n' >> c/config;"
    " mkdir sub; ln -s ../c sub/.git",
    "a nested file that leads elsewhere": "mkdir sub; cp -r .git $TMPDIR/g; printf '[core]\\nfsmonitor = {E}\\n' >>"
    " $TMPDIR/g/config; echo \"gitdir: $TMPDIR/g\" > sub/.git",
    "a bare repository": "git init -q --bare deep/down/c; printf '[core]\\nbare = false\\nworktree = ..\\nfsmonitor = {E}\\n'"
    " >> deep/down/c/config",
    "a bare repository in any order": "mkdir -p sub; cd sub; mkdir objects refs;"
    " printf '[core]\\nrepositoryformatversion = 0\\nfsmonitor = {E}\\nworktree = .\\n' > config;"
    " echo 'ref: refs/heads/main' > HEAD",
    "a bare repository by another's name": "mkdir x; cp -r .git x/p; printf '[core]\\nfsmonitor = {E}\\n' >> x/p/config;"
    " mv x/p x/q; mv x sub",
    "a repository moved to a new place": "git init -q old; printf '[core]\\nfsmonitor = {E}\\n' >> old/.git/config;"
    " mkdir -p n/e/w; mv old n/e/w/sub",
    "by a program that is left running": "(sleep 0.1; git config core.fsmonitor '{E}') > /dev/null 2>&1 & sleep 0.5",
    "thousands of names": "cd .git; mkdir -p info/x; touch info/x/a$(seq -s ' info/x/a' 1 2500);"
    " printf '[core]\\nfsmonitor = {E}\\n' >> config",
    "a workspace file": "echo '{{}}' > evil.code-workspace",
}  # fmt: skip


def state(repository: Path) -> dict[str, bytes]:
    kept = (".git/config", ".git/hooks", ".git/info", ".git/branches", ".git/remotes", ".git/commondir")
    found: dict[str, bytes] = {}
    for name in kept:
        place = repository / name
        for path in [place, *place.rglob("*")] if place.is_dir() and not place.is_symlink() else [place]:
            if path.is_file() and not path.is_symlink():
                found[str(path)] = path.read_bytes()
            elif path.is_symlink():
                found[str(path)] = b"a link"
    return found


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("level", ["landlock", "namespace"])
async def test_nothing_of_it_is_left(run: Run, repository: Path, tmp_path: Path, level: str, name: str) -> None:
    (tmp_path / "out").mkdir()
    (repository / "victim").write_text("mine\n")
    evil = EVIL.replace("$OUT", str(tmp_path / "out"))
    before = state(repository)
    result = await run(level, HOSTILE[name].replace("{{}}", "{}").replace("{E}", evil))
    assert result.exit_code or result.denials, text_of(result)
    assert state(repository) == before
    assert not (repository / "evil.code-workspace").exists()
    for where in [repository, *(path for path in repository.rglob("*") if path.is_dir() and ".git" not in path.parts)]:
        for words in PERSON:
            git(where, *words.split())
        assert not (tmp_path / "out" / "RAN").exists(), (where, text_of(result))
    assert (repository / "victim").read_text() == "mine\n"
