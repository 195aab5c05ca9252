"""What is written down before a file call, and what the disk says about it after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.judging.facts import path_facts
from agent_host.loop import prepare
from agent_host.loop.prepare import PlannedContent, Versions, capture_intent, hash_on_disk
from policy.facts import UrlFacts
from state.blobs import UNAVAILABLE, sha256_hex, unavailable_at
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from policy.facts import PathFacts
    from state.records import FileEffect

WRITE, DELETE, READ = TOOLS["WriteFile"], TOOLS["DeleteFile"], TOOLS["ReadFile"]


class Case:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "file.txt"
        self.kept: dict[str, bytes] = {}
        self.planned: dict[str, PlannedContent] = {}
        self.all = False

    def write(self, content: str, known: dict[str, str | None] | None = None) -> FileEffect:
        return self._capture(WRITE, {"content": content}, known)

    def delete(self) -> FileEffect:
        return self._capture(DELETE, {}, None)

    def save(self) -> FileEffect:
        place = path_facts(str(self.file), str(self.file))
        facts = UrlFacts("https://example.com/", also=(("File.Read", place), ("File.Write", place)))
        return capture_intent(TOOLS["HttpRequest"], facts, {}, Versions(self.keep, {}, self.all), self.planned)

    def _capture(self, row: Any, arguments: dict[str, Any], known: dict[str, str | None] | None) -> FileEffect:
        facts = path_facts(str(self.file), str(self.file))
        return capture_intent(row, facts, arguments, Versions(self.keep, known or {}, self.all), self.planned)

    def keep(self, _facts: PathFacts, data: bytes) -> str:
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


def test_what_a_request_saves_over_is_kept_and_what_it_leaves_is_not_known(case: Case) -> None:
    case.file.write_text("old")
    case.all = True
    intent, baselines = case.save()
    name = sha256_hex(b"old")
    path = os.path.realpath(case.file)
    assert intent == {"path": path, "before": name, "after": UNAVAILABLE, "kept": name}
    assert (baselines, case.kept) == ({path: name}, {name: b"old"})
    case.planned.clear()
    case.file.unlink()
    assert case.save() == ({"path": path, "before": None, "after": UNAVAILABLE}, {path: None})
    facts = UrlFacts("https://example.com/", also=(("File.Read", path_facts(path, path)),))
    assert capture_intent(TOOLS["HttpRequest"], facts, {}, Versions(case.keep, {}, True), {}) == (None, {})


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


def test_of_a_file_too_large_to_keep_that_is_said(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_MAX_BASELINE_BYTES", 2)
    case.file.write_text("old")
    intent, baselines = case.write("new")
    assert intent is not None
    assert (intent["before"], intent["after"]) == (UNAVAILABLE, sha256_hex(b"new"))
    assert baselines == {os.path.realpath(case.file): unavailable_at(str(case.file))}


def test_calls_that_change_no_file_have_none(case: Case) -> None:
    assert case._capture(READ, {}, None) == (None, {})


# A tool that edits


def _edited(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    old, new = str(arguments["old"]).encode(), str(arguments["new"]).encode()
    return before.replace(old, new) if before is not None and old in before else None


EDIT = WRITE._replace(name="Edit", effect="edit", content=None, after=_edited)


def edit(case: Case, old: str, new: str) -> FileEffect:
    return case._capture(EDIT, {"old": old, "new": new}, None)


def test_an_edit_is_done_when_the_file_holds_what_it_makes_of_it(case: Case) -> None:
    """Not when the file is gone: an edit has no content among its arguments, and deletes nothing."""
    case.file.write_text("a b c")
    intent, baselines = edit(case, "b", "x")
    assert intent is not None
    assert (intent["before"], intent["after"]) == (sha256_hex(b"a b c"), sha256_hex(b"a x c"))
    assert case.kept == {name: b"a b c" for name in baselines.values() if name is not None}


def test_an_edit_builds_on_the_edit_before_it(case: Case) -> None:
    case.file.write_text("a b c")
    first, _ = edit(case, "b", "x")
    second, _ = edit(case, "x", "y")
    third, _ = case.write("")
    fourth, _ = edit(case, "b", "y")
    assert first is not None
    assert second is not None
    assert third is not None
    assert (second["before"], second["after"]) == (first["after"], sha256_hex(b"a y c"))
    assert third["after"] == sha256_hex(b"")
    assert fourth is not None
    assert fourth["after"] == UNAVAILABLE


def test_an_edit_that_fits_nowhere_says_nothing_of_what_it_leaves(case: Case) -> None:
    for content in (None, "a"):
        if content is not None:
            case.file.write_text(content)
        case.planned.clear()
        intent, _ = edit(case, "b", "x")
        assert intent is not None
        assert intent["before"] == (None if content is None else sha256_hex(content.encode()))
        assert intent["after"] == UNAVAILABLE
