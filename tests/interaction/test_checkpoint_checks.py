"""What is checked before a session goes on: the shape and the size of its checkpoint, and whose policy it is."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.interaction.test_serve_stops import EFFECT
from tests.support.process import gateway, say, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host
    from tests.support.serve_process import Servers

posix = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")

pytestmark = pytest.mark.slow


DOWN = {"status": 500}
ONE_STEP = (use(EFFECT), say("Done."))
KIB_15 = " ".join(map(str, range(2770)))
CUT = say(KIB_15, stop_reason="max_tokens")


def paused(host: Host, *options: str, policy: Any = "full") -> Path:
    """A session `s` that waits for a gateway, behind one step; its snapshot."""
    host.configure(max_retries=0)
    with gateway(use(EFFECT), DOWN) as model:
        outcome = host.task(model.url, "--session-id", "s", *options, policy=policy)
    assert outcome.code == 3, outcome.stderr
    return host.state / "checkpoints" / "s.json"


def sealed(raw: dict[str, Any]) -> bytes:
    body = orjson.dumps({key: value for key, value in raw.items() if key != "checksum"})[:-1]
    return body + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


def limited(host: Host, max_snapshot_bytes: int) -> None:
    config = (host.root / "user.toml").read_text().partition("\n[host]")[0]
    (host.root / "user.toml").write_text(f"{config}\n[host]\nmax_snapshot_bytes = {max_snapshot_bytes}\n")


def files(host: Host) -> dict[str, bytes]:
    folder = host.state / "checkpoints"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


# --- shapes -----------------------------------------------------------------------------------------------------------


@posix
def test_a_whole_checkpoint_of_another_shape_is_refused_with_every_problem(host: Host, servers: Servers) -> None:
    snapshot = paused(host)
    raw = orjson.loads(snapshot.read_bytes())
    raw["resume"]["usage"]["inputTokens"] = -3
    raw["task"]["status"] = "TASK_RUNNING"
    raw["thread"][1]["role"] = "boss"
    del raw["resume"]["options"]["flags"]
    snapshot.write_bytes(sealed(raw))
    before = files(host)
    said = (
        "resume.usage.inputTokens: must be a whole number of at least 0, not -3",
        'task.status: must be one of running, completed, failed, cancelled, not "TASK_RUNNING"',
        'thread[1].role: must be one of system, user, assistant, tool, not "boss"',
        "resume.options.flags: is missing",
    )
    for _ in range(2):
        outcome = host.resume("s", "--gateway", "http://127.0.0.1:1")
        assert outcome.code == 1
        assert all(part in outcome.error for part in said)
    serve, client = servers.client("http://127.0.0.1:1")
    refused = client.refusal("ResumeSession", sessionId="s")
    assert refused.what == (-32030, "CHECKPOINT_UNREADABLE", False)
    assert all(part in refused.message for part in said)
    client.done()
    serve.ended_well()
    listed = host.run("sessions")
    assert listed.code == 0
    assert "UNREADABLE" in listed.text
    assert host.run("sessions", "--prune", "--max-count", "1").code == 0
    assert host.run("policy", "rejudge", "s", "--policy", "ci").code == 2
    assert files(host) == before


@posix
def test_a_record_of_another_shape_is_damage_behind_what_is_whole(host: Host) -> None:
    snapshot = paused(host)
    journal = snapshot.with_suffix(".journal")
    first, *rest = journal.read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(rest) if b'"kind":"call_finished"' in line)
    _, seq, synced, _, length, _, _ = rest[place].split(b" ", 6)
    spoken = rest[place][-int(length) - 1 : -1]
    fields = b'{"kind":"call_finished","callId":5,"status":"done"}'
    counted = b"%s %s %d %d " % (seq, synced, len(fields), len(spoken))
    payload = fields + b" " + spoken
    rest[place] = b"J2 %s%08x %s\n" % (counted, zlib.crc32(payload, zlib.crc32(counted)), payload)
    journal.write_bytes(b"".join((first, *rest)))
    refused = host.resume("s", "--gateway", "http://127.0.0.1:1")
    assert refused.code == 1
    assert "callId: must be a string, not 5" in refused.error
    assert "give the same command again" in refused.error
    with gateway(*ONE_STEP) as model:
        assert host.resume("s", "--gateway", model.url).code == 0


@posix
def test_a_newline_behind_either_file_is_no_damage(host: Host) -> None:
    snapshot = paused(host)
    for path in (snapshot, snapshot.with_suffix(".journal")):
        path.write_bytes(path.read_bytes() + b"\n")
    with gateway(*ONE_STEP) as model:
        outcome = host.resume("s", "--gateway", model.url)
    assert (outcome.code, outcome.result["stepCount"]) == (0, 2)
    assert "damaged" not in outcome.stderr
    assert not [name for name in host.checkpoints() if ".corrupt-" in name]
    assert (host.workspace / "effects").read_text() == "ran\n"


# --- sizes ------------------------------------------------------------------------------------------------------------


@posix
def test_a_snapshot_above_the_limit_is_neither_read_nor_touched(host: Host) -> None:
    snapshot = paused(host)
    whole = snapshot.read_bytes()
    with snapshot.open("r+b") as handle:
        handle.truncate(256 * 1024 * 1024 + 1)
    limit = "s.json has 268435457 bytes, and host.max_snapshot_bytes is 268435456"
    outcome = host.resume("s", "--gateway", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert limit in outcome.error
    assert "set it higher" in outcome.error
    listed = host.run("sessions")
    assert listed.code == 0
    assert limit in listed.text
    assert host.run("sessions", "--prune", "--max-count", "1").code == 0
    assert snapshot.stat().st_size == 256 * 1024 * 1024 + 1
    with snapshot.open("r+b") as handle:
        handle.truncate(len(whole))
    with gateway(*ONE_STEP) as model:
        assert host.resume("s", "--gateway", model.url).code == 0


def test_a_session_pauses_before_its_snapshot_is_too_large(host: Host) -> None:
    """And goes on where it stopped under a higher limit."""
    limited(host, 65_536)
    with gateway(*[CUT] * 10) as model:
        outcome = host.task(model.url, "--session-id", "s")
        assert outcome.code == 3
        assert outcome.result["reason"] == "CHECKPOINT_WRITE_FAILED"
        outcome.names_once("host.max_snapshot_bytes", "set it higher in your configuration, then resume")
        steps, asked = outcome.result["stepCount"], model.count
        assert steps == asked
    assert 0 < (host.state / "checkpoints" / "s.json").stat().st_size <= 65_536
    with gateway(say("Never asked.")) as model:
        again = host.resume("s", "--gateway", model.url)
        assert (again.code, model.count) == (3, 0)
        assert "host.max_snapshot_bytes" in again.stderr
    limited(host, 1_000_000)
    with gateway(*[CUT] * steps, say("Done.")) as model:
        done = host.resume("s", "--gateway", model.url)
    assert done.code == 0
    assert done.result["text"] == KIB_15 * steps + "Done."
    assert done.result["stepCount"] == steps + 1


def test_a_limit_below_what_is_there_is_named(host: Host) -> None:
    with gateway(*[CUT] * 10, DOWN) as model:
        host.configure(max_retries=0)
        assert host.task(model.url, "--session-id", "s").code == 3
    limited(host, 65_536)
    before = files(host)
    with gateway(say("Never asked.")) as model:
        refused = host.resume("s", "--gateway", model.url)
        assert (refused.code, model.count) == (3, 0)
    assert "host.max_snapshot_bytes is 65536" in refused.error
    assert files(host) == before
    limited(host, 1_000_000)
    with gateway(*[CUT] * 10, say("Done.")) as model:
        assert host.resume("s", "--gateway", model.url).result["text"] == KIB_15 * 10 + "Done."


# --- tenants and users ------------------------------------------------------------------------------------------------


def of(host: Host, tenant: str, user: str) -> Path:
    return host.policy(tenantId=tenant, userId=user)


@posix
@pytest.mark.parametrize(
    ("tenant", "user", "said"),
    [
        ("t", "u", None),
        ("local", "local", None),
        ("t", "local", None),
        ("local", "u", None),
        ("other", "u", "tenantId is 'other', and that of session"),
        ("t", "other", "userId is 'other', and that of session"),
        ("local", "other", "userId is 'other', and that of session"),
    ],
)
def test_a_session_of_a_client_goes_on_under_a_policy_of_its_own_tenant_and_user(
    servers: Servers, tenant: str, user: str, said: str | None
) -> None:
    host = servers.host
    host.configure(max_retries=0)
    with gateway(use(EFFECT), DOWN, say("Done.")) as model:
        serve, client = servers.session(model.url, policy=of(host, "t", "u"))
        client.task()
        client.event("session_paused")
        of(host, tenant, user)
        if said is None:
            client.resume(client.session_id)
            client.event("task_completed")
            client.call("Shutdown")
        else:
            refused = client.refusal("ResumeSession", sessionId=client.session_id)
            assert refused.what == (-32003, "POLICY_BUNDLE_INVALID", False)
            assert said in refused.message
            client.done()
        serve.ended_well()
        if said is None:
            return
        before = host.state_files()
        again, other = servers.client(model.url, policy=of(host, tenant, user))
        assert said in other.refusal("ResumeSession", sessionId=client.session_id).message
        other.done()
        again.ended_well()
        resumed = host.resume(client.session_id, "--policy", str(of(host, tenant, user)), "--gateway", model.url)
        assert resumed.code == 2
        assert said in resumed.error
        assert host.state_files() == before, "whose session it is is looked at before anything is written"
        of(host, "t", "u")
        assert host.resume(client.session_id, "--gateway", model.url).code == 0


@posix
def test_a_local_session_goes_on_under_any_policy(host: Host) -> None:
    paused(host)
    with gateway(*ONE_STEP) as model:
        policy = host.policy(tenantId="acme", userId="jo")
        assert host.resume("s", "--policy", str(policy), "--gateway", model.url).code == 0


@posix
def test_a_damaged_session_is_put_aside_for_its_owner_alone(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=of(host, "t", "u"))
        client.task()
        client.event("task_completed")
        serve.kill()
        path = host.state / "checkpoints" / f"{client.session_id}.journal"
        journal = bytearray(path.read_bytes())
        journal[len(journal) * 2 // 3] ^= 1
        path.write_bytes(journal)
        before = host.state_files()
        for tenant, said in (("other", "tenantId is 'other'"), ("t", "damaged")):
            again, other = servers.client(model.url, policy=of(host, tenant, "u"))
            assert said in other.refusal("ResumeSession", sessionId=client.session_id).message
            other.done()
            again.ended_well()
            assert (host.state_files() == before) == (tenant == "other")
