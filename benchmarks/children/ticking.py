"""A gateway that answers with many small pieces of text, each the moment it was sent; prints its URL.

    python -m benchmarks.children.ticking PIECES AT_ONCE INTERVAL_S [PARAGRAPH]

A piece is `time.monotonic_ns()` and a space, padded to 40 characters; AT_ONCE of them go out every INTERVAL_S seconds.
With PARAGRAPH it is not padded, and so many of them are a paragraph.
The shipped mock gateway sends what stands in its script, so it cannot tell the time.
"""

from __future__ import annotations

import asyncio
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'"usage":{"input_tokens":1,"output_tokens":1}'
START = b'{"type":"message_start","message":{' + USAGE + b"}}"
BLOCK = b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'
END = (
    b'{"type":"content_block_stop","index":0}',
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},' + USAGE + b"}",
    b'{"type":"message_stop"}',
)


def sse(data: bytes) -> bytes:
    """One server-sent event as an HTTP chunk."""
    event = b"event: " + data.split(b'"', 4)[3] + b"\ndata: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def piece(number: int, paragraph: int) -> bytes:
    text = f"{time.monotonic_ns()} "
    text = text.ljust(40, ".") if not paragraph else text + r"\n\n" * (number % paragraph == paragraph - 1)
    return sse(
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"' + text.encode() + b'"}}'
    )


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: int, at_once: int, s: float, paragraph: int
) -> None:
    """Every request on one connection; each gets its pieces at its own steady beat."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET "):  # which model a local server has
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            (length,) = (line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-len"))
            await reader.readexactly(int(length))
            writer.write(HEAD + sse(START) + sse(BLOCK))
            due = time.monotonic()
            for group in range(pieces // at_once):
                writer.write(b"".join(piece(group * at_once + number, paragraph) for number in range(at_once)))
                await writer.drain()
                due += s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(b"".join(map(sse, END)) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(pieces: int, at_once: int, interval_s: float, paragraph: int = 0) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: answer(reader, writer, pieces, at_once, interval_s, paragraph), "127.0.0.1", 0
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:])))
