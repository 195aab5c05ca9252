"""Commands that run on: started, followed, stopped, ended with the session."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.contracts import CommandEnd, ToolConstraints
from tests.unit.tool_runtime.conftest import MakeRouter, error_of, request, text_of, until
from tool_runtime.processes.background import GRACE_AT_END_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from tool_runtime.router import LocalToolRouter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fifos and /proc")

# Leaves its session and its group behind, says who it is, and waits for nobody.
AWAY = (
    "python3 -c 'import os,time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    'open("away.tmp","w").write(str(os.getpid())); os.rename("away.tmp","away")\n'
    "time.sleep(60)' > /dev/null 2>&1 < /dev/null"
)


class Observer:
    """What was reported: the call and the id of each start, and the ends as they come."""

    def __init__(self) -> None:
        self.started_ids: list[tuple[str, str]] = []
        self.ends: asyncio.Queue[CommandEnd] = asyncio.Queue()

    def started(self, request: ToolRequest, command_id: str) -> None:
        self.started_ids.append((request.tool_call_id, command_id))

    def ended(self, _request: ToolRequest, end: CommandEnd) -> None:
        self.ends.put_nowait(end)

    async def next_end(self) -> CommandEnd:
        async with asyncio.timeout(20):
            return await self.ends.get()


class Session:
    """A router, and what it reports."""

    def __init__(self, make_router: MakeRouter, **settings: Any) -> None:
        self.observer = Observer()
        self.router: LocalToolRouter = make_router(commands=self.observer, **settings)

    async def call(self, tool: str, constraints: ToolConstraints | None = None, **arguments: Any) -> ToolResult:
        return await self.router.execute(request(tool, constraints, **arguments))

    async def start(self, line: str, **more: Any) -> str:
        """Its id."""
        result = await self.call("RunCommand", command=line, background=True, **more)
        assert result.command_id is not None, result
        return result.command_id

    async def output(self, command_id: str, **where: Any) -> str:
        return text_of(await self.call("CommandOutput", id=command_id, **where))

    async def next_output(self, command_id: str) -> str:
        """The first read that brings something, which nothing announces."""
        async with asyncio.timeout(20):
            while "No output" in (found := await self.output(command_id)):  # noqa: ASYNC110  only a read shows it
                await asyncio.sleep(0.005)
            return found

    async def end(self) -> CommandEnd:
        return await self.observer.next_end()


@pytest.fixture
def session(make_router: MakeRouter) -> Session:
    return Session(make_router)


@pytest.fixture
def gate(workspace: Path) -> Iterator[int]:
    """A fifo `gate` in the workspace that can be written to; what reads it waits."""
    os.mkfifo(workspace / "gate")
    descriptor = os.open(workspace / "gate", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def gone(pid_file: Path) -> bool:
    try:
        stat = (pid_file.parent / f"/proc/{pid_file.read_text()}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


async def test_colours_of_what_was_read_are_for_people(session: Session) -> None:
    command = await session.start(r"printf '\033[31mred\033[0m\n'")
    await session.end()
    result = await session.call("CommandOutput", id=command)
    assert text_of(result).endswith(":\nred\n")
    assert result.coloured == {"output": "\x1b[31mred\x1b[0m\n"}


async def test_a_command_gives_its_id_at_once_and_runs_on(session: Session, gate: int) -> None:
    result = await session.call("RunCommand", command="read word < gate; echo $word; exit 3", background=True)
    assert result.command_id == "cmd_1"
    assert result.exit_code is None
    assert "cmd_1" in text_of(result)
    assert session.observer.started_ids == [("call1", "cmd_1")]
    assert (await session.output("cmd_1")).startswith("cmd_1: running")
    os.write(gate, b"hello\n")
    assert await session.end() == CommandEnd("cmd_1", "exited", 3)
    assert await session.output("cmd_1") == "cmd_1: exit code 3\nOutput, bytes 0 to 6 of 6:\nhello\n"


async def test_output_is_read_from_where_the_last_read_ended(session: Session, gate: int) -> None:
    """What is printed to stderr stands among the rest, in the order in which it came."""
    command_id = await session.start("while read word; do echo $word >&2; done < gate")
    for word, expected in (("one", "bytes 0 to 4 of 4:\none\n"), ("two", "bytes 4 to 8 of 8:\ntwo\n")):
        os.write(gate, f"{word}\n".encode())
        assert (await session.next_output(command_id)).endswith(expected)
    assert "No output from byte 8 on; there are 8 bytes" in await session.output(command_id)
    assert (await session.output(command_id, offset=2, limit=3)).endswith(
        "Output, bytes 2 to 5 of 8; 3 more from offset 5:\ne\nt"
    )
    assert "No output from byte 8 on" in await session.output(command_id, offset=10**9)
    assert "No output from byte 8 on" in await session.output(command_id)  # a read further back moves nothing


async def test_characters_stay_whole(session: Session) -> None:
    command_id = await session.start("printf 'aäöü'")
    await session.end()
    assert (await session.output(command_id, limit=2)).endswith("bytes 0 to 1 of 7; 6 more from offset 1:\na")
    assert (await session.output(command_id, limit=3)).endswith("bytes 1 to 3 of 7; 4 more from offset 3:\nä")
    assert (await session.output(command_id, limit=1)).endswith("more from offset 4:\n�")  # or nobody got further


async def test_colours_stay_whole(session: Session) -> None:
    command_id = await session.start(r"printf 'a\033[31mb\r\n\033[0mc'")
    await session.end()
    assert (await session.output(command_id, limit=3)).endswith("bytes 0 to 1 of 14; 13 more from offset 1:\na")
    assert (await session.output(command_id, limit=7)).endswith("bytes 1 to 7 of 14; 7 more from offset 7:\nb")
    assert (await session.output(command_id)).endswith("bytes 7 to 14 of 14:\n\r\nc")
    # What is nothing but the beginning of a sequence is passed over, or nobody got further.
    assert "bytes 1 to 3 of 14; 11 more from offset 3" in await session.output(command_id, offset=1, limit=2)


async def test_long_output_is_kept_up_to_the_cap_with_its_end(make_router: MakeRouter) -> None:
    session = Session(make_router, artifact_max_bytes=65_536, output_buffer_bytes=1024, max_output_bytes=10_000)
    command_id = await session.start("seq 100000")
    await session.end()
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    head = await session.output(command_id)
    assert head.partition(":\n")[2] == whole[:10_000]
    assert f"bytes 0 to 10000 of {len(whole)}; {len(whole) - 10_000} more from offset 10000" in head
    last = await session.output(command_id, offset=65_536)
    note, _, rest = last.partition(":\n")[2].partition("\n")
    assert rest == whole[-len(rest) :]
    assert len(rest) == 2000
    assert note == f"[... {len(whole) - 2000 - 65_536} bytes are not kept ...]"
    assert "No output" in await session.output(command_id)


async def test_a_result_is_no_longer_than_the_call_may_be(session: Session) -> None:
    command_id = await session.start("seq 1000")
    await session.end()
    limits = ToolConstraints(max_output_bytes=100)
    found = text_of(await session.call("CommandOutput", limits, id=command_id, limit=500))
    assert "bytes 0 to 100 of 3893" in found


async def test_a_stop_asks_first_and_reports_what_is_unread(session: Session, workspace: Path) -> None:
    os.mkfifo(workspace / "up")
    line = "trap 'echo bye; exit 5' TERM; echo > up; while :; do sleep 0.01; done"
    command_id = await session.start(line)
    await asyncio.to_thread((workspace / "up").read_bytes)
    stopped = text_of(await session.call("StopCommand", id=command_id))
    assert stopped.startswith("cmd_1: stopped, exit code 5\n")
    assert "bytes of its output were not read yet" in stopped
    assert await session.end() == CommandEnd("cmd_1", "stopped", 5)
    assert (await session.output(command_id)).endswith("bye\n")
    assert text_of(await session.call("StopCommand", id=command_id)) == "cmd_1: stopped, exit code 5"
    assert session.observer.ends.empty()


async def test_a_stop_ends_what_does_not_listen_and_what_went_away(make_router: MakeRouter, workspace: Path) -> None:
    session = Session(make_router, kill_grace_s=0.05)
    os.mkfifo(workspace / "up")
    command_id = await session.start(f"{AWAY}\ntrap '' TERM; echo > up; while :; do sleep 0.01; done")
    await asyncio.to_thread((workspace / "up").read_bytes)
    await until((workspace / "away").exists)
    assert "stopped, exit code 137" in text_of(await session.call("StopCommand", id=command_id))
    assert gone(workspace / "away")


async def test_a_stop_that_is_cancelled_stops_all_the_same(make_router: MakeRouter, workspace: Path) -> None:
    session = Session(make_router, kill_grace_s=0.05)
    os.mkfifo(workspace / "up")
    command_id = await session.start("trap '' TERM; echo > up; while :; do sleep 0.01; done")
    await asyncio.to_thread((workspace / "up").read_bytes)
    stop = asyncio.create_task(session.call("StopCommand", id=command_id))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stop.cancel()
    await asyncio.wait([stop])
    assert await session.end() == CommandEnd("cmd_1", "stopped", 137)


@pytest.mark.slow
async def test_a_timeout_bounds_the_life_and_stdin_is_piped(make_router: MakeRouter) -> None:
    session = Session(make_router, background_lifetime_s=0.5)
    result = await session.call("RunCommand", command="cat; exec sleep 60", stdin="given", timeout=600, background=True)
    assert "0.5 seconds" in text_of(result)
    assert await session.end() == CommandEnd("cmd_1", "timed_out", 143)
    found = await session.output("cmd_1")
    assert found.startswith("cmd_1: ended by its time-out, exit code 143\n")
    assert found.endswith("given")


async def test_nobody_is_there_to_answer(session: Session) -> None:
    """No terminal, and nothing to read: a question meets the end of its input."""
    line = "read answer; echo read $?; (: < /dev/tty) 2> /dev/null; echo tty $?; test -t 0; echo $?"
    command_id = await session.start(line)
    await session.end()
    assert (await session.output(command_id)).endswith("read 1\ntty 1\n1\n")


async def test_only_so_many_run_at_once(make_router: MakeRouter, gate: int) -> None:
    session = Session(make_router, max_background=2)
    for _ in range(2):
        await session.start("read word < gate")
    code, said = error_of(await session.call("RunCommand", command="true", background=True))
    assert code == "TOOL_EXECUTION_FAILED"
    assert "cmd_1, cmd_2" in said
    assert text_of(await session.call("RunCommand", command="echo still")).startswith("Exit code: 0")
    await session.call("StopCommand", id="cmd_1")
    assert await session.start("true") == "cmd_3"
    off = Session(make_router, max_background=0)
    assert error_of(await off.call("RunCommand", command="true", background=True))[0] == "TOOL_EXECUTION_FAILED"
    os.write(gate, b"\n")


async def test_the_output_of_the_last_ones_is_kept(make_router: MakeRouter) -> None:
    session = Session(make_router, max_background=1)
    for number in range(3):
        await session.start(f"echo {number}")
        await session.end()
    assert (await session.output("cmd_3")).endswith("2\n")
    said = error_of(await session.call("CommandOutput", id="cmd_1"))
    assert said == ("INVALID_REQUEST", "$.id: there is no background command 'cmd_1'; there are: cmd_3 (exit code 0)")


async def test_ids_go_on_behind_those_of_other_processes(make_router: MakeRouter) -> None:
    session = Session(make_router, commands_before=4)
    code, said = error_of(await session.call("StopCommand", id="cmd_4"))
    assert code == "INVALID_REQUEST"
    assert "there are: none" in said
    assert "earlier process" in said
    assert await session.start("true") == "cmd_5"
    await session.end()


@pytest.mark.parametrize(
    "arguments", [{}, {"id": ""}, {"id": 1}, {"id": "cmd_1", "offset": -1}, {"id": "a", "limit": 0}]
)
async def test_refused_arguments(session: Session, arguments: dict[str, Any]) -> None:
    assert error_of(await session.call("CommandOutput", **arguments))[0] == "INVALID_REQUEST"


async def test_a_shell_that_is_not_there_starts_nothing(make_router: MakeRouter) -> None:
    session = Session(make_router, shell="/nowhere/sh")
    assert error_of(await session.call("RunCommand", command="true", background=True))[0] == "FILE_NOT_FOUND"
    assert session.observer.started_ids == []
    assert "there are: none" in error_of(await session.call("CommandOutput", id="cmd_1"))[1]


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("guarded", [False, True])
async def test_the_end_of_the_session_ends_and_counts_what_is_left(
    make_router: MakeRouter, workspace: Path, guarded: bool
) -> None:
    """One that runs, and one that is over and whose process has left its session."""
    session = Session(make_router, guard_processes=guarded)
    await session.start(AWAY)
    end = await session.end()
    assert end == CommandEnd("cmd_1", "exited", 0, left=1)
    assert "1 of its processes still run" in await session.output("cmd_1")
    for name in ("up", "never"):
        os.mkfifo(workspace / name)
    await session.start("trap '' TERM; echo > up; while :; do : < never; done")  # no process but the shell
    await asyncio.to_thread((workspace / "up").read_bytes)
    left = await session.router.end_commands()
    assert await session.end() == CommandEnd("cmd_2", "session_ended", 137)
    assert (left.ended, left.running) == (1, ())
    assert gone(workspace / "away")
    assert (await session.router.end_commands()).ended == 0
    assert GRACE_AT_END_S < 5


async def test_closing_without_an_end_leaves_nothing(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router()
    await router.execute(request("RunCommand", command="echo $$ > pid; exec sleep 60", background=True))
    await until(lambda: (workspace / "pid").exists() and (workspace / "pid").read_text().endswith("\n"))
    pid = int((workspace / "pid").read_text())
    await router.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
