"""A session killed anywhere and resumed until it is done: no effect twice, none forgotten, the same end (invariant 3).

The model of these tests is the scripted gateway. It has seven effects made, six commands that each append their id to a
file and a file that is written, and when a call comes back as interrupted it does what the system prompt asks for: it
looks, and has only done what is missing.
"""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.gateway import MockGateway, Script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FINAL = "All six are in the log and the note is written."
EFFECTS = ("one", "two", "three", "four", "five", "six")
MAX_RESUMES = 5
# Of an undisturbed session; test_there_is_no_record_after_the_last_one_that_is_tried holds it to that.
RECORDS = 29


def append(word: str) -> dict[str, Any]:
    """A command that takes a moment, so that a random kill finds it running, and then has its effect."""
    return command(f"sleep 0.02 && echo {word} >> effects.log")


def command(line: str) -> dict[str, Any]:
    return {"name": "RunCommand", "arguments": {"command": line}}


def repair(*words: str) -> dict[str, Any]:
    return command("; ".join(f"grep -qx {word} effects.log || echo {word} >> effects.log" for word in words))


def script(workspace: Path) -> Script:
    note = {"name": "WriteFile", "arguments": {"path": f"{workspace}/note.txt", "content": "done\n"}}
    gone = {"name": "DeleteFile", "arguments": {"path": f"{workspace}/old.txt"}}
    read = {"name": "ReadFile", "arguments": {"path": f"{workspace}/effects.log"}}
    plan: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
        ([append("one"), append("two"), append("three")], [repair("one", "two", "three")]),
        ([note, append("four")], [note, repair("four")]),
        ([read, append("five"), gone], [repair("five"), command("rm -f old.txt")]),
        ([append("six")], [repair("six")]),
    ]
    turns: list[dict[str, Any]] = []
    for position, (calls, mend) in enumerate(plan, 1):
        turns.append({"text": f"Part {position}.", "tool_calls": calls})
        # What was interrupted is looked at before the next part.
        interrupted = {"position": position + 1, "last_contains": "TOOL_INTERRUPTED"}
        turns.append({"when": interrupted, "text": "I look at what is there.", "tool_calls": mend})
    turns.append({"text": FINAL, "expect": {"last_role": "user"}})
    return Script.from_turns(turns)


