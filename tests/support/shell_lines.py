"""Shell lines by the thousand: a random grammar with everything a shell has, words by bash's own grammar of them
(shell_words.py), and lines of a corpus with errors put in.

The alphabet is safe to run: names of stubs and of a few harmless programs, and paths of the jail (shell_alphabet.toml).
The same seed gives the same lines.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

from tests.support.shell_jail import ALPHABET, UNLISTED
from tests.support.shell_words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_CORPUS_LINE = 200
_STRUCTURE = ALPHABET["structure"]
_RARE = ALPHABET["rare"]
_BARE = ALPHABET["bare"]
_QUOTED = ALPHABET["quoted"]
_TARGETS = ALPHABET["targets"]
_ELSEWHERE = ALPHABET["elsewhere"]
_SOURCES = ALPHABET["sources"]
_OPERATORS = ALPHABET["operators"]
_WRAPPERS = ALPHABET["wrappers"]
_ASSIGNED = ALPHABET["assigned"]
_EXPANSIONS = ALPHABET["expansions"]
_ARITHMETIC = ALPHABET["arithmetic"]
_TESTS = ALPHABET["tests"]
_TEXTS = ALPHABET["texts"]
_ARGUMENTS: dict[str, list[str]] = ALPHABET["arguments"]


class Lines:
    """Endless lines for one shell; `corpus` are lines to change at random, with paths of the jail in them."""

    def __init__(self, seed: int, corpus: Sequence[str] = ()) -> None:
        self._random = Random(seed)
        self._words = Words(self._random)
        self._corpus = [line for line in corpus if len(line) <= _MAX_CORPUS_LINE]
        self._bodies: list[str] = []  # of here-documents that begin in the line being made
        self._odd = 0.0

    def line(self) -> str:
        """The next line."""
        # Most lines are nearly plain, so that enough of them are allowed; in others anything goes.
        self._odd = self._random.choice((0.0, 0.0, 0.02, 0.05, 0.1, 0.3))
        self._bodies = []
        if self._chance(0.2):
            return self._words.line()
        if self._corpus and self._chance(0.2):
            text = self._pick(self._corpus)
            return self._spoil(text) if self._chance(0.8) else text
        text = self._list(self._random.choice((0, 1, 1, 2, 2, 3)))
        text += "".join(self._bodies)
        return self._spoil(text) if self._chance(0.3) else text

    # Chance

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _strange(self, times: float = 1.0) -> bool:
        return self._chance(self._odd * times)

    def _pick(self, options: Sequence[str]) -> str:
        return options[self._random.randrange(len(options))]

    # Words

    def _name(self) -> str:
        if self._strange(1.5):
            return self._pick(UNLISTED)
        if self._strange(0.5):
            return self._pick(
                (*_EXPANSIONS, "./ls", "./evil", "sub/ls", "l''s", "'ls'", '"ls"', "\\ls", "l\\s", "ev\\\nil", "l\\\ns")
            )
        return self._pick(("echo", "good", "ls", "ls", "tool", "cat", "true", "printf", ":"))

    def _word(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.5:
            return self._pick(_BARE)
        if kind < 0.62:
            return f"'{self._pick(_QUOTED)}'".replace("\n", "\n" if self._strange() else ";")
        if kind < 0.74:
            return f'"{self._inside(depth)}"'
        if kind < 0.74 + self._odd:
            return self._pick(_EXPANSIONS)
        if depth > 0 and kind < 0.88:
            return self._substitution(depth - 1)
        if self._strange():
            return self._word(depth) + self._word(depth)
        return self._pick(("a", "$x", "${x:-a}", "*", "a*", "$((1 + 2))", "\\;", "''", "--", "#", "{}", "}", "a=b"))

    def _inside(self, depth: int) -> str:
        """What stands in double quotes."""
        pieces = [
            "a",
            "a b",
            "$x",
            "${x:-a}",
            "'",
            "'a'",
            ";evil;",
            "# evil",
            "$1",
            "\\$(evil)",
            "\\`evil\\`",
            "*",
            "}",
        ]
        found = [self._pick(pieces) for _ in range(self._random.randint(0, 2))]
        if depth > 0 and self._chance(0.3):
            found.append(self._substitution(depth - 1))
        if self._strange():
            found.append(
                self._pick(("${x:-'$(evil)'}", "`", "\\", "$", '"evil"', "${x:-<(evil)}", "${x%%`evil`}", "!evil"))
            )
        return "".join(found)

    def _substitution(self, depth: int) -> str:
        inner = self._list(depth)
        form = self._pick(
            ("$({})", "$({})", "`{}`", "$( {} )", "<({})", '"$({})"', "${{x:-$({})}}", ">({})", "$(({}))", "$(<a.txt)")
        )
        if form.startswith(("<", ">", "$((")) and not self._strange(3):
            form = "$({})"
        return form.format(inner)

    # Commands

    def _simple(self, depth: int) -> str:
        words: list[str] = []
        if self._chance(0.12):
            words.append(self._pick(_ASSIGNED if self._strange(4) else _ASSIGNED[:7]))
        if self._chance(0.15):
            words.append(self._pick(_WRAPPERS if self._strange(4) else _WRAPPERS[:30]))
        choice = self._random.random()
        if choice < 0.3:
            name = self._pick(tuple(_ARGUMENTS))
            options = _ARGUMENTS[name]
            words += [name, self._pick(options if self._strange(5) else options[:2])]
        elif choice < 0.36:
            words.append(self._find())
        elif choice < 0.42:
            words.append(self._inner_shell(depth))
        elif choice < 0.47 and self._strange(3):
            words.append(self._pick(("[[ {} ]]", "[ {} ]", "test {}")).format(self._pick(_TESTS)))
        else:
            words.append(self._name())
            words += [self._word(depth) for _ in range(self._random.randint(0, 3))]
        for _ in range(self._random.choice((0, 0, 0, 1, 1, 2))):
            words.insert(self._random.randint(0, len(words)) if self._strange(3) else len(words), self._redirection())
        return (" " if not self._strange() else self._pick(("", "\t", "  ", "\\\n", " \\\n ", *_RARE))).join(words)

    def _redirection(self) -> str:
        kind = self._random.random()
        if kind < 0.5:
            target = self._pick(_ELSEWHERE) if self._strange(3) else self._pick(_TARGETS)
            operator = self._pick(_OPERATORS if self._strange(3) else _OPERATORS[:8])
            return operator + self._pick(("", " ")) + target
        if kind < 0.7:
            return "<" + self._pick(("", " ")) + self._pick(_SOURCES)
        if kind < 0.8:
            return self._pick(("2>&1", ">&2", "<&-", "3>&1", "2>&-", ">&$x", ">&a"))
        if kind < 0.86 and self._strange(4):
            return "<<< " + self._word(1)
        return self._heredoc()

    def _heredoc(self) -> str:
        mark = self._pick(("E", "'E'", '"E"', "EOF", "'EOF'"))
        if self._strange(2):
            mark = self._pick(("\\E", "E''", "$x", "'E F'", "-E", '"$(evil)"', "E\\\n"))
        operator = self._pick(("<<", "<<-", "<< "))
        text = "\n".join(
            self._pick(_TEXTS[:4] if not self._strange(3) else _TEXTS) for _ in range(self._random.randint(0, 2))
        )
        end = mark.strip("'\"\\")
        self._bodies.append(f"\n{text}\n{end}" if text else f"\n{end}")
        return operator + mark

    def _find(self) -> str:
        start = self._pick(("find .", "find sub", "find . -name '*.txt'", "find . -maxdepth 1", "find . -name a.txt"))
        if self._chance(0.3):
            return start
        if self._strange(3):
            return (
                start
                + " "
                + self._pick(
                    ("-delete", "-fprint new", "-ok evil {} ;", "-exec {} ;", "-exec evil", "-exec ls ; -exec evil \\;")
                )
            )
        action = (
            self._pick(("-exec", "-execdir", "-ok")) + f" {self._name()} {self._pick(('', 'a', '{}', 'a{}', '-n'))} "
        )
        return f"{start} {action}" + self._pick(("\\;", "';'", "{} +", '";"', "+", "{} \\; -exec ls {} +"))

    def _inner_shell(self, depth: int) -> str:
        inner = self._list(max(depth - 1, 0)) if self._chance(0.7) else self._name()
        shell = self._pick(("sh -c", "bash -c", "sh -ec", "bash -euc"))
        if self._strange(2):
            shell = self._pick(
                ("sh", "bash -lc", "sh -c --", "bash --norc -c", "sh -c -e", "bash -o errexit -c", "sh -s", "bash -ic")
            )
        quoted = "'" + inner.replace("'", self._pick(("'\\''", "'\"'\"'", '"'))) + "'"
        if self._chance(0.25):
            quoted = '"' + re.sub(r'([\\"`$])', r"\\\1" if not self._strange() else r"\1", inner) + '"'
        return f"{shell} {quoted}" + self._pick(("", "", " a", " evil $(good)"))

    def _compound(self, depth: int) -> str:
        def inner() -> str:
            return self._list(depth - 1)

        end = self._pick(("; ", "\n"))
        forms: list[Callable[[], str]] = [
            lambda: f"({inner()})",
            lambda: f"{{ {inner()}{end}}}",
            lambda: f"if {inner()}{end}then {inner()}{end}fi",
            lambda: f"if {inner()}{end}then {inner()}{end}else {inner()}{end}fi",
            lambda: f"for x in {self._word(depth)} b{end}do {inner()}{end}done",
            lambda: f"while false{end}do {inner()}{end}done",
            lambda: f"until true{end}do {inner()}{end}done",
            lambda: f"case {self._word(0)} in a|b) {inner()};; *) {inner()};; esac",
            lambda: f"! {inner()}",
        ]
        odd: list[Callable[[], str]] = [
            lambda: f"(({self._pick(_ARITHMETIC)}))",
            lambda: f"x() {{ {inner()}; }}; x",
            lambda: f"select x in a{end}do {inner()}{end}break{end}done",
            lambda: f"[[ {self._pick(_TESTS)} ]] && {inner()}",
            lambda: f"case {self._word(1)} in {self._word(1)}) {inner()};& (a) {inner()} ;; esac",
            lambda: f"for ((i=0; i<1; i++)){end}do {inner()}{end}done",
            lambda: f"trap '{inner()}' EXIT",
            lambda: f"alias ls=evil\n{inner()}",
            lambda: f"eval '{inner()}'",
            lambda: f"coproc {inner()}",
            lambda: f"function x {{ {inner()}; }}",
            lambda: f"for x{end}do {inner()}{end}done",
            lambda: f"time {{ {inner()}; }}",
            lambda: f"${{x:-{inner()}}}",
        ]
        made = self._random.choice(odd if self._strange(3) else forms)()
        return made + (" " + self._redirection() if self._chance(0.15) else "")

    def _list(self, depth: int) -> str:
        made: list[str] = []
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3))):
            if made:
                joins = (
                    "; ",
                    " && ",
                    " || ",
                    " | ",
                    "\n",
                    " & ",
                    ";",
                    "&&",
                    "|",
                    " |& ",
                    " ;; ",
                    "; ; ",
                    "\t;",
                    " \\\n&& ",
                    " # a\n",
                )
                made.append(self._pick(joins if self._strange(2) else joins[:9]))
                if made[-1] == "\n" and self._bodies:
                    made[-1] = "".join(self._bodies) + "\n"
                    self._bodies = []
            made.append(self._compound(depth) if depth > 0 and self._chance(0.3) else self._simple(depth))
        if self._chance(0.06):
            made.append(self._pick((" # a", " # `evil`", " #'", "\n# $(evil\n", " &", ";", "\n")))
        return "".join(made)

    # Errors

    def _spoil(self, text: str) -> str:
        """Deletes, doubles, swaps or puts in a few characters."""
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            if not text:
                break
            place = self._random.randrange(len(text))
            kind = self._random.random()
            if kind < 0.3:
                text = text[:place] + text[place + 1 :]
            elif kind < 0.45:
                text = text[:place] + text[place] + text[place:]
            elif kind < 0.6:
                text = text[:place] + text[place + 1 : place + 2] + text[place] + text[place + 2 :]
            elif kind < 0.93:
                text = text[:place] + self._pick(_STRUCTURE) + text[place:]
            elif kind < 0.96:
                text = text[:place] + self._pick(_RARE) + text[place:]
            else:
                other = self._random.randrange(len(text))
                text = text[: min(place, other)] + text[max(place, other) :]
        return text
