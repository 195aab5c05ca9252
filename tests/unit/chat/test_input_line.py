"""The input line's helpers: prompts of all conversations, completion, pictures by path."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from agent_host.chat.input_line import NAME, ChatCompleter, PromptHistory, named_picture

if TYPE_CHECKING:
    from pathlib import Path


def kept(state: Path) -> list[str]:
    return list(PromptHistory(os.fspath(state), str).load_history_strings())


def test_prompts_of_all_conversations_are_there_without_their_secrets(tmp_path: Path) -> None:
    first, second = (
        PromptHistory(os.fspath(tmp_path / "state"), lambda text: text.replace("SECRET", "…")) for _ in "ab"
    )
    first.store_string("one\nof two lines")
    second.store_string("two with a SECRET")
    first.store_string("three \x1e four")
    assert kept(tmp_path / "state") == ["three   four", "two with a …", "one\nof two lines"]
    if sys.platform != "win32":
        assert (tmp_path / "state" / NAME).stat().st_mode & 0o777 == 0o600


@given(prompts=st.lists(st.text(max_size=30).map(str.strip).filter(bool), max_size=8))
def test_a_prompt_comes_back_as_it_was_typed(prompts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    state = tmp_path_factory.mktemp("state")
    for prompt in prompts:
        PromptHistory(os.fspath(state), str).store_string(prompt)
    expected = [one.encode("utf-8", "replace").decode().replace("\x1e", " ").strip("\n") for one in reversed(prompts)]
    assert kept(state) == [one for one in expected if one]


def test_a_history_has_a_bound_and_an_odd_one_is_none(tmp_path: Path) -> None:
    history = PromptHistory(os.fspath(tmp_path), str)
    for number in range(30):
        history.store_string(f"{number} " + "x" * 50_000)
    assert (tmp_path / NAME).stat().st_size < 1_200_000
    assert kept(tmp_path)[0].startswith("29 ")
    odd = tmp_path / "odd"
    (odd / NAME).mkdir(parents=True)
    PromptHistory(os.fspath(odd), str).store_string("one")
    assert kept(odd) == []


def completions(workspace: Path, text: str) -> list[str]:
    found = ChatCompleter(os.fspath(workspace)).get_completions(Document(text), CompleteEvent())
    return [one.text for one in found]


@pytest.mark.skipif(sys.platform == "win32", reason="names that Windows does not take")
def test_completion_names_commands_and_paths_that_steer_nothing(tmp_path: Path) -> None:
    for name in ("src", "node_modules", ".git"):
        (tmp_path / name).mkdir()
    for name in ("setup.py", "Space name.txt", "evil\x1b[2J", "\u202egpj.exe", ".hidden", "src/main.py"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "src")
    assert completions(tmp_path, "look at @") == ["link", "setup.py", "src/"]
    assert completions(tmp_path, "@S") == ["setup.py", "src/"]
    assert completions(tmp_path, "@.") == [".hidden"]
    assert completions(tmp_path, "@src/") == ["main.py"]
    assert completions(tmp_path, "@nowhere/") == []
    assert completions(tmp_path, "name@src") == []
    assert "compact" in completions(tmp_path, "/co")
    assert completions(tmp_path, "/policy re") == ["read-only"]
    assert completions(tmp_path, "/nothing") == []


def test_a_path_of_a_picture_that_is_pasted_becomes_its_name(tmp_path: Path) -> None:
    picture = tmp_path / "a b.png"
    picture.touch()
    path, workspace = os.fspath(picture), os.fspath(tmp_path)
    for pasted in (path, f"'{path}'", f"file://{path}", path.replace(" ", "\\ ")):
        assert named_picture(pasted, workspace) == "@a b.png "
    assert named_picture(path, "/elsewhere") == f"@{path} "
    for other in ("a b.png", f"{path}\n", "/nowhere.png", "text", f"{path}x"):
        assert named_picture(other, workspace) in (None, "@a b.png ")
    assert named_picture("a b.png", workspace) is None
    assert named_picture("one\ntwo.png", workspace) is None
