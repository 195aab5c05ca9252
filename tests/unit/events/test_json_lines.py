"""`--output jsonl` for readers that are slow: complete as long as they read, and the loop never waits for them."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.events import EventType
from agent_host.events.sinks import JsonLines
from tests.support.events import emitter
from tests.support.process import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes of another kind")


class Pipe:
    """A pipe whose other end is read when the test says so."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.reading, writing = ends
        self.stream = os.fdopen(writing, "wb")
        self.read = bytearray()

    def read_on(self, until: int) -> None:
        """Read in small pieces until `until` lines are there."""

        def run() -> None:
            while self.read.count(b"\n") < until and (data := os.read(self.reading, 1000)):
                self.read.extend(data)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    @property
    def ids(self) -> list[int]:
        return [orjson.loads(line)["eventId"] for line in bytes(self.read).splitlines()]

    def close(self) -> None:
        self.stream.close()
        os.close(self.reading)


@pytest.fixture(params=["pipe", "terminal"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    made = Pipe(os.pipe() if request.param == "pipe" else raw_terminal())
    yield made
    made.close()


def raw_terminal() -> tuple[int, int]:
    import tty

    main, side = pty.openpty()
    tty.setraw(side)
    return main, side


def emit(sink: JsonLines, count: int, **payload: Any) -> float:
    """How long the longest event took, in seconds."""
    made, longest = emitter(sink), 0.0
    for _ in range(count):
        began = time.perf_counter()
        made.emit(EventType.CHECKPOINT_FAILED, {"message": "x" * 1_000, "code": "y", **payload})
        longest = max(longest, time.perf_counter() - began)
    return longest


@pytest.mark.slow
def test_a_reader_that_comes_late_gets_everything_in_order(pipe: Pipe) -> None:
    lines = JsonLines(pipe.stream)
    assert emit(lines, 2_000) < 1  # far more than the pipe takes, and nobody reads
    pipe.read_on(2_000)
    lines.close(30)
    pipe.thread.join(30)
    assert pipe.ids == list(range(1, 2_001))
    assert (lines.dropped, lines.refused) == (0, None)


def test_after_a_slow_time_lines_come_at_once_again(pipe: Pipe) -> None:
    lines = JsonLines(pipe.stream)
    made = emitter(lines)
    for _ in range(200):
        made.emit(EventType.CHECKPOINT_FAILED, {"message": "x" * 1_000, "code": "y"})
    pipe.read_on(201)
    lines.close(30)
    made.emit(EventType.POLICY_EXPIRED, {})
    pipe.thread.join(30)
    assert pipe.ids == list(range(1, 202))


def test_memory_is_bounded_and_what_is_left_out_are_whole_lines(pipe: Pipe) -> None:
    lines = JsonLines(pipe.stream, max_bytes=100_000)
    emit(lines, 2_000)
    assert 1_500 < lines.dropped < 1_990
    pipe.read_on(2_000 - lines.dropped)
    lines.close(30)
    pipe.thread.join(30)
    assert len(set(pipe.ids)) == 2_000 - lines.dropped
    assert pipe.ids == sorted(pipe.ids)


def test_a_line_longer_than_a_pipe_is_whole(pipe: Pipe) -> None:
    lines = JsonLines(pipe.stream)
    emit(lines, 3, message="y" * 300_000)
    pipe.read_on(3)
    lines.close(30)
    pipe.thread.join(30)
    assert pipe.ids == [1, 2, 3]


def test_nobody_waits_for_ever_for_a_reader_that_does_not_read(pipe: Pipe) -> None:
    lines = JsonLines(pipe.stream)
    emit(lines, 500)
    lines.close(0.01)
    assert lines.dropped > 300
    pipe.read_on(1)  # lets the thread of the writer go
    pipe.thread.join(30)


def test_a_reader_that_leaves_while_lines_wait_ends_the_output() -> None:
    pipe = Pipe(os.pipe())
    lines = JsonLines(pipe.stream)
    emit(lines, 500)
    os.close(pipe.reading)
    eventually(lambda: lines.refused is not None, "the broken pipe is noticed")
    assert isinstance(lines.refused, BrokenPipeError)
    emit(lines, 1)
    lines.close(30)
    pipe.stream.close()


def test_a_program_that_ends_tells_a_slow_reader_everything_first() -> None:
    code = """
import sys, time
from agent_host.events.emitter import Emitter
from agent_host.events import EventType
from agent_host.events.sinks import JsonLines
made = Emitter(time=time.time, session_id="s", workspace_id="w", tenant_id="t", user_id="u")
made.attach([JsonLines(sys.stdout.buffer)])
for _ in range(1000):
    made.emit(EventType.CHECKPOINT_FAILED, {"message": "x" * 1000, "code": "y"})
print("done", file=sys.stderr, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.readline() == b"done\n"  # all told, and nothing read so far
        assert len(process.stdout.read().splitlines()) == 1_000
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_memory_takes_lines_at_once() -> None:
    stream = io.BytesIO()
    emit(JsonLines(stream), 3)
    assert stream.getvalue().count(b"\n") == 3
