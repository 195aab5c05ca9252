"""A run log that is put aside when it is full: nothing is lost but the oldest, wherever the process dies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.events import EventType
from agent_host.events.sinks import RunLog, next_event_id
from agent_host.redaction import Scrubber
from tests.support.events import emitter

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, numbers: range, **limits: Any) -> RunLog:
    """One line of a good 300 bytes and a flush for each number."""
    log = RunLog(str(path), **limits)
    for number in numbers:
        made = emitter(log, first_id=number)
        made.emit(EventType.CHECKPOINT_FAILED, {"message": "x" * 100, "code": "y"})
        made.flush()
    log.close()
    return log


def ids(path: Path) -> list[int]:
    return [orjson.loads(line)["eventId"] for line in path.read_bytes().splitlines()]


def aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def test_a_full_log_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, range(1, 11), max_bytes=600, keep=3)
    assert not path.exists()  # the next line makes it anew
    write(path, range(11, 12), max_bytes=600, keep=3)
    assert [ids(aside(path, number)) for number in (3, 2, 1)] == [[5, 6], [7, 8], [9, 10]]
    assert ids(path) == [11]
    assert sorted(os.listdir(tmp_path)) == [f"events.jsonl{end}" for end in ("", ".1", ".2", ".3")]


def test_a_log_that_was_long_already_is_put_aside_with_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, range(1, 6))
    log = write(path, range(6, 7), max_bytes=600)
    assert ids(aside(path, 1)) == [1, 2, 3, 4, 5, 6]
    assert log.dropped == 0


def test_numbers_go_on_behind_a_log_that_was_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, range(500, 502), max_bytes=600)
    assert not path.exists()
    assert next_event_id(str(path)) > 501
    path.write_bytes(b"")
    assert next_event_id(str(path)) > 501
    path.write_bytes(b'{"eventId":700}\n')
    assert next_event_id(str(path)) > 700


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("renames", range(4))
def test_a_death_between_the_moves_loses_nothing(tmp_path: Path, renames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    write(path, range(1, 7), max_bytes=600, keep=4)
    left = renames
    replace = os.replace

    def until_death(source: str, target: str) -> None:
        nonlocal left
        if not left:
            raise Died
        left -= 1
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", until_death)
        with pytest.raises(Died):
            write(path, range(7, 11), max_bytes=600, keep=4)
    numbers = [number for name in os.listdir(tmp_path) for number in ids(tmp_path / name)]
    assert sorted(numbers) == list(range(1, max(numbers) + 1))
    assert next_event_id(str(path)) > max(numbers)
    write(path, range(11, 13), max_bytes=600, keep=4)
    after = [number for end in (".4", ".3", ".2", ".1", "") if (tmp_path / f"events.jsonl{end}").exists()
             for number in ids(tmp_path / f"events.jsonl{end}")]  # fmt: skip
    assert after == sorted(after)
    assert after[0] == 1
    assert after[-1] == 12


def test_a_disk_that_refuses_the_move_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", refuse)
    path = tmp_path / "events.jsonl"
    log = write(path, range(1, 8), max_bytes=600)
    assert ids(path) == [1, 2, 3, 4, 5, 6, 7]
    assert log.dropped == 0


async def test_closing_an_emitter_closes_the_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    made = emitter(RunLog(str(path)))
    descriptors = len(os.listdir("/dev/fd"))
    made.emit(EventType.POLICY_EXPIRED, {})
    await made.aclose(1)
    assert ids(path) == [1]
    assert len(os.listdir("/dev/fd")) == descriptors


def test_lines_that_are_surely_clean_are_looked_at_together_and_others_one_by_one(tmp_path: Path) -> None:
    asked: list[bytes] = []
    secret, path = "tr0ub4dor-and-3", tmp_path / "events.jsonl"
    scrubber = Scrubber([secret])

    def one(line: bytes) -> bytes:
        asked.append(line)
        return scrubber.event(line)

    log = RunLog(str(path), are_clean=scrubber.are_clean)
    made = emitter(log, scrub=one)
    for text in ("the first goes out at once", "a", "b"):
        made.emit(EventType.CHECKPOINT_FAILED, {"message": text, "code": "y"})
    made.flush()
    assert len(asked) == 1, "two lines that hold nothing"
    for text in ("c", secret):
        made.emit(EventType.CHECKPOINT_FAILED, {"message": text, "code": "y"})
    made.flush()
    log.close()
    assert len(asked) == 3
    lines = [orjson.loads(line)["payload"]["message"] for line in path.read_bytes().splitlines()]
    assert lines[1:] == ["a", "b", "c", "[redacted]"]


SECRET = "tr0ub4dor-and-3"
COUNTS = {"model": "m", "inputTokens": 100, "outputTokens": 20, "responseId": "msg_1"}


@pytest.mark.parametrize(
    ("payload", "ids_of", "payload_stays"),
    [
        (COUNTS, {"task_id": "task", "step_id": "step"}, True),
        ({**COUNTS, "responseId": f"msg_{SECRET}"}, {"task_id": "task"}, False),
        ({**COUNTS, "cost": {"said": SECRET}}, {"task_id": "task"}, False),
        (COUNTS, {"task_id": SECRET}, True),
    ],
)
def test_the_texts_of_events_that_count_are_searched_and_their_numbers_are_not(
    tmp_path: Path, payload: dict[str, Any], ids_of: dict[str, str], payload_stays: bool
) -> None:
    searched: list[bytes] = []
    path, scrubber = tmp_path / "events.jsonl", Scrubber([SECRET])

    def are_clean(text: bytes) -> bool:
        searched.append(text)
        return scrubber.are_clean(text)

    log = RunLog(str(path), are_clean=are_clean)
    made = emitter(log, scrub=scrubber.event)
    for kind in (EventType.STEP_STARTED, EventType.LLM_REQUEST_COMPLETED, EventType.STEP_COMPLETED):
        made.emit(kind, payload, **ids_of)  # the first goes out at once
    made.flush()
    log.close()
    (text,) = searched
    assert b"inputTokens" not in text
    written = path.read_bytes()
    assert SECRET.encode() not in written
    lines = [orjson.loads(line) for line in written.splitlines()]
    assert [line["payload"]["inputTokens"] for line in lines] == [100, 100, 100]
    assert [line["payload"] == payload for line in lines] == [payload_stays] * 3
