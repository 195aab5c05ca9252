"""A small client of the Messages dialect, so that these tests share no code with what the gateway is built to test."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import orjson

# Never used, as all is plain HTTP; but httpx makes one for each client unless it is given one, at 20 ms apiece.
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def connect(url: str, *, read_timeout_s: float = 10) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(10, read=read_timeout_s), verify=_TLS)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str, name: str = "ReadFile") -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": name, "input": {}}]}


def result(call_id: str, text: str = "ok", *, is_error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": is_error}
    return {"role": "user", "content": [block]}


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "model": "test-model",
        "max_tokens": 64,
        "messages": list(messages or (user("hi"),)),
        "stream": True,
        **more,
    }


async def post(
    client: httpx.AsyncClient, *messages: dict[str, Any], session: str | None = None, **more: Any
) -> httpx.Response:
    headers = {"x-session-id": session} if session else {}
    return await client.post("/v1/messages", json=body(*messages, **more), headers=headers)


def events(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each one's name and data must agree."""
    found = []
    for part in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    deltas = [event.get("delta", {}) for event in events(response.content)]
    return "".join(delta["text"] for delta in deltas if delta.get("type") == "text_delta")


def tool_ids(response: httpx.Response) -> list[str]:
    blocks = [event.get("content_block", {}) for event in events(response.content)]
    return [block["id"] for block in blocks if block.get("type") == "tool_use"]
