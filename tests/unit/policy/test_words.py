"""One word of a line at a time: what it is after quote removal, and what it may become."""

from __future__ import annotations

from typing import Any

import pytest

from policy.shell.findings import TooMuch, Unreadable, admit
from policy.shell.words import UNKNOWN, Word, plain, read_word
from tests.support.rows import each_row

INVALID = Word(None, splits=True, valid=False)


@each_row(
    ("source", "text"),
    [
        ("abc", "abc"),
        ("", ""),
        ("''", ""),
        ('""', ""),
        ("'a b'c", "a bc"),
        ("a'b'\"c\"d", "abcd"),
        ("'a\"$`\\'", 'a"$`\\'),
        ('"a b\'c"', "a b'c"),
        ('"a\\"b"', 'a"b'),
        ('"\\$x"', "$x"),
        ('"\\`x\\`"', "`x`"),
        ('"\\\\"', "\\"),
        ('"\\a\\n"', "\\a\\n"),
        ('"a\\\nb"', "ab"),
        ('"$"', "$"),
        ('"a$ b"', "a$ b"),
        ("\"$'a'\"", "$'a'"),
        ("x$'a\\x41\\102\\u0043\\'\\n'", "xaABC'\n"),
        ("a\\ b", "a b"),
        ("a\\\\b", "a\\b"),
        ("\\a\\$b", "a$b"),
        ("\\\\\\\\", "\\\\"),
        ("a\\'b", "a'b"),
        ("\\*\\?\\[a]", "*?[a]"),
        ("'*'", "*"),
        ("$", "$"),
        ('"\\X"', "\\X"),
        ("x-a=~", "x-a=~"),
        ("a$", "a$"),
        ("$/", "$/"),
        ("{}", "{}"),
        ("{a}", "{a}"),
        ("a{b", "a{b"),
        ("{a,b", "{a,b"),
        ("[a", "[a"),
        ("a]", "a]"),
        ("a~b", "a~b"),
        ("é=日", "é=日"),
        ("a#b!c", "a#b!c"),
    ],
)
def test_a_word_that_only_has_quotes_is_known(source: str, text: str) -> None:
    assert plain(text) == Word(text, text)
    assert read_word(source) == Word(text, text, quoted=source != text)


@pytest.mark.parametrize(("source", "text"), [("~", "~"), ("~/a", "~/a"), ("~u/'a b'", "~u/a b")])
def test_a_tilde_at_the_start_is_told(source: str, text: str) -> None:
    assert read_word(source) == Word(text, text, tilde=True, quoted=source != text)
    assert not read_word(f"'{source[0]}'{source[1:]}").tilde
    assert not read_word(f"\\{source}").tilde
    assert not read_word(f"a{source}").tilde
    assert read_word(source + "$x") == Word(None, text, splits=True, tilde=True)


@each_row(
    ("source", "word"),
    [
        ("$x", Word(None, "", splits=True)),
        ("a$x", Word(None, "a", splits=True)),
        ("-o${x}", Word(None, "-o", splits=True)),
        ("'a b'$(ls)", Word(None, "a b", splits=True)),
        ("a`ls`", Word(None, "a", splits=True)),
        ("$'a\\qb'", Word(None, "", splits=True)),
        ('a$"b"', Word(None, "a", splits=True)),
        ("$[1]", Word(None, "", splits=True)),
        ("$((1))", Word(None, "", splits=True)),
        ("{a,b}", Word(None, "", splits=True)),
        ("a{1..3}", Word(None, "a", splits=True)),
        ("x{a,b}*", Word(None, "x", splits=True)),
        ("*$x", Word(None, "", splits=True)),
        ("*`x`", Word(None, "", splits=True)),
        ("*{a", Word(None, "", splits=True)),
        ('"$x"', Word(None, "")),
        ('"a $x"', Word(None, "a ")),
        ('"`ls`"', Word(None, "")),
        ('"$(ls)"', Word(None, "")),
        ('"$@"', Word(None, "", splits=True)),
        ('"a${x[@]}"', Word(None, "a", splits=True)),
        ('"$x"a', Word(None, "", splits=True)),
        ('a"$x"', Word(None, "a", splits=True)),
        ('"$x""$y"', Word(None, "", splits=True)),
        ('"$*"', Word(None, "")),
        ('"$1$-$!$$"', Word(None, "")),
        ('"$_"', Word(None, "")),
        ("x=~/a~", Word(None, "x=")),
        ("x=a:~/b~", Word(None, "x=a:")),
        ("<(ls)", Word(None, "/dev/fd/")),
        (">(ls)", Word(None, "/dev/fd/")),
        ("*", Word(None, "", globs=True)),
        ("?", Word(None, "", globs=True)),
        ("[ab]", Word(None, "", globs=True)),
        ("a*", Word(None, "a", globs=True)),
        ("'a'?b", Word(None, "a", globs=True)),
        ("a[b]c", Word(None, "a", globs=True)),
        ("a\\*b*", Word(None, "a*b", globs=True)),
        ("X*", Word(None, "X", globs=True)),
        ("$?", Word(None, "0")),
        ("$#", Word(None, "0")),
        ("$!", Word(None, "0")),
        ("$$", Word(None, "0")),
        ("a'b'\"c$x\"", Word(None, "abc", splits=True)),
        ('~/"$x"', Word(None, "~/", splits=True, tilde=True)),
        ('"$x\\""', Word(None, "", splits=True)),
    ],
)
def test_a_word_that_expansion_decides_keeps_what_stands_in_front(source: str, word: Word) -> None:
    assert read_word(source)._replace(pattern=None) == word


