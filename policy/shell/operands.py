"""Which files a program changes that the line names: its operands, for programs whose purpose that is.

Where the bundle has an entry for it, a file that `rm` is given is a File.Delete, one that `cp` makes a File.Write, one
that it takes a File.Read. What other programs do with their operands is not looked at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from policy.names import words
from policy.shell.downloads import Transfer, curl_files, wget_files
from policy.shell.find import WRITES as FIND_WRITES
from policy.shell.find import found_below
from policy.shell.words import Word, plain, read_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.shell.findings import Findings

Use = Literal["read", "write", "delete"]


class FileUse(NamedTuple):
    """A file that a program is given. `path` is None where only the run decides it, `tilde` where it starts with an
    unquoted `~`. For a glob it is the directory in front of the first special character, and `pattern` what follows,
    `**` where that cannot be said. `tree` where all that is below goes with it."""

    program: str
    mode: Use
    path: str | None
    tilde: bool = False
    tree: bool = False
    pattern: str | None = None
    is_link: bool = False
    """Where a symbolic link is made: what is below it then is somewhere else."""


class _Options(NamedTuple):
    """How a program's options are read: letters and long names that take the next word; letters and long names that
    make it go down a tree."""

    valued: str = ""
    long_valued: frozenset[str] = frozenset()
    tree: str = ""
    long_tree: frozenset[str] = frozenset()
    skips: int = 0


class _Given(NamedTuple):
    """A program's arguments, taken apart: operands, values by option, letters and long names without one."""

    operands: list[Word]
    values: dict[str, Word]
    flags: frozenset[str]

    def has(self, letters: str, *names: str) -> bool:
        """Whether it has one of these letters, or any beginning of one of the long names."""
        long = [flag for flag in self.flags if flag.startswith("--")]
        return any(letter in self.flags for letter in letters) or any(
            name.startswith(flag) for flag in long for name in names
        )


_COPY = _Options("tS", words("--target-directory --suffix"), "rRa", words("--recursive --archive"))
_OPTIONS: dict[str, _Options] = {
    "rm": _Options(tree="rR", long_tree=words("--recursive")),
    "rmdir": _Options(),
    "unlink": _Options(),
    "mv": _COPY,
    "cp": _COPY,
    "ln": _COPY._replace(tree="", long_tree=frozenset()),
    "install": _Options("tSmog", words("--target-directory --suffix --mode --owner --group")),
    "chmod": _Options("", words("--reference"), "R", words("--recursive"), skips=1),
    "chown": _Options("", words("--reference --from"), "Rh", words("--recursive"), skips=1),
    "chgrp": _Options("", words("--reference"), "Rh", words("--recursive"), skips=1),
    "tee": _Options(),
    "touch": _Options("drt", words("--date --reference --time")),
    "mkdir": _Options("m", words("--mode")),
    "truncate": _Options("sr", words("--size --reference")),
    "sort": _Options(
        "kStTo", words("--key --buffer-size --field-separator --temporary-directory --output --parallel --batch-size")
    ),
}
_CHANGE = r"[ugoa]*(?:[-+=](?:[rwxXst]+|[ugo])?)+"
_MODE = re.compile(rf"[0-7]{{1,5}}|{_CHANGE}(?:,{_CHANGE})*")
_SPECIAL = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{},]*+(?:,[^{},]*+)++)\}")
_SEQUENCE = re.compile(r"\{[A-Za-z0-9]++\.\.[A-Za-z0-9]++\}")
_MAX_SPELLED, _LONGEST = 64, 256
_SED_IN_PLACE = re.compile(r"-[nErsuz]*i.*|--in-place.*")


def note_operands(program: str, base: str, args: list[Word], found: Findings) -> None:
    """Notes the files that a program (`base` is the name that the tables know it by) is given to change."""
    judge = _JUDGES.get(base)
    if judge is not None:
        spelled = [one for word in args for one in _without_braces(word)]
        for use in judge(base, spelled):
            found.uses[use._replace(program=program)] = None


def _without_braces(word: Word) -> list[Word]:
    """What `{a,b}` in a word makes of it, where nothing else in it is quoted or expands."""
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


