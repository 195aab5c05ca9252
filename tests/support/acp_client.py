"""An editor of `agent-host acp`, by hand: every message in both directions is checked against the protocol's schema.

Every wait is bounded. What the agent asks is answered by `answers`, by method, at once; one that has none waits in
`open_requests`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.acp_schema import Recorder
from tests.support.node_packages import missing
from tests.support.process import PATIENCE_S, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.process import Host

    Answer = Callable[[dict[str, Any]], dict[str, Any]]

EVERYTHING: dict[str, Any] = {
    "session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}},
    "auth": {"terminal": True},
    "elicitation": {"form": {}, "url": {}},
}


def need_packages() -> None:
    """Skip a test whose schema or clients are not installed."""
    if missing():
        pytest.skip(f"not installed: {missing()}; run `python -m tests.support.node_packages`")


class Refused(Exception):
    """An error that the agent answered with."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: dict[str, Any] = error.get("data", {})


def choose(option: str) -> Answer:
    """Choose an option of a permission request; `cancelled` chooses none."""

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if option == "cancelled":
            return {"outcome": {"outcome": "cancelled"}}
        assert option in [one["optionId"] for one in asked["options"]], asked
        return {"outcome": {"outcome": "selected", "optionId": option}}

    return answer


class Editor:
    """One connection to an agent in a process of its own."""

    def __init__(self, host: Host, *options: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> None:
        need_packages()
        words = ["acp", *(os.fspath(option) for option in options)]
        self._popen = host.launch("agent_host", words, piped=True, env=env)
        self.recorder = Recorder()
        self.answers: dict[str, Answer] = {}
        self.open_requests: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self._ids = iter(range(1, 1_000_000))
        self._replies: dict[str, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._stderr = bytearray()
        self.is_over = False
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._read, self._read_stderr)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The id of the agent's process."""
        return self._popen.pid

    # Saying

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(data)
        self._popen.stdin.flush()

    def send(self, method: str, params: Mapping[str, Any], *, is_checked: bool = True) -> int:
        """Send a request; its id."""
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        with self._news:
            self.recorder.take("client", message, is_checked=is_checked)
        self.raw(json.dumps(message).encode() + b"\n")
        return number

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        with self._news:
            self.recorder.take("client", message)
        self.raw(json.dumps(message).encode() + b"\n")

    def answer(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        """Answer a request of the agent."""
        message = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        with self._news:
            self.recorder.take("client", message)
        self.raw(json.dumps(message).encode() + b"\n")

    def call(self, method: str, *, is_checked: bool = True, **params: Any) -> dict[str, Any]:
        """The result of a request. Raises Refused."""
        return self.reply(self.send(method, params, is_checked=is_checked))

    def refusal(self, method: str, *, is_checked: bool = True, **params: Any) -> Refused:
        """The error of a request that has to be refused."""
        with pytest.raises(Refused) as caught:
            self.call(method, is_checked=is_checked, **params)
        return caught.value

    # The usual requests

    def initialize(self, capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
        """Begin, as an editor that can do all, or with these capabilities."""
        offered = EVERYTHING if capabilities is None else capabilities
        info = {"name": "test-editor", "version": "1.2.3"}
        return self.call("initialize", protocolVersion=1, clientCapabilities=offered, clientInfo=info)

    def new(self, workspace: Path, **more: Any) -> str:
        """A new session; its id."""
        return str(self.call("session/new", **{"cwd": str(workspace), "mcpServers": [], **more})["sessionId"])

    def prompt(self, session_id: str, text: str = "Do it.") -> str:
        """Run a prompt to its end; why it stopped."""
        return str(self.reply(self.begin(session_id, text))["stopReason"])

    def begin(self, session_id: str, text: str = "Do it.") -> int:
        """Send a prompt; the id of the request."""
        return self.send("session/prompt", {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]})

    # Hearing

    def reply(self, number: int | str | None) -> dict[str, Any]:
        """The result of the request of that id. Raises Refused."""
        key = json.dumps(number)
        self.wait(lambda: key in self._replies, f"the answer to {key}")
        answer = self._replies.pop(key)
        if "error" in answer:
            raise Refused(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def updates(self, kind: str | None = None, session_id: str | None = None) -> list[dict[str, Any]]:
        """The updates so far, of this kind, of this session."""
        with self._news:
            said = [one["params"] for one in self.recorder.of("agent") if one.get("method") == "session/update"]
        return [
            one["update"]
            for one in said
            if kind in (None, one["update"]["sessionUpdate"]) and session_id in (None, one["sessionId"])
        ]

    def text(self, session_id: str | None = None, kind: str = "agent_message_chunk") -> str:
        """The text that the agent said."""
        return "".join(one["content"]["text"] for one in self.updates(kind, session_id))

    def notices(self) -> list[str]:
        """The titles of notices."""
        return [one["title"] for one in self.updates("notice")]

    def call_of(self, call_id: str) -> dict[str, Any]:
        """A tool call with all its updates taken in."""
        merged: dict[str, Any] = {}
        for one in self.updates():
            if one.get("toolCallId") == call_id:
                merged |= one
        return merged

    def asked(self, method: str) -> dict[str, Any]:
        """The first request of the agent of this method that waits for an answer; it is taken out."""
        self.wait(lambda: any(one["method"] == method for one in self.open_requests), f"a {method}")
        found = next(one for one in self.open_requests if one["method"] == method)
        self.open_requests.remove(found)
        return found

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the agent has said something."""
        with self._news:
            done = self._news.wait_for(lambda: condition() or self.is_over or self.wrong, PATIENCE_S)
            assert not self.wrong, self.wrong
            assert done, f"not within {PATIENCE_S} s: {what}"
            assert condition(), (f"{what} never came", self._stderr.decode(), self.recorder.messages[-3:])

    # The end

    def leave(self) -> Outcome:
        """Close the connection and wait for the end, which has to be a good one."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        code = self._popen.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not self.wrong, self.wrong
        outcome = Outcome(code, b"", self._stderr.decode(errors="replace"))
        assert "Traceback" not in outcome.stderr, outcome.stderr
        assert "never retrieved" not in outcome.stderr, outcome.stderr
        assert code == 0, outcome
        return outcome

    def close(self) -> None:
        """End it, if it still runs."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._take(line)
        with self._news:
            self.is_over = True
            self._news.notify_all()

    def _take(self, line: bytes) -> None:
        with self._news:
            try:
                message = json.loads(line)
                self.recorder.take("agent", message)
            except (AssertionError, ValueError) as error:
                self.wrong.append(f"{error}: {line[:2000]!r}")
                self._news.notify_all()
                return
            if "method" not in message:
                self._replies[json.dumps(message["id"])] = message
            elif message["method"] == "$/cancel_request":
                self.open_requests = [one for one in self.open_requests if one["id"] != message["params"]["requestId"]]
            elif "id" in message and message["method"] not in self.answers:
                self.open_requests.append(message)
            self._news.notify_all()
        if "id" in message and message.get("method") in self.answers:
            self.answer(message, self.answers[message["method"]](message["params"]))

    def _read_stderr(self) -> None:
        assert self._popen.stderr is not None
        with self._popen.stderr as pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._stderr += chunk
