"""The fields in front of a Markdown file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import each_row
from tool_runtime.files.skills import NoFrontMatter, split


@each_row(
    ("written", "value"),
    [
        ("a: plain text", "plain text"),
        ("a: plain # a comment", "plain"),
        ("a: it's #1", "it's"),
        ("a: 'it''s: # this'", "it's: # this"),
        (r'a: "tab\tand \"quote\""', 'tab\tand "quote"'),
        ("a:", ""),
        ("a: first\n  second\n  third", "first second third"),
        ("a:\n  on the\n  next line", "on the next line"),
        ("a: |\n  one\n   two\n\n  three", "one\n two\n\nthree"),
        ("a: >-\n  one\n  two\n\n  three", "one two\n\nthree"),
        ("a: [one, 'two, too', Bash(git log:*, x)]", ("one", "two, too", "Bash(git log:*, x)")),
        ("a: [one,\n  two]", ("one", "two")),
        ("a:\n  - one\n  - 'two'", ("one", "two")),
        ("a:\n- one\n- two", ("one", "two")),
        ("a: []", ()),
        ("a: null", None),
        ("a:\n  b: c", None),
        ("# a: no\na: yes", "yes"),
        ("a: http://host/path#part", "http://host/path#part"),
    ],
)
def test_a_field(written: str, value: object) -> None:
    document = split(f"---\n{written}\nlast: x\n---\nbody\n---\nmore")
    assert document.fields.get("a") == value
    assert document.fields["last"] == "x"
    assert document.body == "body\n---\nmore"


@pytest.mark.parametrize("text", ["", "body", "--- a\n---\n", "---\na: b\n", " ---\n---\n"])
def test_text_without_fields(text: str) -> None:
    with pytest.raises(NoFrontMatter):
        split(text)


@given(st.text(alphabet="ab:-#'\"[]|>,\n \t\\", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        fields = split(f"---\n{text}\n---\n").fields
    except NoFrontMatter:
        return
    assert all(isinstance(value, str | tuple) for value in fields.values())


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=60))
def test_a_quoted_text_comes_back(text: str) -> None:
    quoted = text.replace("'", "''")
    assert split(f"---\na: '{quoted}'\n---\n").fields["a"] == text
