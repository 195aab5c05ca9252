"""Damage, as a user meets it: nothing is lost unseen, and what was whole before it can be gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_host.faults.crash_run import CrashRun
from agent_host.faults.scenarios import Brief

SESSION = "s1"


@pytest.fixture
def crash_run(tmp_path: Path) -> CrashRun:
    return CrashRun(tmp_path, Brief())


def killed_late(crash_run: CrashRun) -> Path:
    """A session killed in its second step; its journal."""
    ended = crash_run.finish(crash_run.run(crash=("--after-record", "8")))
    assert ended.code == -9, ended.err
    return Path(crash_run.paths.journal)


def flip(path: Path, words: bytes) -> bytes:
    """Change one bit of the first `words` in the file; returns what is there now."""
    data = bytearray(path.read_bytes())
    data[data.index(words)] ^= 1
    path.write_bytes(data)
    return bytes(data)


def test_what_is_whole_before_the_damage_is_offered_and_gone_on_with(crash_run: CrashRun) -> None:
    with crash_run.serving():
        journal = killed_late(crash_run)
        damaged = flip(journal, b'"call_finished"')
        refused = crash_run.finish(crash_run.resume())
        assert refused.code == 1, refused.err
        assert "give the same command again" in refused.err
        assert (journal.parent / f"{SESSION}.journal.corrupt-1").read_bytes() == damaged
        gone_on = crash_run.finish(crash_run.resume())
        assert gone_on.code == 0, gone_on.err
        history = (Path(crash_run.paths.artifacts) / "session_history").read_text()
        assert "[The record of this session was damaged on disk" in history
        assert crash_run.gateway.failures == []
    assert sorted(path.name for path in journal.parent.iterdir()) == [
        f"{SESSION}.journal.corrupt-1",
        f"{SESSION}.json.corrupt-1",
    ]


def test_a_damaged_snapshot_costs_nothing(crash_run: CrashRun) -> None:
    with crash_run.serving():
        snapshot = killed_late(crash_run).with_suffix(".json")
        damaged = flip(snapshot, b'"userId"')
        gone_on = crash_run.finish(crash_run.resume())
        assert gone_on.code == 0, gone_on.err
        assert "the newest checkpoint was damaged on disk, and what stands beside it has replaced it" in gone_on.err
        assert f"it is kept as {snapshot}.corrupt-1" in gone_on.err
        assert crash_run.gateway.failures == []
    assert (snapshot.parent / f"{SESSION}.json.corrupt-1").read_bytes() == damaged
