"""Reads SQL as PostgreSQL's own scanner splits it: words, and what follows them. Pure; nothing here knows a database.

What a statement calls is asked of the server's catalog afterwards (`postgres.py`). So a scanner is enough, as long as
it never takes for text or comment what the server takes for code: where the two could differ the statement is refused.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MAX_NAME_BYTES: Final = 63
"""What PostgreSQL cuts names to."""
_SPACE: Final = re.compile(r"[ \t\n\r\f\v]+")
_LINE_COMMENT: Final = re.compile(r"--[^\n\r]*")
_WORD: Final = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_QUOTED_NAME: Final = re.compile(r'"((?:[^"]|"")+)"')
_PLAIN_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_ESCAPED_TEXT: Final = re.compile(r"'(?:[^'\\]|''|\\.)*'", re.DOTALL)
_DOLLAR: Final = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$")
_NUMBER: Final = re.compile(r"0[xXoObB][0-9A-Fa-f_]+|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?")
_GLUED: Final = re.compile(r"[A-Za-z0-9_$'\"\u0080-\U0010ffff]")
_PARAMETER: Final = re.compile(r"\$[0-9]+")
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


class UnreadableSql(Exception):
    """The text cannot be split with certainty; `str()` says why."""


class Name(NamedTuple):
    """A name in a statement, as the catalog would have it. `called`: an opening parenthesis follows. `member`: a dot
    stands before it, so that it may be a function of the value before."""

    text: str
    called: bool
    member: bool
    quoted: bool


class Statement(NamedTuple):
    """One statement: its text without a semicolon at its end, and the names in it."""

    text: str
    names: tuple[Name, ...]

    @property
    def verb(self) -> str:
        """The first word, in lower case; empty where it begins otherwise."""
        return self.names[0].text if self.names and not self.names[0].quoted else ""

    @property
    def words(self) -> frozenset[str]:
        """Names that are not quoted: among them all keywords."""
        return frozenset(name.text for name in self.names if not name.quoted)


class _Token(NamedTuple):
    kind: str
    text: str
    end: int


def one_statement(sql: str) -> Statement:
    """The one statement that `sql` holds. Raises UnreadableSql for none, for several, and for what cannot be split."""
    if "\0" in sql:
        raise UnreadableSql("the statement holds a NUL character")
    tokens = _tokens(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise UnreadableSql("the statement is empty")
    if any(token.text == ";" for token in tokens if token.kind == "sign"):
        raise UnreadableSql("one statement at a time: a semicolon stands in the middle")
    names = []
    for place, token in enumerate(tokens):
        if token.kind in ("word", "quoted"):
            after = tokens[place + 1].text if place + 1 < len(tokens) and tokens[place + 1].kind == "sign" else ""
            before = tokens[place - 1].text if place and tokens[place - 1].kind == "sign" else ""
            names.append(Name(_stored(token), after == "(", before == ".", token.kind == "quoted"))
    return Statement(sql[: tokens[-1].end], tuple(names))


def _stored(token: _Token) -> str:
    """The name as PostgreSQL stores it: folded where it is not quoted, cut to 63 bytes."""
    text = token.text[1:-1].replace('""', '"') if token.kind == "quoted" else _folded(token.text)
    return text.encode()[:_MAX_NAME_BYTES].decode("utf-8", "ignore")


def _folded(text: str) -> str:
    """In lower case, as in a database of UTF-8: only ASCII letters have one."""
    return "".join(char.lower() if char.isascii() else char for char in text)


def _tokens(sql: str) -> list[_Token]:
    tokens: list[_Token] = []
    place = 0
    while place < len(sql):
        token = _next(sql, place)
        if token.kind != "space":
            tokens.append(token)
        place = token.end
    return tokens


def _next(sql: str, place: int) -> _Token:
    two = sql[place : place + 2]
    if two == "/*":
        return _Token("space", "", _end_of_comment(sql, place))
    for kind, pattern in (("space", _SPACE), ("space", _LINE_COMMENT), ("parameter", _PARAMETER)):
        found = pattern.match(sql, place)
        if found:
            return _Token(kind, found.group(), found.end())
    char = sql[place]
    if char == "$":
        return _dollar_text(sql, place)
    if char == '"':
        return _matched(_QUOTED_NAME, "quoted", sql, place)
    if char == "'":
        return _matched(_PLAIN_TEXT, "text", sql, place)
    word = _WORD.match(sql, place)
    if word:
        return _word(sql, word)
    number = _NUMBER.match(sql, place)
    if number is None:
        return _Token("sign", char, place + 1)
    # Servers before version 15 take `1e'…'` for a number and a text with escapes.
    if _GLUED.match(sql, number.end()):
        raise UnreadableSql("a number and what follows it need a space between them")
    return _Token("number", number.group(), number.end())


def _word(sql: str, word: re.Match[str]) -> _Token:
    """A word, or a text whose kind stands before its quote."""
    prefix, following = word.group().lower(), sql[word.end() : word.end() + 1]
    if following == "'" and prefix in ("e", "b", "x", "n"):
        pattern = _ESCAPED_TEXT if prefix == "e" else _PLAIN_TEXT
        return _matched(pattern, "text", sql, word.end())
    if prefix == "u" and sql[word.end() : word.end() + 2] in ("&'", '&"'):
        raise UnreadableSql("texts and names with U& escapes are not taken")
    return _Token("word", word.group(), word.end())


def _dollar_text(sql: str, place: int) -> _Token:
    opening = _DOLLAR.match(sql, place)
    if opening is None:
        return _Token("sign", "$", place + 1)
    end = sql.find(opening.group(), opening.end())
    if end < 0:
        raise UnreadableSql("a text in dollar quotes does not end")
    return _Token("text", "", end + len(opening.group()))


def _matched(pattern: re.Pattern[str], kind: str, sql: str, place: int) -> _Token:
    found = pattern.match(sql, place)
    if found is None:
        raise UnreadableSql("a quote does not end")
    return _Token(kind, found.group(), found.end())


def _end_of_comment(sql: str, place: int) -> int:
    """Comments of this kind lie in each other."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, place):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise UnreadableSql("a comment does not end")
