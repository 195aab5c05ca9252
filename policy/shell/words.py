"""One shell word at a time: its value after quote removal, if known without running anything; and the options among the
words of a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from policy.paths import ELSEWHERE
from policy.programs.row import Option, Program, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tree_sitter import Node


class Values(NamedTuple):
    """Knowledge of variables at one place of a line: the value that is certain, whether the line has no part in it, the
    pattern of the files whose names a loop gives it."""

    value: Callable[[str], str | None]
    is_outside: Callable[[str], bool]
    pattern: Callable[[str], str | None]


class ShownText(NamedTuple):
    """Text that the line shows; `is_whole` if nothing in it is unknown. `is_file` for the content of a file that a word
    names, in place of the text of the word."""

    text: str
    is_whole: bool = True
    is_file: bool = False


class Word(NamedTuple):
    """A word. `text` is its value, None if it depends on an expansion; `prefix` is the literal text before the first
    expansion; `splits`: it may become several words; `tilde`: it starts with an unquoted `~`; `valid` is False if the
    word's spelling does not fit its boundaries; `globs`: it becomes names of files; `pattern` is its spelling if
    nothing else in it is quoted or expands; `quoted`: a quote or a backslash was removed from it; `outside`: its value
    does not depend on the line; `shown` is the text in it, or in the file that it names, if a shell may run that."""

    text: str | None
    prefix: str = ""
    splits: bool = False
    tilde: bool = False
    valid: bool = True
    globs: bool = False
    quoted: bool = False
    pattern: str | None = None
    outside: bool = False
    shown: ShownText | None = None

    @property
    def is_several(self) -> bool:
        """True for a word that may become several words."""
        return self.splits or self.globs

    @property
    def may_be_option(self) -> bool:
        """True for an unknown word that the line could make an option, or several words."""
        if self.text is not None or (self.outside and (not self.prefix.startswith("-") or "=" in self.prefix)):
            return False
        return self.splits or not self.prefix or self.prefix.startswith("-")


UNKNOWN = Word(None, splits=True)
_INVALID = Word(None, splits=True, valid=False)
_UNREADABLE = frozenset(" \t\n;|&<>()'\\")
"""Characters that a word cannot contain unquoted: separators, an open quote, a dangling backslash."""
_EXPANDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_{(@*#?$!-[")
_ESCAPED_IN_STRING = frozenset('$`"\\')
_PLAIN = re.compile(r"[A-Za-z0-9_./,:=+@%^-]*")
_ORDINARY = re.compile(r"""(?:[^ \t\n;|&<>()'"\\$`{*?\[]+|\\[^\n])+""")
"""Outside of quotes: characters that stand for themselves wherever they are, and escaped ones."""
_TILDE_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=(?:[^'\"\\`$]*:)?~")
"""bash also expands a tilde after `NAME=`, and after a colon there, in any such word."""
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_PATTERN_OF_LOOP = re.compile(r"[A-Za-z0-9_./,:=+@%^*{}-]*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_QUOTES = re.compile(r"[\\'\"$`]")
_EXPANDING = re.compile(r"[$`*?\[{]")
_LISTS = re.compile(r"\$\{?@|\[@\]|\$\{!")
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(.))", re.DOTALL)
_MAX_ESCAPES = 1_000
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v",
            "\\": "\\", "'": "'", '"': '"', "?": "?"}  # fmt: skip
_NUMBERS = frozenset({"$!", "$?", "$#", "$$"})
_ORDINARY_IN_STRING = re.compile(r"""[^"`$\\]+""")


def plain(text: str) -> Word:
    """A known word."""
    return Word(text, text)


def read_word(source: str, values: Values | None = None) -> Word:
    """Reads one word in bash's spelling. Brace, command and pathname expansion make it unknown, and so does the
    expansion of a variable without a value in `values`."""
    if _PLAIN.fullmatch(source):
        return Word(source, source)
    special = _special(source)
    if special is not None:
        return special
    kept: list[str] = []
    place, end = 0, len(source)
    while place < end:
        run = _ORDINARY.match(source, place)
        if run:
            kept.append("\\".join(piece.replace("\\", "") for piece in run[0].split("\\\\")))
            place = run.end()
            continue
        character = source[place]
        if character == "'" and (close := source.find("'", place + 1)) >= 0:
            kept.append(source[place + 1 : close])
            place = close + 1
        elif character == '"':
            place, dynamic = _read_string(source, place + 1, kept, values)
            if place < 0:
                return _INVALID
            if dynamic:
                return _expanding("".join(kept), source, values, splits=_may_split(source))
        elif character in _UNREADABLE:
            return _INVALID
        else:
            known = _read_bare_variable(source, place, values) if character == "$" else None
            if known is not None:
                kept.append(known[0])
                place = known[1]
                continue
            if _is_expansion(source, place):
                splits = character not in "*?[" or any(mark in source for mark in "$`{")
                return _expanding("".join(kept), source, values, splits=splits, globs=not splits)
            kept.append(character)
            place += 1
    text = "".join(kept)
    return Word(text, text, tilde=source.startswith("~"), quoted=text != source)


def _expanding(prefix: str, source: str, values: Values | None, *, splits: bool, globs: bool = False) -> Word:
    pattern, outside = _pattern(source, values), _is_outside(source, values)
    return Word(None, prefix, splits, source.startswith("~"), globs=globs, pattern=pattern, outside=outside)


def decode_escapes(text: str) -> str | None:
    """Return the value of a text with the escapes of `$'…'`; None if it is uncertain, or beyond ASCII."""
    kept: list[str] = []
    place = 0
    if text.count("\\") > _MAX_ESCAPES:
        return None
    for escape in _ESCAPE.finditer(text):
        digits = escape[1] or escape[3] or escape[4]
        if escape[5] is not None:
            character = _ESCAPED.get(escape[5])
        else:
            number = int(digits, 16) if digits else int(escape[2], 8)
            character = chr(number) if 0 < number < 128 else None
        if character is None:
            return None
        kept += (text[place : escape.start()], character)
        place = escape.end()
    return "".join(kept) + text[place:]


def _special(source: str) -> Word | None:
    if source.startswith(("<(", ">(")):
        return Word(None, "/dev/fd/")
    if source in _NUMBERS:
        return Word(None, "0")  # no option, and one word at most
    if "~" in source and _TILDE_ASSIGNED.match(source):
        return Word(None, source[: source.index("~")])
    return None


def _read_string(source: str, place: int, kept: list[str], values: Values | None) -> tuple[int, bool]:
    """Reads to the closing quote: the position after it, and False; or any position and True if something expands."""
    end = len(source)
    while place < end:
        run = _ORDINARY_IN_STRING.match(source, place)
        if run:
            kept.append(run[0])
            place = run.end()
            continue
        character = source[place]
        if character == '"':
            return place + 1, False
        known = _read_variable(source, place, values) if character == "$" else None
        if known is not None:
            kept.append(known[0])
            place = known[1]
            continue
        if character == "`" or (character == "$" and source[place + 1 : place + 2] in _EXPANDS):
            return place, True
        if character == "\\" and place + 1 < end:
            place += 1
            character = source[place]
            if character == "\n":
                place += 1
                continue
            if character not in _ESCAPED_IN_STRING:
                kept.append("\\")
        kept.append(character)
        place += 1
    return -1, False


def _read_variable(source: str, place: int, values: Values | None) -> tuple[str, int] | None:
    """The value of the variable at a dollar, and the place after its name."""
    found = _VARIABLE.match(source, place) if values is not None else None
    value = values.value(found[1] or found[2]) if found is not None and values is not None else None
    return None if found is None or value is None or _CONTROLS.search(value) else (value, found.end())


def _read_bare_variable(source: str, place: int, values: Values | None) -> tuple[str, int] | None:
    """The same outside of quotes, where only a plain value stays one word; or the text of a `$'…'` there."""
    escaped = _ANSI_C.match(source, place)
    if escaped is not None:
        text = decode_escapes(escaped[1])
        return None if text is None else (text, escaped.end())
    known = _read_variable(source, place, values)
    return known if known is not None and known[0] and _PLAIN.fullmatch(known[0]) else None


def _is_outside(source: str, values: Values | None) -> bool:
    """True if all that expands in a word are variables that the line has no part in."""
    if values is None:
        return False
    names = [one or two for one, two in _VARIABLE.findall(source)]
    return bool(names) and not _EXPANDING.search(_VARIABLE.sub("", source)) and all(map(values.is_outside, names))


def _pattern(source: str, values: Values | None) -> str | None:
    """The word as a pattern, including patterns of loops; None if something else expands, or is quoted."""
    if "$" not in source or values is None:
        return None if _QUOTES.search(source) else source

    def spell(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        known = values.value(name)
        value = known or values.pattern(name) or ""
        if not value or not _PATTERN_OF_LOOP.fullmatch(value):
            return "$"
        is_elsewhere = not known and "/" in found.string[: found.start()]
        return value.replace("*", ELSEWHERE) if is_elsewhere else value

    text = _VARIABLE.sub(spell, source.replace('"', ""))
    return None if _QUOTES.search(text) else text


def _is_expansion(source: str, place: int) -> bool:
    character = source[place]
    if character == "$":
        following = source[place + 1 : place + 2]
        return following in _EXPANDS or following in {"'", '"'}
    if character == "{":
        return source != "{}" and ("," in source or ".." in source) and source.find("}", place) >= 0
    if character == "[":
        return source.find("]", place) >= 0
    return character in "`*?"


def _may_split(source: str) -> bool:
    """Inside double quotes only `$@` and its like make several words; outside any expansion may."""
    wholly_quoted = source[0] == '"' and source[-1] == '"' and '"' not in source[1:-1]
    return not wholly_quoted or _LISTS.search(source) is not None


_BRACES = re.compile(r"\{([^{},]*+(?:,[^{},]*+)++)\}")
_SEQUENCE = re.compile(r"\{[A-Za-z0-9]++\.\.[A-Za-z0-9]++\}")
_SPECIAL = re.compile(r"[*?\[{]")
_MAX_SPELLED, _LONGEST = 64, 256


def braces_spelled_out(word: Word) -> list[Word]:
    """The words that `{a,b}` makes of one word, if nothing else in it is quoted or expands."""
    if word.text is not None or word.pattern is None:
        return [word]
    if not _SPECIAL.search(word.pattern):
        return [read_word(word.pattern)]
    if "{" not in word.pattern:
        return [word]
    texts = [_SEQUENCE.sub("*", word.pattern)]
    while (
        len(texts) * len(texts[0]) <= _MAX_SPELLED * _LONGEST
        and len(texts) <= _MAX_SPELLED
        and _BRACES.search(texts[0])
    ):
        texts = [one[: at.start()] + part + one[at.end() :] for one in texts
                 if (at := _BRACES.search(one)) for part in at[1].split(",")]  # fmt: skip
    if len(texts) > _MAX_SPELLED or any(set("{}") & set(one) for one in texts):
        return [word._replace(pattern=None, globs=False)]
    return [read_word(one) for one in texts]


# Nodes of the grammar's tree, and the text that they stand for.


def text_of(source: bytes, node: Node) -> str:
    """The text that a node stands for."""
    return source[node.start_byte : node.end_byte].decode()


def mask_parts(source: bytes, node: Node, kinds: frozenset[str], mark: bytes = b"x") -> str:
    """A node's text with `mark` in the place of each byte of the outermost nodes of these kinds below it."""
    text = bytearray(source[node.start_byte : node.end_byte])
    pending = list(node.children)
    while pending:
        one = pending.pop()
        if one.type in kinds:
            text[one.start_byte - node.start_byte : one.end_byte - node.start_byte] = mark * (
                one.end_byte - one.start_byte
            )
        else:
            pending.extend(one.children)
    return text.decode()


def descendants(node: Node) -> list[Node]:
    """A node and all below it."""
    seen, pending = [], [node]
    while pending:
        one = pending.pop()
        seen.append(one)
        pending.extend(one.children)
    return seen


# The one reader of options: a program's arguments by its row, as getopt and its like take them.
#
# Any beginning of a long name may stand for the whole of it. What expands is never taken for less than it may be: a
# word that may be several words is a value and an operand, too, and one that may become an option is in `doubtful`.


class Used(NamedTuple):
    """An option that is there, as it is spelled, with its value; UNKNOWN where only the run decides it."""

    option: Option
    spelled: str
    value: Word | None = None


class Given:
    """A program's arguments, taken apart. `unknown` are options that the row does not name, `rest` what follows where
    options end at the first operand; `spelled` are the words that were taken for options."""

    def __init__(self) -> None:
        self.used: list[Used] = []
        self.operands: list[Word] = []
        self.unknown: list[str] = []
        self.doubtful: list[Word] = []
        self.rest: list[Word] = []
        self.spelled: list[str] = []

    def has(self, role: str) -> bool:
        """True if an option of this role is there."""
        return any(role in one.option.roles for one in self.used)

    def values(self, *roles: str) -> list[Word]:
        """The values of the options that have one of these roles, in order."""
        return [one.value for one in self.used if one.value is not None and not one.option.roles.isdisjoint(roles)]


class _OptionReader:
    def __init__(self, row: Program, words: Sequence[Word]) -> None:
        self.options = options_of(row.options)
        self.stops = row.stops
        self.is_exact = row.starts == "behind"
        self.words = words
        self.place = 0
        self.given = Given()

    def read(self, *, bare: bool) -> Given:
        given = self.given
        first = self.words[0] if self.words else None
        if bare and first is not None and not first.prefix.startswith("-") and (first.text or not first.outside):
            self.place = 1
            self._cluster("-" + first.prefix, first, awaits=True)
        while self.place < len(self.words):
            word = self.words[self.place]
            text = word.prefix if word.text is None else word.text
            if text.startswith("-") and text != "-" and not (word.quoted and word.text is None and text == ""):
                if text == "--" and word.text is not None:
                    self.place += 1
                    given.operands += self.words[self.place :]
                    given.rest = list(self.words[self.place :])
                    return given
                self.place += 1
                self._option(text, word)
                continue
            if self.stops:
                given.rest = list(self.words[self.place :])
                return given
            if word.may_be_option:
                given.doubtful.append(word)
            given.operands.append(word)
            self.place += 1
        return given

    def _option(self, text: str, word: Word) -> None:
        self.given.spelled.append(text)
        name, joined, value = text.partition("=")
        names = self._meant(name)
        if not names:
            if text.startswith("--") or len(text) == 1:
                self._unknown(text, word)
            else:
                self._cluster(text, word)
            return
        if word.text is None and not joined:
            self.given.doubtful.append(word)  # the name itself continues in an expansion
        option = self._strictest(names)
        self._use(option, text, _cut_value(word, value) if joined else None)

    def _meant(self, name: str) -> list[str]:
        """The options that a word may mean: the one of this name, or those of which it is the beginning."""
        if name in self.options and len(name) > 2:
            return [name]
        if self.is_exact or not name.startswith("--") or name == "--":
            return []
        return [one for one in self.options if one.startswith(name)]

    def _strictest(self, names: list[str]) -> Option:
        """The one that does most of those that an ambiguous beginning may mean."""
        meant = [self.options[name] for name in names]
        return max(meant, key=lambda one: (one.is_risky, len(one.roles), one.value == "needed"))

    def _cluster(self, text: str, word: Word, *, awaits: bool = False) -> None:
        """Letters up to the one that takes the rest, or the next word, for its value; all if no dash (`awaits`)."""
        for at, letter in enumerate(text[1:], 1):
            option = self.options.get("-" + letter)
            if option is None and letter.isdigit():
                option = self.options.get("-#")
            rest = text[at + 1 :]
            if option is None:
                self._unknown("-" + letter, word)
            elif option.value == "none" or awaits:
                self._use(option, "-" + letter, None)
            else:
                value = _cut_value(word, rest) if rest or word.text is None else None
                self._use(option, "-" + letter, value)
                return
        if word.text is None:
            self.given.doubtful.append(word)

    def _unknown(self, text: str, word: Word) -> None:
        self.given.unknown.append(text)
        if word.text is None:
            self.given.doubtful.append(word)

    def _use(self, option: Option, spelled: str, value: Word | None) -> None:
        if value is None and option.value == "needed":
            if self.place < len(self.words):
                value = self.words[self.place]
                self.place += 1
                if value.is_several:
                    self.given.operands.append(value)
                    if value.may_be_option:
                        self.given.doubtful.append(value)
            else:
                value = plain("")
        self.given.used.append(Used(option, spelled, value))


def _cut_value(word: Word, value: str) -> Word:
    return plain(value) if word.text is not None else UNKNOWN._replace(prefix=value)


def read_options(row: Program, words: Sequence[Word]) -> Given:
    """A program's arguments by its row."""
    return _OptionReader(row, words).read(bare=row.bare)
