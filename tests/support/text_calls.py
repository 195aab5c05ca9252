"""A parser for the tool calls of a small model, in front of a server that gives them back as text.

Small models write a call as a JSON object, in a fence or not, and servers read only what their template marks as one.
`TextCalls` passes requests of Chat Completions on to such a server and its answers back, in which each object with the
name of an offered tool is a call. The text before the first brace or fence is passed on as it comes.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from agent_host.testing.dialects.openai_chat import read_request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_BEGINS = re.compile(r"[`{<]")
_PATIENCE_S = 3600


def calls_in(text: str, tools: Collection[str]) -> list[dict[str, str]]:
    """Name and arguments of each call in `text`. Line breaks inside of strings are taken as they are."""
    found, at = [], text.find("{")
    while at >= 0:
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, at)
        except ValueError:
            value, end = None, at + 1
        if isinstance(value, dict) and value.get("name") in tools and isinstance(value.get("arguments"), dict):
            found.append({"name": value["name"], "arguments": json.dumps(value["arguments"])})
        else:
            end = at + 1
        at = text.find("{", end)
    return found


@dataclass(slots=True)
class Exchange:
    """A request, and what the server counted for its answer; `usage` stays empty for an answer that was not read."""

    body: bytes
    usage: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    has_begun: threading.Event = field(default_factory=threading.Event)
    """Set once a piece of the answer has come."""

    @property
    def cached(self) -> int:
        """Tokens of the prompt that the server had in its cache."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


class TextCalls(ThreadingHTTPServer):
    """The parser, at `url`, in front of the server at `upstream`."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.exchanges: list[Exchange] = []
        self.problems: list[str] = []
        self.may_go_on = threading.Event()
        """An answer stops after its first piece until this is set."""
        self.may_go_on.set()


@contextlib.contextmanager
def parsing(upstream: str) -> Iterator[TextCalls]:
    """A parser that serves until the end of the block."""
    with TextCalls(upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: TextCalls

    def do_GET(self) -> None:
        with self._asked(None) as answer:
            self._begin(answer)
            self.wfile.write(answer.read())

    def do_POST(self) -> None:
        exchange = Exchange(self.rfile.read(int(self.headers["content-length"])))
        self.server.exchanges.append(exchange)
        began = time.monotonic()
        try:
            payload = json.loads(exchange.body)
            read_request(payload, dict(self.headers))
        except ValueError as error:
            self.server.problems.append(f"request {len(self.server.exchanges)}: {error}")
        tools = [tool["function"]["name"] for tool in payload.get("tools", ())]
        with self._asked(exchange.body) as answer, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._begin(answer)
            if answer.status != 200:
                self.wfile.write(answer.read())
                return
            for event in _with_calls(_chunks(answer), exchange, tools, f"call-{len(self.server.exchanges)}"):
                self.wfile.write(event)
                self.wfile.flush()
                if exchange.has_begun.is_set():
                    self.server.may_go_on.wait(_PATIENCE_S)
        exchange.seconds = time.monotonic() - began

    def _asked(self, body: bytes | None) -> Any:
        request = urllib.request.Request(self.server.upstream + self.path, body, {"content-type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=_PATIENCE_S)
        except urllib.error.HTTPError as error:
            return error

    def _begin(self, answer: Any) -> None:
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _chunks(answer: Any) -> Iterator[dict[str, Any]]:
    for line in answer:
        data = line.removeprefix(b"data:").strip()
        if data.startswith(b"{"):
            yield json.loads(data)


def _with_calls(
    chunks: Iterator[dict[str, Any]], exchange: Exchange, tools: Collection[str], call_id: str
) -> Iterator[bytes]:
    """The events of the answer. Text that may be a call is held until the answer ends; a comment stands for it, which
    fails once nobody reads on."""
    held = ""
    for chunk in chunks:
        exchange.usage = chunk.get("usage") or exchange.usage
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        if text or delta.get("tool_calls"):
            exchange.has_begun.set()
        if text:
            begins = _BEGINS.search(text)
            if held or begins:
                passed = "" if held or not begins else text[: begins.start()]
                held += text[len(passed) :]
                choice["delta"]["content"] = passed
        if choice.get("finish_reason") and held:
            calls = calls_in(held, tools)
            choice["delta"] = {"content": held} if not calls else {
                "tool_calls": [
                    {"index": number, "id": f"{call_id}-{number}", "type": "function", "function": call}
                    for number, call in enumerate(calls)
                ]
            }  # fmt: skip
            choice["finish_reason"] = "tool_calls" if calls else choice["finish_reason"]
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