class Session:
    """One session in a workspace of its own, driven through real processes."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        (self.workspace / "old.txt").write_text("old\n")
        (self.workspace / "effects.log").write_text("")
        self.state_dir = folder / "state"
        self.gateway = MockGateway(script(self.workspace))
        self._environment = {**os.environ, "HOME": str(folder)}

    def start(self, url: str, *arguments: str, kill_after: int | None = None) -> subprocess.Popen[bytes]:
        program = ["agent_host.cli.main"]
        if kill_after is not None:
            program = ["agent_host.testing.crash", "--after-record", str(kill_after)]
        options = ["--gateway", url, "--state-dir", str(self.state_dir), "--output", "json"]
        return subprocess.Popen(
            [sys.executable, "-m", *program, *arguments, *options],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def first(self, url: str, *, kill_after: int | None = None) -> subprocess.Popen[bytes]:
        options = ["--workspace", str(self.workspace), "--policy", "ci", "--session-id", "s1"]
        return self.start(url, "run", "Make the effects.", *options, kill_after=kill_after)

    def resume_until_done(self, url: str) -> dict[str, Any]:
        """The result of the first resume that ends well."""
        said = ""
        for _ in range(MAX_RESUMES):
            process = self.start(url, "resume", "s1")
            out, err = process.communicate(timeout=60)
            said += err.decode()
            if process.returncode == 0:
                result: dict[str, Any] = json.loads(out)
                return result
        raise AssertionError(f"not done after {MAX_RESUMES} resumes:\n{said}")

    def check(self, result: dict[str, Any]) -> None:
        assert (result["status"], result["text"]) == ("TASK_COMPLETED", FINAL)
        made = collections.Counter((self.workspace / "effects.log").read_text().split())
        assert made == dict.fromkeys(EFFECTS, 1)
        assert (self.workspace / "note.txt").read_text() == "done\n"
        assert not (self.workspace / "old.txt").exists()
        assert self.gateway.failures == []  # the gateway refuses a thread that could not be sent
        assert os.listdir(self.state_dir / "checkpoints") == []
        self.check_thread(result)

    def check_thread(self, result: dict[str, Any]) -> None:
        history = self.state_dir / "sessions" / "s1" / "artifacts" / "session_history"
        thread = json.loads(history.read_text())
        calls = [call["id"] for message in thread for call in message.get("toolCalls", [])]
        answers = [message["toolCallId"] for message in thread if message["role"] == "tool"]
        assert answers == calls
        assert len(set(answers)) == len(answers)
        assert len(result["toolCalls"]) == len(answers)
        assert result["stepCount"] == sum(message["role"] == "assistant" for message in thread)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


@pytest.fixture
def url(session: Session) -> Iterator[str]:
    with session.gateway.in_thread() as url:
        yield url


def test_undisturbed(session: Session, url: str) -> None:
    process = session.first(url)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    result = json.loads(out)
    session.check(result)
    assert [call["status"] for call in result["toolCalls"]] == ["succeeded"] * 9
    assert result["stepCount"] == 5


@pytest.mark.parametrize("record", range(1, RECORDS + 1))
def test_killed_after_each_record(session: Session, url: str, record: int) -> None:
    process = session.first(url, kill_after=record)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, (out, err)
    session.check(session.resume_until_done(url))


def test_there_is_no_record_after_the_last_one_that_is_tried(session: Session, url: str) -> None:
    process = session.first(url, kill_after=RECORDS + 1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    session.check(json.loads(out))


@pytest.mark.parametrize("seed", range(12))
def test_killed_at_random_times(session: Session, url: str, seed: int) -> None:
    chance = random.Random(seed)
    process = session.first(url)
    for _ in range(3):
        wait_for_session(session, process)
        try:
            out, err = process.communicate(timeout=chance.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        if out:  # it was told, and perhaps killed while it cleaned up
            break
        process = session.start(url, "resume", "s1")
    else:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
    session.start(url, "resume", "s1").communicate(timeout=60)  # clears up what the last kill left
    session.check(json.loads(out))


def wait_for_session(session: Session, process: subprocess.Popen[bytes]) -> None:
    """Until the process has the session, so that the kill finds it at work; a start takes differently long."""
    lock = session.state_dir / "checkpoints" / "s1.lock"
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if lock.read_text().strip() == str(process.pid):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.002)


@pytest.mark.parametrize(("first", "second"), [(3, 1), (3, 2), (4, 3), (12, 2), (13, 1)])
def test_killed_again_while_it_recovers(session: Session, url: str, first: int, second: int) -> None:
    process = session.first(url, kill_after=first)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    again = session.start(url, "resume", "s1", kill_after=second)
    again.communicate(timeout=60)
    assert again.returncode == -signal.SIGKILL
    session.check(session.resume_until_done(url))


def test_what_a_dead_host_left_running_has_no_effect_later(session: Session, url: str, tmp_path: Path) -> None:
    """The command outlives the host; the resume ends it before it tells the model that the call was interrupted."""
    slow = Script.from_turns(
        [
            {"text": "Slow.", "tool_calls": [command("echo begun > begun.txt; sleep 5; echo late >> effects.log")]},
            {"text": "Interrupted, I see.", "expect": {"last_contains": "TOOL_INTERRUPTED"}},
        ]
    )
    gateway = MockGateway(slow)
    with gateway.in_thread() as slow_url:
        process = session.first(slow_url)
        deadline = time.monotonic() + 30
        while not (session.workspace / "begun.txt").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        process.communicate()
        assert running("sleep 5")
        result = session.resume_until_done(slow_url)
    assert [call.get("code") for call in result["toolCalls"]] == ["TOOL_INTERRUPTED"]
    assert not running("sleep 5")
    assert (session.workspace / "effects.log").read_text() == ""
    assert gateway.failures == []


def running(words: str) -> bool:
    wanted = words.replace(" ", "\0").encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as handle:
                if handle.read().rstrip(b"\0") == wanted:
                    return True
        except OSError:
            continue
    return False
