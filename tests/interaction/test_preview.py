"""What a killed session has changed so far, and what it has changed when it is done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.ids import MACHINE
from agent_host.session.patches import SessionChanges, render_text
from agent_host.session.tasks import first_versions
from agent_host.thread.messages import Message, encode
from state.file_store import FileCheckpointStore
from state.records import record_of
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.session.patches import FilePatch
    from tests.support.process import Host, Process, Turn

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


HANG = shell("touch hangs; sleep 50")


def write(host: Host, name: str, content: str) -> Turn:
    return use(call("WriteFile", path=str(host.workspace / name), content=content))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def left_by_the_dead(host: Host) -> dict[str | None, list[FilePatch]]:
    """The previews that a new process makes, of each task by its id and, under None, of the session."""
    session = FileCheckpointStore(os.fspath(host.state)).open("s")
    try:
        versions = first_versions(session.state)
        return {
            task_id: SessionChanges(versions, session.kept, os.path.realpath(host.workspace)).preview(task_id)
            for task_id in (*(task_id for task_id, _ in versions.tasks), None)
        }
    finally:
        session.close()


def killed_while_hanging(host: Host, process: Process) -> None:
    eventually((host.workspace / "hangs").exists, "the command that hangs")
    process.kill()
    (host.workspace / "hangs").unlink()


def test_it_is_whole_after_a_kill_and_a_resume(host: Host) -> None:
    (host.workspace / "changed").write_text("one\r\ntwo")
    (host.workspace / "gone").write_bytes(b"\0binary")
    (host.workspace / "back").write_text("as it was\n")
    original = host.root / "original"
    shutil.copytree(host.workspace, original)
    turns = [
        write(host, "changed", "one\r\n2"),
        use(call("DeleteFile", path=str(host.workspace / "gone")), *write(host, "back", "for a while")["tool_calls"]),
        write(host, "back", "as it was\n"),
        use(*write(host, "new 'ü'", "")["tool_calls"], HANG),
    ]
    with gateway(*turns, write(host, "changed", "3\n"), say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually((host.workspace / "new 'ü'").exists, "what is written beside the command that hangs")
        killed_while_hanging(host, process)
        *_, (_, found), (_, of_session) = left_by_the_dead(host).items()
        assert found == of_session
        status = {os.path.basename(patch.file_path): patch.status for patch in found}
        assert status == {"changed": "modified", "gone": "deleted", "new 'ü'": "added"}
        subprocess.run(["git", "apply", "-"], cwd=original, input="".join(p.diff for p in found).encode(), check=True)
        assert files(original) == files(host.workspace)
        done = host.run("resume", "s", "--gateway", model.url)
    assert "Binary files a/gone and /dev/null differ\n" in render_text(found)
    assert "-one\r\n-two\n\\ No newline at end of file\n+3\n" in done.stderr


def test_a_task_shows_what_it_found_and_left(host: Host) -> None:
    """The second task begins as a host begins it that lives on: with a record behind the end of the first."""
    host.configure(max_retries=0)
    (host.workspace / "a").write_text("0\n")
    first = [write(host, "a", "1\n"), write(host, "b", "1\n"), {"status": 500}]
    second = [write(host, "a", "2\n"), write(host, "c", "2\n"), write(host, "a", "3\n"), use(HANG)]
    with gateway(*first, *second) as model:
        assert host.task(model.url, "--session-id", "s").code == 3
        session = FileCheckpointStore(os.fspath(host.state)).open("s")
        session.append(record_of("task_ended", {"status": "failed", "reason": "gateway"}))
        prompt = encode(Message("user", "Go on.", 5), MACHINE, session_id="s", task_id="second")
        session.commit(record_of("task_started", {"taskId": "second", "prompt": "Go on.", "maxSteps": 9}, prompt))
        session.close()
        killed_while_hanging(host, host.start("resume", "s", "--gateway", model.url))
    previews = left_by_the_dead(host).values()
    told = [[patch.diff.partition("\n@@")[2].partition("\n")[2] for patch in found] for found in previews]
    assert told == [["-0\n+1\n", "+1\n"], ["-1\n+3\n", "+2\n"], ["-0\n+3\n", "+1\n", "+2\n"]]


def test_a_large_file_that_failed_calls_left_alone_has_not_changed(host: Host) -> None:
    alone, written = host.workspace / "alone", host.workspace / "written"
    for path in (alone, written):
        path.write_bytes(b"line\n" * 3_500_000)
    failing = (
        call("EditFile", path=str(alone), edits=[{"oldText": "nowhere", "newText": "x"}]),
        call("EditFile", path=str(alone), edits=[]),
        call("WriteFile", path=str(alone), content="x", overwrite=False),
        call("WriteFile", path=str(alone), content="x", expectedSha256="0" * 64),
    )
    with gateway(use(*failing), write(host, "written", "x"), use(HANG), say("Done.")) as model:
        killed_while_hanging(host, host.start_task(model.url, "--session-id", "s"))
        assert [answer.is_error for answer in model.results(1)] == [True] * 4
        changed = {key: [patch.file_path for patch in patches] for key, patches in left_by_the_dead(host).items()}
        assert list(changed.values()) == [[str(written)]] * 2
        outcome = host.resume("s")
    assert outcome.result["filesChanged"] == [str(written)]
