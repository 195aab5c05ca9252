"""git: options that name a program to run, or a file to write. What its configuration names, it may run.

An editor is no matter of the line: RunCommand names one that refuses (`tool_runtime.platform.environment`).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.long_options import may_mean

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.words import Word

_GLOBAL_FLAGS = words("--no-pager -P --no-optional-locks --literal-pathspecs --version")
_SUBCOMMANDS = words(
    "add am annotate apply archive bisect blame branch bundle cat-file check-attr check-ignore checkout cherry "
    "cherry-pick clean clone commit config count-objects describe diff diff-files diff-index diff-tree fetch "
    "for-each-ref format-patch fsck gc grep hash-object init log ls-files ls-remote ls-tree merge merge-base mv "
    "name-rev notes prune pull push range-diff rebase reflog remote reset restore rev-list rev-parse revert rm "
    "shortlog show show-branch show-ref sparse-checkout stash status submodule switch symbolic-ref tag "
    "update-index version whatchanged worktree"
)
"""Subcommands of git's own, which no alias can replace."""
_NAMES_NO_PROGRAM = words(
    "add annotate blame branch cat-file check-ignore checkout clean commit count-objects describe for-each-ref fsck gc "
    "hash-object ls-files ls-tree merge-base mv name-rev prune reflog reset restore rev-list rev-parse rm shortlog "
    "show-ref status switch symbolic-ref tag update-index"
)
"""Subcommands without an option that names a program or a file to write."""
_MESSAGE_FOLLOWS = words("commit merge notes stash tag")
"""Subcommands whose `-m` takes the next word; elsewhere it may be a flag."""
_STASH_SHOWS = words("show list")

_RISKY = re.compile(r"-x.*|-O.*|-u.*|-c.*")
_HARMLESS: tuple[tuple[str, frozenset[str]], ...] = (
    ("-x", frozenset({"clean", "cherry-pick"})),
    ("-u", words("push add commit stash status diff log show submodule branch checkout")),
    ("-c", words("checkout switch commit log diff show")),
    ("-O", frozenset({"diff", "log", "show"})),
)
"""Spellings of `_RISKY` that mean something else for these subcommands."""
_LONG = words("extcmd exec open-files-in-pager upload-pack receive-pack output config template unsafe-paths")

_LONG_OF: dict[str, frozenset[str]] = {
    **dict.fromkeys(("archive", "submodule"), words("remote")),
    **dict.fromkeys(("am", "apply"), words("build-fake-ancestor")),
    "filter-branch": words(
        "setup env-filter tree-filter index-filter parent-filter msg-filter commit-filter tag-name-filter"
    ),
}
"""Long options, without dashes, that run a program which they name, or write a file: of every subcommand, and of
single ones."""
_STRATEGY = r"-[nqve]*s.*|--str(?!ategy-option|ategy=(?:ort|ours|resolve|recursive|octopus|subtree)$).*"
"""A merge strategy of another name is a program, `git-merge-NAME`."""
_RULES: dict[str, re.Pattern[str]] = {
    "rebase": re.compile(r"-[A-Za-z0-9]*x.*|" + _STRATEGY),
    "merge": re.compile(_STRATEGY),
    "pull": re.compile(_STRATEGY),
    **dict.fromkeys(("cherry-pick", "revert"), re.compile(_STRATEGY.partition("|")[2])),
    "grep": re.compile(r"-[A-Za-z0-9]*O.*"),
    "archive": re.compile(r"-o.*"),
    "format-patch": re.compile(r"-[knNpqs0-9]*o.*"),
    "clone": re.compile(r"-[A-Za-z0-9]*[uc].*"),
}
"""Refused arguments of single subcommands."""
_STARTING_WORDS: dict[str, frozenset[str]] = {"bisect": words("run visualize view"), "submodule": words("foreach")}
"""First operands that start the program that follows."""
_ADDRESS_FIRST = words("clone fetch ls-remote pull push")
_ADDRESSED = _ADDRESS_FIRST | words("remote submodule")
"""Subcommands that take an address: as their first operand, or further on."""
_ADDRESS = re.compile(
    r"(?:--repo?=)?(?!(?:https?|ftps?|file|git|ssh|git\+ssh|ssh\+git)://)[A-Za-z0-9][A-Za-z0-9+.-]*:(?::|//)"
)
"""How an address starts that is handed to the program `git-remote-NAME`."""
_ADDRESS_BEGINS = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9+.-]*(?::/?)?)?")
"""What may become such an address if something unknown follows."""
_BEFORE_MESSAGE = words("--no-ff --ff --ff-only --squash --no-commit --no-edit --quiet -q")
"""Options that may stand in front of the `-m` of merge and take no value."""
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


