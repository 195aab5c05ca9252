"""What the model reads of arguments that the person who approved its call changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.loop.results import arguments_in_note, arguments_to_keep, call_on_record, note_of_edit
from agent_host.thread.messages import ToolCall
from state.checkpoint import ApprovalAnswered, OpenCall
from tests.support.loop import Loop
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n]\"", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return Loop(tmp_path_factory.mktemp("ws"), secrets=("s3cret-value",))


def test_the_call_as_it_is_run() -> None:
    made = OpenCall("c", "RunCommand", {"command": "make"}, side_effects=True, problem="cut")
    assert call_on_record(made) == ToolCall("c", "RunCommand", {"command": "make"}, "cut")
    made.answer = ApprovalAnswered("c", "a", True, "once", "", arguments={"command": "ls"})
    assert call_on_record(made) == ToolCall("c", "RunCommand", {"command": "ls"})


@settings(max_examples=50)
@given(arguments=st.dictionaries(st.text("abc]\n", max_size=5), VALUES, max_size=4), result=st.text(max_size=20))
def test_the_arguments_can_be_read_from_the_note(loop: Loop, arguments: dict[str, object], result: str) -> None:
    note = note_of_edit(loop.ctx, ToolCall("c", "RunCommand", arguments))
    assert note.endswith("]\n")
    assert note.count("\n") == 1
    long = len(json.dumps(arguments, ensure_ascii=False)) > 1900
    found = arguments_in_note(note + result)
    assert found == arguments or (long and found is None)


def test_the_note_of_an_earlier_version_is_read_too() -> None:
    text = '[Whoever approved this call changed its arguments. It was run, or refused, with: {"a":1}]\nok'
    assert arguments_in_note(text) == {"a": 1}


def test_arguments_too_long_for_a_message_are_not_kept(loop: Loop) -> None:
    short, long = ({"command": "x" * length} for length in (1_000, 20_000))
    assert arguments_to_keep(loop.ctx, ToolCall("c", "RunCommand", short)) == short
    assert arguments_to_keep(loop.ctx, ToolCall("c", "RunCommand", long)) is None


def test_a_note_holds_no_secret(loop: Loop) -> None:
    note = note_of_edit(loop.ctx, ToolCall("c", "RunCommand", {"command": "login s3cret-value"}))
    assert arguments_in_note(note) == {"command": "login [redacted]"}


@pytest.mark.parametrize(("length", "cut"), [(1986, False), (1987, True)])
def test_what_is_too_long_is_cut_and_says_so(loop: Loop, length: int, *, cut: bool) -> None:
    note = note_of_edit(loop.ctx, ToolCall("c", "RunCommand", {"command": "x" * length}))
    assert ("… (1 more characters)]" in note) == cut
    assert (arguments_in_note(note) is None) == cut


@each_row(
    "text",
    [
        "",
        "ok",
        "[The person who approved this call changed its arguments. It was run, or refused, with: {}",
        "[The person who approved this call changed its arguments. It was run, or refused, with: [1]]",
        "[The person who approved this call changed its arguments. It was run, or refused, with: {]",
        'ok\n[The person who approved this call changed its arguments. It was run, or refused, with: {"a":1}]',
        "[Something else: {}]",
        "{}]".rjust(len("[The person who approved this call changed its arguments. It was run, or refused, with: {}]")),
    ],
)
def test_what_is_no_note_has_no_arguments(text: str) -> None:
    assert arguments_in_note(text) is None


def test_notes_are_whatever_the_workspace_is(tmp_path: Path) -> None:
    assert note_of_edit(Loop(tmp_path).ctx, ToolCall("c", "n", {})).endswith(" with: {}]\n")
