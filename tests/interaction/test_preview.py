"""What a killed session has changed so far, and what it has changed when it is done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.session.patches import as_text, preview
from agent_host.session.tasks import first_versions
from state.file_store import FileCheckpointStore
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.session.patches import FilePatch
    from tests.support.process import Host, Turn

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


def write(host: Host, name: str, content: str) -> Turn:
    return use(call("WriteFile", path=str(host.workspace / name), content=content))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "hangs"}


def left_by_the_dead(host: Host) -> list[FilePatch]:
    """The preview that a new process makes of its task, which is the session's too, there being no other."""
    session = FileCheckpointStore(os.fspath(host.state)).open("s")
    try:
        versions = first_versions(session.state)
        assert session.state.task is not None
        of_task, of_session = (
            preview(versions, kept=session.kept, workspace=os.path.realpath(host.workspace), task_id=task_id)
            for task_id in (session.state.task.task_id, None)
        )
    finally:
        session.close()
    assert of_task == of_session
    return of_task


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
        use(*write(host, "new 'ü'", "")["tool_calls"], shell("touch hangs; sleep 50")),
    ]
    with gateway(*turns, write(host, "changed", "3\n"), say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually((host.workspace / "hangs").exists, "the command that hangs")
        process.kill()
        found = left_by_the_dead(host)
        status = {os.path.basename(patch.file_path): patch.status for patch in found}
        assert status == {"changed": "modified", "gone": "deleted", "new 'ü'": "added"}
        subprocess.run(["git", "apply", "-"], cwd=original, input="".join(p.diff for p in found).encode(), check=True)
        assert files(original) == files(host.workspace)
        done = host.run("resume", "s", "--gateway", model.url)
    assert "# gone: binary content differs\n" in as_text(found)
    assert "-one\r\n-two\n\\ No newline at end of file\n+3\n" in done.stderr