def _taken_apart(base: str, args: list[Word]) -> _Given:
    options = _OPTIONS[base]
    operands: list[Word] = []
    values: dict[str, Word] = {}
    flags: set[str] = set()
    place = 0
    while place < len(args):
        word = args[place]
        text = word.text
        place += 1
        if text is None or not text.startswith("-") or text == "-":
            operands.append(word)
        elif text == "--":
            operands += args[place:]
            break
        elif text.startswith("--"):
            name, joined, value = text.partition("=")
            flags.add(name)
            full = next((one for one in sorted(options.long_valued) if one.startswith(name)), None)
            if full is not None and joined:
                values[full] = word._replace(text=value, prefix=value)
            elif full is not None and place < len(args):
                values[full] = args[place]
                place += 1
        else:
            place += _cluster(text, options, args[place : place + 1], values, flags)
    return _Given(operands, values, frozenset(flags))


def _cluster(text: str, options: _Options, following: list[Word], values: dict[str, Word], flags: set[str]) -> int:
    """Reads letters up to one that takes a value, joined or the next word. How many words more that took."""
    for at, letter in enumerate(text[1:], 1):
        if letter not in options.valued:
            flags.add(letter)
        elif text[at + 1 :]:
            values["-" + letter] = plain(text[at + 1 :])
            return 0
        else:
            values.update(zip(["-" + letter], following, strict=False))
            return 1
    return 0


def _goes_down(base: str, given: _Given) -> bool:
    options = _OPTIONS[base]
    return given.has(options.tree, *options.long_tree)


def _use(mode: Use, word: Word, *, tree: bool = False) -> FileUse:
    if word.text is None and word.prefix == "/dev/fd/":
        return FileUse("", mode, "/dev/null")  # a program of the line reads it, or writes it
    if word.text is not None:
        return FileUse("", mode, word.text, word.tilde, tree)
    if word.pattern is None:
        directory = "".join(word.prefix.rpartition("/")[:2]) or "."
        return FileUse("", mode, directory if word.globs else None, word.tilde, tree, "**" if word.globs else None)
    directory_of, pattern = split_pattern(word.pattern)
    return FileUse("", mode, directory_of, word.tilde, tree, pattern)


def split_pattern(pattern: str) -> tuple[str | None, str]:
    """The directory in front of the first special character, and what follows; None where that goes up again."""
    special = _SPECIAL.search(pattern)
    directory = "".join(pattern[: special.start() if special else None].rpartition("/")[:2])
    rest = pattern[len(directory) :]
    goes_up = not {".", ".."}.isdisjoint(rest.split("/"))
    return None if goes_up else directory or ".", rest


def _deleting(base: str, args: list[Word]) -> list[FileUse]:
    given = _taken_apart(base, args)
    return [_use("delete", word, tree=_goes_down(base, given)) for word in given.operands]


def _moving(base: str, args: list[Word]) -> list[FileUse]:
    given = _taken_apart(base, args)
    tree = _goes_down(base, given)
    is_link = given.has("s", "--symbolic", "--symbolic-link") and base in {"ln", "cp"}
    sources, target = given.operands, given.values.get("-t") or given.values.get("--target-directory")
    if target is None and (base != "ln" or len(sources) > 1):
        sources, target = sources[:-1], sources[-1] if sources else None
    if base == "ln" and target is not None and is_link:
        sources = [_seen_from(target, word) for word in sources]
    uses = [_use("read", word, tree=tree or base == "mv") for word in sources]
    if base == "mv":
        uses += [_use("delete", word, tree=True) for word in sources]
    if target is None and base == "ln" and sources:
        target = plain(".")
    if target is None:
        return uses
    uses.append(_use("write", target)._replace(is_link=is_link and len(sources) < 2))
    if target.text:
        into = FileUse("", "write", target.text, target.tilde)
        is_target = given.has("T", "--no-target-directory")
        uses += [made._replace(is_link=is_link) for word in sources for made in _made(into, word, tree, is_target)]
    return uses


def _made(into: FileUse, source: Word, tree: bool, is_target: bool) -> list[FileUse]:
    """What comes into a directory: the source by its own name, what a glob finds, and of `from/.` names unknown. To
    some programs `from/` is what is in it, as it is where the target is said to be no directory (`is_target`)."""
    spelled = source.pattern if source.text is None else source.text
    name = "**" if spelled is None else spelled.rstrip("/").rpartition("/")[2]
    if source.text is None:
        return [into._replace(tree=tree, pattern=name)]
    is_named = name not in {"", ".", ".."}
    made = [into._replace(path=f"{(into.path or '').rstrip('/')}/{name}")] if is_named else []
    if tree and (is_target or not is_named or source.text.endswith("/")):
        made.append(into._replace(tree=True, pattern="**"))
    return made


