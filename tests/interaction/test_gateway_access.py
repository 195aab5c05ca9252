"""How requests to the gateway are addressed and signed, and what `doctor` says of it."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.process import gateway, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

pytestmark = pytest.mark.slow

TOKEN = {"LLM_GATEWAY_AUTH_TOKEN": "tok-123456789"}


@contextmanager
def answering(status: int, body: bytes = b"{}", kind: str = "application/json") -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything so, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()


def configure(host: Host, headers: str) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(f"[llm.headers]\n{headers}\n")


def test_the_token_goes_where_gateways_look_and_more_headers_with_it(host: Host) -> None:
    configure(host, '"X-Team" = "team-secret-value"\n"anthropic-beta" = "x"')
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "Say team-secret-value.", "--gateway", model.url, "--session-id", "s", env=TOKEN)
        (sent,) = (dict(one.headers) for one in model.mock.requests)
    assert outcome.code == 0
    assert (sent["x-api-key"], sent["authorization"]) == ("tok-123456789", "Bearer tok-123456789")
    assert (sent["x-team"], sent["anthropic-beta"]) == ("team-secret-value", "x")
    kept = [path.read_bytes() for path in host.state.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"team-secret-value" in data or b"tok-123456789" in data for data in kept)


def test_a_header_may_replace_the_token(host: Host) -> None:
    configure(host, 'Authorization = "Basic abcdefgh"')
    with gateway(say("Done.")) as model:
        assert host.run("run", "x", "--gateway", model.url, env=TOKEN).code == 0
        (sent,) = (dict(one.headers) for one in model.mock.requests)
    assert sent["authorization"] == "Basic abcdefgh"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ('"a b" = "x"', "is not a header name"),
        ('Content-Length = "1"', "is set by each request itself"),
        ('x-a = "secret\\r\\nx-b: 1"', "characters that no header can carry"),
        ("x-a = 1", "a table of strings"),
    ],
)
def test_headers_that_cannot_be_sent(host: Host, headers: str, says: str) -> None:
    configure(host, headers)
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "x", "--gateway", model.url)
    assert outcome.code == 2
    assert says in outcome.error
    assert "secret" not in outcome.error


def test_a_workspace_adds_no_headers(host: Host) -> None:
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text('[llm.headers]\nx-evil = "1"\n')
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "x", "--gateway", model.url)
        (sent,) = (dict(one.headers) for one in model.mock.requests)
    assert "x-evil" not in sent
    outcome.names_once("llm.headers", "is ignored")


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/messages"])
def test_a_url_with_or_without_its_version(host: Host, path: str) -> None:
    with gateway(say("Done."), say("Done.")) as model:
        assert host.run("run", "x", "--gateway", f"{model.url}{path}").code == 0
        assert host.run("doctor", "--gateway", f"{model.url}{path}").code == 0


def test_doctor_makes_one_real_call(host: Host) -> None:
    with gateway(say("ok")) as model:
        outcome = host.run("doctor", "--gateway", model.url, "--model", "my-model", env=TOKEN)
        (body,) = model.bodies
        (sent,) = (dict(one.headers) for one in model.mock.requests)
    assert (outcome.code, body["model"], body["max_tokens"]) == (0, "my-model", 16)
    assert sent["authorization"] == "Bearer tok-123456789"
    assert "answers with model my-model" in outcome.text


@pytest.mark.parametrize(
    ("status", "body", "env", "says"),
    [
        (401, {"error": {"message": "bad key tok-123456789"}}, TOKEN, "refuses the token"),
        (401, {}, {}, "wants a token: set LLM_GATEWAY_AUTH_TOKEN"),
        (404, {"error": {"message": "model: x"}}, TOKEN, "does not serve the model"),
        (404, {"error": {"message": "no such page"}}, TOKEN, "does not know the path, or the model"),
        (400, {"error": {"message": "no such model"}}, TOKEN, "does not serve the model"),
        (400, {"error": {"message": "Your credit balance is too low"}}, TOKEN, "has no credit or budget left"),
        (400, {"error": {"message": "not that"}}, TOKEN, "refuses the request"),
        (429, {}, TOKEN, "limits requests"),
        (503, {"error": "down"}, TOKEN, "fails: try again later"),
        (200, {"choices": []}, TOKEN, "does not speak the wire 'anthropic'"),
    ],
)
def test_doctor_says_what_is_wrong(host: Host, status: int, body: object, env: dict[str, str], says: str) -> None:
    with answering(status, json.dumps(body).encode()) as (url, paths):
        outcome = host.run("doctor", "--gateway", url, env=env)
    (line,) = [line for line in outcome.text.splitlines() if " gateway " in line]
    assert (outcome.code, paths) == (1, ["/v1/messages"])
    assert line.startswith("FAIL")
    assert says in line
    assert "tok-123456789" not in outcome.text


def test_doctor_says_that_nothing_listens(host: Host) -> None:
    outcome = host.run("doctor", "--gateway", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert "cannot be reached" in outcome.text
