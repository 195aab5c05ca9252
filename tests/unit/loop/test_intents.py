"""What is written down before a file call, and what the disk says about it after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.loop import intents
from agent_host.loop.intents import capture_intent, hash_on_disk
from agent_host.routing.capabilities import TOOLS
from agent_host.routing.facts import path_facts
from state.blobs import UNAVAILABLE, sha256_hex

if TYPE_CHECKING:
    from pathlib import Path

WRITE, DELETE, READ = TOOLS["WriteFile"], TOOLS["DeleteFile"], TOOLS["ReadFile"]
Captured = tuple[dict[str, Any] | None, dict[str, str | None]]


class Case:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "file.txt"
        self.kept: dict[str, bytes] = {}
        self.will_hold: dict[str, str | None] = {}

    def write(self, content: str, known: dict[str, str | None] | None = None) -> Captured:
        return self._capture(WRITE, {"content": content}, known)

    def delete(self) -> Captured:
        return self._capture(DELETE, {}, None)

    def _capture(self, row: Any, arguments: dict[str, Any], known: dict[str, str | None] | None) -> Captured:
        facts = path_facts(str(self.file), str(self.file))
        return capture_intent(row, facts, arguments, keep=self.keep, known=known or {}, will_hold=self.will_hold)

    def keep(self, data: bytes) -> str:
        name = sha256_hex(data)
        self.kept[name] = data
        return name


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_new_file(case: Case) -> None:
    intent, baselines = case.write("new")
    assert intent is not None
    assert intent["before"] is None
    assert baselines == {os.path.realpath(case.file): None}
    assert intent["after"] == sha256_hex(b"new")


def test_an_existing_file_keeps_its_first_version(case: Case) -> None:
    case.file.write_text("old")
    intent, baselines = case.write("new")
    assert intent is not None
    (name,) = baselines.values()
    assert name is not None
    assert case.kept == {name: b"old"}
    assert intent["before"] == sha256_hex(b"old")


def test_only_the_first_version_is_kept(case: Case) -> None:
    case.file.write_text("second")
    _, baselines = case.write("third", known={os.path.realpath(case.file): None})
    assert baselines == {}


def test_deleting(case: Case) -> None:
    case.file.write_text("old")
    intent, _ = case.delete()
    assert intent is not None
    assert (intent["before"], intent["after"]) == (sha256_hex(b"old"), None)


def test_what_is_on_the_disk_has_the_names_that_intents_use(case: Case) -> None:
    assert hash_on_disk(str(case.file)) is None
    case.file.write_text("old")
    assert hash_on_disk(str(case.file)) == sha256_hex(b"old")
    assert hash_on_disk(str(case.file.parent)) == UNAVAILABLE


def test_a_second_write_of_one_turn_starts_from_what_the_first_will_leave(case: Case) -> None:
    case.file.write_text("old")
    first, _ = case.write("one")
    second, baselines = case.write("two")
    assert first is not None
    assert second is not None
    assert second["before"] == first["after"]
    assert baselines == {}


def test_a_file_too_large_to_keep_has_no_intent(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "_MAX_BASELINE_BYTES", 2)
    case.file.write_text("old")
    intent, baselines = case.write("new")
    assert intent is None
    assert list(baselines.values()) == [UNAVAILABLE]


def test_calls_that_change_no_file_have_none(case: Case) -> None:
    assert case._capture(READ, {}, None) == (None, {})