@pytest.mark.parametrize(
    ("source", "pattern"),
    [("*", "*"), ("a[b]c", "a[b]c"), ("x{a,b}*", "x{a,b}*"), ("{a,b}", "{a,b}"), ("'a'*", None), ("a\\*b*", None)],
)
def test_a_word_that_finds_files_or_has_braces_keeps_its_spelling(source: str, pattern: str | None) -> None:
    assert read_word(source).pattern == pattern


class Around:
    """Variables of a line: two that it sets, any other from outside."""

    def value(self, name: str) -> str | None:
        return {"dir": "/w/out", "two": "a b", "control": "a\x01b", "lines": "a\nb"}.get(name)

    def is_outside(self, name: str) -> bool:
        return name not in {"dir", "two", "control", "lines", "set"}

    def pattern(self, name: str) -> str | None:
        return {"found": "src/*.py"}.get(name)


AROUND: Any = Around()


@each_row(
    ("source", "text"),
    [
        ("$dir/x", "/w/out/x"),
        ('"$dir/a b"', "/w/out/a b"),
        ("${dir}x", "/w/outx"),
        ('a"${dir}"b', "a/w/outb"),
        ('"$two"', "a b"),
        ("$two", None),
        ('"$control"', None),
        ('"$lines"', "a\nb"),
        ("$lines", None),
        ("$dirx", None),
        ("${dir%x}", None),
        ("$dir*", None),
        ("'$dir'", "$dir"),
        ("\\$dir", "$dir"),
    ],
)
def test_a_variable_that_is_known_is_read(source: str, text: str | None) -> None:
    assert read_word(source, AROUND).text == text


@each_row(
    ("source", "may_be"),
    [
        ("$x", False),
        ('"$x"', False),
        ('"$x$y"', False),
        ("-o$x", True),
        ("$set", True),
        ('"$x$set"', True),
        ("$(ls)", True),
        ('"$x$(ls)"', True),
        ("$x*", True),
        ("$1", True),
    ],
)
def test_a_variable_from_outside_is_no_option_of_the_line(source: str, may_be: bool) -> None:
    assert read_word(source, AROUND).may_be_option == may_be


@each_row(
    "source", ["a b", "a\tb", "a\nb", "a;b", "a|b", "a&b", "a<b", "a>b", "a(b", "a)b", "'a", '"a', "a'", 'a"', "a\\",
               "a\\\nb", '"a\\', '"a\\"', "'a'\"b", "a'b'c d"],
)  # fmt: skip
def test_a_word_whose_spelling_does_not_fit_is_not_valid(source: str) -> None:
    assert read_word(source) == INVALID


@each_row(
    ("word", "may"),
    [
        (plain("-x"), False),
        (UNKNOWN, True),
        (Word(None), True),
        (Word(None, "a"), False),
        (Word(None, "-"), True),
        (Word(None, "a", splits=True), True),
        (Word(None, "", globs=True), True),
        (Word(None, "a", globs=True), False),
    ],
)
def test_a_word_may_turn_out_to_be_an_option(word: Word, may: bool) -> None:
    assert word.may_be_option is may


def test_a_word_may_turn_out_to_be_several() -> None:
    assert UNKNOWN.is_several
    assert [read_word(one).is_several for one in ("a", '"$x"', "$x", "*", "a*", '"$@"', "<(a)")] == [
        False, False, True, True, True, True, False,
    ]  # fmt: skip


def test_what_is_not_read_at_all() -> None:
    admit("a" * 131_072)
    with pytest.raises(TooMuch):
        admit("a" * 131_073)
    for code in (*range(0x20), *range(0x7E, 0xA1), 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFEFF):
        refused = (code < 0x20 and code not in (0x09, 0x0A)) or code == 0x7F or 0xD800 <= code <= 0xDFFF
        assert is_no_text(f"a{chr(code)}b") is refused, hex(code)


def is_no_text(line: str) -> bool:
    try:
        admit(line)
    except Unreadable:
        return True
    return False
