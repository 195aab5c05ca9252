"""What commands change in places that they may only read."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import ToolConstraints, ToolResult
from policy import CommandScope
from tests.support.held import NOBODY, make_repository, rows_of
from tests.unit.tool_runtime.conftest import MakeRouter, request, text_of, until
from tool_runtime import sandbox as levels
from tool_runtime.sandbox.protected_paths import Guarded
from tool_runtime.sandbox.workspace_places import Entry, WorkspacePlaces
from tool_runtime.tool import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Run = Callable[..., Awaitable[ToolResult]]

pytestmark = pytest.mark.skipif(not levels.look("landlock").works, reason=levels.look("landlock").problem)


@pytest.fixture
def repository(workspace: Path) -> Path:
    make_repository(str(workspace))
    (workspace / ".git/hooks/post-commit").write_text("#!/bin/sh\n")
    (workspace / ".agent").mkdir()
    return workspace


@pytest.fixture
def scope(repository: Path) -> CommandScope:
    names = (".git/hooks", ".git/config", ".agent", ".claude")
    return CommandScope(writes=(str(repository),), guarded=tuple(str(repository / name) for name in names))


@pytest.fixture
def run(make_router: MakeRouter, scope: CommandScope, tmp_path: Path) -> Run:
    directory = tmp_path / "session"
    routers: dict[str, Any] = {}

    async def one(level: Any, command: str, **more: Any) -> ToolResult:
        if not levels.look(level).works:
            pytest.skip(levels.look(level).problem)
        if level not in routers:
            routers[level] = make_router(sandbox=SandboxSettings(level, directory=str(directory)))
        constraints = ToolConstraints(command_scope=scope)
        return await routers[level].execute(request("RunCommand", constraints, command=command, **more))  # type: ignore[no-any-return]  # of a router

    return one


CHANGES = {
    "a hook that is rewritten": "echo evil >> .git/hooks/post-commit",
    "a new hook": "echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    "a hook that is removed": "rm .git/hooks/post-commit",
    "a hook that becomes a link": "ln -sf /bin/false .git/hooks/post-commit",
    "the repository's configuration": "git config core.fsmonitor evil",
    "a file of the agent": "echo x > .agent/settings",
    "a place that was not there": "mkdir .claude && echo x > .claude/settings",
    "an executable bit": "chmod +x .git/hooks/post-commit",
    "all hooks": "rm -r .git/hooks",
    "hooks of another name": "mv .git/hooks .git/other",
    "hooks that lead elsewhere": "mv .git/hooks elsewhere && ln -s ../elsewhere .git/hooks",
}


def state(repository: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for place in (".git/hooks", ".git/config", ".agent", ".claude"):
        for path in sorted([repository / place, *(repository / place).rglob("*")]):
            if os.path.lexists(path):
                mode = path.lstat().st_mode
                content = path.read_bytes() if stat.S_ISREG(mode) else b""
                found[str(path)] = (mode, content)
    return found


@pytest.mark.many_rows(8)
@pytest.mark.parametrize("name", CHANGES)
async def test_landlock_puts_back_what_nobody_else_wrote(run: Run, repository: Path, tmp_path: Path, name: str) -> None:
    before = state(repository)
    result = await run("landlock", CHANGES[name])
    assert state(repository) == before
    assert result.denials
    assert {(denial.rule, denial.action) for denial in result.denials} == {("guarded", "change")}
    assert "it was put back" in text_of(result)
    saved = [path for path in (tmp_path / "session").rglob("changed/**/*") if path.is_file() or path.is_symlink()]
    assert bool(saved) == ("removed" not in name and name != "all hooks")


TRICKS = dict(rows_of(Path(__file__).with_name("arranged.txt").read_text(encoding="utf-8")))


@pytest.mark.many_rows(24)
@pytest.mark.many_rows(24)
@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.parametrize("level", ["landlock", "namespace"])
async def test_what_a_command_arranges_for_the_host_leads_nowhere(
    run: Run, repository: Path, tmp_path: Path, level: str, name: str
) -> None:
    outside = tmp_path / "out"
    outside.mkdir()
    (outside / "victim").write_text("victim")
    (repository / "ours").write_text("ours")
    before = state(repository)
    result = await run(level, TRICKS[name])
    assert state(repository) == before
    assert level == "namespace" or "it was put back" in text_of(result)
    assert not (repository / ".git").is_symlink()
    assert (repository / ".git/HEAD").exists() or "around it" in name
    assert {one.name: one.read_text() for one in outside.iterdir()} == {"victim": "victim"}
    assert (repository / "ours").read_text() == "ours"
    saved = [path for path in (tmp_path / "session").rglob("changed/**/*") if path.is_symlink()]
    assert not saved
    assert sum(path.stat().st_size for path in (tmp_path / "session").rglob("*")) < 16 * 1024 * 1024


@pytest.fixture
def plain_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of a user without root's rights, who this is meanwhile."""
    place = Path(tempfile.mkdtemp(prefix="guarded-", dir="/tmp")).resolve()  # the tests' own is for their user alone
    monkeypatch.setenv("HOME", str(place))
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    yield place
    os.seteuid(os.getuid())
    os.setegid(os.getgid())
    shutil.rmtree(place)


