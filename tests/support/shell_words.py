"""Words by bash's own grammar of them, in the places where the grammar that reads them may end them elsewhere.

Every expansion with every operator, text inside of it that closes what was not opened, quotes and substitutions at any
depth, and the operators of tests as plain words. What stands behind such a word is a program that no list names, so a
word that ends too late for the reader hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_PARAMETERS = ("x", "x", "x", "y", "HOME", "1", "@", "*", "#", "?", "-", "$", "!", "x[0]", "x[@]", "10")
_BEFORE = ("", "", "", "", "", "#", "!")
_OPERATORS = (
    "", ":-", "-", ":=", "=", ":?", "?", ":+", "+", "#", "##", "%", "%%", "%", "%%", "/", "//", "/#", "/%", ":", "^",
    "^^", ",", ",,", "@", "~",
)  # fmt: skip
_LITERALS = (
    "a", "b", ".", "/", "*", "?", "[a]", "[!a]", "@", "=", ":", "~", "#", "!", "%", "+", "-", "1", "é", "a.txt", "..",
)  # fmt: skip
_UNBALANCED = (
    "{", "}", "{", "}", "(", ")", "'", '"', "`", "\\", "\\}", "\\{", "$", "[", "]", "<", ">", ";", "|", "&", "\n", " ",
    "; evil ", " evil ", ";evil #", "\nevil\n", "|evil ", "&&evil ", "<(", "$(", "${", "$((", "))", "'}'", '"}"', "#",
)  # fmt: skip
_TEST_OPERATORS = (
    "=~", "==", "=", "!=", "<", ">", "-eq", "-ne", "-lt", "-n", "-z", "-f", "-v", "-a", "-o", "!", "(", ")", "]]", "[[",
)  # fmt: skip
_SEPARATORS = (";", "; ", "|", "&&", " && ", "||", "&", "\n", ">>out/a;", ">out/a ", "<a.txt;", ";;", "|&")
_FRAMES = (
    "echo {w}", "echo {w} {w}", "echo {w}{s}evil {c}", "echo {w}{s}ls {w}", "(echo {t} {w}{s}evil )", "(echo {t} {w})",
    "(echo a {t} {w}{s}evil {c})", "{ echo {t} {w}{s}evil; }", "echo $(echo {t} {w}{s}evil )", "[ {w} {t} {w} ]",
    "[ {w} {t} {w}{s}evil ]", "[ {t} {w}{s}evil ]", "[[ {w} {t} {w} ]]{s}ls", "[[ {w} {t} {w}{s}evil ]]",
    "test {w} {t} {w}{s}evil", "x={w} ls", "x={w}{s}evil {c}", "x={w}", "ls > out/a{w}", "ls > out/a {w}{s}evil {c}",
    "cat < a.txt {w}", "cat <<E\n{w}\nE", "cat <<< {w}{s}evil {c}", "case {w} in {w}) ls;; esac",
    "case a in {w}{s}evil {c}) ls;; esac", "for x in {w}; do ls; done", "if (echo {t} {w}{s}evil ); then ls; fi",
    "while false; do echo {w}; done", "export x={w}{s}evil {c}", "printf {w} | cat {w}", "! echo {t} {w}{s}evil",
    "bash -c 'echo {w}'", 'echo "{w}"{s}evil "{c}"', "echo `echo {t} {w}{s}evil `", "time echo {w}", "find . -name {w}",
)  # fmt: skip
_CLOSERS = ("}", "}", ")", "'", '"', "`", "]", "]]", "a", "")


class Words:
    """Lines around such words; the same `random` gives the same ones."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def line(self) -> str:
        """The next line."""
        parts: dict[str, Callable[[], str]] = {
            "{w}": lambda: self.word(self._random.choice((0, 1, 1, 2))),
            "{t}": lambda: self._pick(_TEST_OPERATORS),
            "{s}": lambda: self._pick(_SEPARATORS),
            "{c}": lambda: self._pick(_CLOSERS),
        }
        line = self._pick(_FRAMES)
        for mark, make in parts.items():
            first, *others = line.split(mark)
            line = first + "".join(make() + other for other in others)
        return line

    def word(self, depth: int) -> str:
        """One word, or what looks like one."""
        return "".join(self._piece(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3))))

    def _piece(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.25 or depth < 0:
            return self._pick(_LITERALS)
        if kind < 0.65:
            return self._expansion(depth)
        if kind < 0.72:
            return self._pick(("'{}'", '"{}"', "$'{}'", '$"{}"')).format(self._inner(depth - 1))
        if kind < 0.82:
            return self._pick(("$(ls {})", "`ls {}`", "<(ls {})", "$(({}))", "$(echo {})", "{{a,{}}}")).format(
                self._inner(depth - 1)
            )
        if kind < 0.9:
            return self._pick(_TEST_OPERATORS)
        return "$" + self._pick(_PARAMETERS[:12])

    def _expansion(self, depth: int) -> str:
        head = "${" + self._pick(_BEFORE) + self._pick(_PARAMETERS)
        operator = self._pick(_OPERATORS)
        inner = self._pick(_UNBALANCED) if self._random.random() < 0.3 else self._inner(depth - 1)
        return f"{head}{operator}{inner if operator else ''}}}"

    def _inner(self, depth: int) -> str:
        """What stands in quotes, substitutions and behind operators, closed or not."""
        made = []
        for _ in range(self._random.choice((0, 1, 1, 2, 3))):
            kind = self._random.random()
            if kind < 0.5:
                made.append(self._pick(_LITERALS))
            elif kind < 0.75:
                made.append(self._pick(_UNBALANCED))
            elif depth >= 0:
                made.append(self._piece(depth))
        return "".join(made)

    def _pick(self, options: Sequence[str]) -> str:
        return options[self._random.randrange(len(options))]
