"""Pieces of output: soon, whole, and no more than can be looked at."""

from __future__ import annotations

import asyncio

from agent_host.contracts import ToolRequest
from agent_host.events.emitter import MAX_PIECE_BYTES, VERBOSE_PIECE_BYTES, LiveOutput
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


async def test_a_progress_bar_is_seen_while_it_moves() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    live.take(REQUEST, "stderr", b"\r10 %\r20 %\r30")
    assert texts(watcher) == ["\r10 %\r20 %\r"]
    live.take(REQUEST, "stderr", b" %\r\n")
    live.end("c1")
    assert texts(watcher) == ["\r10 %\r20 %\r", "30 %\r\n"]


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
    half = "y\n" * (MAX_PIECE_BYTES // 4)
    cut = "y\n"  # the line that the gap ends in may not be whole
    assert texts(watcher) == [
        f"{half}\n[... {whole - MAX_PIECE_BYTES + len(cut)} bytes left out ...]\n{half.removeprefix(cut)}"
        for whole in (100_000, 999 * 100_000)
    ]


async def test_the_last_lines_of_a_flood_are_kept() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    live.take(REQUEST, "stdout", b"first\n" + "é\n".encode() * 50_000 + b"2 tests failed\nwait")
    assert texts(watcher)[0].startswith("first\n")
    assert texts(watcher)[0].endswith("\n2 tests failed\n")
    live.take(REQUEST, "stdout", b" for it\n")
    live.end("c1")
    assert texts(watcher)[1:] == ["wait for it\n"]


async def test_the_rest_of_a_private_key_behind_a_gap_is_left_out() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher))
    body = "MIIEvQIBADAN\n" * 100
    key = f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n"
    live.take(REQUEST, "stdout", ("y\n" * 50_000 + key + "z\n" * 1500).encode())
    live.end("c1")
    assert "MII" not in "".join(texts(watcher))
    assert texts(watcher)[0].endswith("left out ...]\n" + "z\n" * 1500)


async def test_more_of_a_flood_where_all_is_to_be_seen() -> None:
    watcher = Watcher()
    live = LiveOutput(emitter(watcher), max_bytes=VERBOSE_PIECE_BYTES)
    live.take(REQUEST, "stdout", b"y\n" * 50_000)
    assert texts(watcher) == ["y\n" * 50_000]
    live.end("c1")
