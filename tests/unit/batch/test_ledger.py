"""The directory of a batch over crashes, other tasks and a second batch."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.batch import BatchTask, Source
from agent_host.batch.ledger import Ledger
from agent_host.errors import SessionHeld, UsageError

if TYPE_CHECKING:
    from pathlib import Path

ROW: dict[str, Any] = {
    "status": "TASK_COMPLETED",
    "reason": None,
    "endedBy": "model",
    "retryable": False,
    "usage": {},
    "model": "m",
}


def task(name: str, prompt: str = "Do it.") -> BatchTask:
    return BatchTask(name, prompt, Source("directory", "/"))


def opened(path: Path, *names: str, policy: str = "ci") -> Ledger:
    return Ledger(str(path), [task(name) for name in names], policy)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_last_line_of_an_id_counts_and_a_torn_one_is_dropped(tmp_path: Path) -> None:
    ledger = opened(tmp_path, "a", "b")
    ids = ledger.batch_id, ledger.session_id(task("a"))
    for row in ({**ROW, "id": "a", "attempts": 1}, {**ROW, "id": "b"}, {**ROW, "id": "a", "attempts": 2}):
        ledger.add(row)
    ledger.close()
    with open(tmp_path / "results.jsonl", "ab") as file:
        file.write(b'{"id": "b", "attem')
    again = opened(tmp_path, "a", "b")
    assert (again.batch_id, again.session_id(task("a"))) == ids
    assert ids[1].startswith(f"b-{ids[0]}-")
    assert {name: row.get("attempts") for name, row in again.rows.items()} == {"a": 2, "b": None}
    again.add({**ROW, "id": "b", "attempts": 3})
    again.finish({"tasks": 2})
    again.close()
    assert [(row["id"], row["attempts"]) for row in lines(tmp_path / "results.jsonl")] == [("a", 2), ("b", 3)]
    assert lines(tmp_path / "summary.json") == [{"tasks": 2}]


def test_a_clean_end_keeps_what_is_on_record_of_tasks_of_other_files(tmp_path: Path) -> None:
    first = opened(tmp_path, "a", "b")
    for name in ("b", "a"):
        first.add({**ROW, "id": name})
    first.close()
    second = opened(tmp_path, "c", "b")
    second.add({**ROW, "id": "c"})
    second.finish({})
    second.close()
    for name in ("results.jsonl", "predictions.jsonl"):
        assert [row.get("id", row.get("instance_id")) for row in lines(tmp_path / name)] == ["c", "b", "a"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_row_that_the_disk_refuses_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    import resource  # of POSIX
    import signal  # for this test

    ledger = opened(tmp_path, "a", "b")
    ledger.add({**ROW, "id": "a"})
    before = (tmp_path / "results.jsonl").read_bytes()
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, most))
        with pytest.raises(OSError, match="large"):
            ledger.add({**ROW, "id": "b", "text": "x" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))
        signal.signal(signal.SIGXFSZ, handler)
    assert ((tmp_path / "results.jsonl").read_bytes(), list(ledger.rows)) == (before, ["a"])
    ledger.add({**ROW, "id": "b"})
    ledger.close()
    assert [row["id"] for row in lines(tmp_path / "results.jsonl")] == ["a", "b"]


def test_predictions_leave_out_what_infrastructure_ended(tmp_path: Path) -> None:
    ledger = opened(tmp_path, "a", "b", "c")
    (tmp_path / "patches" / "a.patch").write_text("a patch\n")
    ledger.add({**ROW, "id": "a", "patchFile": "patches/a.patch"})
    ledger.add({**ROW, "id": "b", "endedBy": "infrastructure"})
    ledger.add({**ROW, "id": "c", "endedBy": "limit"})
    ledger.finish({})
    ledger.close()
    assert lines(tmp_path / "predictions.jsonl") == [
        {"instance_id": "a", "model_name_or_path": "m", "model_patch": "a patch\n"},
        {"instance_id": "c", "model_name_or_path": "m", "model_patch": ""},
    ]


def test_a_second_batch_and_other_tasks_are_refused(tmp_path: Path) -> None:
    first = opened(tmp_path, "a")
    with pytest.raises(SessionHeld, match="runs the batch"):
        opened(tmp_path, "a")
    first.close()
    with pytest.raises(UsageError, match="id a: another prompt, workspace or policy"):
        Ledger(str(tmp_path), [task("a", "Other.")], "ci")
    with pytest.raises(UsageError, match="another --policy"):
        opened(tmp_path, "a", policy="full")
    more = opened(tmp_path, "a", "b")
    more.close()
    with pytest.raises(UsageError, match="id b: another"):
        Ledger(str(tmp_path), [task("b", "Other.")], "ci")


@pytest.mark.parametrize("damage", ["{}", "[", '{"batchId": "../../x", "tasks": {}}'])
def test_damage_is_refused_and_kept(tmp_path: Path, damage: str) -> None:
    (tmp_path / "batch.json").write_text(damage)
    with pytest.raises(UsageError, match="damaged: choose another --out"):
        opened(tmp_path, "a")
    assert (tmp_path / "batch.json").read_text() == damage
    (tmp_path / "batch.json").unlink()
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"has results and no batch\.json"):
        opened(tmp_path, "a")
