"""The one reader of options: a program's arguments by its row, as getopt and its like take them.

Any beginning of a long name may stand for the whole of it. What expands is never taken for less than it may be: a word
that may be several words is a value and an operand, too, and one that may become an option is in `doubtful`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policy.programs.row import Option, Program, options_of
from policy.shell.words import UNKNOWN, Word, plain

if TYPE_CHECKING:
    from collections.abc import Sequence


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
            self.given.doubtful.append(word)  # the name itself goes on in what expands
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
        """Letters up to the one that takes the rest for its value, or the next word; each of them where they stand
        without a dash (`awaits`)."""
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
    """The part of a word that is an option's value."""
    return plain(value) if word.text is not None else UNKNOWN._replace(prefix=value)


def read_options(row: Program, words: Sequence[Word]) -> Given:
    """A program's arguments by its row."""
    return _OptionReader(row, words).read(bare=row.bare)
