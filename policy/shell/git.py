"""git: options that run or write something else, and subcommands that an alias can't replace.

An editor is no matter of the line: RunCommand names one that refuses (`tool_runtime.platform.environment`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.names import words
from policy.shell.long_options import may_mean

if TYPE_CHECKING:
    from policy.shell.findings import Findings
    from policy.shell.words import Word

_GLOBAL_FLAGS = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--version"})
_SUBCOMMANDS = words(
    "add am annotate apply archive bisect blame branch bundle cat-file check-attr check-ignore checkout cherry "
    "cherry-pick clean clone commit config count-objects describe diff diff-files diff-index diff-tree fetch "
    "for-each-ref format-patch fsck gc grep hash-object init log ls-files ls-remote ls-tree merge merge-base mv "
    "name-rev notes prune pull push range-diff rebase reflog remote reset restore rev-list rev-parse revert rm "
    "shortlog show show-branch show-ref sparse-checkout stash status submodule switch symbolic-ref tag "
    "update-index version whatchanged worktree"
)
"""Subcommands that no alias can replace. `help`, `difftool`, `verify-commit` and others that start programs are left
out."""
_MESSAGE_FOLLOWS = words("commit merge notes stash tag")
"""Subcommands whose `-m` takes the next word; elsewhere it may be a flag."""
_STASH_SHOWS = words("show list")

_RISKY = re.compile(r"-x.*|-O.*|-u.*|-c.*|-i")
_HARMLESS: tuple[tuple[str, frozenset[str]], ...] = (
    ("-x", frozenset({"clean", "cherry-pick"})),
    ("-u", words("push add commit stash status diff log show submodule branch checkout")),
    ("-c", words("checkout switch commit log diff show")),
    ("-i", words("grep log branch")),
    ("-O", frozenset({"diff", "log", "show"})),
)
"""Spellings of `_RISKY` that mean something else for these subcommands."""
_LONG = words(
    "exec ext-diff extcmd open-files-in-pager upload-pack receive-pack output textconv config template interactive "
    "help unsafe-paths gpg-sign show-signature"
)
_EDIT = frozenset({"edit"})
_LONG_OF: dict[str, frozenset[str]] = {
    "archive": frozenset({"remote"}),
    "submodule": frozenset({"remote"}),
    "branch": frozenset({"edit-description"}),
    "rebase": frozenset({"edit-todo"}),
    "tag": words("edit sign local-user verify"),
    "push": frozenset({"signed"}),
    **dict.fromkeys(("merge", "pull"), words("edit verify-signatures")),
    **dict.fromkeys(("add", "commit", "cherry-pick", "revert", "notes"), _EDIT),
}
"""Long options, without dashes, that run or write something else: of every subcommand, and of single ones. gpg counts
among what they run: the configuration says which program that is."""
_WHOLE = frozenset({"text"})
_WHOLE_OF: dict[str, frozenset[str]] = {
    "cat-file": frozenset(),
    **dict.fromkeys(("merge", "pull"), words("text verify")),
}
"""Beginnings of those that are options of their own."""
_REMOTE_HELPER = r"[A-Za-z0-9]+::.*"
_STRATEGY = r"-[nqve]*s.*|--str(?!ategy-option|ategy=(?:ort|ours|resolve|recursive|octopus|subtree)$).*"
"""A merge strategy of another name is a program, `git-merge-NAME`."""
_PICK = r"-e|-[enx]*S.*|" + _STRATEGY.removeprefix("-[nqve]*s.*|")
_SIGNATURE = r".*%[-+ ]?G.*|.*%\(signature.*"
"""Placeholders of a format that ask gpg."""
_RULES: dict[str, re.Pattern[str]] = {
    "add": re.compile(r"-[A-Za-z]*[ei].*"),
    "am": re.compile(r"-[bcikqsu3]*S.*"),
    "bisect": re.compile(r"run|visualize|view"),
    "submodule": re.compile(r"foreach|" + _REMOTE_HELPER),
    "rebase": re.compile(r"-[A-Za-z]*[xiS].*|" + _STRATEGY),
    "merge": re.compile(r"-e|-[enqv]*S.*|" + _STRATEGY),
    "grep": re.compile(r"-[A-Za-z]*O.*"),
    "archive": re.compile(r"-o.*|" + _REMOTE_HELPER),
    "clone": re.compile(r"-[A-Za-z]*[uc].*|" + _REMOTE_HELPER),
    "commit": re.compile(r"-e|-[aeinopqsvz]*S.*"),
    "pull": re.compile(rf"-[A-Za-z]*ri.*|--r[a-z]*=i.*|-[aefknpqtv46]*S.*|{_REMOTE_HELPER}|{_STRATEGY}"),
    "tag": re.compile(r"-e|-[adefil]*[suv].*|" + _SIGNATURE),
    **dict.fromkeys(("cherry-pick", "revert"), re.compile(_PICK)),
    **dict.fromkeys(("fetch", "push", "remote", "ls-remote"), re.compile(_REMOTE_HELPER)),
    **dict.fromkeys(
        words("branch diff-tree for-each-ref log reflog rev-list shortlog show stash whatchanged"),
        re.compile(_SIGNATURE),
    ),
}
"""Refused arguments of single subcommands."""
_ADDRESS = re.compile(_REMOTE_HELPER)
_ADDRESSED = words("archive clone fetch ls-remote pull push remote submodule")
"""Subcommands that take an address, which starts `git-remote-NAME` wherever it stands."""
_BEFORE_MESSAGE = words("--no-ff --ff --ff-only --squash --no-commit --no-edit --quiet -q")
"""Options that may stand in front of the `-m` of merge and take no value."""
_CONFIG_READS = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"})
_CONFIG_SCOPES = frozenset({"--global", "--local", "--system", "--show-origin", "--show-scope", "-z", "--null"})
_CONFIG_HARMLESS = frozenset({"user.name", "user.email", "init.defaultBranch", "core.autocrlf"})


def judge_git(_base: str, args: list[Word], found: Findings) -> None:
    """Notes what of git's arguments runs or writes something else."""
    rest = list(args)
    if len(rest) == 1 and rest[0].text == "--help":
        return  # with a word behind it starts a manual's pager
    while rest and (rest[0].text is None or rest[0].text.startswith("-")):
        option = rest.pop(0)
        if option.text == "-C" and rest and not rest[0].is_several:
            rest.pop(0)
        elif option.text not in _GLOBAL_FLAGS:
            found.doubt(f"git {option.text or 'with an expansion'} is not followed")
            return
    if not rest:
        return
    subcommand = rest[0].text or ""
    if subcommand not in _SUBCOMMANDS:
        found.doubt(f"git {subcommand} may be an alias, or starts other programs")
    elif subcommand == "config":
        _config(rest[1:], found)
    else:
        _arguments(subcommand, rest[1:], found)


