"""Which of many directories a path lies in: the same answers as asking one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import CommandScope
from policy.paths import NOWHERE, Places, is_under
from policy.rules.sandbox import add_own_places

if TYPE_CHECKING:
    from policy.facts import OsFamily

NAMES = st.lists(st.sampled_from(["a", "b", ".c", "A"]), max_size=4)
POSIX = NAMES.map(lambda names: "/" + "/".join(names))
WINDOWS = NAMES.map(lambda names: "C:\\" + "\\".join(names))


@given(POSIX, st.lists(POSIX, max_size=6))
def test_the_inmost_place_is_the_longest_that_contains_the_path(path: str, places: list[str]) -> None:
    lengths = [len(one) for one in places if is_under(path, one, "posix")]
    asked = Places(places, "posix")
    assert asked.inmost(path) == max(lengths, default=NOWHERE)
    assert asked.contain(path) == bool(lengths)
    assert asked.around(path) == max((one for one in lengths if one != len(path)), default=NOWHERE)


@given(WINDOWS, st.lists(WINDOWS, max_size=6))
def test_windows_names_are_the_same_in_either_case(path: str, places: list[str]) -> None:
    assert Places(places, "windows").contain(path) == any(is_under(path, one, "windows") for one in places)


@pytest.mark.parametrize("os", ["posix", "windows"])
def test_relative_paths_are_in_nothing_and_contain_nothing(os: OsFamily) -> None:
    root = "/" if os == "posix" else "C:\\"
    assert not Places([root], os).contain("a/b")
    assert not Places(["a"], os).contain("a/b")
    assert not Places([], os).contain(root)


@given(st.lists(POSIX, max_size=6), st.lists(POSIX, max_size=4))
def test_of_places_within_places_those_stay_that_something_blocked_parts(given_: list[str], blocked: list[str]) -> None:
    several = list(dict.fromkeys(given_))

    def says_nothing(one: str, other: str) -> bool:
        between = (place for place in blocked if is_under(one, place, "posix") and is_under(place, other, "posix"))
        return one != other and is_under(one, other, "posix") and not any(between)

    expected = tuple(one for one in several if not any(says_nothing(one, other) for other in several))
    found = add_own_places(CommandScope(hidden=tuple(blocked)), "posix", writes=tuple(given_))
    assert found.writes == expected
