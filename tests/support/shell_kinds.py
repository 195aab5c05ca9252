"""Lines of the kinds by which hunts found ways past policy: constructs that assign to steering variables, files written
by programs under protected names in every spelling, and text that evaluation shows.

Their parts are in shell_kinds.txt. The same seed gives the same lines; most are short, so an escape explains itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SECTION = re.compile(r"^\[(\w+)\]\n(.*?)(?=^\[\w+\]$|\Z)", re.MULTILINE | re.DOTALL)
_BAR = re.compile(r"(?<!\\)\||\n")
_SLOT = re.compile(r"\{([A-Zen])\}")
_NEW = ("d2", "r3", "out/n", "new", "s2", "out/x/y", "x y", "sub/n")
FILES = {"assigning": 0.3, "evaluating": 0.25, "writing": 0.45}
"""Kinds of lines, and how often they come, for a list that names programs of files and no interpreter."""
BLOCKS = {"shown": 1.0}
"""For a list of what is blocked: what a line shows to a shell."""


def _read() -> dict[str, list[str]]:
    text = "\n".join(
        line
        for line in Path(__file__).with_name("shell_kinds.txt").read_text("utf-8").splitlines()
        if not line.startswith("# ")
    )
    return {
        name: [part.replace("\\|", "|") for part in _BAR.split(body) if part] for name, body in _SECTION.findall(text)
    }


PARTS = _read()


class Kinds:
    """Endless lines for one shell (`bash`, `sh`, `dash` or `zsh`) in a workspace and with a directory outside of it."""

    def __init__(
        self, seed: int, shell: str, workspace: str, outside: str, shares: Mapping[str, float] = FILES
    ) -> None:
        self._random = Random(seed)
        self._shares = shares
        self._shell = shell
        self._slots: dict[str, Callable[[], str]] = {
            "A": lambda: self._pick("assigning"),
            "B": lambda: self._spelled(self._pick("directories")),
            "C": lambda: self._written_by_name().replace("{T}", self._one("$n", '"$n"')),
            "D": lambda: self._new,
            "E": lambda: outside,
            "H": lambda: self._pick("protected"),
            "I": lambda: self._pick("interpreters"),
            "K": lambda: self._pick("hidden"),
            "N": lambda: self._name,
            "P": lambda: self._program,
            "Q": lambda: self._pick("steered"),
            "R": lambda: self._pick("patterns"),
            "S": lambda: self._one("a.txt", "names", "rc", "names2", "num"),
            "T": lambda: self._spelled(self._pick("protected")),
            "U": lambda: self._pick("protected"),
            "V": lambda: self._pick("values"),
            "W": lambda: workspace,
            "X": lambda: self._pick("texts"),
            "Y": lambda: self._pick("begins"),
            "e": lambda: self._pick("evaluating"),
            "n": lambda: "\n",
        }

    def line(self) -> str:
        """The next line."""
        self._new = self._one(*_NEW[:3]) if self._random.random() < 0.8 else self._one(*_NEW)
        self._name, self._program = self._pick("names"), self._pick("programs")
        kind = self._random.choices(tuple(self._shares), tuple(self._shares.values()))[0]
        made = self._filled(getattr(self, f"_{kind}")())
        if self._random.random() < 0.12:
            made = self._filled(self._pick("around").replace("{A}", made.replace("'", '"')))
        return made

    def _assigning(self) -> str:
        if self._random.random() < 0.5:
            steering, _, command = self._pick("pairs").partition(" => ")
            name, _, value = steering.partition("=")
            slots = {"{N}": name, "{V}": value, "{P}": command, "{Q}": command}
            pattern = self._pick("around").replace("{A}", self._pick("assigning"))
            for slot, text in slots.items():
                pattern = pattern.replace(slot, text)
            return pattern
        return self._pick("around") if self._random.random() < 0.9 else "{A}; {A}; {P}"

    def _evaluating(self) -> str:
        source = self._pick("sources")
        return source if "{e}" in source else source + self._one("; ", "; ", "\n", " && ") + "{e}"

    def _writing(self) -> str:
        chance = self._random.random()
        if chance < 0.2:
            name = self._pick("protected")
            return self._pick("spelled_variable").replace("{H}", name).replace("{t}", name[:-1])
        first = self._pick("writing")
        return f"{first}; {self._pick('writing')}" if chance < 0.4 else first

    def _shown(self) -> str:
        return self._pick("shown")

    def _written_by_name(self) -> str:
        while "{T}" not in (pattern := self._pick("writing")):
            pass
        return pattern

    def _filled(self, pattern: str) -> str:
        for _ in range(4):
            pattern = _SLOT.sub(lambda found: self._slots[found[1]](), pattern)
        return pattern

    def _spelled(self, name: str) -> str:
        # In a directory that is entered, a name is spelled by its last letters: `.vs*`, or by those of the file.
        first, slash, last = name.partition("/")
        if slash and self._random.random() < 0.5:
            return self._spelling(first) + slash + last
        return self._spelling(name)

    def _spelling(self, name: str) -> str:
        form = self._pick("spelled")
        parts = {"{H}": name, "{h}": name[1:], "{t}": name[:-1], "{l}": name[-1]}
        for slot, part in parts.items():
            form = form.replace(slot, part)
        return form

    def _pick(self, section: str) -> str:
        """A part of a section, or of the one for this shell's grammar."""
        own = PARTS.get(f"{section}_{self._shell}", [])
        several = PARTS[section]
        place = self._random.randrange(len(several) + len(own))
        return several[place] if place < len(several) else own[place - len(several)]

    def _one(self, *several: str) -> str:
        return several[self._random.randrange(len(several))]
