"""`agent-host serve` and a client that frames its messages as language servers do (interface section 2)."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.header_framing import framed
from tests.support.process import eventually, gateway, say, shell, use
from tests.support.rpc_client import WHO, Refused, line, request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rpc_client import Client
    from tests.support.serve_process import Serve, Servers

NOWHERE = "http://127.0.0.1:1"
MODEL_TEXT = "Content-Length: 2\r\n\r\n{} é\n"


def headers(servers: Servers, gateway: str = NOWHERE) -> tuple[Serve, Client]:
    serve = servers.start("--gateway", gateway, "--policy", "full")
    return serve, serve.on_streams(headers=True)


def test_a_session_behind_headers(servers: Servers) -> None:
    with gateway(use(shell("echo hello")), say(MODEL_TEXT)) as model:
        serve, client = headers(servers, model.url)
        assert client.refusal("GetSessionState", sessionId="s").code == -32001
        client.create()
        client.task()
        client.event("task_completed")
        assert "".join(e["payload"]["text"] for e in client.events if e["eventType"] == "text_chunk") == MODEL_TEXT
        assert client.ask("GetEvents", sinceId=0)["events"] == client.events
        answers = client.batch(request(7, "GetSessionState", sessionId="x"), {"id": 1, "result": 2}, 5)
        assert [answer["id"] for answer in answers] == [7, None]
        client.call("Shutdown")
        serve.ended_well()
    assert client.events[-1]["eventType"] == "session_completed"


BROKEN = [
    (b"Content-Length: x\r\n\r\n{}\r\n", "Content-Length is not a number"),
    (b"Content-Length: -1\r\n\r\n", "Content-Length is not a number"),
    (b"Content-Type: a\r\n\r\n", "no Content-Length"),
    (b'Content-Length: 7{"a":1}', "before its header has ended"),
    (
        b'\n{"jsonrpc":"2.0","id":1,"method":"GetSessionState","params":{"sessionId":"s"}}',
        "before its header has ended",
    ),
    (b"\n" + b"A" * 5000, "longer than 4096 bytes"),
    (b"\nContent-Length: 33554433\r\n\r\n" + b"x" * 33554433, "longer than 33554432 bytes"),
    (b"Content-Length: 2\r\n\r\n{[", "not JSON"),
    (b"Content-Length: 2\r\n\r\n\xff\xfe", "not JSON"),
    (b"Content-Length: 0\r\n\r\n" + framed(b"[]"), "at least one request"),
]


def test_what_cannot_be_read_gets_an_error_and_the_process_lives_on(servers: Servers) -> None:
    serve, client = headers(servers)
    client.refusal("GetSessionState", sessionId="s")
    for data, said in BROKEN:
        serve.write(data)
        refused = Refused(client.reply(None)["error"])  # which comes although the header has no end
        assert refused.code in (-32600, -32700)
        assert said in refused.message
        serve.write(b"\r\n")
        assert client.refusal("GetSessionState", sessionId="s").code == -32001
    for byte in framed(json.dumps(request("slow", "Shutdown")).encode()):
        serve.write(bytes([byte]))
    assert client.reply("slow")["result"]["status"] == "shutdown"
    serve.ended_well()


@pytest.mark.parametrize("cut", [b"Content-Length: 9", b"Content-Length: 9\r\n\r\n", b"Content-Length: 9\r\n\r\n{"])
def test_input_that_ends_within_a_message(servers: Servers, cut: bytes) -> None:
    serve, client = headers(servers)
    client.raw(line(request(1, "CreateSession", **WHO)))
    serve.write(cut)
    client.done()
    assert "ended within a message" in client.reply(None)["error"]["message"]
    assert client.reply(1)["result"]["status"] == "ready"
    serve.ended_well()


@pytest.mark.skipif(sys.platform == "win32", reason="a named pipe there")
def test_clients_of_either_framing_follow_one_another(servers: Servers) -> None:
    """One that has said nothing yet is spoken to as the client before it."""
    path: Path = servers.host.root / "run" / "s"
    with gateway(use(shell("while [ ! -e go ]; do echo tick; sleep 0.02; done")), say("Done.")) as model:
        options = ["--gateway", model.url, "--policy", "full", "--reconnect-s", "30"]
        serve = servers.start("--socket", path, *options, piped=False)
        first = serve.on_socket(path, headers=True)
        session = first.create()
        refused = serve.on_socket(path, headers=True)
        assert refused.reply(None)["error"]["code"] == -32031
        first.task()
        first.event("tool_output_chunk")
        first.done()
        found: list[Client] = []
        eventually(lambda: listens(serve.on_socket(path, headers=True), found), "a client that is taken")
        (servers.host.workspace / "go").touch()
        found[0].event("task_completed")
        found[0].done()
        eventually(lambda: b'"TASK_COMPLETED"' in answer_in_lines(path, session), "an answer in lines")
        serve.signal()
        serve.ended_well()


def listens(client: Client, found: list[Client]) -> bool:
    """Whether the process has taken this client, which says nothing. It may come before the last one is seen to go."""
    client.wait(lambda: client.events or client.over, "an event, or the end")
    if client.events:
        found.append(client)
    return bool(client.events)


def answer_in_lines(path: Path, session: str) -> bytes:
    """What a client that speaks lines is answered, b"" where it came too early."""
    with socket.socket(socket.AF_UNIX) as wire, contextlib.suppress(BrokenPipeError):
        wire.connect(str(path))
        wire.sendall(line(request(1, "GetSessionState", sessionId=session)))
        answer = wire.makefile("rb").readline()
        return answer if answer.startswith(b'{"jsonrpc"') else b""
    return b""
