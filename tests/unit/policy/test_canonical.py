"""Which actions one approval holds for: never for two that do something else."""

from __future__ import annotations

import pytest

from policy.canonical import canonical_form
from policy.facts import CommandFacts, PathFacts


def _same_command(one: str, other: str) -> bool:
    forms = {canonical_form(CommandFacts(line, "/w"), "posix") for line in (one, other)}
    return len(forms) == 1


@pytest.mark.parametrize(("one", "other"), [("rm a", "rm  a"), ("rm a", " rm\ta "), ("rm a\n", "rm a")])
def test_blanks_between_plain_words_do_not_count(one: str, other: str) -> None:
    assert _same_command(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rm a\u00a0", "rm a"),
        ("rm a\u3000", "rm a"),
        ("rm a\\ ", "rm a\\"),
        ("rm a\x1f", "rm a"),
        ("rm 'a  b'", "rm 'a b'"),
        ("rm\na", "rm a"),
        ("rm a\n\nb", "rm a b"),
    ],
)
def test_what_is_part_of_a_word_or_ends_a_command_does(one: str, other: str) -> None:
    assert not _same_command(one, other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("C:\\Work\\É", "c:\\work\\é", True),
        ("C:\\wor\u212a", "C:\\work", False),  # the sign for Kelvin
        ("C:\\\u0130", "C:\\i\u0307", False),
        ("C:\\stra\u1e9ee", "C:\\straße", False),
    ],
)
def test_windows_names_are_one_as_far_as_ntfs_takes_them_for_one(one: str, other: str, same: bool) -> None:
    forms = {canonical_form(PathFacts(path, path, path), "windows") for path in (one, other)}
    assert (len(forms) == 1) is same
