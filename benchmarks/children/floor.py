"""The yardstick: the least that an agent session with a durable log can cost in Python with httpx.

No policy, no tool framework, no recovery: one pooled client, server-sent events, every message encoded once and kept as
bytes, an append-only log synced once before and once after the tools of a step. `python -m benchmarks loop` measures
the product against it. Whatever makes this file faster without giving up the log belongs in it.

    python -m benchmarks.children.floor --gateway http://127.0.0.1:8080 --log /tmp/floor.log --prompt "Do it."
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import orjson
from httpx_sse import aconnect_sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def read_file(arguments: dict[str, Any]) -> str:
    with open(arguments["path"], encoding="utf-8") as file:  # noqa: ASYNC230 - a local read is faster than a thread
        return file.read()


async def write_file(arguments: dict[str, Any]) -> str:
    with open(arguments["path"], "w", encoding="utf-8") as file:  # noqa: ASYNC230
        return f"Wrote {file.write(arguments['content'])} characters"


async def run_command(arguments: dict[str, Any]) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", arguments["command"], cwd=arguments.get("cwd"), stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    return f"Exit code: {process.returncode}\n--- stdout ---\n{out.decode()}\n--- stderr ---\n{err.decode()}"


HEADERS = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
TOOLS = {"ReadFile": read_file, "WriteFile": write_file, "RunCommand": run_command}


async def once(body: bytes) -> AsyncIterator[bytes]:
    """`body` as a stream: httpx's requests and responses refer to each other, and one that holds its body as bytes
    keeps it until the garbage collector comes round, which for long threads costs memory and time."""
    yield body


async def call_llm(client: httpx.AsyncClient, body: bytes) -> list[dict[str, Any]]:
    """One request; the content blocks of the answer."""
    blocks: list[dict[str, Any]] = []
    parts: list[list[str]] = []
    headers = HEADERS | {"content-length": str(len(body))}
    async with aconnect_sse(client, "POST", "/v1/messages", content=once(body), headers=headers) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            if event.event == "content_block_delta":
                delta = orjson.loads(event.data)["delta"]
                parts[-1].append(delta["text"] if delta["type"] == "text_delta" else delta["partial_json"])
            elif event.event == "content_block_start":
                blocks.append(orjson.loads(event.data)["content_block"])
                parts.append([])
    for block, pieces in zip(blocks, parts, strict=True):
        if block["type"] == "text":
            block["text"] = "".join(pieces)
        else:
            block["input"] = orjson.loads("".join(pieces) or "{}")
    return blocks


async def run(arguments: argparse.Namespace) -> dict[str, int]:
    started_ns = time.perf_counter_ns()
    log = os.open(arguments.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    written = steps = 0
    # What stands before the messages is the same in each request: encoded once, like the messages themselves.
    head = {"model": arguments.model, "max_tokens": 16_384, "stream": True}
    if arguments.system:
        head["system"] = arguments.system
    if arguments.tools_json:
        with open(arguments.tools_json, "rb") as file:  # noqa: ASYNC230 - once, before the session
            head["tools"] = orjson.loads(file.read())
    # Commas are parts too, so that a body is one copy of its bytes and no more.
    parts = [orjson.dumps(head)[:-1], b',"messages":[', orjson.dumps({"role": "user", "content": arguments.prompt})]
    async with httpx.AsyncClient(base_url=arguments.gateway, timeout=300) as client:
        while True:
            blocks = await call_llm(client, b"".join([*parts, b"]}"]))
            steps += 1
            calls = [block for block in blocks if block["type"] == "tool_use"]
            parts += (b",", orjson.dumps({"role": "assistant", "content": blocks}))
            written += os.write(log, parts[-1] + b"\n")
            os.fdatasync(log)
            if not calls:
                break
            results = await asyncio.gather(*(TOOLS[call["name"]](call["input"]) for call in calls))
            content = [
                {"type": "tool_result", "tool_use_id": call["id"], "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
            parts += (b",", orjson.dumps({"role": "user", "content": content}))
            written += os.write(log, parts[-1] + b"\n")
            os.fdatasync(log)
    os.close(log)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    duration_ms = (time.perf_counter_ns() - started_ns) // 1_000_000
    return {"steps": steps, "durationMs": duration_ms, "peakRssKb": peak, "bytesWritten": written}


def main() -> None:
    parser = argparse.ArgumentParser(description="A bare agent loop, to measure the product against.")
    parser.add_argument("--gateway", required=True, help="base URL of an Anthropic-style gateway")
    parser.add_argument("--log", required=True, help="file that the messages are appended to")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--model", default="mock-model")
    parser.add_argument("--system", default="")
    parser.add_argument("--tools-json", help="file with the tool definitions, as the gateway takes them")
    print(orjson.dumps(asyncio.run(run(parser.parse_args()))).decode())


if __name__ == "__main__":
    main()
