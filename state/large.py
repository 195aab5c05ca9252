"""Large parts of messages: in a snapshot they stand in a blob of their own, so that it stays small and equal texts are
kept once. Journal and memory hold messages whole.

    {"role": "tool", "content": "", ..., "contentBlob": {"sha256": "...", "bytes": 81920}}

The same goes for a call's `arguments`, beside which `argumentsBlob` stands, for a block's `raw` and its `rawBlob`, and
for a picture's `data`, which is base64: its `dataBlob` names the picture itself.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import orjson

from state.blobs import sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Parts of this size are worth a file of their own.
LARGE_BYTES = 16 * 1024
_MARK = b'Blob":{"sha256":"'


def shorten(message: bytes) -> tuple[bytes, list[bytes]]:
    """The message with its large parts named, and these parts."""
    if len(message) <= LARGE_BYTES:
        return message, []
    wire = orjson.loads(message)
    parts: list[bytes] = []
    content = wire["content"].encode()
    if len(content) > LARGE_BYTES:
        wire |= {"content": "", "contentBlob": _reference(content)}
        parts.append(content)
    for call in wire.get("toolCalls", ()):
        arguments = orjson.dumps(call["arguments"])
        if len(arguments) > LARGE_BYTES:
            call |= {"arguments": {}, "argumentsBlob": _reference(arguments)}
            parts.append(arguments)
    for block in wire.get("blocks", ()):
        raw = block["raw"].encode()
        if len(raw) > LARGE_BYTES:
            block |= {"raw": "", "rawBlob": _reference(raw)}
            parts.append(raw)
    for image in wire.get("images", ()):
        data = b64decode(image["data"])
        if len(data) > LARGE_BYTES and b64encode(data).decode() == image["data"]:  # else it would come back changed
            image |= {"data": "", "dataBlob": _reference(data)}
            parts.append(data)
    return (orjson.dumps(wire), parts) if parts else (message, [])


def restore(message: bytes, get: Callable[[str], bytes | None]) -> tuple[bytes, list[str]]:
    """The whole message again, and the names of the parts that `get` no longer has: in their place stands a word about
    it, so that the thread can still be sent; a lost block or picture stays empty. A blob that is put back is found
    again."""
    if _MARK not in message:
        return message, []
    wire = orjson.loads(message)
    lost: list[str] = []
    for holder, key in _holders(wire):
        reference = holder.pop(f"{key}Blob")
        part = _part(key, get(reference["sha256"]))
        if part is None:
            lost.append(reference["sha256"])
            said = f"{reference['bytes']} bytes that stood here were damaged on disk and are lost"
            if key == "content":
                holder[key] = f"[{said}]"
            elif key == "arguments":  # a call that cannot be made any more
                holder["problem"] = said
            elif key == "data":
                wire["content"] += f"\n[A picture of {said}]"
        else:
            holder[key] = part
    # In a buffer of its own size: orjson's can be ten times as large, and the message is kept for the session's life.
    return bytes(memoryview(orjson.dumps(wire))), lost


def _part(key: str, data: bytes | None) -> str | dict[str, Any] | None:
    """The stored part for `key`; None when it is gone, or is the blob of something else."""
    try:
        if data is None:
            return None
        if key == "data":
            return b64encode(data).decode()
        if key != "arguments":
            return data.decode()
        arguments = orjson.loads(data)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def blobs_in(message: bytes) -> list[str]:
    """The blobs that a shortened message names."""
    if _MARK not in message:
        return []
    return [holder[f"{key}Blob"]["sha256"] for holder, key in _holders(orjson.loads(message))]


def _reference(data: bytes) -> dict[str, Any]:
    return {"sha256": sha256_hex(data), "bytes": len(data)}


def _holders(wire: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    if "contentBlob" in wire:
        yield wire, "content"
    for call in wire.get("toolCalls", ()):
        if "argumentsBlob" in call:
            yield call, "arguments"
    for block in wire.get("blocks", ()):
        if "rawBlob" in block:
            yield block, "raw"
    for image in wire.get("images", ()):
        if "dataBlob" in image:
            yield image, "data"
