"""Pictures on record: a resume sends what would have been sent, whatever became of the process and of the disk."""

from __future__ import annotations

import sys
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.thread import MAX_SENT
from state.blobs import sha256_hex
from tests.support.pictures import gif, png
from tests.support.process import Host, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CRASH = "agent_host.faults.crash"
SMALL, LARGE = gif(40, 30), png(640, 480, 300_000)
WAITS = "touch begun; until [ -e go ]; do sleep 0.01; done"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A machine with a small and a large picture in its workspace."""
    machine = Host(tmp_path)
    (machine.workspace / "small").write_bytes(SMALL)
    (machine.workspace / "large").write_bytes(LARGE)
    yield machine
    machine.close()


def results(body: dict[str, Any]) -> list[Any]:
    """The contents of a request's tool results, in order."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def shown(kind: str, said: str, data: bytes) -> list[dict[str, Any]]:
    source = {"type": "base64", "media_type": kind, "data": b64encode(data).decode()}
    return [{"type": "text", "text": said}, {"type": "image", "source": source}]


AS_SMALL = shown("image/gif", f"image/gif, 40x30, {len(SMALL)} bytes", SMALL)
AS_LARGE = shown("image/png", f"image/png, 640x480, {len(LARGE)} bytes", LARGE)


def killed_in_third_step(host: Host, url: str) -> Path:
    """A session that read both pictures and died; gives its folder of blobs."""
    process = host.start_task(url, "--session-id", "s1")
    eventually((host.workspace / "begun").exists, "the command has begun")
    process.kill()
    (host.workspace / "go").touch()
    return host.records("s1") / "blobs"


TURNS = [
    use(call("ReadFile", path="large"), call("ReadFile", path="small")),
    use(shell("echo compacted")),
    use(shell(WAITS)),
    say("Done."),
]


def test_a_resume_sends_the_same_bytes(host: Host) -> None:
    """Killed behind each record from the first picture's result on; the snapshot is made on the way."""
    reads = [use(call("ReadFile", path=name)) for name in ("large", "small", "large")]

    def bodies(session: str, *crash: str) -> list[Any]:
        with gateway(*reads, say("Done.")) as model:
            run = ["run", "Do it.", "--gateway", model.url, "--session-id", session, "--policy", "full"]
            ended = host.start(*crash, *run, program=CRASH if crash else "agent_host").finish()
            if crash:
                assert ended.code == -9, ended.stderr
                assert host.run("resume", session, "--gateway", model.url).code == 0
            return [body["messages"] for body in model.bodies]

    undisturbed = bodies("undisturbed")
    assert results({"messages": undisturbed[-1]}) == [AS_LARGE, AS_SMALL, AS_LARGE]
    for record in range(3, 10):
        assert bodies(f"killed-{record}", "--after-record", str(record)) == undisturbed, record


def test_a_large_picture_lies_in_a_blob_and_comes_back(host: Host) -> None:
    with gateway(*TURNS) as model:
        blobs = killed_in_third_step(host, model.url)
        eventually((blobs / sha256_hex(LARGE)).exists, "the picture has a file")
        assert (blobs / sha256_hex(LARGE)).read_bytes() == LARGE
        outcome = host.resume("s1", "--gateway", model.url)
        assert outcome.code == 0, outcome.stderr
        assert results(model.bodies[-1])[:2] == [AS_LARGE, AS_SMALL]
    history = [message["images"][0]["data"] for message in host.history("s1") if "images" in message]
    assert history == [b64encode(LARGE).decode(), b64encode(SMALL).decode()]


def test_a_lost_picture_leaves_a_session_that_goes_on(host: Host) -> None:
    with gateway(*TURNS) as model:
        blobs = killed_in_third_step(host, model.url)
        (blobs / sha256_hex(LARGE)).write_bytes(b"nothing of it")
        outcome = host.resume("s1", "--gateway", model.url)
        assert outcome.code == 0, outcome.stderr
        lost, small, *_ = results(model.bodies[-1])
    assert lost.endswith(f"[A picture of {len(LARGE)} bytes here were damaged on disk and are lost]")
    assert small == AS_SMALL


def test_switched_off_a_session_goes_on_without_its_pictures(host: Host) -> None:
    """What is left to do where a gateway refuses a picture that is in the thread by then."""
    refused = {"status": 400, "error": {"message": "Could not process image", "type": "invalid_request_error"}}
    with gateway(use(call("ReadFile", path="small")), refused, say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s1").code == 1
        with (host.root / "user.toml").open("a") as settings:
            settings.write("images = false\n")
        outcome = host.resume("s1", "--gateway", model.url)
        assert outcome.code == 0, outcome.stderr
        assert results(model.bodies[-1]) == [f"image/gif, 40x30, {len(SMALL)} bytes; this model takes no images"]


def test_old_pictures_go_and_a_resume_knows_which(host: Host) -> None:
    names = [f"small-{number}" for number in range(21)]
    for name in names:
        (host.workspace / name).write_bytes(SMALL)
    reads = [use(*(call("ReadFile", path=name) for name in names[first : first + 7])) for first in (0, 7, 14)]
    assert len(names) > MAX_SENT
    with gateway(*reads, use(shell(WAITS)), say("Done.")) as model:
        killed_in_third_step(host, model.url)
        outcome = host.resume("s1", "--gateway", model.url)
        assert outcome.code == 0, outcome.stderr
        before, after = results(model.bodies[3]), results(model.bodies[-1])
    gone = f"image/gif, 40x30, {len(SMALL)} bytes; not shown any more, newer pictures have taken its place"
    assert [isinstance(content, str) for content in before] == [True] * 14 + [False] * 7
    assert before[0] == f"{gone}: read it again to see it"
    assert after[:21] == before


def test_people_and_clients_see_what_a_picture_is_and_not_its_bytes(host: Host) -> None:
    with gateway(use(call("ReadFile", path="large")), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s1").code == 0
    encoded = b64encode(LARGE)[:200].decode()
    said = f"image/png, 640x480, {len(LARGE)} bytes"
    for options in ((), ("--output", "json")):
        outcome = host.run("show", "s1", *options)
        assert (outcome.code, encoded in outcome.text, said in outcome.text) == (0, False, True)
    assert f'"bytes": {len(LARGE)}' in outcome.text
    assert encoded not in str(host.event_log("s1"))
    (completed,) = [event for event in host.event_log("s1") if event["eventType"] == "tool_completed"]
    assert completed["payload"]["images"] == [said]
