"""What commands change is in the events, the result, the record and the patch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.session.patches import SessionChanges, render_text
from agent_host.session.tasks import first_versions
from state.blobs import OVERWRITTEN, UNAVAILABLE, sha256_hex
from state.file_store import FileCheckpointStore
from tests.support.git import commit_all, git
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agent_host.session.patches import FilePatch
    from state.checkpoint import Checkpoint
    from tests.support.process import Host, Outcome, Turn

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="shell lines"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

LINES = "".join(f"line {number}\n" for number in range(20))
COMMAND = "sed -i s/3/three/ a.txt; rm b.txt; mv c.txt d.txt; echo new > new.txt; chmod +x new.txt"


@pytest.fixture
def project(host: Host) -> Path:
    for name in ("a.txt", "b.txt", "c.txt"):
        (host.workspace / name).write_text(name[0] + LINES)
        os.utime(host.workspace / name, (1_600_000_000, 1_600_000_000))
    commit_all(host.workspace)
    return host.workspace


def names(paths: Iterable[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


def completed(host: Host) -> list[dict[str, Any]]:
    """The payload of each call's result."""
    return [event["payload"] for event in host.event_log("s") if event["eventType"] == "tool_completed"]


def seen(host: Host) -> list[list[str]]:
    return [names(payload.get("pathsChanged", [])) for payload in completed(host)]


def ran(host: Host, *turns: Turn, policy: str | Path = "full") -> Outcome:
    with gateway(*turns, say("Done.")) as model:
        outcome = host.task(model.url, "--output", "json", "--session-id", "s", policy=policy)
    assert outcome.code == 0, outcome.stderr
    return outcome


def left_open(host: Host, *turns: Turn) -> None:
    """A task of these turns whose gateway then fails: it stays on record."""
    host.configure(max_retries=0)
    with gateway(*turns, {"status": 500}) as model:
        assert host.task(model.url, "--session-id", "s").code == 3


def on_record(host: Host) -> tuple[Checkpoint, list[FilePatch]]:
    session = FileCheckpointStore(os.fspath(host.state)).open("s")
    try:
        versions, workspace = first_versions(session.state), os.path.realpath(host.workspace)
        return session.state, SessionChanges(versions, session.kept, workspace).preview()
    finally:
        session.close()


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


CHANGED = ["a.txt", "b.txt", "c.txt", "d.txt", "new.txt"]


def test_the_result_and_the_events_name_what_a_command_changed(host: Host, project: Path) -> None:
    outcome = ran(host, use(shell(COMMAND)), use(shell("cat a.txt")))
    assert names(outcome.result["filesChanged"]) == CHANGED
    assert seen(host) == [CHANGED, []]


def test_git_takes_the_patch_of_what_a_command_changed(host: Host, project: Path) -> None:
    original = host.root / "original"
    shutil.copytree(project, original)
    left_open(host, use(shell(COMMAND)))
    _, found = on_record(host)
    subprocess.run(["git", "apply", "-"], cwd=original, input="".join(p.diff for p in found).encode(), check=True)
    assert content(original) == content(project)
    assert os.access(original / "new.txt", os.X_OK)
    text = render_text(found)
    assert "-aline 0\n" not in text
    assert "-line 3\n+line three\n" in text
    assert "rename from c.txt\nrename to d.txt" in text


def test_the_first_version_is_what_the_command_found(host: Host, project: Path) -> None:
    path = os.path.realpath(project / "a.txt")
    first = (project / "a.txt").read_bytes()
    left_open(
        host,
        use(shell("echo by a command > a.txt")),
        use(call("WriteFile", path=path, content="by a tool\n", expectedSha256=sha256_hex(b"by a command\n"))),
        use(shell("echo again > a.txt")),
    )
    state, (patch,) = on_record(host)
    assert state.baselines == {path: sha256_hex(first)}
    assert (patch.status, patch.additions, patch.deletions) == ("modified", 1, 20)
    assert patch.diff.endswith("+again\n")
    assert seen(host) == [["a.txt"]] * 3


def test_what_was_not_kept_is_said(host: Host) -> None:
    for name in ("a", "gone"):
        (host.workspace / name).write_text("nobody has it\n")
    left_open(host, use(shell("echo x > a; rm gone; echo y > new")))
    state, found = on_record(host)
    assert sorted(map(str, state.baselines.values())) == ["None", OVERWRITTEN, OVERWRITTEN]
    text = render_text(found)
    assert "# a: changed by a command; its earlier content was not kept\n" in text
    assert "# gone: deleted by a command; its earlier content was not kept\n" in text
    assert "new file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+y\n" in text


def test_a_command_that_is_cut_off_by_a_crash_is_said_to_be_unseen(host: Host, project: Path) -> None:
    with gateway(use(shell("echo x > a.txt; touch hangs; sleep 50")), say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually((project / "hangs").exists, "the command that hangs")
        process.kill()
        outcome = host.run("resume", "s", "--gateway", model.url, "--output", "json")
    assert outcome.code == 0
    assert "cut off by the end of the process" in outcome.result["changesUnseen"]
    assert "cut off by the end of the process" in completed(host)[0]["changesUnseen"]


@pytest.mark.slow
def test_what_a_command_did_that_ran_out_of_time_is_seen(host: Host, project: Path) -> None:
    outcome = ran(host, use(shell("echo x > a.txt; sleep 50", timeout=1)))
    assert seen(host) == [["a.txt"]]
    assert names(outcome.result["filesChanged"]) == ["a.txt"]


def test_it_can_be_switched_off(host: Host, project: Path) -> None:
    (host.root / "user.toml").write_text("[tools]\nwatch_changes = false\n")
    outcome = ran(host, use(shell(COMMAND)))
    assert (outcome.result["filesChanged"], seen(host)) == ([], [[]])


def test_secrets_are_not_kept_and_files_that_nobody_may_read_are_not_either(host: Host, project: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    for name in ("key.txt", "blocked.txt"):
        (project / name).write_text(f"token = {secret[:40]}\n")
        os.utime(project / name, (1_600_000_000, 1_600_000_000))
    (project / "Makefile").write_text("all:\n\techo x > key.txt; echo y > blocked.txt\n")
    commit_all(project)
    blocked = {"allowedPaths": [os.path.realpath(project)], "blockedPaths": [os.path.realpath(project / "blocked.txt")]}
    policy = host.policy(grants={"File.Read": blocked, "Shell.Exec": {}})
    host.configure(max_retries=0)
    with gateway(use(shell("make -s")), {"status": 500}) as model:
        assert host.task(model.url, "--session-id", "s", policy=policy).code == 3
    state, found = on_record(host)
    assert state.baselines[os.path.realpath(project / "blocked.txt")] == UNAVAILABLE
    assert secret[:40] not in "".join(patch.diff for patch in found)


def test_git_starts_nothing_that_the_workspace_names(host: Host, project: Path) -> None:
    program = project / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {host.root}/started\ncat\n")
    program.chmod(0o755)
    (project / ".gitattributes").write_text("* filter=x diff=x\n")
    for name in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.x.textconv", "diff.external"):
        git(project, "config", name, str(program))
    for name in ("core.pager", "core.sshCommand", "core.editor"):
        git(project, "config", name, str(program))
    (host.root / "started").unlink(missing_ok=True)
    left_open(host, use(shell("echo x > a.txt")))
    _, (patch,) = on_record(host)
    assert "-line 3\n" in patch.diff
    assert not (host.root / "started").exists()
