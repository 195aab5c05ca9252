"""Pieces of output: soon, whole, and no more than can be looked at."""

from __future__ import annotations

import asyncio

from agent_host.contracts import ToolRequest
from agent_host.events.live_output import MAX_PIECE_BYTES, LiveOutput
from tests.support.events import Watcher, emitter, problems

REQUEST = ToolRequest("RunCommand", {}, "s", "t", "step", "c1", "Shell.Exec")


def texts(watcher: Watcher) -> list[str]:
    return [event.payload["text"] for event in watcher.events]


async def test_the_first_piece_goes_at_once_and_the_next_ones_together() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    live.take(REQUEST, "stdout", b"one\n")
    assert texts(watcher) == ["one\n"]
    live.take(REQUEST, "stdout", b"two\n")
    live.take(REQUEST, "stdout", b"three\n")
    live.take(REQUEST, "stderr", b"oops\n")
    assert texts(watcher) == ["one\n", "oops\n"]
    async with asyncio.timeout(5):
        while len(watcher.events) < 3:  # noqa: ASYNC110  a watcher has no event to wait for
            await asyncio.sleep(0.001)
    assert texts(watcher)[2] == "two\nthree\n"
    assert [problems(event.envelope) for event in watcher.events] == [[], [], []]
    assert {(event.task_id, event.step_id) for event in watcher.events} == {("t", "step")}
    live.end("c1")
    assert len(watcher.events) == 3


async def test_the_end_sends_what_waits() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    euro = "€".encode()
    for piece in (b"a" + euro[:1], euro[1:], euro[:2]):
        live.take(REQUEST, "stdout", piece)
    assert texts(watcher) == []  # the line may go on
    live.end("c1")
    live.end("c1")
    assert texts(watcher) == ["a€�"]


async def test_a_line_without_an_end_goes_out_when_nothing_more_comes() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    live.take(REQUEST, "stdout", b"one\nPassword: ")
    assert texts(watcher) == ["one\n"]
    async with asyncio.timeout(5):
        while len(watcher.events) < 2:  # noqa: ASYNC110  a watcher has no event to wait for
            await asyncio.sleep(0.001)
    assert texts(watcher) == ["one\n", "Password: "]


async def test_a_private_key_is_not_cut() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    begin, body, end = "-----BEGIN PRIVATE KEY-----\n", "MIIEvQIBADAN\n", "-----END PRIVATE KEY-----\n"
    live.take(REQUEST, "stdout", f"before\n{begin}{body}".encode())
    assert texts(watcher) == ["before\n"]
    live.take(REQUEST, "stdout", (body + end).encode())
    live.end("c1")
    assert texts(watcher) == ["before\n", begin + body + body + end]


async def test_a_flood_is_cut_and_says_so() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    for _ in range(1000):
        live.take(REQUEST, "stdout", b"y\n" * 50_000)
    live.end("c1")
    first, second = texts(watcher)
    assert first.endswith(f"[... {100_000 - MAX_PIECE_BYTES} bytes left out ...]\n")
    assert second.endswith(f"[... {999 * 100_000 - MAX_PIECE_BYTES} bytes left out ...]\n")
    assert len(second) < MAX_PIECE_BYTES + 100
