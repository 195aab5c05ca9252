"""Secrets and the whole program: what is done with them has every byte, what is kept or told of it has none (AH 8.7)."""

from __future__ import annotations

import base64
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from agent_host.testing.services import MockServices
from policy.redaction import PLACEHOLDER
from tests.support.backends import SERVICES_TOKEN, impatient, services_at
from tests.support.process import Host, bundle, call, gateway, say, shell, use
from tests.unit.policy.secret_samples import LETTERS, pem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Gateway


def token(number: int) -> str:
    """One of many."""
    return f"gh{'p_'}{number:02d}{LETTERS[:34]}"


(
    IN_PROMPT,
    IN_FILE,
    IN_OUTPUT,
    IN_ANSWER,
    WRITTEN,
    IN_COMMAND,
    IN_HEADER,
    SAID,
    REPLACED,
    UPLOADED,
    IN_NAME,
    IN_STDERR,
) = (token(number) for number in range(12))
ALL = [IN_PROMPT, IN_FILE, IN_OUTPUT, IN_ANSWER, WRITTEN, IN_COMMAND, IN_HEADER, SAID, REPLACED, UPLOADED, IN_STDERR]
PASSWORD = "correct-horse-9-battery"
KEY = pem()
HTTP = {"Network.Http": {"allowedDomains": ["127.0.0.1"]}, "Workspace.Upload": {}}


def spellings(secret: str) -> list[bytes]:
    """As it could stand in a file: as it is, in JSON, in JSON in JSON, in base64 at each place."""
    once = json.dumps(secret)[1:-1]
    forms = [secret, once, json.dumps(once)[1:-1], *secret.splitlines()[1:-1]]
    encoded = [base64.b64encode(b"x" * shift + secret.encode())[shift + 3 : -4].strip(b"=") for shift in range(3)]
    return [form.encode() for form in forms] + encoded


def assert_nowhere(haystack: bytes, what: object, secrets: list[str]) -> None:
    for secret in secrets:
        for form in spellings(secret):
            assert form not in haystack, (what, secret, haystack[max(0, haystack.find(form) - 200) :][:400])


def assert_not_kept(host: Host, secrets: list[str]) -> None:
    """In no file under the state directory, by content or by name."""
    files = [path for path in host.state.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert_nowhere(path.read_bytes(), path, secrets)
        assert_nowhere(str(path).encode(), path, secrets)


def assert_not_sent(model: Gateway, secrets: list[str]) -> None:
    for number, record in enumerate(model.mock.requests):
        assert_nowhere(record.body or b"", f"request {number}", secrets)


@contextmanager
def services_of(host: Host) -> Iterator[MockServices]:
    """All backend services."""
    mock = MockServices(policy_bundle=bundle(host.workspace, grants=HTTP), token=SERVICES_TOKEN)
    with mock.in_thread():
        yield mock


@contextmanager
def web(answer: str) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server on loopback, and what came to it."""
    came: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(
                (
                    {name.lower(): value for name, value in self.headers.items()},
                    self.rfile.read(int(self.headers.get("content-length", 0))),
                )
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_a_whole_session_keeps_and_tells_no_secret(host: Host) -> None:
    """Every way in at once, with every observer there is; and each effect has the real bytes."""
    impatient(host)
    (host.workspace / ".env").write_text(f"A_TOKEN={IN_FILE}\nDB_PASSWORD={PASSWORD}\n{KEY}\n")
    (host.workspace / "old.txt").write_text(f"first version {REPLACED}\n")
    (host.workspace / "report.txt").write_text(f"a report {UPLOADED}\n")
    written = f"A_TOKEN={WRITTEN}\n{KEY}\n"
    with (
        web(f'{{"token": "{IN_ANSWER}"}}') as (url, came),
        services_of(host) as services,
        gateway(
            use(
                call("ReadFile", path=str(host.workspace / ".env")),
                shell(f"printf %s {IN_OUTPUT[:20]}; echo {IN_OUTPUT[20:]}"),
            ),
            use(
                call("WriteFile", path=str(host.workspace / "new.env"), content=written),
                call("WriteFile", path=str(host.workspace / "old.txt"), content="second version\n"),
                shell(f"printf %s {IN_COMMAND} > command.txt; echo {IN_STDERR} >&2; false"),
                call("HttpRequest", url=url, method="POST", headers={"X-Client-Id": IN_HEADER}, body="{}"),
                call("UploadArtifact", path=str(host.workspace / "report.txt")),
                call("ReadFile", path=str(host.workspace / f"{IN_NAME}.txt")),
            ),
            say(f"I have seen {SAID} and nothing else.", chunk_chars=1000),
        ) as model,
    ):
        env = services_at(services.url)
        options = ("--gateway", model.url, "--output", "jsonl")
        outcome = host.start("run", f"Use {IN_PROMPT}.", *options, env=env, program="tests.support.near_http").finish()
        told = json.dumps([request.body for request in services.requests]).encode()
        uploads = [artifact.data for artifact in services.artifacts]
        histories = [history.data for history in services.histories.values()]
    assert outcome.code == 0, outcome
    # What was done.
    assert (host.workspace / "new.env").read_text() == written
    assert (host.workspace / "command.txt").read_text() == IN_COMMAND
    assert [headers["x-client-id"] for headers, _ in came] == [IN_HEADER]
    assert (host.workspace / ".env").read_text().startswith(f"A_TOKEN={IN_FILE}\n")
    # What is kept and told.
    secrets = [*ALL, IN_NAME, PASSWORD, KEY]
    assert_not_kept(host, secrets)
    assert_not_sent(model, secrets)
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "output", secrets)
    assert_nowhere(told + b"".join(uploads) + b"".join(histories), "services", secrets)
    assert any(re.search(PLACEHOLDER.encode(), upload) for upload in uploads)
    # Each is the same wherever it was met.
    shown = json.dumps(model.bodies[-1])
    assert shown.count("[redacted:github-token:") >= len(ALL) - 2
    first = re.search(PLACEHOLDER, model.bodies[0]["messages"][0]["content"][0]["text"])
    assert first is not None
    assert first[0] in json.dumps(model.bodies[-1]["messages"][0])


@pytest.mark.parametrize("output", ["text", "json"])
def test_what_the_program_prints_holds_none(host: Host, output: str) -> None:
    with gateway(say(f"It is {SAID}.", chunk_chars=1000)) as model:
        outcome = host.run("run", "Say it.", "--gateway", model.url, "--policy", "full", "--output", output)
    assert outcome.code == 0
    assert SAID.encode() not in outcome.stdout
    assert b"[redacted:github-token:" in outcome.stdout
    assert_not_kept(host, [SAID])


def test_a_gateway_that_quotes_a_secret(host: Host) -> None:
    with gateway({"status": 400, "error": {"message": f"not with {SAID}"}}, complains=False) as model:
        outcome = host.task(model.url)
    assert outcome.code == 1
    assert SAID not in outcome.text + outcome.stderr
    assert_not_kept(host, [SAID])
