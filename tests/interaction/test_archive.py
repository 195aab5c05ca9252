"""What an ended session leaves beside its run log: its records, and what files held before it wrote them."""

from __future__ import annotations

import base64
import json
import stat
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.host.undo import undo_last_step
from state.blobs import sha256_hex
from state.journal import parse
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host, Outcome

LARGE = "large\n" * 20_000


def worked(host: Host, *options: str, policy: str | Path = "full") -> Outcome:
    """A task that writes a file twice, between which a command changes it."""
    (host.workspace / "f").write_text("first")
    (host.workspace / "g").write_text(LARGE)
    with gateway(
        use(call("WriteFile", path=str(host.workspace / "f"), content="second")),
        use(shell("echo third > f")),
        use(call("ReadFile", path=str(host.workspace / "f"))),
        use(call("WriteFile", path=str(host.workspace / "f"), content="fourth")),
        use(call("DeleteFile", path=str(host.workspace / "f"))),
        use(call("WriteFile", path=str(host.workspace / "g"), content="small")),
        say("Done."),
    ) as model:
        return host.task(model.url, "--session-id", "mine", *options, policy=policy)


def records(host: Host) -> list[dict[str, Any]]:
    """The fields of the archived records, and their messages under `message`."""
    (journal,) = sorted((host.records("mine") / "archive").glob("*.journal"))
    found = parse(journal.read_bytes())
    assert (found.torn_bytes, found.damaged) == (0, False)
    return [
        {**json.loads(one.fields), "message": None if one.message is None else json.loads(one.message)}
        for one in found.records
    ]


def versions(host: Host) -> set[bytes]:
    """Everything that is kept by its hash, in a record or in a file."""
    inline = [base64.b64decode(data) for one in records(host) for data in one.get("blobs", {}).values()]
    files = [path.read_bytes() for path in (host.records("mine") / "blobs").glob("*")]
    return {*inline, *files}


def test_records_and_versions_stay_with_the_run_log(host: Host) -> None:
    assert worked(host).code == 0
    assert host.checkpoints() == []
    kinds = [one["kind"] for one in records(host)]
    assert (kinds[0], kinds.count("turn"), kinds.count("call_finished"), kinds[-1]) == (
        "opened",
        7,
        6,
        "session_status",
    )
    assert {b"first", b"third\n", LARGE.encode()} <= versions(host)
    texts = [one["message"]["content"] for one in records(host) if one["message"] is not None]
    assert "Done." in texts
    folder = host.records("mine") / "archive"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert host.run("sessions", "--prune", "--max-size", "1").code == 0
    assert not host.records("mine").exists()


def test_each_call_names_the_version_that_it_wrote_over(host: Host) -> None:
    assert worked(host).code == 0
    rows = [row for one in records(host) for row in [one, *one.get("calls", [])] if row.get("intent")]
    kept = [row["intent"].get("kept") for row in rows]
    written_over = (b"first", b"third\n", b"fourth", LARGE.encode())
    assert kept == [sha256_hex(content) for content in written_over]
    assert len({row["callId"] for row in rows}) == len(rows)
    assert set(written_over) <= versions(host)


def test_edits_and_moves_can_be_taken_back_too(host: Host) -> None:
    path = host.workspace / "f"
    path.write_text("one")
    with gateway(
        use(call("EditFile", path="f", edits=[{"oldText": "one", "newText": "two"}])),
        use(
            call("EditFile", path="f", edits=[{"oldText": "two", "newText": "three"}]),
            call("MoveFile", path="f", newPath="d/g"),
        ),
        say("Done."),
    ) as model:
        assert host.task(model.url, "--session-id", "mine", policy="full").code == 0
    assert (host.workspace / "d" / "g").read_text() == "three"
    intents = [row["intent"] for one in records(host) for row in [one, *one.get("calls", [])] if row.get("intent")]
    names = [sha256_hex(content) for content in (b"one", b"two", b"three")]
    assert list(dict.fromkeys(one["kept"] for one in intents)) == names
    assert intents[-1]["target"] == {"path": str(host.workspace / "d" / "g"), "before": None}
    assert {b"one", b"two", b"three"} <= versions(host)


def test_it_can_be_turned_off(host: Host) -> None:
    (host.root / "user.toml").write_text("[retention]\nkeep_file_versions = false\n")
    assert worked(host).code == 0
    assert not (host.records("mine") / "archive").exists()
    kept = {path.name for path in (host.records("mine") / "blobs").glob("*")}
    assert not {sha256_hex(data) for data in (b"first", b"third\n", LARGE.encode())} & kept


def test_a_file_that_may_not_be_read_leaves_no_version(host: Host) -> None:
    policy = host.root / "policy.json"
    blocked = {"name": "File.Read", "blockedPaths": ["f"]}
    policy.write_text(json.dumps({"extends": "full", "capabilities": [blocked]}))
    outcome = worked(host, policy=policy)
    assert outcome.code == 0
    assert not {b"first", b"third\n"} & versions(host)
    assert LARGE.encode() in versions(host)


def test_an_archive_that_cannot_be_written_is_said_and_ends_the_session_all_the_same(host: Host) -> None:
    (host.records("mine")).mkdir(parents=True)
    (host.records("mine") / "archive").write_text("in the way")
    outcome = worked(host)
    assert outcome.code == 0
    outcome.names_once("records could not be archived")
    assert host.checkpoints() == []


@pytest.mark.slow
def test_a_killed_session_that_is_resumed_leaves_all_of_it(host: Host) -> None:
    (host.workspace / "f").write_text("first")
    with gateway(
        use(call("WriteFile", path=str(host.workspace / "f"), content="second")),
        use(shell("touch begun; sleep 60")),
        say("Done."),
    ) as model:
        process = host.start_task(model.url, "--session-id", "mine")
        eventually((host.workspace / "begun").exists, "the command runs")
        process.kill()
        assert host.resume("mine").code == 0
    journals = sorted((host.records("mine") / "archive").glob("*.journal"))
    found = [one for path in journals for one in parse(path.read_bytes()).records]
    assert sorted({one.seq for one in found}) == list(range(1, found[-1].seq + 1))


@pytest.mark.parametrize(
    ("approve", "left"),
    [(("--approve-all",), ["not taken back: what RunCommand true did besides"]), (("--approve", "DeleteFile"), [])],
    ids=["the command ran", "the command was denied"],
)
def test_an_undo_names_only_what_is_not_taken_back(approve: tuple[str, ...], left: list[str], host: Host) -> None:
    (host.workspace / "f").write_text("first")
    policy = host.policy(grants={"File.Delete": {"requiresApproval": True}, "Shell.Exec": {"requiresApproval": True}})
    with gateway(use(call("DeleteFile", path="f"), shell("true")), say("Done.")) as model:
        host.task(model.url, "--session-id", "mine", *approve, policy=policy)
    assert not (host.workspace / "f").exists()
    undone = undo_last_step(str(host.state), "mine", str(host.workspace))
    assert undone.lines[1:] == ["f: as it was before", *left]
    assert (host.workspace / "f").read_text() == "first"
