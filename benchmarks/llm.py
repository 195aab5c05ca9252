"""The model's side: what a session's requests cost under a provider's cache, and how fast an answer is read.

The price is simulated with the scripted gateway's cache: a token sent is 1, one written to the cache 1.25, one read
from it 0.1. The figure is the ratio of these token equivalents to all tokens that were sent. An answer is read from a
gateway in a process of its own, by our client and by the official SDK in turns; both put the answer together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anthropic
import openai
import orjson

from agent_host.contracts import Subject, ToolSpec
from agent_host.ids import MACHINE
from agent_host.llm.client import LlmClient
from agent_host.llm.known_dialects import NAMES, make_dialect
from agent_host.llm.network import AnswerLimits, GatewayTimeouts
from agent_host.testing.dialects import PromptCache, tokens_of
from agent_host.testing.gateway import WIRES, Script
from agent_host.testing.script import RequestView
from agent_host.thread import Thread
from agent_host.thread.messages import Message, ToolCall
from benchmarks.processes import PROGRAM, scratch
from benchmarks.report import Row, medians
from config.load import load

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from agent_host.llm.dialects import Dialect

_READ, _WRITTEN = 0.1, 1.25
_ALL = 10**9
_SYSTEM = "You are a careful software agent. " * 80
_TOOLS = [
    ToolSpec(
        f"Tool{number}",
        "Does one thing well. " * 20,
        {"type": "object", "properties": {"path": {"type": "string"}}},
        "File.Read",
        Subject("path", "path"),
        "none",
        "files",
    )
    for number in range(12)
]
_WIRES = {wire.path: wire for wire in WIRES}
_QUESTION = "Tell me all."


class Work(NamedTuple):
    """A session's steps: how many, the calls of each, and the tokens of its window. A result has 2 KB."""

    steps: int
    calls: int
    window: int = _ALL


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[Row | str]:
    """The price of sessions, then the speed of reading."""
    steps, rounds, pieces = (60, 3, 2_000) if chosen.quick else (200, 11, 10_000)
    for name in NAMES:
        dialect = _dialect(name)
        yield f"{name}: token equivalents against tokens sent"
        # In fewer steps less is read again than is written once.
        whole_goal = 0.12 if steps == 200 else None
        yield _price(dialect, f"  {steps} steps, a window that holds all", Work(steps, 1), whole_goal)
        yield _price(dialect, f"  {steps} steps, a window of 40,000 tokens", Work(steps, 1, 40_000), 0.2)
        yield _price(dialect, "  30 steps of 12 parallel calls", Work(30, 12), 0.4)
    with scratch() as folder:
        yield from _reading(folder, rounds, pieces)
    for name in NAMES:
        waits = asyncio.run(_waits(name, 100 if chosen.quick else 1000))
        p99, median = statistics.quantiles(waits, n=100)[98], statistics.median(waits)
        # One of a hundred is one moment in which another process had the processor.
        goal = None if chosen.quick else 0.3
        yield Row(f"{name}: a chunk to its text, 99 of 100", p99, "ms", goal, f"median {median:.2f} ms")


def _dialect(name: str) -> Dialect:
    return make_dialect(name, load({}, workspace=None, environ={}))


def _price(dialect: Dialect, what: str, work: Work, goal: float | None) -> Row:
    sent, equivalents = _token_equivalents(dialect, work)
    return Row(what, equivalents / sent, "", goal, f"{sent / 1e6:.2f}M sent, {equivalents / 1e6:.2f}M equivalents")


def _token_equivalents(dialect: Dialect, work: Work) -> tuple[float, float]:
    """Tokens sent by all requests of a session, and what they cost."""
    wire, cache = _WIRES[dialect.path], PromptCache()
    thread = Thread(dialect.renderer("m"))
    thread.add_task(Message("user", "Repair the project.", 20))
    head = dialect.head(model="m", max_output_tokens=1000, system=_SYSTEM, tools=_TOOLS, session_id="s")
    sent = equivalents = 0.0
    for step in range(work.steps):
        thread.fit(work.window - tokens_of(head))
        request = orjson.loads(b"".join([head, *thread.encode_window(), dialect.tail]))
        counts = cache.count("m", wire.pieces(request), has_marks=wire.has_cache_marks)
        sent += counts.total
        fresh = counts.total - counts.read - counts.written
        equivalents += fresh + _WRITTEN * counts.written + _READ * counts.read
        calls = tuple(ToolCall(f"c{step}_{call}", "Tool1", {"path": f"/w/{step}/{call}"}) for call in range(work.calls))
        results = [_result(call.call_id) for call in calls]
        thread.add_exchange(Message("assistant", f"Step {step}: I read on.", 40 * work.calls, calls), results)
    return sent, equivalents