def _config(args: list[Word], found: Findings) -> None:
    named = [word for word in args if word.text not in _CONFIG_SCOPES]
    first = named[0].text if named else None
    options = [word for word in named[1:] if word.may_be_option or (word.text or "").startswith("-")]
    if options or (first not in _CONFIG_READS and first not in _CONFIG_HARMLESS):
        found.doubt("git config changes what git runs")


def _arguments(subcommand: str, args: list[Word], found: Findings) -> None:
    for place, word in enumerate(args):
        text = word.text
        if text in {"--", "--end-of-options"}:
            _operands(subcommand, args[place + 1 :], found)
            return
        if place and not word.is_several and _is_message(subcommand, args, place):
            continue
        if word.may_be_option:
            found.doubt("git is given an expansion that may become an option")
        elif text is not None and _is_risky(subcommand, text.replace("\n", " ")):
            found.doubt(f"git {subcommand} {text} runs or writes something else")


def _is_message(subcommand: str, args: list[Word], place: int) -> bool:
    """Whether a word is the value of `-m`, and that is an option for certain: not itself the value of another one."""
    if args[place - 1].text not in {"-m", "--message"} or subcommand not in _MESSAGE_FOLLOWS:
        return False
    if subcommand == "merge":
        before = args[place - 2].text if place > 1 else ""
        return before is not None and (not before.startswith("-") or before in _BEFORE_MESSAGE)
    return subcommand != "stash" or not (args[0].text is None or args[0].text in _STASH_SHOWS)


def _operands(subcommand: str, args: list[Word], found: Findings) -> None:
    """What stands behind `--`: no options, but it may be an address."""
    if subcommand not in _ADDRESSED:
        return
    if any(word.may_be_option if word.text is None else _ADDRESS.fullmatch(word.text) for word in args):
        found.doubt(f"git {subcommand} may be given an address that starts a program")


def _is_risky(subcommand: str, text: str) -> bool:
    own = _RULES.get(subcommand)
    if own is not None and own.fullmatch(text):
        return True
    if text.startswith("--"):
        names = _LONG | _LONG_OF.get(subcommand, frozenset())
        return may_mean(text, names, _WHOLE_OF.get(subcommand, _WHOLE))
    if not _RISKY.fullmatch(text):
        return False
    return not any(text.startswith(start) and subcommand in harmless for start, harmless in _HARMLESS)
