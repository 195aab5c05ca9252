"""The agent for editors (`agent-host acp`): a new session, and a piece of text from the gateway to the editor.

It takes about a minute; --quick opens fewer sessions and sends fewer pieces. The fork server is warm: the first
sessions are not counted. Figures are medians unless they say otherwise.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.processes import PROGRAM, scratch
from benchmarks.report import Row
from benchmarks.session import Latency, latency_of, relayed, ticking

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

_WARM: int = 2


class Editor:
    """One `acp` process on pipes, and the editor at its other end."""

    def __init__(self, folder: str, gateway: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        self._ids = itertools.count(1)
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        words = [PROGRAM, "acp", "--gateway", gateway, "--state-dir", os.path.join(folder, "state"), *options]
        self.folder = folder
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**own, **(env or {})}
        )
        self.request("initialize", protocolVersion=1)

    def send(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        pipe = self.process.stdin
        if pipe is None:
            raise RuntimeError("the process was started with a pipe")
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        pipe.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        pipe.flush()
        return number

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one request; updates on the way are skipped."""
        number = self.send(method, **params)
        while (answer := orjson.loads(self.line())).get("id") != number:
            pass
        if "result" not in answer:
            sys.exit(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def new(self) -> str:
        """A new session."""
        return str(self.request("session/new", cwd=self.folder, mcpServers=[])["sessionId"])

    def line(self) -> bytes:
        """The next line of the process."""
        pipe = self.process.stdout
        line = b"" if pipe is None else pipe.readline()
        if not line:
            sys.exit("the agent has ended")
        return line

    def prompt(self, session_id: str) -> list[bytes]:
        """Play a prompt to its end; each piece of text as an event, behind the moment it arrived."""
        number = self.send("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "Tell me."}])
        found: list[bytes] = []
        while True:
            line, now = self.line(), time.monotonic_ns()
            message = orjson.loads(line)
            if message.get("id") == number:
                return found
            update = message.get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                event = {"params": {"payload": {"text": update["content"]["text"]}}}
                found.append(b"%d %b" % (now, orjson.dumps(event)))

    def end(self) -> None:
        """A clean end."""
        self.process.communicate()


def new_session(folder: str, runs: int) -> Iterator[Row]:
    """From the request to the reply, which names modes and options."""
    for name, goal, fork_server in (
        ("with a warm fork server", 100, "true"),
        ("with a fresh interpreter", None, "false"),
    ):
        path = os.path.join(folder, f"{fork_server}.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"[clients]\nfork_server = {fork_server}\n")
        editor = Editor(folder, "http://127.0.0.1:9", env={"AGENT_HOST_CONFIG": path})
        took = []
        for number in range(runs + _WARM):
            began = time.perf_counter()
            session_id = editor.new()
            if number >= _WARM:
                took.append((time.perf_counter() - began) * 1000)
            editor.request("session/close", sessionId=session_id)
        editor.end()
        yield Row(f"session/new {name}", statistics.median(took), "ms", goal, f"longest {max(took):.0f} ms")


def piece_of_text(folder: str, pieces: int, rounds: int) -> Iterator[Row]:
    """A piece's way from the gateway to the editor, at 500 pieces a second."""
    floors, ours = [], []
    with ticking(pieces, 1, 0.002) as url:
        editor = Editor(folder, url)
        session_id = editor.new()
        editor.prompt(session_id)  # imports and connects
        for _ in range(rounds):
            floors.append(latency_of(relayed(url)))
            ours.append(latency_of(editor.prompt(session_id)))
        editor.end()
    median = Latency(*map(statistics.median, zip(*ours, strict=True)))
    floor = Latency(*map(statistics.median, zip(*floors, strict=True)))
    yield Row(
        "a piece of text from the gateway at the editor, median", median.median, "ms", 5, f"floor {floor.median:.2f} ms"
    )
    yield Row("the same, 99 of 100", median.p99, "ms", None, f"floor {floor.p99:.2f} ms")


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""
    del parser


def rows(chosen: argparse.Namespace) -> Iterator[Row | str]:
    """See the module."""
    with scratch() as folder:
        yield from new_session(folder, 5 if chosen.quick else 25)
        yield from piece_of_text(folder, 500 if chosen.quick else 2000, 2 if chosen.quick else 5)
