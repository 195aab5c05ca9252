"""What is said at the end, and what becomes of it where nobody takes it: the task is done all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host

pytestmark = pytest.mark.slow


NOWHERE = "http://127.0.0.1:1"
EFFECT = shell("echo ran >> effects")
HANG = shell("touch hangs; sleep 50")
FULL = "/dev/full"

no_full = pytest.mark.skipif(not os.path.exists(FULL), reason=f"no {FULL}")
posix = pytest.mark.skipif(sys.platform == "win32", reason="links, named pipes and SIGKILL")


def to_a_full_disk(host: Host, *arguments: str, stream: str = "stdout") -> subprocess.CompletedProcess[bytes]:
    """Run `agent-host arguments` with one of its streams on a full disk."""
    with open(FULL, "wb") as full:
        return subprocess.run(
            [sys.executable, "-P", "-m", "agent_host", *arguments],
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            env=host.environment(),
            cwd=host.workspace,
            check=False,
            timeout=30,
        )


@no_full
@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_what_a_full_disk_did_not_take_is_told(host: Host, form: str) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        done = to_a_full_disk(
            host, "run", "Do it.", "--policy", "full", "--session-id", "s", "--output", form, "--gateway", model.url
        )
    kept = host.records("s") / "result.json"
    told = [line for line in done.stderr.decode().splitlines() if "could not be written to stdout" in line]
    assert len(told) == 1
    assert told[0].endswith(f"No space left on device; the result is kept in {kept}")
    assert json.loads(kept.read_bytes())["text"] == "Done."
    assert (done.returncode, host.checkpoints()) == (1, [])


@no_full
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("command", [["--version"], ["--help"], ["sessions"], ["doctor"], ["nonsense"], ["resume"]])
def test_no_command_ends_oddly_on_a_full_disk(host: Host, command: list[str], stream: str) -> None:
    done = to_a_full_disk(host, *command, stream=stream)
    assert done.returncode in (0, 1, 2)
    said = (done.stderr or b"").decode()
    assert len(said.splitlines()) <= 1
    assert "internal error" not in said
    if stream == "stdout" and command == ["sessions"]:
        assert (done.returncode, "could not be written to stdout: No space" in said) == (1, True)


def to_a_slow_reader(host: Host, *arguments: str, stdin: bytes = b"") -> bytes:
    """What `agent-host arguments` writes to a pipe that somebody else has made non-blocking, and that holds little."""
    import fcntl

    reading, writing = os.pipe()
    fcntl.fcntl(writing, 1031, 4096)  # F_SETPIPE_SZ
    os.set_blocking(writing, False)
    command = [sys.executable, "-P", "-m", "agent_host", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=writing, stderr=pipe, env=host.environment(), cwd=host.workspace
    ) as process:
        os.close(writing)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(stdin)
        process.stdin.close()
        with open(reading, "rb", buffering=0) as output:
            written = b"".join(iter(lambda: output.read(512), b""))
        said = process.stderr.read()
    assert (process.returncode, b"could not" in said) == (0, False), said
    return written


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe")
def test_a_pipe_that_does_not_wait_gets_all(host: Host) -> None:
    """Another program with the same standard output may have made it so; the reader is behind."""
    said = "".join(map(str, range(20_000)))
    with gateway(say(said), say(said), say(said)) as model:
        run = ("run", "Do it.", "--policy", "full", "--gateway", model.url, "--output")
        assert to_a_slow_reader(host, *run, "text") == said.encode() + b"\n"
        assert json.loads(to_a_slow_reader(host, *run, "json", "--session-id", "s"))["text"] == said
        assert json.loads(to_a_slow_reader(host, *run, "jsonl").splitlines()[-1])["text"] == said
    shown = json.loads(to_a_slow_reader(host, "show", "s", "--output", "json"))
    assert shown["messages"][-1]["content"] == said
    case = b'{"toolName": "RunCommand", "arguments": {"command": "ls"}}\n'
    decisions = to_a_slow_reader(
        host, "policy", "check", "--policy", "ci", "--batch", "-", stdin=b"\xef\xbb\xbf" + case * 40
    )
    assert [json.loads(line)["decision"] for line in decisions.splitlines()] == ["ALLOWED"] * 40


def test_what_a_locale_does_not_have_is_replaced(host: Host) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with gateway(say("naïve 日本")) as model:
        options = ("--policy", "full", "--gateway", model.url, "--session-id", "s")
        done = host.run("run", "-", *options, stdin="\ufeffÜbe.".encode(), env=ascii_only)
    assert (done.code, done.stdout) == (0, b"na?ve ??\n")
    assert model.bodies[0]["messages"][0]["content"][0]["text"] == "Übe."
    for command in (["show", "s"], ["sessions"]):
        shown = host.run(*command, env=ascii_only)
        assert shown.code == 0
        assert b"?be." in shown.stdout


@posix
def test_a_checkpoint_that_cannot_be_removed_is_told(host: Host) -> None:
    refusing = """
import errno, sys
from agent_host.cli.main import main
from state.disk import Disk
remove = Disk.remove
def refused(disk, path):
    if path.endswith("s.json"):
        raise OSError(errno.EROFS, "Read-only file system", path)
    remove(disk, path)