def by_this_user(line: str, place: Path) -> None:
    """Run a line with none but the effective user's rights, which a shell would give up."""
    user, group = os.geteuid(), os.getegid()
    subprocess.run(["/bin/bash", "-c", line], cwd=place, check=False, user=user, group=group)


@pytest.mark.parametrize("mode", [0o500, 0o555, 0o000])
def test_a_folder_that_was_closed_already_is_closed_again(plain_place: Path, mode: int) -> None:
    place = plain_place / "hooks"
    place.mkdir()
    (place / "hook").write_text("mine")
    place.chmod(mode | 0o500)
    guarded = Guarded(str(plain_place / "session"))
    before = guarded.begin("m", [str(place)])
    by_this_user(f"chmod 700 . && echo evil > hook && echo x > new && chmod {mode:o} .", place)
    told = guarded.end("m", before, alone=True)
    assert place.stat().st_mode & 0o777 == mode | 0o500
    assert (place / "hook").read_text() == "mine"
    assert os.listdir(place) == ["hook"], told


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    """Between any two steps of the host. What is put back may then stay as it was left, and nothing outside changes."""
    place, outside = tmp_path / "ws" / "d", tmp_path / "outside"
    outside.mkdir()
    (outside / "hook").write_text("victim")
    place.mkdir(parents=True)
    (place / "hook").write_text("mine")
    going = threading.Event()

    def exchange() -> None:
        other = place.with_name("e")
        while not going.is_set():
            with suppress(OSError):
                place.rename(other)
                place.symlink_to(outside)
                place.unlink()
                other.rename(place)

    guarded = Guarded(str(tmp_path / "session"))
    thread = threading.Thread(target=exchange)
    before = guarded.begin("m", [str(place / "hook")])
    thread.start()
    try:
        for _ in range(300):
            with suppress(OSError):
                (tmp_path / "ws" / "e" / "hook").write_text("evil")
            guarded.end("m", before, alone=True)
    finally:
        going.set()
        thread.join()
    assert [(one.name, one.read_text()) for one in outside.iterdir()] == [("hook", "victim")]


@pytest.mark.many_rows(8)
@pytest.mark.many_rows(8)
@pytest.mark.parametrize("name", CHANGES)
async def test_namespaces_refuse_it(run: Run, repository: Path, name: str) -> None:
    before = state(repository)
    result = await run("namespace", CHANGES[name])
    assert state(repository) == before
    assert result.exit_code or result.denials


async def test_with_namespaces_the_folder_of_guarded_places_keeps_its_name(run: Run, repository: Path) -> None:
    result = await run("namespace", "mv .git elsewhere")
    assert result.exit_code
    assert (repository / ".git/config").exists()


@pytest.mark.parametrize("level", ["landlock", "namespace"])
async def test_commits_work_and_are_no_change(run: Run, repository: Path, level: str) -> None:
    commit = "echo x > file; git add file; git -c user.name=a -c user.email=b@c commit -qm one; git switch -qc other"
    result = await run(level, commit)
    assert result.exit_code == 0, text_of(result)
    assert not result.denials
    assert (repository / ".git/logs/HEAD").read_text().count("): one\n") == 1


async def test_beside_another_command_it_is_put_back(run: Run, repository: Path, tmp_path: Path) -> None:
    await run("landlock", "touch running; while [ ! -e end ]; do sleep 0.01; done", background=True)
    await until((repository / "running").exists)
    result = await run("landlock", "echo evil >> .git/hooks/post-commit")
    (repository / "end").touch()
    assert "it was put back" in text_of(result)
    assert (repository / ".git/hooks/post-commit").read_text() == "#!/bin/sh\n"
    saved = [path.read_text() for path in (tmp_path / "session").rglob("changed/*/post-commit")]
    assert saved == ["#!/bin/sh\nevil\n"]


async def test_of_two_at_once_neither_leaves_a_change(run: Run, repository: Path) -> None:
    hook = repository / ".git/hooks/post-commit"
    waits = "touch {0}; until [ -e {1} ]; do sleep 0.01; done"
    writes = f"echo evil >> .git/hooks/post-commit; {waits.format('a', 'b')}"
    results = await asyncio.gather(run("landlock", writes), run("landlock", waits.format("b", "a")))
    assert "it was put back" in "".join(map(text_of, results))
    assert hook.read_text() == "#!/bin/sh\n"


