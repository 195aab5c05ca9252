"""One client's connection on real descriptors: what is served when, and what a client that lags behind may cost."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.events.outbox import Outbox
from agent_host.rpc.channels import StreamChannel
from agent_host.rpc.messages import params
from agent_host.rpc.server import ClientConnection, Method
from config.shapes import integer
from tests.support.events import emitter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agent_host.events.emitter import Event

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="watched descriptors")


class Side:
    """Both ends of a conversation."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.fds = ours.detach(), None
        self.outbox = Outbox()
        self.gates: list[asyncio.Future[None]] = []
        self.most = 0
        self.over = asyncio.Event()
        self.channel = StreamChannel(self.fds[0], os.dup(self.fds[0]))
        methods = {
            "echo": Method(params({"x": integer(0, 10**9)}), self._echo),
            "wait": Method(params(), self._wait),
            "fail": Method(params(), self._fail),
            "large": Method(params(), self._large),
        }
        self.connection = ClientConnection(self.channel, methods, self.outbox, lambda _: self.over.set())
        self.theirs.setblocking(False)
        self._rest = b""

    async def _echo(self, params: dict[str, Any]) -> Mapping[str, Any]:
        return {"x": params["x"]}

    async def _wait(self, _params: dict[str, Any]) -> Mapping[str, Any]:
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        self.most = max(self.most, len(self.gates))
        await gate
        return {}

    async def _fail(self, _params: dict[str, Any]) -> Mapping[str, Any]:
        raise ZeroDivisionError("oops")

    async def _large(self, _params: dict[str, Any]) -> Mapping[str, Any]:
        return {"x": "x" * 1_000_000}

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, data)

    async def hear(self) -> Any:
        """The next line."""
        while b"\n" not in self._rest:
            more = await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 20)
            assert more, "the end"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    made = Side()
    made.channel.start(made.connection)
    async with asyncio.timeout(20):
        yield made
        made.outbox.close()
        for gate in made.gates:
            gate.cancel()
        await made.connection.close()
        made.theirs.close()


def asked(number: int | None, method: str, **params: Any) -> bytes:
    request = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
    return json.dumps(request).encode() + b"\n"


class Events:
    """A sink in front of an outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def take(self, event: Event) -> None:
        self._outbox.put(event)

    def flush(self) -> None:
        pass


async def test_a_slow_request_holds_up_no_other(side: Side) -> None:
    await side.say(asked(1, "wait") + asked(2, "echo", x=5))
    assert await side.hear() == {"jsonrpc": "2.0", "id": 2, "result": {"x": 5}}
    side.gates[0].set_result(None)
    assert (await side.hear())["id"] == 1


async def test_a_fault_of_the_program_is_the_answer_to_one_request(side: Side) -> None:
    await side.say(asked(1, "fail") + asked(2, "echo", x=1))
    told = await side.hear()
    assert (told["error"]["code"], told["error"]["data"]["code"]) == (-32603, "INTERNAL_ERROR")
    assert (await side.hear())["result"] == {"x": 1}


async def test_requests_in_flight_are_bounded(side: Side) -> None:
    """However many came with one read."""
    await side.say(b"".join(asked(number, "wait") for number in range(200)))
    answered = 0
    while answered < 200:
        while not side.gates:  # noqa: ASYNC110  bounded by the fixture's time-out
            await asyncio.sleep(0)
        side.gates.pop().set_result(None)
        await side.hear()
        answered += 1
    assert side.most <= 64


async def test_the_end_leaves_no_request_unanswered(side: Side) -> None:
    await side.say(b"".join(asked(number, "echo", x=number) for number in range(500)))
    side.theirs.shutdown(socket.SHUT_WR)
    await side.over.wait()
    answering = asyncio.create_task(side.connection.await_answers())
    assert sorted([(await side.hear())["id"] for _ in range(500)]) == list(range(500))
    await answering


async def test_a_client_that_reads_late_is_served_again(side: Side) -> None:
    """Also where all that waits for it are events, and the last bytes it sent were half a request."""
    tell = emitter(Events(side.outbox))
    for _ in range(64):
        tell.emit(EventType.SESSION_FAILED, {"reason": "x", "message": "y" * 100_000})
    while side.channel.waiting_bytes < 5_000_000:  # noqa: ASYNC110  bounded by the fixture's time-out
        await asyncio.sleep(0)
    whole_line = asked(1, "echo", x=7)
    await side.say(asked(None, "echo", x=1) + whole_line[:10])
    for _ in range(20):
        await asyncio.sleep(0)
    for _ in range(64):
        assert (await side.hear())["method"] == "SessionEvent"
    await side.say(whole_line[10:])
    assert (await side.hear())["result"] == {"x": 7}


@pytest.mark.slow
async def test_answers_that_nobody_takes_are_bounded(side: Side) -> None:
    saying = asyncio.create_task(side.say(b"".join(asked(number, "large") for number in range(300))))
    for _ in range(2000):
        await asyncio.sleep(0)
    assert side.channel.waiting_bytes < 80_000_000
    for _ in range(300):
        assert len((await side.hear())["result"]["x"]) == 1_000_000
    await saying
