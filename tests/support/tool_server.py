"""A Backend Tool Service for tests, over real HTTP: it keeps the answer of each key, and does on request what services
do when they fail: lose an answer, lose their records, refuse, take long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from agent_host.capability_grants import GRANT_HEADER, GrantRefused, grant_key, verify
from agent_host.testing.http1 import MockServer
from tool_runtime.remote.backend import EPOCH_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.testing.http1 import HttpRequest, Reply

TOKEN = "tools-token-0123456789"
KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
LOSE = "run it, and close the connection without an answer"
DROP = "close the connection without having run it"
RUN_ON = "answer 202 while it runs"


@dataclass(frozen=True, slots=True)
class Ran:
    """One time that a tool ran."""

    tool: str
    key: str
    arguments: dict[str, Any]


async def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    """A tool that succeeds with its argument `text`."""
    return {"status": "succeeded", "outputText": arguments.get("text", "done")}


class ToolServer(MockServer):
    """`tools` maps names to what they do with arguments: {status, outputText?, artifactUris?, error?}. POSTs of calls
    take `faults` one by one: LOSE, DROP, RUN_ON, or (status, headers, body). `polls` times a GET answers that the call
    runs. `begun` is set, on the server's loop, once a tool runs."""

    def __init__(
        self, tools: Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] | None = None
    ) -> None:
        self.tools = dict(tools or {"Echo": echo})
        self.extra: list[dict[str, Any]] = []
        self.faults: deque[Any] = deque()
        self.ran: list[Ran] = []
        self.requests: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.token: str | None = TOKEN
        self.epoch = "epoch_1"
        self.polls = 0
        self.begun = asyncio.Event()
        self._answers: dict[tuple[str, str, str], tuple[bytes, bytes | None]] = {}
        super().__init__(self._handle, name="tool-server")

    def forget(self) -> None:
        """Lose every record of a call, as a restart without a database does."""
        self._answers.clear()
        self.epoch += "+"

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        body = orjson.loads(request.body or b"null")
        self.requests.append((request.method, request.path, request.headers, body))
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            await self._send(reply, 401, _error("UNAUTHORIZED", "the bearer token is missing or wrong"))
            return
        parts = [unquote(part) for part in request.path.split("/")[1:]]
        if (request.method, parts) == ("GET", ["tools"]):
            listed = [_listed(name) for name in self.tools]
            await self._send(reply, 200, {"tools": [*listed, *self.extra]})
            return
        try:
            grant = verify(request.headers.get(GRANT_HEADER, ""), grant_key({"AGENT_HOST_GRANT_KEY": KEY}) or b"")
            held = grant.expires_at > time.time() and parts[1] in grant.tool_names
        except GrantRefused:
            held = False
        if not held:
            await self._send(reply, 403, _error("CAPABILITY_DENIED", f"the grant does not name {parts[1]}"))
        elif request.method == "GET":
            await self._known(reply, (grant.session_id, parts[1], parts[3]))
        else:
            await self._invoke(reply, request, (grant.session_id, parts[1]), body)

    async def _known(self, reply: Reply, place: tuple[str, str, str]) -> None:
        if place not in self._answers:
            await self._send(reply, 404, _error("TOOL_NOT_FOUND", "nothing is known of this key"))
            return
        _, answer = self._answers[place]
        if answer is None or self.polls > 0:
            self.polls -= 1
            await self._send(reply, 202, {"status": "running"})
            return
        await self._send(reply, 200, answer)

    async def _invoke(self, reply: Reply, request: HttpRequest, where: tuple[str, str], body: dict[str, Any]) -> None:
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, tuple):
            await self._send(reply, fault[0], fault[2], **fault[1])
            return
        if fault == DROP:
            return
        if request.headers.get(EPOCH_HEADER, self.epoch) != self.epoch:
            await self._send(reply, 412, _error("TOOL_INTERRUPTED", "the service has started anew"))
            return
        key = request.headers["idempotency-key"]
        place, said = (*where, key), orjson.dumps(body["arguments"], option=orjson.OPT_SORT_KEYS)
        if where[1] not in self.tools:
            await self._send(reply, 404, _error("TOOL_NOT_FOUND", f"there is no tool {where[1]}"))
            return
        before = self._answers.get(place)
        if before is not None and before[0] != said:
            await self._send(reply, 409, _error("INVALID_REQUEST", "this key was used for other arguments"))
            return
        if before is None:
            self._answers[place] = (said, None)
            self.ran.append(Ran(where[1], key, body["arguments"]))
            self.begun.set()
            epoch = self.epoch
            result = await self.tools[where[1]](body["arguments"])
            if self.epoch != epoch:  # who ran it is no more
                return
            names = {name: body[name] for name in ("toolName", "sessionId", "taskId", "stepId")}
            self._answers[place] = (said, orjson.dumps({**names, **result}))
        if fault == LOSE:
            return
        answer = self._answers[place][1]
        if fault == RUN_ON or answer is None:
            await self._send(reply, 202, {"status": "running"})
            return
        await self._send(reply, 200, answer)

    async def _send(self, reply: Reply, status: int, body: Any, **headers: str) -> None:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        await reply.send(status, {"content-type": "application/json", EPOCH_HEADER: self.epoch, **shown}, content)


async def never(_: dict[str, Any]) -> dict[str, Any]:
    """A tool that does not end."""
    await asyncio.Event().wait()
    raise AssertionError


def _listed(name: str) -> dict[str, Any]:
    return {
        "toolName": name,
        "description": f"The tool {name}",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "requiresCapability": "BackendTool.Invoke",
    }


def _error(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "retryable": code == "RATE_LIMITED"}