def judge_git(_base: str, args: list[Word], found: Findings) -> None:
    """Notes what of git's arguments runs or writes something else."""
    rest = list(args)
    if len(rest) == 1 and rest[0].text == "--help":
        return  # with a word behind it starts a manual's pager
    while rest and (rest[0].text is None or rest[0].text.startswith("-")):
        option = rest.pop(0)
        if rest and ((option.text == "-C" and not rest[0].is_several) or _sets_harmlessly(option, rest[0])):
            rest.pop(0)
        elif option.text not in _GLOBAL_FLAGS:
            found.undecidable(f"git {option.text or 'with an expansion'} is not followed")
            return
    if not rest:
        return
    subcommand = rest[0].text
    if subcommand is None:
        found.undecidable("git with an expansion as its subcommand")
    elif subcommand not in _SUBCOMMANDS:
        found.mark_opaque("git", f"{subcommand}, which its configuration may define")
        _arguments(subcommand, rest[1:], found)
    elif subcommand == "config":
        _config(rest[1:], found)
    else:
        _arguments(subcommand, rest[1:], found)


def _sets_harmlessly(option: Word, setting: Word) -> bool:
    """Whether `-c` sets a key that names no program."""
    key = setting.prefix.partition("=")[0]
    return option.text == "-c" and _CONFIG_HARMLESS.fullmatch(key) is not None and not setting.is_several


def _config(args: list[Word], found: Findings) -> None:
    named = [word for word in args if word.text not in _CONFIG_SCOPES]
    first = named[0].text if named else None
    if first in _CONFIG_READS:
        return
    if first in _CONFIG_CHANGES:
        named = named[1:]
        first = named[0].text if named else None
    options = [word for word in named[1:] if word.may_be_option or word.prefix.startswith("-")]
    if options or first is None or not _CONFIG_HARMLESS.fullmatch(first):
        found.undecidable("git config changes what git runs")


def _arguments(subcommand: str, args: list[Word], found: Findings) -> None:
    ended = False
    for place, word in enumerate(args):
        text = word.text
        if _may_be_address(subcommand, args, place) or (ended and subcommand in _ADDRESSED and word.may_be_option):
            found.undecidable(f"git {subcommand} may be given an address that starts a program")
        ended = ended or text in {"--", "--end-of-options"}
        if ended or (place and not word.is_several and _is_message(subcommand, args, place)):
            continue
        if word.may_be_option and subcommand not in _NAMES_NO_PROGRAM:
            found.undecidable("git is given an expansion that may become an option")
        elif text == "--help":
            found.mark_opaque("git", "the pager of its manual")
        elif _may_start(subcommand, args, place) or _is_risky(subcommand, (text or word.prefix).replace("\n", " ")):
            found.undecidable(f"git {subcommand} {text} runs or writes something else")


def _is_message(subcommand: str, args: list[Word], place: int) -> bool:
    """Whether a word is the value of `-m`, and that is an option for certain: not itself the value of another one."""
    if args[place - 1].text not in {"-m", "--message"} or subcommand not in _MESSAGE_FOLLOWS:
        return False
    if subcommand == "merge" and place > 1:
        before = args[place - 2].text
        return before is not None and (not before.startswith("-") or before in _BEFORE_MESSAGE)
    return subcommand != "stash" or not (args[0].text is None or args[0].text in _STASH_SHOWS)


def _may_be_address(subcommand: str, args: list[Word], place: int) -> bool:
    """Whether a word is an address that starts a program, or may become one; behind `--` too."""
    word = args[place]
    if subcommand not in _ADDRESSED:
        return False
    if _ADDRESS.match(word.prefix):
        return True
    is_first = subcommand not in _ADDRESS_FIRST or not _has_operand(args[:place])
    if word.outside and not word.prefix:
        return False
    return word.text is None and is_first and _ADDRESS_BEGINS.fullmatch(word.prefix) is not None


def _may_start(subcommand: str, args: list[Word], place: int) -> bool:
    """Whether a word is one of `_STARTING_WORDS`, or may become one in their place."""
    word, starting = args[place], _STARTING_WORDS.get(subcommand, frozenset())
    if word.text is not None or _has_operand(args[:place]):
        return word.text in starting
    return any(one.startswith(word.prefix) for one in starting)


def _has_operand(args: list[Word]) -> bool:
    """Whether one of the words is an operand for certain: no option, and no option's value."""
    dashed = [word.prefix.startswith("-") for word in args]
    return any(not one and not before for before, one in pairwise([False, *dashed]))


def _is_risky(subcommand: str, text: str) -> bool:
    own = _RULES.get(subcommand)
    if own is not None and own.fullmatch(text):
        return True
    if text.startswith("--"):
        names = _LONG | _LONG_OF.get(subcommand, frozenset())
        return may_mean(text, names)
    if not _RISKY.fullmatch(text):
        return False
    return not any(text.startswith(start) and subcommand in harmless for start, harmless in _HARMLESS)
