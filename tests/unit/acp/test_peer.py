"""The wire of the agent by itself: whatever comes is answered or left out, and what is asked gets its answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.acp.peer import AcpError, PeerGone, PeerMethod, RpcPeer
from agent_host.rpc.messages import params
from config.shapes import TEXT


class Wire:
    """A channel whose other side takes everything, or nothing."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_full = False
        self.paused: list[bool] = []
        self._room = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        return 2**30 if self.is_full else 0

    def write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        self.sent.append(json.loads(data))

    async def drain(self) -> None:
        if self.is_full:
            await self._room.wait()

    def make_room(self) -> None:
        self.is_full = False
        self._room.set()

    def pause_reading(self, *, paused: bool) -> None:
        self.paused.append(paused)

    def close(self) -> None:
        """Nothing to let go of."""


def _peer(wire: Wire) -> RpcPeer:
    async def echo(given: Any) -> dict[str, Any]:
        return {"said": given["text"]}

    async def wait(_given: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def fail(_given: Any) -> dict[str, Any]:
        raise AcpError(-32000, "no", {"why": "so"})

    shape = params({"text": TEXT})
    requests = {"echo": PeerMethod(shape, echo), "wait": PeerMethod(params(), wait), "fail": PeerMethod(params(), fail)}
    return RpcPeer(wire, requests, {}, lambda: None)


def _line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_are_answered_by_their_ids() -> None:
    wire = Wire()
    peer = _peer(wire)
    peer.receive(_line(id="a", method="echo", params={"text": "x", "_meta": None}) + _line(id=2, method="fail"))
    peer.receive(_line(id=None, method="echo", params={"text": 1}))
    await _settle()
    assert wire.sent == [
        {"jsonrpc": "2.0", "id": "a", "result": {"said": "x"}},
        {"jsonrpc": "2.0", "id": 2, "error": {"code": -32000, "message": "no", "data": {"why": "so"}}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "text must be a string, not 1"}},
    ]


async def test_a_request_is_cancelled_by_its_id_and_an_id_is_used_once() -> None:
    wire = Wire()
    peer = _peer(wire)
    peer.receive(_line(id=1, method="wait") + _line(id=1, method="wait"))
    await _settle()
    assert [one["error"]["code"] for one in wire.sent] == [-32600]
    peer.receive(_line(method="$/cancel_request", params={"requestId": 1}))
    await _settle()
    assert wire.sent[-1]["error"]["code"] == -32800
    peer.receive(_line(id=1, method="echo", params={"text": "again"}))
    await _settle()
    assert wire.sent[-1]["result"] == {"said": "again"}


async def test_a_request_that_is_cancelled_before_it_begins_has_its_answer() -> None:
    wire = Wire()
    peer = _peer(wire)
    peer.receive(_line(id=1, method="wait") + _line(method="$/cancel_request", params={"requestId": 1}))
    await _settle()
    assert [(one["id"], one["error"]["code"]) for one in wire.sent] == [(1, -32800)]


async def test_what_is_asked_gets_its_answer_or_none() -> None:
    wire = Wire()
    peer = _peer(wire)
    first, second, third = (asyncio.ensure_future(peer.request("ask", {})) for _ in range(3))
    await _settle()
    ids = [one["id"] for one in wire.sent]
    peer.receive(_line(id=str(ids[0]), result={}) + _line(id=99, result={}) + _line(id=True, result={}))
    peer.receive(_line(id=ids[1], error={"code": "x", "message": 7}) + _line(id=ids[0], result={"ok": 1}))
    assert await first == {"ok": 1}
    with pytest.raises(AcpError) as caught:
        await second
    assert caught.value.code == -32603
    third.cancel()
    await _settle()
    assert wire.sent[-1] == {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": ids[2]}}
    fourth = asyncio.ensure_future(peer.request("ask", {}))
    await _settle()
    peer.end()
    with pytest.raises(PeerGone):
        await fourth
    with pytest.raises(PeerGone):
        await peer.request("ask", {})


async def test_a_side_that_does_not_take_its_answers_is_not_read_from() -> None:
    wire = Wire()
    peer = _peer(wire)
    wire.is_full = True
    peer.receive(b"{\n")
    peer.receive(b"{\n")
    assert wire.paused == [True]
    wire.make_room()
    await _settle()
    assert wire.paused == [True, False]


async def test_only_so_many_requests_are_served_at_once() -> None:
    wire = Wire()
    peer = _peer(wire)
    peer.receive(b"".join(_line(id=number, method="wait") for number in range(300)))
    await _settle()
    assert {one["error"]["code"] for one in wire.sent} == {-32603}
    assert len(wire.sent) == 300 - 256
    await peer.close()


MESSAGES = st.binary(max_size=60) | st.builds(
    lambda members: json.dumps(members).encode(),
    st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]),
        st.sampled_from(["2.0", "echo", "wait", None, 1, -1.5, True, {}, {"text": "x"}, [], "$/cancel_request"]),
    ),
)


@settings(max_examples=200)
@given(st.lists(MESSAGES, max_size=8))
def test_nothing_that_comes_breaks_the_wire(lines: list[bytes]) -> None:
    async def run() -> None:
        wire = Wire()
        peer = _peer(wire)
        for line in lines:
            peer.receive(line + b"\n")
        peer.receive(_line(id="last", method="echo", params={"text": "here"}))
        await _settle()
        assert {"jsonrpc": "2.0", "id": "last", "result": {"said": "here"}} in wire.sent
        assert all("result" in one or {"code", "message"} <= one["error"].keys() for one in wire.sent)
        await peer.close()

    asyncio.run(run())