async def test_what_is_left_running_changes_nothing_for_long(run: Run, repository: Path) -> None:
    hook = repository / ".git/hooks/post-commit"
    late = "until [ -e go ]; do sleep 0.01; done; echo evil >> .git/hooks/post-commit; touch went; sleep 60"
    await run("landlock", f"({late}) > /dev/null 2>&1 & echo $! > pid")
    (repository / "go").touch()
    await until((repository / "went").exists)
    told = text_of(await run("landlock", "cat .git/hooks/post-commit"))
    os.killpg(os.getpgid(int((repository / "pid").read_text())), signal.SIGKILL)
    assert "evil" not in told.partition("[sandbox")[0].partition("Exit code")[0]
    assert "it was put back" in told
    assert hook.read_text() == "#!/bin/sh\n"


async def test_what_ends_after_its_command_is_looked_at_then(run: Run, repository: Path) -> None:
    hook = repository / ".git/hooks/post-commit"
    late = "until [ -e go ]; do sleep 0.01; done; echo evil >> .git/hooks/post-commit; touch went"
    await run("landlock", f"({late}) > /dev/null 2>&1 &")
    (repository / "go").touch()
    await until((repository / "went").exists)
    await until(lambda: hook.read_text() == "#!/bin/sh\n")
    assert "it was put back" in text_of(await run("landlock", "true"))


async def test_what_the_user_writes_between_commands_stays(run: Run, repository: Path) -> None:
    await run("landlock", "true")
    (repository / ".git/hooks/post-commit").write_text("mine")
    (repository / ".git/config").write_text("[core]\n\tfsmonitor = mine\n")
    result = await run("landlock", "echo x > file; git status")
    assert not result.denials
    assert (repository / ".git/hooks/post-commit").read_text() == "mine"
    assert "fsmonitor = mine" in (repository / ".git/config").read_text()


def test_what_somebody_writes_after_the_command_stays(tmp_path: Path) -> None:
    """It is not what the second look saw."""
    place, session = tmp_path / "hook", tmp_path / "session"
    place.write_text("mine")

    class Late(Guarded):
        def _save(self, path: str, entry: Entry) -> str | None:
            kept = super()._save(path, entry)
            place.write_text("somebody's own")
            return kept

    guarded = Late(str(session))
    before = guarded.begin("m", [str(place)])
    place.write_text("the command's")
    (told,) = guarded.end("m", before, alone=True)
    assert told.done.startswith("it is as the command left it")
    assert place.read_text() == "somebody's own"


def test_what_is_too_large_to_be_kept_is_told_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tool_runtime.sandbox.protected_paths.MAX_FILE_BYTES", 4)
    place = tmp_path / "hook"
    place.write_text("large enough")
    guarded = Guarded(str(tmp_path / "session"))
    before = guarded.begin("m", [str(place)])
    place.write_text("changed")
    (told,) = guarded.end("m", before, alone=True)
    assert told.done.startswith("it is as the command left it")
    assert place.read_text() == "changed"


async def test_after_a_crash_the_change_is_told_and_left(
    make_router: MakeRouter, scope: CommandScope, repository: Path, tmp_path: Path
) -> None:
    call = request("RunCommand", ToolConstraints(command_scope=scope), command="true")
    settings = SandboxSettings("landlock", directory=str(tmp_path / "session"))
    from tool_runtime.tool import mark_of

    # As a host leaves it that is killed while the command runs.
    await asyncio.to_thread(Guarded(settings.directory).begin, mark_of(call), scope.guarded)
    (repository / ".git/hooks/pre-commit").write_text("evil")
    left = await make_router(sandbox=settings).end_leftovers(call)
    assert [denial.what for denial in left.guarded] == [str(repository / ".git/hooks/pre-commit")]
    assert "change" in left.note()
    assert (repository / ".git/hooks/pre-commit").read_text() == "evil"
    again = await make_router(sandbox=settings).end_leftovers(call)
    assert not again.guarded


def judged(place: Path) -> tuple[Guarded, CommandScope]:
    """What looks at a repository in which hooks are guarded and the rest is judged."""
    make_repository(str(place))
    (place / ".git/hooks/post-commit").write_text("#!/bin/sh\n")
    scope = CommandScope(writes=(str(place),), guarded=(str(place / ".git/hooks"),), given=(str(place),))
    return Guarded(str(place.parent / "session"), str(place)), scope


