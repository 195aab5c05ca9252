"""A program that is talked to in lines: floods, and how long it has to end. Real programs, without the SDK."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tool_runtime.processes import background
from tool_runtime.processes.background import ProgramLineTooLong, ServerProcess
from tool_runtime.processes.command import ServerParams
from tool_runtime.threads import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ECHO = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)\n"


@pytest.fixture
def pool() -> Iterator[DaemonPool]:
    made = DaemonPool()
    yield made
    made.close()


def started(pool: DaemonPool, code: str, *, most: int = 1000) -> ServerProcess:
    argv = (sys.executable, "-I", "-S", "-c", textwrap.dedent(code))
    return ServerProcess(ServerParams(argv, os.getcwd(), {"PATH": os.environ["PATH"]}, "mark", most), pool, None)


async def test_a_flood_on_stderr_stops_nothing_and_is_not_kept(pool: DaemonPool) -> None:
    """More than any pipe holds, before the answer and behind it; its last line is what is said of it."""
    code = """
        import sys
        for line in sys.stdin:
            for _ in range(200): sys.stderr.write("x" * 50_000 + "\\n")
            sys.stderr.write("the last line\\n")
            sys.stderr.flush()
            print(line.strip(), flush=True)
    """
    process = started(pool, code)
    for word in (b"one\n", b"two\n"):
        process.write(word)
        assert await asyncio.wait_for(process.read_line(), 20) == word
    await process.aclose()
    assert process.last_words == "the last line"
    assert len(process._last_words) <= background._STDERR_BYTES


async def test_what_it_said_of_an_error_is_told(pool: DaemonPool) -> None:
    """Node ends with its version, and Python with the error."""
    process = started(
        pool, "import sys; sys.exit('Error [ERR_X]: Cannot find module\\n  at x (y:1)\\n\\nNode.js v22.20.0')"
    )
    assert await process.read_line() == b""
    await process.aclose()
    assert process.last_words == "Error [ERR_X]: Cannot find module"


@pytest.mark.slow
async def test_a_flood_of_lines_waits_for_its_reader(pool: DaemonPool) -> None:
    code = """
        import sys
        for number in range(1_000_000): print(number)
    """
    process = started(pool, code)
    for number in range(100):
        assert int(await process.read_line()) == number
    assert process._lines.qsize() <= background._AHEAD
    await process.aclose()


@pytest.mark.slow
async def test_a_line_without_an_end(pool: DaemonPool) -> None:
    process = started(pool, "print('x' * 100_000)")
    with pytest.raises(ProgramLineTooLong):
        await process.read_line()
    await process.aclose()


@pytest.mark.slow
async def test_one_that_was_given_work_finishes_it(pool: DaemonPool, tmp_path: Path) -> None:
    process = started(pool, f"{ECHO}import time; time.sleep(0.4); open({str(tmp_path / 'done')!r}, 'w').close()")
    process.write(b"ready\n")
    await process.read_line()
    process.has_worked = True
    await process.aclose()
    assert (tmp_path / "done").exists()


@pytest.mark.slow
async def test_one_that_was_given_none_is_ended_soon(pool: DaemonPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_GRACE_S", 3600.0)
    process = started(pool, f"{ECHO}import time; time.sleep(3600)")
    process.write(b"ready\n")
    await process.read_line()
    await asyncio.wait_for(process.aclose(), 60)
    assert process._process.returncode != 0


@pytest.mark.slow
async def test_one_whose_end_nobody_waits_for_is_ended_all_the_same(pool: DaemonPool) -> None:
    process = started(pool, f"{ECHO}import time; time.sleep(3600)")
    process.write(b"ready\n")
    await process.read_line()
    ending = asyncio.create_task(process.aclose())
    await asyncio.sleep(0)  # it has begun
    ending.cancel()
    await asyncio.wait([ending], timeout=60)
    assert ending.cancelled()
    assert process._process.returncode is not None
