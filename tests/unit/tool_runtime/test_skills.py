"""Skills in their folders: what is found of them, and how much of one is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tool_runtime.files import Scope
from tool_runtime.files.skills import (
    MAX_BODY_CHARS,
    MAX_BODY_LINES,
    MAX_EXCERPT_CHARS,
    MAX_RESOURCE_BYTES,
    SkillFolder,
    SkillIndex,
    body_of,
    resource_of,
    split,
)
from tool_runtime.tool import Abandoned, FaultKind, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

    from tool_runtime.files.skills import Document, Skill

ANYWHERE = Scope()


def skill(folder: Path, name: str = "forms", body: str = "Body.", more: str = "") -> Path:
    at = folder / name
    at.mkdir(parents=True)
    (at / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Fills in {name}.\n{more}---\n{body}")
    return at


def index(*folders: Path, of_workspace: bool = False) -> SkillIndex:
    return SkillIndex([SkillFolder(str(folder), of_workspace) for folder in folders])


def only(folder: Path) -> Skill:
    (found,) = index(folder).skills().usable.values()
    return found


def body(found: Skill) -> str:
    return body_of(found, ANYWHERE, Abandoned())


@pytest.mark.parametrize(
    "more",
    [
        "allowed-tools: Read, Bash(git log:*, git diff:*)\n",
        "allowed-tools: Read Bash(git log:*, git diff:*)\n",
        "allowed-tools:\n  - Read\n  - Bash(git log:*, git diff:*)\n",
        "allowed-tools: [Read, 'Bash(git log:*, git diff:*)']\n",
    ],
)
def test_tools_are_listed_in_every_way_that_files_have(tmp_path: Path, more: str) -> None:
    skill(tmp_path, more=f"license: MIT\nmetadata:\n  version: '1'\n{more}")
    assert only(tmp_path).allowed_tools == ("Read", "Bash(git log:*, git diff:*)")


def test_a_skill_that_lists_no_tools_leaves_all_and_one_with_an_empty_list_none(tmp_path: Path) -> None:
    skill(tmp_path / "a")
    skill(tmp_path / "b", more="allowed-tools: []\n")
    assert only(tmp_path / "a").allowed_tools is None
    assert only(tmp_path / "b").allowed_tools == ()


def test_what_a_skill_teaches_has_an_end_in_lines_and_in_characters(tmp_path: Path) -> None:
    skill(tmp_path / "lines", body="line\n" * (MAX_BODY_LINES + 10))
    skill(tmp_path / "chars", body="x" * (MAX_BODY_CHARS + 10))
    skill(tmp_path / "fits", body="line\n" * MAX_BODY_LINES)
    lines, chars, fits = (body(only(tmp_path / name)) for name in ("lines", "chars", "fits"))
    assert lines.startswith("line\n" * (MAX_BODY_LINES - 1) + "line\n[The skill goes on: ")
    assert chars.startswith("x" * MAX_BODY_CHARS + "\n[The skill goes on: ")
    assert "goes on" not in fits


def test_its_other_files_are_named_and_links_are_not(tmp_path: Path) -> None:
    at = skill(tmp_path / "skills")
    (at / "scripts").mkdir()
    (at / "scripts" / "fill.py").touch()
    (at / ".hidden").touch()
    (tmp_path / "secret").write_text("S3")
    (at / "link").symlink_to(tmp_path / "secret")
    for number in range(250):
        (at / f"r{number:03}").touch()
    shown = body(only(tmp_path / "skills"))
    assert "- r000\n" in shown
    assert shown.endswith("- and 51 more")
    assert "link" not in shown
    assert ".hidden" not in shown


def test_a_file_of_it_is_read_in_excerpts_up_to_its_limit(tmp_path: Path) -> None:
    at = skill(tmp_path)
    text = "".join(f"{number:07} " for number in range(2000))
    (at / "notes").write_text(text)
    (at / "large").write_bytes(b"x" * (MAX_RESOURCE_BYTES + 1))
    (at / "binary").write_bytes(b"\xff\xfe\x00")
    found = only(tmp_path)
    first = resource_of(found, "notes", 0, ANYWHERE, Abandoned())
    assert first == f"{text[:MAX_EXCERPT_CHARS]}\n[4000 more characters: offset {MAX_EXCERPT_CHARS} shows them]"
    assert resource_of(found, "notes", MAX_EXCERPT_CHARS, ANYWHERE, Abandoned()) == text[MAX_EXCERPT_CHARS:]
    for name, kind in (
        ("large", FaultKind.TOO_LARGE),
        ("binary", FaultKind.INVALID_ARGUMENT),
        ("../../etc/hostname", FaultKind.OUT_OF_SCOPE),
        ("missing", FaultKind.NOT_FOUND),
    ):
        with pytest.raises(ToolFault) as raised:
            resource_of(found, name, 0, ANYWHERE, Abandoned())
        assert raised.value.kind is kind, name


def test_of_two_with_one_name_the_first_folder_s_counts(tmp_path: Path) -> None:
    skill(tmp_path / "user", body="User.")
    skill(tmp_path / "ws", body="Workspace.")
    found = index(tmp_path / "user", tmp_path / "ws").skills().usable["forms"]
    assert body(found).startswith("User.")


def test_a_change_is_seen_and_what_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = skill(tmp_path)
    skill(tmp_path, "other")
    known = index(tmp_path)
    before = known.skills().usable
    read: list[str] = []

    def noted(text: str) -> Document:
        read.append(text)
        return split(text)

    monkeypatch.setattr("tool_runtime.files.skills.split", noted)
    assert known.skills().usable == before
    assert read == []
    (at / "SKILL.md").write_text("---\nname: forms\ndescription: Fills in all forms there are.\n---\n")
    assert known.skills().usable["forms"].description == "Fills in all forms there are."
    assert len(read) == 1


def test_folders_that_are_none_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").touch()
    (tmp_path / "no-skill" / "x").mkdir(parents=True)
    for folder in ("missing", "empty", "a-file", "no-skill"):
        assert index(tmp_path / folder).skills() == ({}, {})