Disk.remove = refused
sys.exit(main())
"""
    with gateway(use(EFFECT), say("Done.")) as model:
        command = ["run", "Do it.", "--policy", "full", "--session-id", "s", "--output", "json", "--gateway", model.url]
        done = subprocess.run(
            [sys.executable, "-c", refusing, *command],
            capture_output=True,
            text=True,
            env=host.environment(),
            cwd=host.workspace,
            check=False,
            timeout=30,
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
        assert "removing the checkpoint failed: Read-only file system" in done.stderr
        assert done.stderr.rstrip().endswith("agent-host resume s")
        assert host.resume("s", "--gateway", model.url).result["text"] == "Done."
        assert model.count == 2, "the end was told again, and no more"


@posix
@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_result_that_could_not_be_kept_is_told(host: Host, form: str) -> None:
    """In every form, and once."""
    with gateway(
        use(shell(f"python3 -c 'import os; os.mkdir(\"{host.records('s')}/result.json\")'")), say("Done.")
    ) as model:
        options = ("--policy", "full", "--session-id", "s", "--output", form)
        outcome = host.run("run", "Do it.", "--gateway", model.url, *options)
    assert outcome.code == 0
    told = outcome.names_once("agent-host: the result could not be kept", "stays resumable")
    assert told.endswith("agent-host resume s")


@posix
def test_an_index_that_is_a_pipe_costs_the_row(host: Host) -> None:
    (host.records("s") / "artifacts").mkdir(parents=True)
    os.mkfifo(host.records("s") / "artifacts" / "index.jsonl")
    with gateway(say("Done.")) as model:
        outcome = host.start_task(model.url, "--session-id", "s").finish(within_s=10)
    assert outcome.code == 0
    assert "artifact_upload_failed" in [event["eventType"] for event in host.event_log("s")]


@posix
@pytest.mark.many_rows(5)
@pytest.mark.parametrize(
    "line",
    [
        f"run Do-it. --gateway {NOWHERE}",
        f"run Do-it. --gateway {NOWHERE} --workspace .",
        f"run Do-it. --gateway {NOWHERE} --policy ./p.json --state-dir state",
        f"run Do-it. --gateway {NOWHERE} --workspace / --patch x.patch",
        "doctor",
        "doctor --authorize x",
        "report --all --html x.html",
        "report --all --html x.html --with-sessions",
        "mock-gateway --script /turns.toml",
        "acp",
        "tool-service --tenants tenants.toml",
    ],
)
def test_a_current_directory_that_is_gone(host: Host, line: str) -> None:
    gone = host.root / "gone"
    gone.mkdir()
    command = [sys.executable, "-P", "-m", "agent_host", *line.split()]
    done = subprocess.run(
        ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *command],
        capture_output=True,
        text=True,
        env=host.environment(),
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "relative to the current directory, which is no longer there" in done.stderr


@pytest.mark.slow
@posix
def test_the_resume_command_names_the_workspace_it_moved_to(host: Host) -> None:
    host.configure(max_retries=0)
    moved = host.root / "moved"
    moved.mkdir()
    with gateway({"status": 500, "times": 3}) as model:
        assert host.task(model.url, "--session-id", "s").code == 3
        again = host.resume("s", "--gateway", model.url, "--workspace", moved)
        back = host.resume("s", "--gateway", model.url)
    assert again.lines[-1].endswith(f"agent-host resume s --workspace {moved}")
    assert back.lines[-1].endswith("agent-host resume s")


@pytest.mark.slow
@posix
def test_each_move_is_told_once(host: Host) -> None:
    host.configure(max_retries=0)
    moved = host.root / "moved"
    moved.mkdir()
    with gateway({"status": 500, "times": 4}, say("Done.")) as model:
        host.task(model.url, "--session-id", "s")
        elsewhere = ["--workspace", str(moved)]
        nothing: list[str] = []
        for options in (elsewhere, elsewhere, nothing, nothing):
            host.resume("s", "--gateway", model.url, *options)
    notes = [message["content"] for message in host.history("s") if message["role"] == "system"][1:]
    assert [note.splitlines()[1] for note in notes] == [str(moved), str(host.workspace)]


@posix
def test_an_unreadable_session_says_why_at_length(host: Host) -> None:
    with gateway(use(HANG)) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually((host.workspace / "hangs").exists, "the command that hangs")
        process.kill()
    (host.state / "checkpoints" / "s.json").chmod(0o666)
    (line,) = host.run("sessions").text.splitlines()
    (row,) = json.loads(host.run("sessions", "--output", "json").stdout)
    assert len(row["prompt"]) > 60
    assert line.endswith(row["prompt"])


@posix
def test_a_smaller_limit_of_steps_counts_what_was_done(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway(use(EFFECT), use(EFFECT), {"status": 500}) as model:
        assert host.task(model.url, "--session-id", "s").code == 3
        outcome = host.resume("s", "--gateway", model.url, "--max-steps", "1")
    assert outcome.code == 1
    outcome.names_once("not done after 2 steps (--max-steps 1)")


def test_the_limit_of_what_is_stored_is_named(host: Host) -> None:
    config = (host.root / "user.toml").read_text()
    (host.root / "user.toml").write_text(config + "\n[host]\nmax_stored_bytes = 10\n")
    (host.workspace / "note").write_text("a long first version\n")
    change = call("WriteFile", path=str(host.workspace / "note"), content="new\n")
    with gateway(use(change), say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full")
    assert outcome.code == 0
    outcome.names_once("warning", "host.max_stored_bytes (10 bytes)", "artifacts, versions of files and records")
    assert "# note: changed; its first version was not kept" in outcome.stderr
