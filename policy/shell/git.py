"""git: addresses that start a program, and keys of its configuration that name none."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from policy.names import words
from policy.programs.table import PROGRAMS

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.options import Given
    from policy.shell.words import Word

_ADDRESS_FIRST = words("clone fetch ls-remote pull push")
_ADDRESSED = _ADDRESS_FIRST | words("remote submodule")
"""Subcommands that take an address: as their first operand, or further on."""
_ADDRESS = re.compile(
    r"(?:--repo?=)?(?!(?:https?|ftps?|file|git|ssh|git\+ssh|ssh\+git)://)[A-Za-z0-9][A-Za-z0-9+.-]*:(?::|//)"
)
"""How an address starts that is handed to the program `git-remote-NAME`."""
_ADDRESS_BEGINS = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9+.-]*(?::/?)?)?")
"""What may become such an address if something unknown follows."""
_CONFIG_READS = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"})
_CONFIG_CHANGES = words("--add --unset --unset-all --replace-all set unset")
_CONFIG_SCOPES = frozenset({"--global", "--local", "--system", "--show-origin", "--show-scope", "-z", "--null"})
_CONFIG_HARMLESS = re.compile(
    r"(?:user\.(?:name|email|signingkey|useconfigonly)|init\.defaultbranch|safe\.directory|push\.[a-z]+|fetch\.[a-z]+"
    r"|pull\.[a-z]+|advice\.[a-z]+|color\.[a-z.]+|column\.[a-z]+|(?:commit|tag)\.gpgsign|protocol\.version"
    r"|core\.(?:autocrlf|quotepath|filemode|longpaths|eol|ignorecase|symlinks|abbrev|sparsecheckout|precompose[a-z]+)"
    r"|rebase\.autos[a-z]+|merge\.conflictstyle|rerere\.[a-z]+|gc\.[a-z]+|http\.(?:postbuffer|version|lowspeed[a-z]+)"
    r"|log\.(?:date|decorate|follow)|diff\.(?:renames|renamelimit|algorithm|colormoved|noprefix|mnemonicprefix)"
    r"|feature\.manyfiles|pack\.[a-z]+|blame\.[a-z]+|status\.[a-z]+|branch\.autosetup[a-z]+)",
    re.IGNORECASE,
)
"""Keys that name no program, no address and no file."""


_SUBCOMMANDS = words(" ".join(name for name, _ in PROGRAMS["git"].subcommands))


def judge_git(subcommand: str | None, lead: Given, found: Findings) -> None:
    """Notes which of git's arguments start a program by its configuration or by an address. `lead` are those in front
    of the subcommand, with all that follows in `rest`."""
    unread = lead.unknown or (["--help"] if lead.rest and lead.has("manual") else [])
    if unread:
        found.undecidable(f"git {unread[0]} is not followed")
        return
    for word in lead.values("directory"):
        if word.is_several or word.text == "":
            found.undecidable("git -C is given an expansion, or nothing")
    for word in lead.values("setting"):
        if word.is_several or not _CONFIG_HARMLESS.fullmatch(word.prefix.partition("=")[0]):
            found.undecidable("git -c sets what may start a program")
    rest = lead.rest
    if not rest:
        return
    if rest[0].text is None:
        found.undecidable("git with an expansion as its subcommand")
    elif subcommand not in _SUBCOMMANDS:
        found.mark_opaque("git", f"{rest[0].text}, which its configuration may define")
    elif subcommand == "config":
        _config(rest[1:], found)
    elif subcommand in _ADDRESSED and any(_may_be_address(subcommand, rest[1:], at) for at in range(len(rest) - 1)):
        found.undecidable(f"git {subcommand} may be given an address that starts a program")


def _config(args: list[Word], found: Findings) -> None:
    named = [word for word in args if word.text not in _CONFIG_SCOPES]
    first = named[0].text if named else None
    if first in _CONFIG_READS:
        return
    if first in _CONFIG_CHANGES:
        named = named[1:]
        first = named[0].text if named else None
    values = named[1:]
    if len(values) == 1 and not values[0].is_several and not values[0].prefix.startswith("-"):
        values = []  # one word behind a key is its value, or an option that asks for it
    options = [word for word in values if word.may_be_option or word.prefix.startswith("-")]
    if options or first is None or not _CONFIG_HARMLESS.fullmatch(first):
        found.undecidable("git config changes what git runs")


def _may_be_address(subcommand: str, args: list[Word], place: int) -> bool:
    """True if a word is an address that starts a program, or may become one; behind `--` too."""
    word = args[place]
    if subcommand not in _ADDRESSED:
        return False
    if _ADDRESS.match(word.prefix):
        return True
    is_first = subcommand not in _ADDRESS_FIRST or not _has_operand(args[:place])
    if word.outside and not word.prefix:
        return False
    return word.text is None and is_first and _ADDRESS_BEGINS.fullmatch(word.prefix) is not None


def _has_operand(args: list[Word]) -> bool:
    """True if one of the words is an operand for certain: no option, and no option's value."""
    dashed = [word.prefix.startswith("-") for word in args]
    return any(not one and not before for before, one in pairwise([False, *dashed]))
