"""One row for each program that policy knows: data only. A program without a row counts as one that may start anything.

`options` is a text of tokens, one for each option: its spellings, joined by commas, then how it takes a value, then
what it does, if that matters:

    -f,--force                no value
    -m,--mode=                a value: joined, or the next word
    --backup?                 a value that can only be joined
    -t,--target-directory=into  a value, and its role
    -r,--recursive:tree       a role without a value; several are joined by `+`
    -#                        digits behind a dash

Roles of values: `read`, `write` (a file), `into` (a directory that files are made in), `suffix`, `prefix`, `script`,
`archive`, `address`. Roles of options: `tree` (goes down a tree), `links` (copies links as links), `exact` (the target
is no directory to copy into), `backup`, `keep`, `stdout`, `unpack` and the like, which the functions of
`policy.shell.file_effects` read. `!` runs or writes what the line does not show.

`operands` says what the words without a dash are: `read`, `write`, `delete`, `skip` by their places, each with `?` or
`*`; or one name of a table there. For a program that `starts` the one behind it: `skip` for each word of its own, `set`
where it takes assignments, `program`, `input` where words are added from its input.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

Starts = Literal["", "behind", "somewhere", "language", "shell", "unread shell", "code", "files"]
"""The way in which a program starts others: not at all; the program after its own words; one at an unknown place in its
arguments; as its own commands say; from shell text or code that it is given; as `what` says."""


class Program(NamedTuple):
    """A row. `risky` is a pattern of single arguments that do what `!` does, for options that are spelled in no usual
    way; `words` are operands that do. `stops`: options end at the first operand. `one_option`: only the first word may
    be one. `bare`: the first word is a cluster of options without a dash. `network`: it is there to talk over the
    network; `online`: its subcommands that do."""

    starts: Starts = ""
    what: str = ""
    options: str = ""
    risky: str = ""
    words: str = ""
    operands: str = ""
    subcommands: tuple[tuple[str, Program], ...] = ()
    stops: bool = False
    bare: bool = False
    one_option: bool = False
    network: bool = False
    online: str = ""

    def subcommand(self, name: str | None) -> Program | None:
        """The row of a subcommand, or that of `*`, which stands for those that have none."""
        if name is None:
            return None
        return next((row for one, row in self.subcommands if one in {name, "*"}), None)


class Option(NamedTuple):
    """An option of a row. `value`: it takes none, it needs one, or it takes one that is joined to it."""

    value: Literal["none", "needed", "joined"]
    roles: frozenset[str]

    @property
    def is_risky(self) -> bool:
        """True if it runs or writes what the line does not show."""
        return "!" in self.roles


@lru_cache(maxsize=256)
def options_of(text: str) -> dict[str, Option]:
    """The options of a row by each of their spellings, with their dashes. A later token replaces an earlier one."""
    found: dict[str, Option] = {}
    for token in text.split():
        ends = [at for at in (token.find(mark, 1) for mark in "=?:!") if at > 0]
        end = min(ends, default=len(token))
        mark, roles = token[end : end + 1], token[end:].lstrip("=?:")
        value: Literal["none", "needed", "joined"] = {"=": "needed", "?": "joined"}.get(mark, "none")  # type: ignore[assignment]  # the table's values are of the type
        option = Option(value, frozenset(roles.split("+")) if roles else frozenset())
        found.update(dict.fromkeys(token[:end].split(","), option))
    return found


Rows = dict[str, Program]
PLAIN = Program()
"""The row of programs of which nothing has to be known."""


def rows(table: dict[str, Program]) -> Rows:
    """A table whose keys are the names of several programs each, with one key a name."""
    return {name: PLAIN if row == PLAIN else row for names, row in table.items() for name in names.split()}
