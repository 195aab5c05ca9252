"""Edges of the process: a terminal that closes, no home, a state directory that goes, a client that never comes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import Host, Process, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serve_process import Serve, Servers

NOWHERE = "http://127.0.0.1:9"
SLOW = use(shell("echo begun; while [ ! -e go ]; do sleep 0.02; done; echo done >> effects.log"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and users")


def at_work(host: Host, url: str) -> Process:
    """A run whose command has begun and waits for the file `go`."""
    process = host.start_task(url, "--session-id", "s", "--output", "jsonl")
    process.said("tool_output_chunk", on="stdout")
    return process


@pytest.fixture
def hang_up_counts(host: Host) -> Iterator[None]:
    """The signal is not ignored, also where `nohup` started these tests: a child begins with what its parent ignores,
    and a process that is forked has another parent."""
    host.cold = True
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.usefixtures("hang_up_counts")
def test_a_terminal_that_closes_is_a_stop(host: Host) -> None:
    """The kernel and the shell both send the signal; the second one is no impatience."""
    with gateway(SLOW, say("Done.")) as served:
        process = at_work(host, served.url)
        process.interrupt(signal.SIGHUP)
        process.said("stopping")
        process.interrupt(signal.SIGHUP)
        (host.workspace / "go").touch()
        outcome = process.finish()
        assert outcome.code == 143
        outcome.names_once("resume with: agent-host resume s")
        assert host.resume("s").code == 0
    assert (host.workspace / "effects.log").read_text() == "done\n"


def test_nohup_is_heeded(host: Host) -> None:
    with gateway(SLOW, say("Done.")) as served:
        popen = subprocess.Popen(
            ["nohup", sys.executable, "-P", "-m", "agent_host", "run", "Do it.", "--gateway", served.url,
             "--policy", "full", "--output", "jsonl"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=host.environment(), cwd=host.workspace, start_new_session=True,
        )  # fmt: skip
        process = Process(popen, None)
        host.started.append(process)
        process.said("tool_output_chunk", on="stdout")
        process.interrupt(signal.SIGHUP)
        (host.workspace / "go").touch()
        assert process.finish().code == 0
    assert (host.workspace / "effects.log").read_text() == "done\n"


@pytest.mark.parametrize("command", [["run", "Do it.", "--gateway", NOWHERE], ["sessions"], ["serve"]])
def test_no_home_at_all(tmp_path: Path, command: list[str]) -> None:
    """A user that the password file does not know, and no HOME: as in many containers."""
    folder = tmp_path / "work"
    folder.mkdir()
    ended = without_home(folder, command)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "HOME" in ended.stderr
    assert "AGENT_HOST_STATE_DIR" in ended.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_no_home_is_needed_where_the_state_directory_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with gateway(say("Done.")) as served:
        command = ["run", "Do it.", "--gateway", served.url]
        ended = without_home(folder, command, AGENT_HOST_STATE_DIR=str(tmp_path / "state"))
        other = without_home(folder, [*command, "--state-dir", "~/here"])
    assert (ended.returncode, ended.stdout) == (0, "Done.\n"), ended.stderr
    assert (other.returncode, "HOME" in other.stderr) == (2, True)
    assert list(folder.iterdir()) == []


def without_home(folder: Path, command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a user who is in no password file runs it."""
    nobody = (
        "import pwd; pwd.getpwuid = lambda _: {}[0]; from agent_host.cli.main import main; raise SystemExit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", nobody, *command],
        env={"PATH": os.environ["PATH"], **env},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_state_directory_that_goes_away(host: Host) -> None:
    with gateway(SLOW, use(shell("echo more >> effects.log")), say("Done.")) as served:
        process = at_work(host, served.url)
        shutil.rmtree(host.state)
        (host.workspace / "go").touch()
        outcome = process.finish()
    assert outcome.code == 3
    assert "was removed or moved" in outcome.stderr
    assert "if it is put back, the session can be resumed" in outcome.stderr
    assert (outcome.last_line["resumeCommand"], "resume with" in outcome.stderr) == (None, False), (
        "it cannot be, as it is"
    )
    assert not host.state.exists(), "nothing makes it anew"
    assert (host.workspace / "effects.log").read_text() == "done\n"


# serve


@pytest.fixture
def path(servers: Servers) -> Path:
    """Where to listen."""
    return servers.host.root / "run" / "s"


def listening(servers: Servers, path: Path, seconds: float) -> Serve:
    with (servers.host.root / "user.toml").open("a") as file:
        file.write(f"[serve]\nbegin_timeout_s = {seconds}\n")
    return servers.start("--socket", os.fspath(path), "--gateway", NOWHERE, "--policy", "full", piped=False)


def ended_unused(serve: Serve) -> None:
    outcome = serve.finish()
    assert outcome.code == 0
    assert "serve.begin_timeout_s" in outcome.error


def test_a_server_to_which_nobody_comes_ends(servers: Servers, path: Path) -> None:
    serve = listening(servers, path, 0.3)
    ended_unused(serve)
    assert not path.exists()


@pytest.mark.slow
def test_a_server_whose_client_leaves_before_a_session_ends(servers: Servers, path: Path) -> None:
    serve = listening(servers, path, 0.5)
    client = serve.on_socket(path)
    client.done()
    ended_unused(serve)


def test_a_server_with_a_session_stays(servers: Servers, path: Path) -> None:
    serve = listening(servers, path, 0.5)
    client = serve.on_socket(path)
    client.create()
    client.ask("GetSessionState")
    assert client.call("Shutdown")["status"] == "shutdown"
    serve.ended_well()
