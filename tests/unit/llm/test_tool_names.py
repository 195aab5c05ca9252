"""Names that a gateway takes, and the way back from them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm.dialects import SentNames, sendable_name

names = st.text(st.sampled_from("aZ0_-/.é \ud800"), max_size=80) | st.text(max_size=100)


@pytest.mark.parametrize("name", ["ReadFile", "cp__read_file", "a-b", "x" * 64, "a_0123456789abcde", "_"])
def test_a_name_that_is_taken_stays(name: str) -> None:
    assert sendable_name(name) == name


@given(names)
def test_every_name_becomes_one_that_is_taken_and_can_be_had_back(name: str) -> None:
    sent = SentNames()
    offered = sent.offer(name)
    assert offered == sendable_name(name) == SentNames().offer(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", offered)
    assert sent.real(offered) == name


@given(st.lists(names, unique=True, max_size=8))
def test_no_two_names_become_one(found: list[str]) -> None:
    made = [sendable_name(name) for name in found]
    assert len({*made}) == len(found)


def test_a_name_that_looks_made_is_made_anew() -> None:
    """Whoever names a tool could choose the name that another tool is sent under."""
    made = sendable_name("server/tool")
    assert sendable_name(made) != made
    sent = SentNames()
    assert [sent.real(sent.offer(name)) for name in ("server/tool", made)] == ["server/tool", made]


def test_what_nobody_offered_is_left_as_it_is() -> None:
    assert SentNames().real("server_tool_0123456789abcdef") == "server_tool_0123456789abcdef"
