"""A client of a real `agent-host serve`, see `tests/support/serve_process.py`. Every wait is bounded, none is a sleep.

What the process says is read by a thread and looked at line by line: a line that is no JSON-RPC 2.0 fails the test.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from tests.support.process import PATIENCE_S, checked
from tests.support.serve_page import check_answer

if TYPE_CHECKING:
    from collections.abc import Callable

WHO = {
    "userId": "u",
    "tenantId": "t",
    "executionEnvironment": "desktop",
    "clientInfo": {"name": "test"},
    "supportedCapabilities": ["File.Read"],
}


class Refused(Exception):
    """An error object of the server."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        assert set(error) == {"code", "message", "data"}, error
        assert set(error["data"]) <= {"code", "retryable", "details"}, error
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.name: str = error["data"]["code"]
        self.retryable: bool = error["data"]["retryable"]
        self.details: dict[str, Any] = error["data"].get("details", {})

    @property
    def what(self) -> tuple[int, str, bool]:
        """Number, name, and whether another try may help."""
        return self.code, self.name, self.retryable


class Client:
    """One side of a conversation; `read` gives b"" at its end, `write` sends all, `end` says that no more comes."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._read, self._write, self._end = read, write, end
        self.half_close: Callable[[], None] = end
        self._ids = iter(range(1, 1_000_000))
        self._replies: dict[str, dict[str, Any]] = {}
        self._methods: dict[str, str] = {}
        self._reading = threading.Event()
        self._reading.set()
        self._news = threading.Condition()
        self.wrong: list[bytes] = []
        self.events: list[dict[str, Any]] = []
        self.replayed: list[dict[str, Any]] = []
        self.came: list[dict[str, Any]] = []
        """Every message, in order."""
        self.batches: list[list[dict[str, Any]]] = []
        self.cut_off = b""
        self.over = False
        self.session_id = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # Saying

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._write(data)

    def send(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        number = next(self._ids)
        self._methods[json.dumps(number)] = method
        self.raw(line({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return number

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.raw(line({"jsonrpc": "2.0", "method": method, "params": params}))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request. Raises Refused."""
        return result(self.reply(self.send(method, **params)))

    def refusal(self, method: str, **params: Any) -> Refused:
        """The error of a request that has to be refused."""
        answer = self.reply(self.send(method, **params))
        assert "error" in answer, answer
        return Refused(answer["error"])

    def batch(self, *members: Any) -> list[dict[str, Any]]:
        """The one array that answers a batch."""
        had = len(self.batches)
        self.raw(line(list(members)))
        self.wait(lambda: len(self.batches) > had, "the answer to a batch")
        return self.batches[-1]

    def done(self) -> None:
        """Nothing more will be said; a client of a socket is gone."""
        self._end()

    # Hearing

    def reply(self, number: Any) -> dict[str, Any]:
        """The answer to the request of that id; None is the id of what could not be read."""
        key = json.dumps(number)
        self.wait(lambda: key in self._replies, f"the answer to {key}")
        answer = self._replies.pop(key)
        check_answer(self._methods.get(key, ""), answer)
        return answer

    def event(self, kind: str, after: int = 0, **payload: Any) -> dict[str, Any]:
        """The first event of this type with a number above `after` whose payload holds `payload`."""

        def found() -> list[dict[str, Any]]:
            later = [one for one in self.events if one["eventType"] == kind and one["eventId"] > after]
            return [one for one in later if {**one["payload"], **payload} == one["payload"]]

        self.wait(found, f"event {kind} {payload or ''}")
        return found()[0]

    @property
    def kinds(self) -> list[str]:
        """Types of the events so far."""
        return [event["eventType"] for event in self.events]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until `condition` holds or the server ends the conversation; an AssertionError names `what` did not come."""
        with self._news:
            self._news.wait_for(lambda: condition() or self.over, PATIENCE_S)
        assert condition(), f"{what} did not come; over: {self.over}; events: {self.kinds}; replies: {self._replies}"

    def stop_reading(self) -> None:
        """Take at most one more read's worth of what the server says."""
        self._reading.clear()

    def read_on(self) -> None:
        """Take everything again."""
        self._reading.set()

    def until_over(self) -> None:
        """Until the server has said its last."""
        self.join()
        assert self.over, "the server has not ended the conversation"
        assert not self.wrong, self.wrong
        checked(self.events)

    def join(self) -> None:
        """Until its thread has ended, whatever was said."""
        self._reading.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        rest = b""
        while True:
            self._reading.wait()
            data = self._read()
            *lines, rest = (rest + data).split(b"\n")
            with self._news:
                for one in lines:
                    self._take(one)
                self.over = not data
                self.cut_off = rest if self.over else b""
                self._news.notify_all()
            if not data:
                return

    def _take(self, one: bytes) -> None:
        try:
            said = json.loads(one)
        except ValueError:
            self.wrong.append(one)
            return
        if isinstance(said, list):
            self.batches.append(said)
            members = said
        else:
            members = [said]
        self.came += members
        for member in members:
            if member.get("jsonrpc") != "2.0":
                self.wrong.append(one)
            elif member.get("params", {}).get("replayed") and "id" not in member:
                self.replayed.append(member)
            elif set(member) == {"jsonrpc", "method", "params"} and member["method"] == "SessionEvent":
                self.events.append(member["params"])
            elif set(member) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}):
                self._replies[json.dumps(member["id"])] = member
            else:
                self.wrong.append(one)

    # What every test begins with

    def create(self, **params: Any) -> str:
        """CreateSession; the id of the session."""
        self.session_id = self.call("CreateSession", **{**WHO, **params})["sessionId"]
        return self.session_id

    def task(self, task_id: str = "a", prompt: str = "Do it.", **params: Any) -> dict[str, Any]:
        """StartTask."""
        return self.call("StartTask", sessionId=self.session_id, taskId=task_id, prompt=prompt, **params)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A request about the session."""
        return self.call(method, sessionId=self.session_id, **params)

    def resume(self, session_id: str, **params: Any) -> dict[str, Any]:
        """ResumeSession."""
        self.session_id = session_id
        return self.ask("ResumeSession", **params)


def line(value: Any) -> bytes:
    """`value` as one line of JSON."""
    return json.dumps(value).encode() + b"\n"


def request(number: Any, method: str, **params: Any) -> dict[str, Any]:
    """A request object."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def result(answer: dict[str, Any]) -> dict[str, Any]:
    """The result in an answer. Raises Refused."""
    if "error" in answer:
        raise Refused(answer["error"])
    value = answer["result"]
    assert isinstance(value, dict)
    return value