def _seen_from(link: Word, target: Word) -> Word:
    """A symbolic link's relative target is read from the directory of the link."""
    if target.text is None or link.text is None or target.text.startswith("/") or target.tilde:
        return target
    path = link.text.rpartition("/")[0]
    joined = f"{path}/{target.text}" if path else target.text
    return target._replace(text=joined, prefix=joined, tilde=link.tilde)


def _writing(base: str, args: list[Word]) -> list[FileUse]:
    given = _taken_apart(base, args)
    skips = 0 if "--reference" in given.values else _OPTIONS[base].skips
    is_mode = bool(given.operands) and _MODE.fullmatch(given.operands[0].text or "") is not None
    if base == "chmod" and (given.has("rwxXst") or not is_mode):
        skips = 0  # a mode that begins with a dash is no operand
    return [_use("write", word, tree=_goes_down(base, given)) for word in given.operands[skips:]]


def _making(base: str, args: list[Word]) -> list[FileUse]:
    is_directory = _taken_apart(base, args).has("d", "--directory")
    return _writing(base, args) if is_directory else _moving(base, args)


def _sort(base: str, args: list[Word]) -> list[FileUse]:
    given = _taken_apart(base, args)
    named = [given.values[name] for name in ("-o", "--output") if name in given.values]
    return [_use("write", word) for word in named]


def _dd(_base: str, args: list[Word]) -> list[FileUse]:
    uses = []
    for word in args:
        name, assigns, value = (word.text if word.text is not None else word.prefix).partition("=")
        path = None if word.text is None else value
        if assigns and name in {"of", "if"}:
            uses.append(FileUse("", "write" if name == "of" else "read", path))
        elif word.text is None and not assigns:
            uses.append(FileUse("", "write", None))
    return uses


def _sed(_base: str, args: list[Word]) -> list[FileUse]:
    if not any(word.text is not None and _SED_IN_PLACE.fullmatch(word.text) for word in args):
        return []
    operands: list[Word] = []
    has_script, takes_next = False, False
    for word in args:
        text = word.text
        if takes_next:
            takes_next = False
        elif text is not None and text.startswith("-"):
            is_script = re.fullmatch(r"-[nErsuz]*[ef].*|--(?:expression|file)(?:=.*)?", text) is not None
            has_script = has_script or is_script
            takes_next = is_script and re.fullmatch(r"-[nErsuz]*[ef]|--(?:expression|file)", text) is not None
        elif text != "":
            operands.append(word)
    return [_use("write", word) for word in operands[0 if has_script else 1 :]]


def _find(_base: str, args: list[Word]) -> list[FileUse]:
    uses: list[FileUse] = []
    texts = [word.text for word in args]
    if "-delete" in texts:
        uses += [_use("delete", word, tree=True) for word in found_below(args)]
    for place, text in enumerate(texts):
        if text in FIND_WRITES and place + 1 < len(args):
            uses.append(_use("write", args[place + 1]))
    return uses


def _transferring(base: str, args: list[Word]) -> list[FileUse]:
    found: list[Transfer] = curl_files(args) if base == "curl" else wget_files(args)
    return [FileUse("", one.mode, one.path, one.tilde, pattern=one.pattern) for one in found]


_JUDGES: dict[str, Callable[[str, list[Word]], list[FileUse]]] = {
    **dict.fromkeys(("rm", "rmdir", "unlink"), _deleting),
    **dict.fromkeys(("mv", "cp", "ln"), _moving),
    **dict.fromkeys(("chmod", "chown", "chgrp", "tee", "touch", "mkdir", "truncate"), _writing),
    "install": _making,
    "sort": _sort,
    "dd": _dd,
    "sed": _sed,
    "find": _find,
    **dict.fromkeys(("curl", "wget"), _transferring),
}
PROGRAMS = frozenset(_JUDGES)
"""The programs whose operands are judged, by base name."""
