"""`agent-host sessions --prune` as a user meets it."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import eventually, gateway, say

if TYPE_CHECKING:
    from tests.support.process import Host, Outcome

DAY_S = 86_400


def ended(host: Host, name: str, *, days: float, size: int = 1000) -> None:
    """A session that ended `days` ago, with `size` bytes."""
    folder = host.records(name)
    folder.mkdir(parents=True)
    moment = datetime.fromtimestamp(time.time() - days * DAY_S, UTC)
    result: dict[str, Any] = {
        "status": "TASK_COMPLETED", "prompt": "x", "stepCount": 1, "workspace": "/w", "endedAt": moment.isoformat(),
    }  # fmt: skip
    data = json.dumps(result).encode()
    (folder / "result.json").write_bytes(data)
    (folder / "events.jsonl").write_bytes(b"e" * (size - len(data)))


def prune(host: Host, *options: str) -> Outcome:
    return host.run("sessions", "--prune", *options)


def report(host: Host, *options: str) -> dict[str, Any]:
    outcome = prune(host, "--output", "json", *options)
    assert (outcome.code, outcome.stderr) == (0, "")
    value = json.loads(outcome.stdout)
    assert isinstance(value, dict)
    return value


def left(host: Host) -> list[str]:
    return sorted(os.listdir(host.state / "sessions"))


def test_by_age_in_text(host: Host) -> None:
    for name, days in (("old", 40.5), ("older", 50.5), ("young", 3)):
        ended(host, name, days=days, size=2048)
    dry = prune(host, "--max-age", "4w", "--dry-run")
    assert (dry.code, dry.stderr, left(host)) == (0, "", ["old", "older", "young"])
    assert not (host.state / "checkpoints").exists()
    assert dry.text.splitlines() == [
        "older  50d  2.0 KiB  age",
        "old  40d  2.0 KiB  age",
        "2 sessions would be pruned, 4.0 KiB to free, 1 kept",
    ]
    outcome = prune(host, "--max-age", "4w")
    assert (outcome.code, outcome.stderr, left(host)) == (0, "", ["young"])
    assert outcome.text.splitlines() == [*dry.text.splitlines()[:2], "2 sessions pruned, 4.0 KiB freed, 1 kept"]
    assert prune(host, "--max-age", "4w").text == "0 sessions pruned, 0 B freed, 1 kept\n"
    assert host.run("sessions").text.split()[0] == "young"
    assert os.listdir(host.state / "checkpoints") == []


def test_by_count_and_size_in_json(host: Host) -> None:
    for number in range(5):
        ended(host, f"s{number}", days=number)
    dry = report(host, "--max-count", "3", "--max-size", "2000", "--dry-run")
    assert dry == {
        "pruned": [
            {"sessionId": "s4", "reason": "count", "sizeBytes": 1000},
            {"sessionId": "s3", "reason": "count", "sizeBytes": 1000},
            {"sessionId": "s2", "reason": "size", "sizeBytes": 1000},
        ],
        "kept": 2,
        "freedBytes": 3000,
        "dryRun": True,
    }
    assert len(left(host)) == 5
    assert report(host, "--max-count", "3", "--max-size", "2000") == {**dry, "dryRun": False}
    assert left(host) == ["s0", "s1"]


def test_the_configured_limits_when_none_is_given(host: Host) -> None:
    ended(host, "month", days=31)
    ended(host, "week", days=7)
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text("[retention]\nmax_age_days = 1\nmax_sessions = 0\n")
    assert [row["sessionId"] for row in report(host)["pruned"]] == ["month"]
    with (host.root / "user.toml").open("a") as handle:
        handle.write("[retention]\nmax_age_days = 0\nmax_sessions = 0\nmax_bytes = 0\n")
    ended(host, "ages", days=10_000)
    assert report(host)["pruned"] == [], "0 is no limit"
    (host.root / "user.toml").write_text("[retention]\nmax_sessions = 1\n")
    assert [row["sessionId"] for row in report(host, "--max-age", "30d")["pruned"]] == ["ages"], "only what is given"
    (host.root / "user.toml").write_text("[retention]\nmax_sessions = -1\n")
    outcome = prune(host)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "retention.max_sessions" in outcome.error


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["--prune", "--max-age", "30"], ["--max-age", "s, m, h, d or w", "'30'"]),
    (["--prune", "--max-age", "1.5d"], ["--max-age", "'1.5d'"]),
    (["--prune", "--max-age", "-1d"], ["--max-age"]),
    (["--prune", "--max-age", "3 d"], ["--max-age", "'3 d'"]),
    (["--prune", "--max-age", "1d\n"], ["--max-age"]),
    (["--prune", "--max-age", "٣d"], ["--max-age"]),
    (["--prune", "--max-age", "0d"], ["--max-age", "more than 0"]),
    (["--prune", "--max-age", ""], ["--max-age"]),
    (["--prune", "--max-count", "0"], ["--max-count", "more than 0"]),
    (["--prune", "--max-count", "many"], ["--max-count", "whole number", "'many'"]),
    (["--prune", "--max-count", "9" * 5000], ["--max-count"]),
    (["--prune", "--max-size", "2GB"], ["--max-size", "2GiB", "'2GB'"]),
    (["--prune", "--max-size", "2g"], ["--max-size", "'2g'"]),
    (["--prune", "--max-size", "2iB"], ["--max-size", "'2iB'"]),
    (["--prune", "--max-size", "0"], ["--max-size", "more than 0"]),
    (["--max-age", "30d"], ["--max-age", "--prune"]),
    (["--max-count", "3"], ["--max-count", "--prune"]),
    (["--max-size", "3"], ["--max-size", "--prune"]),
    (["--resumable"], ["--resumable", "--prune"]),
    (["--dry-run"], ["--dry-run", "--prune"]),
]


@pytest.mark.slow
def test_mistakes(host: Host) -> None:
    ended(host, "old", days=1000)
    running = [host.start("sessions", *arguments) for arguments, _ in MISTAKES]
    for process, (arguments, parts) in zip(running, MISTAKES, strict=True):
        outcome = process.finish()
        assert (outcome.code, outcome.stdout) == (2, b""), (arguments, outcome)
        assert outcome.error.startswith("agent-host: error: ")
        assert all(part in outcome.error for part in parts), (arguments, outcome.error)
    assert left(host) == ["old"]


@pytest.mark.parametrize(
    ("text", "kept"), [("3000", 3), ("2999", 2), ("2K", 2), ("2Ki", None), ("2KiB", 2), ("1M", 3), ("1GiB", 3)]
)
def test_sizes(host: Host, text: str, kept: int | None) -> None:
    for number in range(3):
        ended(host, f"s{number}", days=number + 1)
    if kept is None:
        assert prune(host, "--max-size", text).code == 2
    else:
        assert report(host, "--max-size", text, "--dry-run")["kept"] == kept


@pytest.mark.slow
def test_a_session_at_work_and_a_resumable_one(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway({"status": 500, "times": "always"}) as model:
        assert host.task(model.url, "--session-id", "paused").code == 3
    ended(host, "over", days=1)
    with gateway({"hang": True}) as model:
        running = host.start_task(model.url, "--session-id", "live")
        eventually(lambda: model.count == 1, "the request")
        far = time.time() - 1000 * DAY_S
        for folder in ("checkpoints", "sessions/live", "sessions/paused"):
            for name in os.listdir(host.state / folder):
                os.utime(host.state / folder / name, (far, far))
        found = report(host, "--max-age", "1h")
        assert ([row["sessionId"] for row in found["pruned"]], found["kept"]) == (["over"], 2)
        found = report(host, "--max-age", "1h", "--resumable")
        assert ([row["sessionId"] for row in found["pruned"]], found["kept"]) == (["paused"], 1)
        assert left(host) == ["live"]
        assert host.checkpoints() == ["live.journal", "live.json", "live.lock"]
        running.interrupt()
        assert running.finish().code == 130
    assert "no session paused" in host.resume("paused").error
    assert report(host, "--max-count", "1", "--resumable")["kept"] == 1
    with gateway(say("Done.")) as model:
        assert host.resume("--gateway", model.url, "live").code == 0, "it was left whole"


def test_a_finished_session_is_pruned_and_its_id_free_again(host: Host) -> None:
    with gateway(say("Done."), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "mine").code == 0
        assert report(host, "--max-size", "1")["pruned"][0]["reason"] == "size"
        assert (left(host), host.checkpoints()) == ([], [])
        assert host.task(model.url, "--session-id", "mine").code == 0


def test_what_cannot_be_removed_is_told_and_the_rest_goes_on(host: Host) -> None:
    for name, days in (("first", 50), ("stuck", 45), ("last", 40)):
        ended(host, name, days=days)
    (host.state / "checkpoints").mkdir()
    (host.state / "checkpoints" / "stuck.lock").symlink_to(host.root / "user.toml")
    outcome = prune(host, "--output", "json")
    assert outcome.code == 1
    assert "session stuck was not removed" in outcome.error
    found = json.loads(outcome.stdout)
    assert [row["sessionId"] for row in found["pruned"]] == ["first", "last"]
    assert (found["kept"], found["freedBytes"], left(host)) == (1, 2000, ["stuck"])


def test_links_lead_nowhere(host: Host) -> None:
    outside = host.root / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    ended(host, "old", days=100)
    (host.records("old") / "artifacts").symlink_to(outside)
    host.records("link").symlink_to(outside)
    os.utime(host.records("link"), (0, 0), follow_symlinks=False)
    assert len(report(host, "--max-size", "1")["pruned"]) == 2
    assert left(host) == []
    (host.state / "sessions").rmdir()
    (host.state / "sessions").symlink_to(outside)
    outcome = prune(host)
    assert outcome.code == 1
    assert "sessions" in outcome.error
    assert "link" in outcome.error
    assert os.listdir(outside) == ["precious"]


def test_no_sessions_at_all(host: Host) -> None:
    assert report(host) == {"pruned": [], "kept": 0, "freedBytes": 0, "dryRun": False}
    assert not host.state.exists()


def test_the_list_does_not_show_what_is_being_pruned(host: Host) -> None:
    ended(host, "old", days=1)
    host.records("old").rename(host.state / "sessions" / "old.being-pruned")
    assert host.run("sessions").text == f"no sessions under {host.state}\n"
    assert report(host)["freedBytes"] == 1000
    assert left(host) == []
