"""What stderr shows while a task runs, on a terminal and off it, with a clock that the test sets."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.cli.display import TextOutput
from agent_host.cli.progress import ProgressLines
from agent_host.events import EventType
from tests.support.clock import SetClock
from tests.support.events import emitter

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal", allow_module_level=True)

from tests.support.terminal import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.events.emitter import Emitter


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen(60, 24)
    yield screen
    screen.close()


class Task:
    """Emits the events of a task to one output."""

    def __init__(self, output: ProgressLines) -> None:
        self._emitter: Emitter = emitter(output)
        self.emit(EventType.TASK_STARTED, maxSteps=40)
        self.emit(EventType.STEP_STARTED, stepId="st", stepCount=3)

    def emit(self, kind: EventType, **payload: Any) -> None:
        self._emitter.emit(kind, payload)

    def asks_model(self) -> None:
        self.emit(EventType.LLM_REQUEST_STARTED, model="m", estimatedInputTokens=1)

    def begins(self, call: str, command: str) -> None:
        self.emit(EventType.TOOL_REQUESTED, toolCallId=call, toolName="RunCommand", summary=command)

    def prints(self, call: str, text: str, stream: str = "stdout") -> None:
        self.emit(EventType.TOOL_OUTPUT_CHUNK, toolCallId=call, stream=stream, text=text)

    def ends(self, call: str, exit_code: int = 0, **more: Any) -> None:
        payload = {"toolCallId": call, "toolName": "RunCommand", "status": "succeeded", "latencyMs": 5}
        self.emit(EventType.TOOL_COMPLETED, **payload, exitCode=exit_code, **more)

    def is_asked(self, call: str) -> None:
        self.emit(EventType.APPROVAL_REQUESTED, toolCallId=call, approvalId=f"a-{call}")

    def is_answered(self, call: str) -> None:
        self.emit(EventType.APPROVAL_RESOLVED, toolCallId=call, decision="approved", reason="by a person")

    def completes(self) -> None:
        self.emit(EventType.TASK_COMPLETED, stepCount=3, totalTokens=1)


# Off the terminal


@pytest.mark.parametrize("form", [ProgressLines, TextOutput])
def test_a_line_now_and_then_says_what_runs(form: type[ProgressLines]) -> None:
    clock, err = SetClock(), io.StringIO()
    output = TextOutput(io.StringIO(), err, clock=clock) if form is TextOutput else ProgressLines(err, clock=clock)
    task = Task(output)
    task.begins("c1", "make\ttest \x1b[2J")
    before = err.getvalue()
    clock.advance(9)
    assert err.getvalue() == before
    clock.advance(31)
    said = err.getvalue().removeprefix(before)
    assert said == (
        "[  10.00s]   running step 3: RunCommand make test \\x1b[2J, 10 s so far\n"
        "[  40.00s]   running step 3: RunCommand make test \\x1b[2J, 40 s so far\n"
    )
    clock.advance(110)
    assert err.getvalue().endswith("[ 130.00s]   running step 3: RunCommand make test \\x1b[2J, 2 min 10 s so far\n")
    task.completes()
    assert clock.waiting == []


@pytest.mark.parametrize("form", [ProgressLines, TextOutput])
@pytest.mark.parametrize("verbose", [True, False])
def test_what_the_model_thinks_is_shown_where_all_is_asked_for(form: type[ProgressLines], verbose: bool) -> None:
    clock, err = SetClock(), io.StringIO()
    output = (
        TextOutput(io.StringIO(), err, verbose=verbose, clock=clock)
        if form is TextOutput
        else ProgressLines(err, verbose=verbose, clock=clock)
    )
    task = Task(output)
    task.asks_model()
    before = err.getvalue()
    for text in ("First\nthen \x1b[2J", " so", "\nand"):
        task.emit(EventType.THINKING_CHUNK, text=text, attempt=1, stepId="st")
    task.emit(EventType.TEXT_CHUNK, text="Hello", attempt=1, stepId="st")
    prefix = f"\n{'':13}| "
    shown = f"[   0.00s]   model   thinks{prefix}First{prefix}then \\x1b[2J so{prefix}and\n"
    assert err.getvalue().removeprefix(before) == (shown if verbose else "")
    task.completes()


def test_the_line_says_what_is_waited_for() -> None:
    clock, err = SetClock(), io.StringIO()
    task = Task(ProgressLines(err, clock=clock))
    task.asks_model()
    clock.advance(10)
    task.emit(EventType.LLM_REQUEST_COMPLETED)
    for call in ("c1", "c2"):
        task.begins(call, f"make {call}")
    task.is_asked("c1")
    clock.advance(30)
    task.ends("c2")
    clock.advance(30)
    task.is_answered("c1")
    clock.advance(30)
    task.ends("c1")
    clock.advance(30)
    assert [line.partition("]   ")[2] for line in err.getvalue().splitlines()] == [
        "waiting step 3: m, 10 s, 1 tokens",
        "running step 3: RunCommand make c2, 30 s so far",
        "waiting step 3: approval of RunCommand make c1, 60 s so far",
        "running step 3: RunCommand make c1, 30 s so far",
        "running step 3",
    ]


def test_what_is_printed_puts_the_line_off() -> None:
    clock, err, out = SetClock(), io.StringIO(), io.StringIO()
    task = Task(TextOutput(out, err, clock=clock))
    for _ in range(20):
        clock.advance(6)
        task.emit(EventType.TEXT_CHUNK, text="word ", attempt=1)
    assert "waiting" not in err.getvalue()
    assert "running" not in err.getvalue()
    task.asks_model()
    clock.advance(10)
    assert err.getvalue().endswith("\n[ 130.00s]   waiting step 3: m, 10 s, 1 tokens\n")
    assert out.getvalue() == "word " * 20, "what the model said is not broken up"


def test_all_output_is_printed_under_the_call_that_it_is_of() -> None:
    for form in (ProgressLines, TextOutput):
        clock, err = SetClock(), io.StringIO()
        output = (
            TextOutput(io.StringIO(), err, verbose=True, clock=clock)
            if form is TextOutput
            else ProgressLines(err, verbose=True, clock=clock)
        )
        task = Task(output)
        task.begins("c1", "make")
        task.begins("c2", "npm test")
        before = err.getvalue()
        task.prints("c1", "one\ntwo\n")
        task.prints("c1", "three\nfo")
        task.prints("c2", "\x1b[31mred\x1b[0m\n", "stderr")
        task.prints("c1", "ur")
        task.ends("c1", exit_code=2)
        task.prints("c1", "late\n")
        said = err.getvalue().removeprefix(before).splitlines()
        assert said[:8] == [
            "[   0.00s]   output  RunCommand make",
            "             | one",
            "             | two",
            "             | three",
            "[   0.00s]   output  RunCommand npm test",
            "             | red",
            "[   0.00s]   output  RunCommand make",
            "             | four",
        ]
        rest = [] if form is ProgressLines else ["[   0.00s]   tool    RunCommand make — exit code 2, 5 ms"]
        assert said[8:] == rest


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"exit_code": 1}, True),
        ({"exit_code": 0}, False),
        ({"status": "failed", "code": "TOOL_EXECUTION_TIMEOUT", "message": "too slow"}, True),
        ({"status": "denied", "code": "CAPABILITY_DENIED", "message": "no"}, False),
    ],
)
def test_a_command_that_failed_shows_its_last_lines(result: dict[str, Any], shown: bool) -> None:
    err = io.StringIO()
    task = Task(TextOutput(io.StringIO(), err, clock=SetClock()))
    task.begins("c1", "make")
    task.prints("c1", "".join(f"{number}\n" for number in range(9)) + "x" * 500)
    payload = {"toolCallId": "c1", "toolName": "RunCommand", "status": "succeeded", "latencyMs": 5}
    exit_code = result.pop("exit_code", None)
    task.emit(EventType.TOOL_COMPLETED, **payload | result, **({} if exit_code is None else {"exitCode": exit_code}))
    lines = [line for line in err.getvalue().splitlines() if line.startswith("             | ")]
    cut = f"{'x' * 400}…"
    assert lines == ([f"             | {line}" for line in ("5", "6", "7", "8", cut)] if shown else [])


# On a terminal


def test_the_last_lines_of_a_command_stand_there_while_it_runs(screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.begins("c1", "make " + "x" * 90)
    for number in range(8):
        task.prints("c1", f"line {number} \x1b[2J{'y' * 90}\n")
    task.prints("c1", "\r10 %\r20 %")
    before = screen.lines
    assert before == ["[   0.00s] step 3"]
    clock.advance(0.1)
    title, *lines = screen.lines[1:]
    assert title.startswith("[   0.10s]   tool    RunCommand make xxx")
    assert title.endswith("x…, 0 s so far")
    assert lines[-1] == "             | 20 %"
    assert [line[15:22] for line in lines[:-1]] == ["line 4 ", "line 5 ", "line 6 ", "line 7 "]
    assert all("\\x1b[2J" in line for line in lines[:-1])
    assert max(map(len, screen.lines)) < 60
    assert "\x1b[2m             | 20 %\x1b[0m\n" in screen.shown
    clock.advance(1)
    assert screen.lines[1].endswith("…, 1 s so far")
    task.ends("c1")
    assert screen.lines == [*before, f"[   1.10s]   tool    RunCommand make {'x' * 90} — succeeded, 5 ms"]
    clock.advance(5)
    assert (len(screen.lines), clock.waiting) == (2, [])


@pytest.mark.parametrize(("text", "shown"), [("é━" * 40, 44), ("字" * 60, 22), ("e\u0301" * 60, 44)])
def test_a_line_is_cut_where_the_terminal_ends(text: str, shown: int, screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.begins("c1", "make")
    task.prints("c1", f"{text}\n")
    clock.advance(0.5)
    assert screen.lines[-1] == f"             | {text[: shown - 1]}…"
    task.ends("c1")
    assert len(screen.lines) == 2


def test_no_style_where_the_user_wants_none(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.begins("c1", "make")
    task.prints("c1", "a line\n")
    clock.advance(0.5)
    assert screen.lines[-1] == "             | a line"
    assert "\x1b[2m" not in screen.shown


def test_it_is_drawn_ten_times_a_second_at_most(screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.begins("c1", "yes")
    for number in range(1000):
        task.prints("c1", f"{number}\n")
        clock.advance(0.002)
    assert 15 <= screen.shown.count("RunCommand yes") <= 20
    assert screen.lines[-1] == "             | 999"


def test_of_several_calls_the_one_that_printed_last_is_shown(screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    for call in ("c1", "c2", "c3"):
        task.begins(call, call)
    task.prints("c2", "from c2\n")
    clock.advance(1)
    assert screen.lines[1:] == ["[   0.10s]   tool    RunCommand c2, 0 s so far (and 2 more)", "             | from c2"]
    task.ends("c2")
    clock.advance(0.2)
    assert screen.lines[1:] == [
        "[   1.00s]   tool    RunCommand c2 — succeeded, 5 ms",
        "[   1.00s]   tool    RunCommand c1, 1 s so far (and 1 more)",
    ]


def test_nothing_is_drawn_or_printed_while_a_question_stands_there(screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, asks=True, clock=clock))
    for call in ("c1", "c2", "c3"):
        task.begins(call, call)
    task.prints("c1", "before\n")
    clock.advance(0.5)
    assert len(screen.lines) == 3
    task.is_asked("c2")
    assert screen.lines == ["[   0.00s] step 3"]
    screen.stream.write("Allow this? ")
    screen.stream.flush()
    shown = screen.shown
    task.is_asked("c3")
    task.prints("c1", "meanwhile\n")
    clock.advance(20)
    task.ends("c1")
    task.is_answered("c2")
    clock.advance(20)
    assert screen.shown == shown
    screen.stream.write("\n")  # the person's
    task.is_answered("c3")
    assert [line.partition("]   ")[2] for line in screen.lines[2:]] == [
        "tool    RunCommand c1 — succeeded, 5 ms",
        "approve approved: by a person",
        "approve approved: by a person",
    ]
    clock.advance(2)
    assert screen.lines[-1].endswith(", 22 s so far (and 1 more)")


def test_what_waits_for_an_answer_is_bounded_and_printed_at_the_end() -> None:
    clock = SetClock()
    err = io.StringIO()
    output = ProgressLines(err, verbose=True, asks=True, clock=clock)
    task = Task(output)
    for call in ("c1", "c2"):
        task.begins(call, call)
    task.is_asked("c2")
    for number in range(400):
        task.prints("c1", f"{number:03} {'x' * 1000}\n")
    assert err.getvalue() == ""
    task.emit(EventType.SESSION_PAUSED)
    first, *_, last = err.getvalue().splitlines()
    assert first.startswith("             | [... 1")
    assert first.endswith(" lines left out ...]")
    assert last.startswith("             | 399 ")
    assert len(err.getvalue()) < 300_000
    assert clock.waiting == []


def test_a_terminal_that_is_resized(screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.begins("c1", "make")
    task.prints("c1", "a line\n")
    clock.advance(0.5)
    assert len(screen.lines) == 3
    screen.resize(30, 24)
    clock.advance(1)
    assert screen.shown.count("a line") == 1, "too narrow"
    screen.resize(80, 24)
    clock.advance(1)
    assert screen.lines[-1] == "             | a line"


@pytest.mark.parametrize(
    ("size", "env"),
    [((0, 0), {}), ((39, 24), {}), ((80, 9), {}), ((80, 24), {"TERM": "dumb"}), ((80, 24), {"CI": "true"})],
)
def test_where_nothing_can_be_drawn_there_is_a_line_now_and_then(
    size: tuple[int, int], env: dict[str, str], screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen.resize(*size)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.begins("c1", "make")
    task.prints("c1", "a line\n")
    clock.advance(10)
    assert screen.lines == ["[   0.00s] step 3", "[  10.00s]   running step 3: RunCommand make, 10 s so far"]


def test_no_line_now_and_then_for_json_at_a_terminal(screen: Screen) -> None:
    clock = SetClock()
    task = Task(ProgressLines(screen.stream, clock=clock))
    task.begins("c1", "make")
    clock.advance(100)
    assert (screen.shown, clock.waiting) == ("", [])


def test_a_terminal_says_from_the_first_second_what_is_waited_for(screen: Screen) -> None:
    clock = SetClock()
    task = Task(TextOutput(io.StringIO(), screen.stream, clock=clock))
    task.asks_model()
    clock.advance(1)
    assert screen.lines[1:] == ["[   1.00s]   waiting for m, 1 s, 1 tokens"]
    clock.advance(2)
    assert screen.lines[1:] == ["[   3.00s]   waiting for m, 3 s, 1 tokens"]
    task.emit(
        EventType.LLM_REQUEST_COMPLETED, model="m", inputTokens=3000, outputTokens=500, cachedInputTokens=0, cost=0.04,
        costCurrency="USD", latencyMs=3000,
    )  # fmt: skip
    assert [line[11:20] for line in screen.lines[1:]] == ["  model  "]
    task.asks_model()
    clock.advance(1.2)
    assert screen.lines[-1] == "[   4.10s]   waiting for m, 1 s, 3,501 tokens, 0.04 USD"
    task.completes()
    assert len(screen.lines) == 2
    assert clock.waiting == []


def test_an_open_line_of_prose_is_not_drawn_into(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")  # prose as it comes
    clock = SetClock()
    output = TextOutput(screen.stream, screen.stream, clock=clock)
    task = Task(output)
    task.asks_model()
    clock.advance(1.5)
    task.emit(EventType.TEXT_CHUNK, text="A line that is not over", attempt=1)
    clock.advance(5)
    output.flush()
    assert screen.lines[1:] == ["A line that is not over"]


def test_prose_at_a_terminal_is_rendered_block_by_block(screen: Screen) -> None:
    clock = SetClock()
    output = TextOutput(screen.stream, screen.stream, clock=clock)
    task = Task(output)
    task.asks_model()
    for piece in ("Some **bo", "ld** words\n\n```py", "thon\nx = 1\n```\n\nThe \x1b[2J end"):
        task.emit(EventType.TEXT_CHUNK, text=piece, attempt=1)
    shown = [line.strip() for line in screen.lines[1:] if line.strip()]
    assert shown[:2] == ["Some bold words", "x = 1"]
    output.flush()
    assert screen.lines[-1].strip() in ("", "The \\x1b[2J end")
    assert "\x1b[2J" not in screen.shown
