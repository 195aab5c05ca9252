"""Secrets and the whole program: what is done with them has every byte, what is kept or told of it none (AH 8.7)."""

from __future__ import annotations

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
from tests.support.process import Host, bundle, call, eventually, gateway, say, shell, use
from tests.support.secrets import (
    IN_ANSWER,
    IN_COMMAND,
    IN_FILE,
    IN_HEADER,
    IN_NAME,
    IN_OUTPUT,
    IN_PROMPT,
    IN_STDERR,
    KEY,
    PASSWORD,
    REPLACED,
    SAID,
    UPLOADED,
    WRITTEN,
    assert_not_kept,
    assert_not_sent,
    assert_nowhere,
    token,
)
from tests.unit.policy.secret_samples import LETTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.serve_process import Servers

RULES = [{"approvalRuleId": "shell", "title": "Run", "description": "Runs a command."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}
HTTP = {"Network.Http": {"allowedDomains": ["127.0.0.1"]}, "Workspace.Upload": {}}


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
            headers = {name.lower(): value for name, value in self.headers.items()}
            came.append((headers, self.rfile.read(int(headers.get("content-length", "0")))))
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
    secrets = [token(number) for number in range(12)] + [PASSWORD, KEY]
    assert_not_kept(host, secrets)
    assert_not_sent(model, secrets)
    assert_nowhere(outcome.stdout + outcome.stderr.encode(), "output", secrets)
    assert_nowhere(told + b"".join(uploads) + b"".join(histories), "services", secrets)
    assert any(re.search(PLACEHOLDER.encode(), upload) for upload in uploads)
    # Each is the same wherever it was met.
    shown = json.dumps(model.bodies[-1])
    assert shown.count("[redacted:github-token:") >= 9
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


# With somebody who approves


def test_what_whoever_approves_writes_and_reads(servers: Servers) -> None:
    """Arguments and a reason with secrets: the command gets them, and nobody else."""
    host = servers.host
    policy = host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(
        use(shell(f"printf %s {IN_COMMAND} > effects")), use(shell("echo 2 >> effects")), say("Done.")
    ) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task(prompt=f"Use {IN_PROMPT}.")
        asked = client.event("approval_requested")
        eventually(lambda: client.ask("GetSessionState")["pendingApprovals"], "a call that waits")
        pending = json.dumps(client.ask("GetSessionState"))
        edited = {"command": f"printf %s {WRITTEN} > effects", "timeout": 60}
        client.call(
            "ApproveAction",
            approvalId=asked["payload"]["approvalId"],
            decision="approved",
            reason=f"fine, {SAID}",
            arguments=edited,
            scope="session",
        )
        again = client.event("approval_requested", asked["eventId"])
        client.call(
            "ApproveAction", approvalId=again["payload"]["approvalId"], decision="denied", reason=f"not {REPLACED}"
        )
        client.event("task_completed")
        preview = json.dumps(client.ask("GetPatchPreview"))
        events = json.dumps([*client.events, *client.ask("GetEvents", sinceId=0)["events"]])
        client.call("Shutdown")
        serve.ended_well()
    secrets = [IN_COMMAND, IN_PROMPT, WRITTEN, SAID, REPLACED]
    assert (host.workspace / "effects").read_text() == WRITTEN
    for told in (pending, preview, events):
        assert_nowhere(told.encode(), "client", secrets)
    assert "[redacted:github-token:" in pending
    assert_not_kept(host, secrets)
    assert_not_sent(model, secrets)


def test_a_preview_and_an_approval_of_a_file_with_secrets(servers: Servers) -> None:
    """The diff that is shown to whoever approves a change, and the one after it."""
    host = servers.host
    note = host.workspace / "a.env"
    note.write_text(f"A_TOKEN={IN_FILE}\n{KEY}\nB=1\n")
    policy = host.policy(grants={"File.Write": ASKS["Shell.Exec"]}, approvalRules=RULES)
    with gateway(use(call("WriteFile", path=str(note), content=f"A_TOKEN={WRITTEN}\nB=2\n")), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task()
        asked = client.event("approval_requested")
        client.call("ApproveAction", approvalId=asked["payload"]["approvalId"], decision="approved")
        client.event("task_completed")
        (file,) = client.ask("GetPatchPreview")["files"]
        client.call("Shutdown")
        serve.ended_well()
    assert note.read_text() == f"A_TOKEN={WRITTEN}\nB=2\n"
    secrets = [IN_FILE, WRITTEN, KEY, LETTERS]
    assert_nowhere(json.dumps(asked).encode(), "question", secrets)
    assert_nowhere(json.dumps(file).encode(), "preview", secrets)
    assert "+B=2" in file["diff"]
    assert_not_kept(host, secrets)
