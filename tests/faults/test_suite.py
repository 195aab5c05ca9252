"""The fault suite itself: what it finds, what its command prints, and what its page shows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.faults import __main__ as command
from agent_host.faults.crash_run import CrashRun
from agent_host.faults.faults import FailSystemCall, KillAfterRecord, NoFault, run_through
from agent_host.faults.scenarios import Brief, Effects, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashRun]:
    """A session that went well."""
    crash_run = CrashRun(tmp_path_factory.mktemp("run"), Effects())
    with crash_run.serving():
        NoFault().inflict(crash_run)
        assert crash_run.check() == []
        yield crash_run


def changed(path: str, change: Callable[[Any], object]) -> tuple[Path, str]:
    """`path` and its old text; the JSON in it is changed."""
    file = Path(path)
    text = file.read_text()
    value = json.loads(text)
    change(value)
    file.write_text(json.dumps(value))
    return file, text


@pytest.mark.parametrize(
    ("which", "change", "problem"),
    [
        ("result", lambda result: result["usage"].update(inputTokens=1), "the gateway reported"),
        ("result", lambda result: result.update(stepCount=7), "6 turns are in the thread, 7 are counted"),
        ("result", lambda result: result["toolCalls"].pop(), "11 calls were made, 10 are reported"),
        ("result", lambda result: result.update(text="Something else."), "it ended with"),
        ("history", lambda thread: thread.append(thread[4]), "were answered by"),
        ("history", lambda thread: thread.pop(), "5 answers are in the thread and 6 were given"),
    ],
    ids=["tokens", "steps", "calls", "answer", "answered twice", "turn lost"],
)
def test_a_wrong_record_is_found(done: CrashRun, which: str, change: Callable[[Any], object], problem: str) -> None:
    path = done.paths.result if which == "result" else f"{done.paths.artifacts}/session_history"
    file, text = changed(path, change)
    try:
        found = done.check()
    finally:
        file.write_text(text)
    assert any(problem in line for line in found), found


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("effects.log", "one\none\ntwo\nthree\nfour\nfive\nsix\n", "effect 'one' was made 2 times"),
        ("effects.log", "two\nthree\nfour\nfive\nsix\n", "effect 'one' was made 0 times"),
        ("settings.ini", "colour = blue\n", "settings.ini holds 'colour = blue\\n'"),
        ("old.txt", "old\n", "old.txt is still there"),
    ],
)
def test_a_wrong_effect_is_found(done: CrashRun, name: str, content: str, problem: str) -> None:
    file = done.workspace / name
    before = file.read_text() if file.exists() else None
    file.write_text(content)
    try:
        found = done.check()
    finally:
        file.unlink() if before is None else file.write_text(before)
    assert any(problem in line for line in found), found


class Dissatisfied(Brief):
    """A scenario that is never content."""

    def check(self, outcome: RunOutcome) -> list[str]:
        return ["nothing is ever right"]


def test_a_failed_trial_prints_its_command_and_keeps_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = f"{__name__}:Dissatisfied"
    assert command.run(["--undisturbed", "--scenario", scenario, "--output", "json"]) == 1
    first, problem, kept = capsys.readouterr().out.splitlines()
    assert first.endswith(f"python -m agent_host.faults --undisturbed --scenario {scenario} --output json")
    assert first.startswith("FAILED")
    assert problem.strip() == "nothing is ever right"
    folder = Path(kept.partition("kept: ")[2])
    assert (folder / "state" / "sessions").is_dir()
    shutil.rmtree(folder)


def test_a_fault_that_cannot_be_reached_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--after-record", "999", "--scenario", "brief"]) == 1
    assert "fewer than 999 records" in capsys.readouterr().out


def test_every_command_that_is_listed_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "python -m agent_host.faults --race 3,3 --scenario effects --output text" in lines
    assert len(set(lines)) == len(lines) > 20


@pytest.mark.parametrize(
    "arguments", [[], ["--race", "x"], ["--recovery", "3"], ["--system-call", "sing:1"], ["--all", "--scenario", "no"]]
)
def test_arguments_that_cannot_be_used(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.run(arguments)
    assert "error: " in capsys.readouterr().err


def test_a_system_call_is_named_as_it_is_read() -> None:
    fault = FailSystemCall("write", 3, "ENOSPC", persistently=True)
    assert fault.arguments == ("--system-call", "write:3+:ENOSPC")
    assert FailSystemCall.parse(fault.arguments[1]) == fault


def example(words: str) -> dict[str, Any]:
    """The names that the example with `words` on the page leaves."""
    (found,) = (
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if words in text
    )
    names: dict[str, Any] = {}
    exec(found, names)
    return names


def test_the_simulated_disk_on_the_page_works() -> None:
    assert example("SimulatedDisk(Faults")["session"].state.task.step_count == 0


def test_the_scenario_on_the_page_works(tmp_path: Path) -> None:
    names = example("class Greeting")
    assert run_through(KillAfterRecord(3), tmp_path, names["Greeting"]()) == []
