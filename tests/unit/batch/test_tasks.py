"""The file of a batch: what is taken, and that a mistake names its line before anything runs."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.batch import Source, read_tasks
from agent_host.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"id": "one", "prompt": "Do it.", "workspace": "work"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work.tar.gz").write_bytes(b"")
    (tmp_path / "own.json").write_text("{}")
    return tmp_path


def written(folder: Path, *rows: Any, name: str = "tasks.jsonl") -> str:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def refusal(folder: Path, *rows: Any) -> str:
    with pytest.raises(UsageError) as refused:
        read_tasks(written(folder, *rows))
    return str(refused.value)


def test_every_field_is_taken_and_paths_are_relative_to_the_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    limits = {"maxSteps": 3, "maxCost": 0.5, "timeoutS": 9}
    whole = {**GOOD, "policy": "own.json", "model": "m", "limits": limits, "setup": "make", "check": "make test"}
    packed = {**GOOD, "id": "t.w-o_2", "workspace": "work.tar.gz", "policy": "read-only"}
    one, two = read_tasks(written(folder, whole, "", packed))
    assert one[2:] == (
        Source("directory", str(folder / "work")), str(folder / "own.json"), "m", 3, 0.5, 9, "make", "make test",
    )  # fmt: skip
    assert (two.workspace, two.policy) == (Source("archive", str(folder / "work.tar.gz")), "read-only")


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("https://host.example/a.git#v1", "https://host.example/a.git"),
        ("ssh://git@host.example/a.git#0123abc", "ssh://git@host.example/a.git"),
        ("git@host.example:a/b.git#main~2", "git@host.example:a/b.git"),
    ],
)
def test_git_urls(folder: Path, named: str, url: str) -> None:
    (task,) = read_tasks(written(folder, {**GOOD, "workspace": named}))
    assert task.workspace == Source("git", url, named.rpartition("#")[2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ".. /x"}, "id must be"),
        ({"id": "x" * 101}, "id must be"),
        ({"prompt": " "}, "prompt must not be empty"),
        ({"promt": "x"}, "did you mean prompt"),
        ({"workspace": "nowhere"}, "there is no directory or archive"),
        ({"workspace": "nowhere.tar.gz"}, "there is no directory or archive"),
        ({"workspace": "https://host.example/a.git"}, "needs its revision"),
        ({"workspace": "ext::sh -c id#main"}, "a git URL begins with"),
        ({"workspace": "http://host.example/a.git#main"}, "a git URL begins with"),
        ({"workspace": "-upload-pack=id#main"}, "a git URL begins with"),
        ({"workspace": "file:///tmp#main"}, "a git URL begins with"),
        ({"workspace": "ssh://-oProxyCommand=id/x#--upload-pack=id"}, "is not a revision"),
        ({"workspace": "https://token@host.example/a.git#main"}, "must not contain a password or token"),
        ({"workspace": "https://u:p@host.example/a.git#main"}, "must not contain a password or token"),
        ({"workspace": "ssh://u:p@host.example/a.git#main"}, "must not contain a password or token"),
        ({"workspace": "/nowhere/at/all#main"}, "there is no repository"),
        ({"policy": "./nothing.json"}, "there is no file"),
        ({"policy": "zzz"}, "'zzz' is not a built-in"),
        ({"limits": {"maxSteps": 0}}, "limits.maxSteps"),
        ({"limits": {"maxCost": 0}}, "limits.maxCost must be above 0"),
        ({"limits": {"steps": 3}}, "limits.steps"),
    ],
)
def test_a_mistake_names_its_line(folder: Path, change: dict[str, Any], said: str) -> None:
    found = refusal(folder, {**GOOD, "id": "zero"}, {**GOOD, **change})
    assert "line 2: " in found
    assert said in found


def test_an_id_twice_no_json_and_nothing_at_all(folder: Path) -> None:
    assert "line 3: id one is that of line 1 as well" in refusal(folder, GOOD, "", GOOD)
    found = refusal(folder, "{", "[1]", GOOD)
    assert "line 1: no JSON" in found
    assert "line 2: it must be an object" in found
    assert "has no task" in refusal(folder, "")
    with pytest.raises(UsageError, match="No such file"):
        read_tasks(str(folder / "none.jsonl"))


@pytest.mark.parametrize("folds", [False, True])
def test_ids_that_differ_in_case_alone(folder: Path, folds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_host.batch._FOLDS_CASE", folds)
    rows = {**GOOD, "id": "Task"}, {**GOOD, "id": "task"}
    if folds:
        assert "line 2: id task is that of line 1 as well" in refusal(folder, *rows)
    else:
        assert [task.id for task in read_tasks(written(folder, *rows))] == ["Task", "task"]


NAMES = ("id", "prompt", "workspace", "setup", "check", "model", "limits")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=50)


@given(prompt=TEXTS.filter(str.strip), setup=TEXTS, steps=st.integers(1, 10_000))
def test_csv_says_the_same_as_json_lines(
    tmp_path_factory: pytest.TempPathFactory, prompt: str, setup: str, steps: int
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    (folder / "work").mkdir()
    row = {**GOOD, "prompt": prompt, "setup": setup, "limits": {"maxSteps": steps}}
    of_json = read_tasks(written(folder, row))
    with open(folder / "tasks.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, NAMES)
        writer.writeheader()
        writer.writerow({**row, "limits": json.dumps(row["limits"])})
    assert read_tasks(str(folder / "tasks.csv")) == of_json


def test_a_fingerprint_is_that_of_prompt_workspace_and_policy(folder: Path) -> None:
    def fingerprint(**change: Any) -> str:
        return read_tasks(written(folder, {**GOOD, **change}))[0].fingerprint

    same = fingerprint()
    assert fingerprint(check="true", model="m", limits={"maxSteps": 1}) == same
    with_policy = fingerprint(policy="own.json")
    (folder / "own.json").write_text('{"a": 1}')
    assert len({same, with_policy, fingerprint(policy="own.json"), fingerprint(prompt="Other.")}) == 4
