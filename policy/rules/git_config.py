"""Read the configuration of a git repository as git does, and judge what a command has changed in it. Pure.

Only keys of a list may come, go and change: they name branches, remotes and people. Every other key may start a
program, or may in the next version of git.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from policy.paths import is_under, normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 256 * 1024
"""A longer file is not read, and counts as one that git could not read either."""
_PLAIN = frozenset({
    "core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase",
    "core.precomposeunicode", "extensions.objectformat", "user.name", "user.email", "pull.rebase", "push.default",
    "init.defaultbranch", "submodule.active",
})  # fmt: skip
_NAMED = frozenset({
    ("remote", "url"), ("remote", "fetch"), ("branch", "remote"), ("branch", "merge"), ("branch", "rebase"),
    ("submodule", "url"), ("submodule", "active"),
})  # fmt: skip
"""The keys that have a name between section and key: `remote.origin.url`."""
_ADDRESSES = frozenset({("remote", "url"), ("submodule", "url"), ("branch", "remote")})
_STARTS_A_HELPER = r"-|[^/]*::|\w*!"
"""How an address begins that is an option, or that a program `git-remote-NAME` serves."""
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}


class Setting(NamedTuple):
    """One line: `section` and `key` in lower case, `name` as it is written; None where there is none. A key without a
    value has None."""

    section: str
    name: str | None
    key: str
    value: str | None


def settings_of(content: bytes) -> list[Setting] | None:
    """The settings of a configuration file in their order; None where git would not read all of it, or it is longer
    than MAX_BYTES."""
    if len(content) > MAX_BYTES or b"\0" in content:
        return None
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        return _Reader(text).settings()
    except ValueError:
        return None


def tree_of(content: bytes, directory: str) -> str | None:
    """Return the working tree that the `config` of the git directory `directory` (POSIX, absolute) names, as it is
    spelled there; None for none."""
    trees = [one.value or "" for one in settings_of(content) or [] if one[:3] == ("core", None, "worktree")]
    return normalize(trees[-1], "posix", directory) if trees else None


def config_problem(content: bytes, before: bytes, directory: str, roots: Sequence[str]) -> str | None:
    """Say what a command may not leave in the `config` of the git directory `directory` (POSIX, absolute) that held
    `before`; None for nothing. A working tree has to lie below one of `roots`, real places."""
    now, then = settings_of(content), settings_of(before)
    if now is None:
        return "it cannot be read as git reads it"
    kept = [one for one in then or [] if not _is_harmless(one, directory, roots)]
    left = [one for one in now if not _is_harmless(one, directory, roots)]
    if left == kept:
        return None
    odd = next((one for one in left if one not in kept), None) or next(iter([*kept, *left]))
    name = ".".join(filter(None, (odd.section, odd.name, odd.key)))
    return f"a command may not set or remove {name}"


def _is_harmless(one: Setting, directory: str, roots: Sequence[str]) -> bool:
    if one.section == "core" and one.name is None and one.key == "worktree":
        tree = normalize(one.value or "", "posix", directory)
        return any(is_under(tree, root, "posix") for root in roots)
    if (one.section, one.key) in _ADDRESSES and re.match(_STARTS_A_HELPER, one.value or ""):
        return False
    if one.name is None:
        return f"{one.section}.{one.key}" in _PLAIN
    return (one.section, one.key) in _NAMED


class _Reader:
    """git's own grammar (`config.c`), character by character. Raises ValueError where git gives up."""

    def __init__(self, text: str) -> None:
        self._rest = iter(text + "\n")
        self._found: list[Setting] = []

    def settings(self) -> list[Setting]:
        section, name = "", None
        for character in self._rest:
            if character in " \t\r\n":
                continue
            if character in "#;":
                self._skip_line()
            elif character == "[":
                section, name = self._header()
            elif character.isascii() and character.isalpha() and section:
                self._setting(section, name, character)
            else:
                raise ValueError(character)
        return self._found

    def _skip_line(self) -> None:
        while self._next() != "\n":
            pass

    def _next(self) -> str:
        found = next(self._rest, None)
        if found is None:
            raise ValueError
        return found

    def _header(self) -> tuple[str, str | None]:
        section = ""
        while (character := self._next()) != "]":
            if character in " \t\r\n":
                return section.lower(), self._quoted_name(character)
            if not (_is_of_key(character) or character == "."):
                raise ValueError(character)
            section += character
        first, dot, name = section.lower().partition(".")
        return first, name if dot else None

    def _quoted_name(self, character: str) -> str:
        while character in " \t\r":
            character = self._next()
        if character != '"':
            raise ValueError(character)
        name = ""
        while (character := self._next()) != '"':
            if character == "\\":
                character = self._next()
            if character == "\n":
                raise ValueError(name)
            name += character
        if self._next() != "]":
            raise ValueError(name)
        return name

    def _setting(self, section: str, name: str | None, first: str) -> None:
        key = first
        while _is_of_key(character := self._next()):
            key += character
        while character in " \t":
            character = self._next()
        if character not in "=\n":
            raise ValueError(key)
        value = None if character == "\n" else self._value()
        self._found.append(Setting(section, name, key.lower(), value))

    def _value(self) -> str:
        value: list[str] = []
        length, is_quoted = 0, False
        while (character := self._next()) != "\n" or is_quoted:
            if character == "\n":
                raise ValueError("".join(value))
            if character in "#;" and not is_quoted:
                self._skip_line()
                break
            if character == "\\":
                character = self._next()
                if character == "\n":
                    continue
                if character not in _ESCAPES:
                    raise ValueError(character)
                character = _ESCAPES[character]
                value.append(character)
                length = len(value)
            elif character == '"':
                is_quoted = not is_quoted
            elif character in " \t\r" and not is_quoted:
                value += [character] if value else []
            else:
                value.append(character)
                length = len(value)
        return "".join(value[:length])


def _is_of_key(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "-")
