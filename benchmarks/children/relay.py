"""The floor of a piece's way: httpx reads the gateway's answer, each piece goes to standard output as a JSON line.

python -m benchmarks.children.relay URL
"""

from __future__ import annotations

import asyncio
import os
import sys

import httpx
import orjson
from httpx_sse import aconnect_sse


async def main(url: str) -> None:
    async with (
        httpx.AsyncClient(timeout=300) as client,
        aconnect_sse(client, "POST", f"{url}/v1/messages", content=b"{}") as source,
    ):
        async for event in source.aiter_sse():
            if event.event == "content_block_delta":
                text = orjson.loads(event.data)["delta"]["text"]
                line = {"method": "SessionEvent", "params": {"eventType": "text_chunk", "payload": {"text": text}}}
                os.write(1, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