def test_a_git_directory_that_nobody_can_look_into_is_judged_when_it_shows(plain_place: Path) -> None:
    workspace = plain_place / "ws"
    workspace.mkdir()
    guarded, scope = judged(workspace)
    config = workspace / ".git/config"
    config.write_text(f"{config.read_text()}[core]\n\tfsmonitor = mine\n")
    mine = config.read_text()
    scope = scope._replace(guarded=())
    before = guarded.begin("m", (), scope)
    by_this_user("echo '[core] fsmonitor = evil' >> .git/config; chmod 0 .git", workspace)
    guarded.end("m", before, alone=True)
    before = guarded.begin("n", (), scope, quiet=False)
    by_this_user("chmod 700 .git", workspace)
    told = guarded.end("n", before, alone=True)
    guarded.close()
    assert config.read_text() == mine
    assert [one.what for one in told] == [str(config)]


def test_what_is_set_aside_of_a_git_directory_is_kept_beside_it(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    guarded, scope = judged(workspace)
    before = guarded.begin("m", scope.unchangeable, scope)
    for number in range(2500):
        (workspace / ".git/hooks" / f"{number}").touch()
    os.chmod(workspace / ".git/hooks", 0o500)
    told = guarded.end("m", before, alone=True)
    guarded.close()
    assert "post-commit" in os.listdir(workspace / ".git/hooks")
    assert len(os.listdir(workspace / ".git/hooks")) < 50
    (left,) = workspace.glob(".agent-host-left-*")
    assert len(os.listdir(left)) >= 2500
    assert str(left) in "".join(one.done for one in told)


def test_after_a_crash_a_folder_that_was_exchanged_is_told(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "ws", tmp_path / "out"
    workspace.mkdir()
    guarded, scope = judged(workspace)
    folders = [str(workspace / ".git")]
    guarded.begin("m", scope.unchangeable, scope, folders=folders)
    guarded.close()
    (workspace / ".git").rename(outside)
    (workspace / ".git").symlink_to(outside)
    (outside / "config").write_text("[core]\n\tfsmonitor = evil\n")
    told = Guarded(str(tmp_path / "session"), str(workspace)).check_after_crash("m")
    assert folders[0] in [one.what for one in told]
    assert (outside / "config").read_text() == "[core]\n\tfsmonitor = evil\n"


def test_a_folder_is_put_back_before_what_is_in_it_is_judged(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    guarded, scope = judged(workspace)
    folders = [str(workspace / ".git")]
    config = (workspace / ".git/config").read_text()
    before = guarded.begin("m", scope.unchangeable, scope, folders=folders)
    line = (
        "mv .git e; ln -s e .git; git config core.fsmonitor evil; echo evil > .git/hooks/pre-push; echo x > e/commondir"
    )
    by_this_user(line, workspace)
    guarded.end("m", before, alone=True)
    guarded.close()
    assert sorted(os.listdir(workspace)) == [".git"]
    assert (workspace / ".git/HEAD").exists()
    assert (workspace / ".git/config").read_text() == config
    assert not (workspace / ".git/commondir").exists()
    assert not (workspace / ".git/hooks/pre-push").exists()


def test_git_files_that_came_and_went_are_not_looked_for(workspace: Path) -> None:
    places = WorkspacePlaces(str(workspace))
    scope = CommandScope(writes=(str(workspace),), given=())
    places.refresh(scope)
    for number in range(3):
        (workspace / f"sub{number}").mkdir()
        (workspace / f"sub{number}" / ".git").write_text("gitdir: /nowhere")
    (workspace / "sub0" / ".git").unlink()
    places.refresh(scope)
    assert sorted(places.git_files) == [str(workspace / f"sub{number}" / ".git") for number in (1, 2)]
    places.close()


def test_a_git_directory_that_goes_while_it_is_looked_at_is_no_fault(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that outlives its command removes what the look has found."""
    guarded, scope = (
        Guarded(str(tmp_path / "session"), str(workspace)),
        CommandScope(writes=(str(workspace),), given=()),
    )
    before = guarded.begin("mark", (), scope)
    subprocess.run(["git", "init", "-q", "--bare", "laid-out"], cwd=workspace, check=True)
    subprocess.run(["git", "-C", "laid-out", "config", "core.fsmonitor", "evil"], cwd=workspace, check=True)
    unmake = Guarded._unmake

    def gone(self: Guarded, place: str, *rest: Any) -> dict[str, str]:
        shutil.rmtree(place)
        return unmake(self, place, *rest)

    monkeypatch.setattr(Guarded, "_unmake", gone)
    guarded.end("mark", before, alone=True)
    assert not (workspace / "laid-out").exists()
    guarded.close()
