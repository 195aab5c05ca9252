"""Damage, as a user meets it: nothing is lost unseen, and what was whole before it can be gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_host.testing.scenarios import Brief
from agent_host.testing.trials import Trial

SESSION = "s1"


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, Brief())


def killed_late(trial: Trial) -> Path:
    """A session killed in its second step; its journal."""
    ended = trial.finish(trial.run(crash=("--after-record", "8")))
    assert ended.code == -9, ended.err
    return Path(trial.paths.journal)


def flip(path: Path, words: bytes) -> bytes:
    """Change one bit of the first `words` in the file; returns what is there now."""
    data = bytearray(path.read_bytes())
    data[data.index(words)] ^= 1
    path.write_bytes(data)
    return bytes(data)


def test_what_is_whole_before_the_damage_is_offered_and_gone_on_with(trial: Trial) -> None:
    with trial.serving():
        journal = killed_late(trial)
        damaged = flip(journal, b'"call_finished"')
        refused = trial.finish(trial.resume())
        assert refused.code == 1, refused.err
        assert "give the same command again" in refused.err
        assert (journal.parent / f"{SESSION}.journal.corrupt-1").read_bytes() == damaged
        gone_on = trial.finish(trial.resume())
        assert gone_on.code == 0, gone_on.err
        history = (Path(trial.paths.artifacts) / "session_history").read_text()
        assert "[The record of this session was damaged on disk" in history
        assert trial.gateway.failures == []
    assert sorted(path.name for path in journal.parent.iterdir()) == [
        f"{SESSION}.journal.corrupt-1",
        f"{SESSION}.json.corrupt-1",
    ]


def test_a_damaged_snapshot_costs_nothing(trial: Trial) -> None:
    with trial.serving():
        snapshot = killed_late(trial).with_suffix(".json")
        damaged = flip(snapshot, b'"userId"')
        gone_on = trial.finish(trial.resume())
        assert gone_on.code == 0, gone_on.err
        assert "the newest checkpoint was damaged on disk, and what stands beside it has replaced it" in gone_on.err
        assert f"it is kept as {snapshot}.corrupt-1" in gone_on.err
        assert trial.gateway.failures == []
    assert (snapshot.parent / f"{SESSION}.json.corrupt-1").read_bytes() == damaged