def _result(call_id: str) -> Message:
    text = (f"{call_id} a line of output\n" * 200)[:2048]
    return Message("tool", text, tokens_of(text.encode()) + 20, tool_call_id=call_id)


def _reading(folder: str, rounds: int, pieces: int) -> Iterator[Row]:
    """One long answer, read by our client and by the official SDK."""
    script = os.path.join(folder, "script.jsonl")
    with open(script, "w", encoding="utf-8") as file:
        file.write(json.dumps({"text": "some words of the answer, " * pieces, "chunk_chars": 26}))
    command = [PROGRAM, "mock-gateway", "--script", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        if gateway.stdout is None:
            raise RuntimeError("the gateway was started with a pipe")
        try:
            url = gateway.stdout.readline().decode().strip()
            for name in NAMES:
                ours, theirs = asyncio.run(_both(name, url, rounds))
                each = f"{ours / pieces * 1e6:.1f} / {theirs / pieces * 1e6:.1f} µs an event"
                yield Row(f"{name}: reading an answer, against the official SDK", ours / theirs, "x", 1 / 3, each)
        finally:
            gateway.terminate()


async def _both(name: str, url: str, rounds: int) -> tuple[float, float]:
    """Seconds for one answer: ours, and the SDK's."""
    dialect = _dialect(name)
    limits = AnswerLimits(_ALL, _ALL, _ALL, _ALL)
    client = LlmClient(
        url, None, dialect, time=MACHINE.time, session_id="s", timeouts=GatewayTimeouts(10, 60, 60, 600), limits=limits
    )
    thread = Thread(dialect.renderer("m"))
    thread.add_task(Message("user", _QUESTION, 5))
    head = dialect.head(model="m", max_output_tokens=1000, system="", tools=(), session_id="s")

    async def ours() -> None:
        await client.stream(head, thread.encode_window(), _shown.append)

    try:
        async with _SDKS[name](url) as theirs:
            mine, sdk = medians([(await _seconds(ours), await _seconds(theirs)) for _ in range(rounds)])
    finally:
        await client.aclose()
    return mine, sdk


async def _waits(name: str, pieces: int) -> list[float]:
    """Milliseconds from when a piece of the answer is written to the socket to the call with its text, at 500 pieces a
    second. Server and client are on one event loop, so that no other process is waited for."""
    dialect = _dialect(name)
    turn = Script.from_turns([{"text": "x" * pieces, "chunk_chars": 1}]).turns[0]
    view = RequestView("s", "m", "", 10, True, (), 1, 0, 0, "user", "hi", False, {})
    events = _WIRES[dialect.path].stream_events(turn, view)
    waits: list[float] = []
    written = 0.0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for event in events:
            await asyncio.sleep(0.002)
            written = time.perf_counter()
            writer.write(event)
        writer.close()

    def on_text(_: str) -> None:
        waits.append((time.perf_counter() - written) * 1000)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        url, limits = f"http://{host}:{port}", AnswerLimits(_ALL, _ALL, _ALL, _ALL)
        client = LlmClient(
            url,
            None,
            dialect,
            time=MACHINE.time,
            session_id="s",
            timeouts=GatewayTimeouts(10, 60, 60, 600),
            limits=limits,
        )
        thread = Thread(dialect.renderer("m"))
        thread.add_task(Message("user", _QUESTION, 5))
        head = dialect.head(model="m", max_output_tokens=1000, system="", tools=(), session_id="s")
        try:
            await client.stream(head, thread.encode_window(), on_text)
        finally:
            await client.aclose()
    return waits[pieces // 10 :]  # the first ones import


_shown: list[str] = []


async def _seconds(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


@contextlib.asynccontextmanager
async def _anthropic_sdk(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:

        async def read() -> None:
            messages: Any = [{"role": "user", "content": _QUESTION}]
            async with client.messages.stream(model="m", max_tokens=1000, messages=messages) as stream:
                _shown.extend([event.text async for event in stream if event.type == "text"])

        yield read


@contextlib.asynccontextmanager
async def _openai_sdk(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def read() -> None:
            messages: Any = [{"role": "user", "content": _QUESTION}]
            async with client.chat.completions.stream(model="m", messages=messages) as stream:
                _shown.extend([event.delta async for event in stream if event.type == "content.delta"])

        yield read


@contextlib.asynccontextmanager
async def _responses_sdk(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def read() -> None:
            async with client.responses.stream(model="m", input=_QUESTION) as stream:
                _shown.extend([event.delta async for event in stream if event.type == "response.output_text.delta"])

        yield read


_SDKS: Mapping[str, Callable[[str], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]] = {
    "anthropic": _anthropic_sdk,
    "openai": _openai_sdk,
    "responses": _responses_sdk,
}
