"""Files that a program of a line changes or creates, as far as the line names them: by its row's `operands`.

If the bundle has entries for them, an operand of `rm` is a File.Delete, a file that `cp` creates a File.Write, and one
that it reads a File.Read. Programs without such a row are not examined.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from policy.shell.findings import ANY_FILE, FileCase, FileUse, Made, Mode, split_pattern, use_of
from policy.shell.program_texts import WRITES as FIND_WRITES
from policy.shell.program_texts import curl_files, found_below, wget_files
from policy.shell.words import UNKNOWN, Word, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from policy.shell.words import Given

_OLD_OPTION = re.compile(r"\+[0-9]+")
_ANY_NAME = Word(None, pattern="*", globs=True)
_CHANGE = r"[ugoa]*(?:[-+=](?:[rwxXst]+|[ugo])?)+"
_MODE = re.compile(rf"[0-7]{{1,5}}|{_CHANGE}(?:,{_CHANGE})*")
_PACKED = re.compile(r"(.*?)(?:[._-](?:gz|z)|\.(?:Z|bz2?|xz|lzma|zst|lz4|taz|t[gbx]z2?|tlz|tzst))\Z")


def note_files(case: FileCase) -> None:
    """Notes the files that a program is given to change, and those that its options name."""
    given, shape = case.given, case.row.operands
    uses = _uses("read", (word for word in given.values("read") if word.text not in {"", "-"}))
    uses += _uses("write", (word for word in given.values("write") if word.text not in {"", "-"}))
    judge = _SHAPES.get(shape)
    if judge is not None:
        uses += judge(case)
    else:
        uses += _uses("write", given.values("into")) + _number_operands(given.operands, shape.split())
    for use in _rebase_all(case, uses):
        case.found.uses[use._replace(program=case.program)] = None


def _rebase_all(case: FileCase, uses: list[FileUse]) -> list[FileUse]:
    """Files as they are named from the directory that a program goes to first: `git -C`, `patch -d`."""
    own = () if case.lead is case.given else case.lead.values("directory")  # what has no subcommand joins its own
    directories = case.given.values("into") if case.row.operands == "patch" else own
    if not directories:
        return uses
    base, tilde = (directories[0].text, directories[0].tilde) if len(directories) == 1 else (None, False)
    found = []
    for one in uses:
        if one.tilde or (one.path or "").startswith("/") or (case.drives and (one.path or "")[1:2] == ":"):
            found.append(one)
        else:
            path = None if base is None or one.path is None else f"{base}/{one.path}"
            found.append(one._replace(path=path, tilde=tilde))
    return found


def _number_operands(operands: list[Word], kinds: list[str]) -> list[FileUse]:
    """Operands by their positions; after a word that may become several, each may have any position. `+1` is an old
    option."""
    operands = [word for word in operands if not _OLD_OPTION.fullmatch(word.text or "")]
    found: list[FileUse] = []
    is_certain = True
    for place, word in enumerate(operands):
        is_certain = is_certain and not word.is_several
        certain = kinds[place : place + 1] or [kind for kind in kinds[-1:] if kind.endswith("*")]
        meant = certain if is_certain else kinds
        modes = {kind.rstrip("*") for kind in meant} - {"skip"}
        if word.text != "-":
            found += [use_of(mode, word) for mode in ("read", "write", "delete") if mode in modes]
    return found


def _rename_word(word: Word, name: Callable[[str], str]) -> Word:
    if word.text is not None:
        text = name(word.text)
        return word._replace(text=text, prefix=text)
    return word._replace(pattern=None if word.pattern is None else name(word.pattern), prefix="")


def _uses(mode: Mode, words: Iterable[Word], *, tree: bool = False, made: Made = "") -> list[FileUse]:
    return [use_of(mode, word, tree=tree)._replace(made=made) for word in words]


# Copying and moving


def _copy(case: FileCase) -> list[FileUse]:
    base, given = case.base, case.given
    if given.has("directories"):
        return _uses("write", given.operands)
    is_moved, is_linked = base == "mv", base == "ln"
    tree = given.has("tree")
    is_link = given.has("symbolic") and (is_linked or base == "cp")
    sources, into = given.operands, given.values("into")
    target = into[-1] if into else None
    if target is None and (not is_linked or len(sources) > 1):
        sources, target = sources[:-1], sources[-1] if sources else None
        if target is not None and target.is_several:
            sources = [*sources, target]
    if is_linked and target is not None and is_link and not given.has("relative"):
        sources = [_rebase_link(target, word) for word in sources]
    uses = _uses("read", sources, tree=tree or is_moved)
    uses += _uses("delete", sources, tree=True) if is_moved else []
    if target is None and is_linked and sources:
        target = plain(".")
    if target is None:
        return uses
    made: Made = "link" if is_link else "tree" if is_moved or tree or given.has("links") else ""
    is_made = len(sources) < 2 and not into  # else it is a directory, and stays the one that it is
    source = sources[0].text if sources and is_made and made == "tree" else None
    uses.append(use_of("write", target)._replace(made=made if is_made else "", source=source))
    copies: list[FileUse] = []
    if target.text:
        at = FileUse("write", target.text, target.tilde)
        for word in sources:
            source = word.text if made == "tree" else None
            copies += [one._replace(made=made, source=source) for one in _copies(at, word, given, tree)]
    uses += copies
    return uses + _backups(case, [uses[len(uses) - len(copies) - 1], *copies])


def _copies(into: FileUse, source: Word, given: Given, tree: bool) -> list[FileUse]:
    """The files added to a directory: the source by its own name, the matches of a glob, and unknown names for
    `from/.`. Some programs take `from/` for its contents, as all do if an option says that the target is not a
    directory."""
    spelled = source.pattern if source.text is None else source.text
    if spelled is not None and given.has("parents"):
        name = spelled.strip("/")
    else:
        name = "**" if spelled is None else spelled.rstrip("/").rpartition("/")[2]
    if source.text is None:
        return [into._replace(tree=tree, pattern=name)]
    is_named = name not in {"", ".", ".."}
    made = [into._replace(path=f"{(into.path or '').rstrip('/')}/{name}")] if is_named else []
    if tree and (given.has("exact") or not is_named or source.text.endswith("/")):
        made.append(into._replace(tree=True, pattern="**"))
    return made


def _backups(case: FileCase, written: list[FileUse]) -> list[FileUse]:
    """The names of a program's backups of replaced files."""
    suffixes = case.given.values("suffix")
    if not suffixes and not case.given.has("backup"):
        return []
    suffix = suffixes[-1].text if suffixes else "~"
    if suffix is None or "/" in suffix:
        return [ANY_FILE]
    return [
        one._replace(path=one.path.rstrip("/") + suffix, made="") if one.pattern is None and one.path
        else one._replace(pattern=f"{one.pattern}{suffix}", made="")
        for one in written
    ]  # fmt: skip


def _rebase_link(link: Word, target: Word) -> Word:
    """A symbolic link's relative target is read from the directory of the link."""
    if target.text is None or link.text is None or target.text.startswith("/") or target.tilde:
        return target
    path = link.text.rpartition("/")[0]
    joined = f"{path}/{target.text}" if path else target.text
    return target._replace(text=joined, prefix=joined, tilde=link.tilde)


def _sync(case: FileCase) -> list[FileUse]:
    """rsync: a tree comes into its last operand, unless that is on another machine."""
    operands, tree = case.given.operands, case.given.has("tree")
    if not operands or (operands[-1].text is not None and ":" in operands[-1].text.partition("/")[0]):
        return []
    into = _uses("write", (operands[-1], *case.given.values("into")), made="tree")
    copies = [
        one._replace(made="tree")
        for word in operands[:-1]
        if into[0].path is not None and into[0].pattern is None
        for one in _copies(into[0], word, case.given, tree)
    ]
    sources = [word for word in operands[:-1] if word.text is None or ":" not in word.text.partition("/")[0]]
    return [*_uses("read", sources, tree=tree), *into, *copies]


def _mode(case: FileCase) -> list[FileUse]:
    """chmod, chown, chgrp: the first operand is the mode or owner of the others."""
    given = case.given
    first = given.operands[0].text if given.operands else None
    skips = 0 if given.values("reference") else 1
    if case.base == "chmod" and (given.has("mode") or first is None or not _MODE.fullmatch(first)):
        skips = 0  # a mode that begins with a dash is no operand
    return _uses("write", given.operands[skips:], tree=given.has("tree"))


# Programs with ways of their own


def _dd(case: FileCase) -> list[FileUse]:
    uses = []
    for word in case.given.operands:
        name, assigns, value = (word.text if word.text is not None else word.prefix).partition("=")
        if assigns and name in {"of", "if"}:
            uses.append(FileUse("write" if name == "of" else "read", None if word.text is None else value))
        elif word.text is None and not assigns:
            uses.append(ANY_FILE)
    return uses


def _find(case: FileCase) -> list[FileUse]:
    if case.given.doubtful:
        case.found.undecidable(f"{case.base} is given an expansion that may become an option")
    deletes = any(word.text == "-delete" for word in case.args)
    uses = _uses("delete", found_below(case.args), tree=True) if deletes else []
    return uses + _uses("write", (word for one, word in pairwise(case.args) if one.text in FIND_WRITES))


def _sed(case: FileCase) -> list[FileUse]:
    given = case.given
    if not given.has("inplace"):
        return []
    operands = [word for word in given.operands if word.text != ""][0 if given.values("script") else 1 :]
    uses = _uses("write", operands)
    for suffix in given.values("suffix"):
        if suffix.text != "":
            uses += _uses("write", (_backup_of_sed(word, suffix.text) for word in operands))
    return uses


def _backup_of_sed(word: Word, suffix: str | None) -> Word:
    """sed puts the name in the place of each `*` of a suffix, and takes one with a slash for another directory."""
    if suffix is None:
        return UNKNOWN
    if "*" not in suffix:
        return _rename_word(word, lambda name: name + suffix)

    def backup_name(name: str) -> str:
        directory, slash, last = name.rpartition("/")
        made = suffix.replace("*", last)
        return made if "/" in suffix else f"{directory}{slash}{made}"

    return _rename_word(word, backup_name)


def _split(case: FileCase) -> list[FileUse]:
    operands = case.given.operands
    words = operands[1:] if len(operands) > 1 or any(word.is_several for word in operands) else [plain("x")]
    return [_match_prefix(word) for word in words]


def _match_prefix(word: Word) -> FileUse:
    if word.text is None:
        return ANY_FILE
    directory, slash, name = word.text.rpartition("/")
    return FileUse("write", directory + slash or ".", word.tilde, pattern=name + "*")


def _patch(case: FileCase) -> list[FileUse]:
    """Without an operand the patch contains the names; it may create links, too."""
    given = case.given
    if given.has("stdout"):
        return []
    if not given.operands:
        return [FileUse("make", ".", made="tree")]
    if given.values("prefix"):
        return [ANY_FILE]
    file = given.operands[0]
    written = _uses("write", [file])
    siblings = (_rename_word(file, lambda name: name + ".orig"), _rename_word(file, lambda name: name + ".rej"))
    return [*written, *_uses("write", siblings), *_backups(case, written)]


# Archives and packed files


def _pack(case: FileCase, *, unpacks: bool) -> list[FileUse]:
    given = case.given
    if given.has("unnamed"):
        return [ANY_FILE]
    if given.has("stdout") or given.values("write"):
        return []
    tree = given.has("tree")
    stays = given.has("keep") or (case.base.endswith(("zstd", "zstdmt")) and not given.has("remove"))
    suffixes = [one.text for one in given.values("suffix")]
    added = suffixes[-1] or "" if suffixes else ".*"
    uses: list[FileUse] = []
    for word in given.operands:
        if word.text == "-":
            continue
        uses += [] if stays else [use_of("delete", word, tree=tree)]
        if tree:
            uses.append(use_of("write", word)._replace(tree=True, pattern="**"))
        elif None in suffixes or given.has("named"):
            uses.append(ANY_FILE)
        elif unpacks:
            uses.append(use_of("write", _rename_word(word, lambda name: _strip_suffix(name, suffixes))))
        else:
            uses.append(use_of("write", _rename_word(word, lambda name: name + added)))
    return [one if one.path is None or "*" not in one.path else _match_glob(one) for one in uses]


def _strip_suffix(name: str, suffixes: list[str | None]) -> str:
    """The name without its suffix; the name of a packed file may be given without it."""
    for suffix in suffixes:
        if suffix and name.endswith(suffix):
            return name[: -len(suffix)]
    match = _PACKED.match(name)
    return name if match is None else match[1] + (".tar" if re.search(r"\.t(?:a?z|[gbx]z2?|lz|zst)\Z", name) else "")


def _match_glob(use: FileUse) -> FileUse:
    directory, pattern = split_pattern(use.path or "")
    return use._replace(path=directory, pattern=pattern)


def _lz4(case: FileCase) -> list[FileUse]:
    if case.given.has("many") or len(case.given.operands) < 2:
        uses = _pack(case, unpacks=case.given.has("unpack"))
        return [one for one in uses if one.mode != "delete" or case.given.has("remove")]
    return _number_operands(case.given.operands, ["skip", "write"])


def _extraction(words: list[Word]) -> list[FileUse]:
    """The target directory of an archive: it is written, and the files may include unknown links."""
    return _uses("write", words or [plain(".")], made="tree")


def _tar(case: FileCase) -> list[FileUse]:
    """GNU tar starts a remote shell for an archive whose name has a colon before any slash."""
    given = case.given
    archives = given.values("archive")
    if not given.has("local"):
        _check_remote(case)
    if given.values("listed") and not given.has("verbatim"):
        case.found.undecidable("tar -T takes options from a file")
    uses: list[FileUse] = []
    if given.has("create"):
        uses += _uses("write", (word for word in archives if word.text != "-"))
        uses += _uses("delete", given.operands, tree=True) if given.has("remove") else []
    elif given.has("extract") and not given.has("stdout"):
        if given.has("anywhere"):
            case.found.undecidable("tar -P writes wherever the archive says")
        uses += [ANY_FILE] if given.has("renames") else []
        uses += _extraction(given.values("into"))
    return uses


def _check_remote(case: FileCase) -> None:
    for word in case.given.values("archive"):
        name, is_complete = (word.prefix, False) if word.text is None else (word.text, True)
        head, slash, _ = name.partition("/")
        if case.drives and re.match(r"[A-Za-z]:\\|[A-Za-z]:\Z", head):
            continue
        if ":" in head or not (is_complete or slash or word.outside):
            program = "cpio" if case.row.operands == "cpio" else "tar"
            case.found.undecidable(f"{program} is given an archive that may be on another machine")


def _sevenzip(case: FileCase) -> list[FileUse]:
    command = case.given.operands[0].text if case.given.operands else None
    if command in {"x", "e", None}:
        return _extraction(case.given.values("into"))
    return _uses("write", case.given.operands[1:2]) if command in {"a", "u", "d", "rn"} else []


def _cpio(case: FileCase) -> list[FileUse]:
    _check_remote(case)
    given = case.given
    return _extraction(given.values("into") or given.operands[:1]) if given.has("extract") else []


def _jar(case: FileCase) -> list[FileUse]:
    words = case.given.operands
    mode = (words[0].text or "x") if words else ""
    if "x" in mode:
        return _extraction([])
    return _uses("write", words[1:2]) if {"c", "u"} & set(mode) and "f" in mode else []


def _zip(case: FileCase) -> list[FileUse]:
    given = case.given
    archives = (_rename_word(word, _zip_name) for word in given.operands[:1] if word.text != "-")
    return [*_uses("write", archives), *_uses("delete", given.operands[1:] if given.has("remove") else [], tree=True)]


def _zip_name(name: str) -> str:
    if name.endswith("."):
        return name[:-1]
    return name if "." in name.rpartition("/")[2] else name + ".zip"


def _ar(case: FileCase) -> list[FileUse]:
    words = case.given.operands
    mode = (words[0].text or "x").lstrip("-") if words else "x"
    return _extraction(case.given.values("into")) if mode[:1] == "x" else _uses("write", words[1:2])


def _mktemp(case: FileCase) -> list[FileUse]:
    """A file whose name is made of a template, in a directory that a variable may name."""
    if "TMPDIR" in case.found.variables:
        return [ANY_FILE]
    suffix = next((word.text for word in case.given.values("suffix")), "")
    uses = []
    for word in case.given.operands:
        if word.text is None or suffix is None:
            uses.append(ANY_FILE)
            continue
        directory, slash, name = word.text.rpartition("/")
        uses.append(FileUse("write", directory + slash or ".", word.tilde, pattern=f"{name.rstrip('X')}*{suffix}"))
    into = _uses("write", case.given.values("into"))
    if not into or not uses:
        return uses or into
    base = into[0].path
    return [one._replace(path=None if None in {base, one.path} else f"{base}/{one.path}") for one in uses]


# git


def _clone(case: FileCase, place: int = 0) -> list[FileUse]:
    """The target of a clone, whose address is the operand of this place."""
    given, operands = case.given, case.given.operands[place:]
    if len(operands) > 1:
        words = operands[1:]
    else:
        words = [_rename_word(word, _clone_name) if word.text else _ANY_NAME for word in operands]
    return _uses("write", (*words, *given.values("into")), made="tree")


def _takes_back(case: FileCase) -> bool:
    """True if an option may take another one back: `--no-dry-run`, which git also takes abbreviated."""
    return any(text.startswith("--no") for text in case.given.spelled)


def _spares(case: FileCase, role: str) -> bool:
    """True if an option of this role has git leave the files alone."""
    return case.given.has(role) and not _takes_back(case)


def _is_first(case: FileCase, text: str) -> bool:
    """True if the first operand may be this text."""
    return any(word.text is None or word.text == text for word in case.given.operands[:1])


def _checkout(case: FileCase) -> list[FileUse]:
    """An operand after the first may be a file without `--` in front, and the first one if it begins with a dot, as no
    branch does; one that is only known later counts as a branch there."""
    first, rest = case.given.operands[:1], case.given.operands[1:]
    rest += [word for word in first if (word.text or "").startswith(".")]
    known = [word for word in rest if word.text is not None or word.pattern is not None]
    return [_TREE, *_pathspecs("write", (*known, *_after_dashes(case.args)))]


def _worktree(case: FileCase) -> list[FileUse]:
    operands = case.given.operands[1:]
    if not _is_first(case, "add") and not _is_first(case, "move"):
        return [_TREE, *(_uses("delete", operands, tree=True) if _is_first(case, "remove") else [])]
    is_add = case.given.operands[0].text == "add"  # after its place comes a branch
    return [_TREE, *_uses("write", operands[:1] if is_add else operands, made="tree")]


def _checkout_index(case: FileCase) -> list[FileUse]:
    """Files of the index are written below a prefix, or in their own places."""
    prefixes, operands = case.given.values("prefix"), case.given.operands
    if not prefixes:
        return [_TREE, *_pathspecs("write", operands)]
    texts = [word.text for word in (*prefixes, *operands)]
    if len(prefixes) > 1 or _takes_back(case) or None in texts or not (texts[0] or "").endswith("/"):
        return [ANY_FILE]
    below = [_rename_word(word, lambda name: f"{texts[0]}{name}") for word in operands]
    return _uses("write", (*prefixes, *below), made="tree")


_PATHSPEC = re.compile(r"[*?\[\]\\]")
_EXCLUSIONS = (":!", ":^", ":(exclude)")


def _pathspecs(mode: Mode, words: Iterable[Word], *, tree: bool = False) -> list[FileUse]:
    """Files that git selects by patterns of its own: their `*` may stand for a path, and what begins with a colon has
    other rules."""
    words = list(words)
    chosen = [word for word in words if not (word.text or "").startswith(_EXCLUSIONS)]
    if words and not chosen:
        return [FileUse(mode, None)]
    uses = _uses(mode, chosen, tree=tree)
    return [one if one.path is None or one.pattern is not None else _of_pathspec(one, one.path) for one in uses]


def _of_pathspec(use: FileUse, text: str) -> FileUse:
    if text.startswith(":"):
        return use._replace(path=None)
    parts = _PATHSPEC.split(text)
    if len(parts) == 1:
        return use
    directory = "".join(parts[0].rpartition("/")[:2])
    is_of_names = "/" not in "".join(parts[1:])
    return use._replace(
        path=directory or ".", pattern=f"**/*{parts[-1]}" if is_of_names else None, tree=not is_of_names
    )


def _clone_name(address: str) -> str:
    """The directory that git names after the cloned repository."""
    return re.sub(r"/?\.git\Z|\.bundle\Z", "", address.rstrip("/")).rpartition("/")[2].rpartition(":")[2] or "."


def _after_dashes(args: Sequence[Word]) -> Sequence[Word]:
    texts = [word.text for word in args]
    return args[texts.index("--") + 1 :] if "--" in texts else ()


_TREE = FileUse("make", ".", made="tree")
"""Changes to the files of a repository, which may make links anywhere in it."""
_SHAPES: dict[str, Callable[[FileCase], list[FileUse]]] = {
    "copy": _copy,
    "sync": _sync,
    "delete*": lambda case: _uses("delete", case.given.operands, tree=case.given.has("tree")),
    "mode": _mode,
    "dd": _dd,
    "find": _find,
    "sed": _sed,
    **dict.fromkeys(
        ("yq", "in place"), lambda case: _uses("write", case.given.operands) if case.given.has("inplace") else []
    ),
    "split": _split,
    "csplit": lambda case: [_match_prefix(word) for word in case.given.values("prefix") or [plain("xx")]],
    "patch": _patch,
    "pack": lambda case: _pack(case, unpacks=case.given.has("unpack")),
    "unpack": lambda case: _pack(case, unpacks=True),
    "lz4": _lz4,
    "tar": _tar,
    "extract": lambda case: [] if case.given.has("stdout") else _extraction(case.given.values("into")),
    "sevenzip": _sevenzip,
    "cpio": _cpio,
    "jar": _jar,
    "zip": _zip,
    "worktree": lambda case: [_TREE, *_uses("write", case.given.values("into"), made="tree")],
    "pull": lambda _: [_TREE],
    "submodule": lambda case: [_TREE, *(_clone(case, 1) if _is_first(case, "add") else [])],
    "git worktree": _worktree,
    "checkout-index": _checkout_index,
    "merge-file": lambda case: [] if _spares(case, "stdout") else _uses("write", case.given.operands[:1]),
    "clone": _clone,
    "checkout": _checkout,
    "git clean": lambda case: [] if _spares(case, "keep") else _pathspecs("delete", case.given.operands, tree=True),
    # A bare repository is laid out in the directory itself.
    "init": lambda case: (
        _uses("write", case.given.operands)
        + (_uses("make", case.given.operands or [plain(".")], made="tree") if case.given.has("bare") else [])
    ),
    "restore": lambda case: (
        []
        if _spares(case, "staged") and not case.given.has("worktree")
        else [_TREE, *_pathspecs("write", case.given.operands)]
    ),
    "git rm": lambda case: (
        [] if _spares(case, "keep") else _pathspecs("delete", case.given.operands, tree=case.given.has("tree"))
    ),
    "git mv": lambda case: _copy(case._replace(base="mv")),
    "ar": _ar,
    "mktemp": _mktemp,
    "curl": curl_files,
    "wget": wget_files,
}
STRICT = frozenset({
    "copy", "delete*", "mode", "write*", "skip write", "read write", "write skip*", "sed", "split", "csplit", "patch",
    "pack", "unpack",
})  # fmt: skip
"""Shapes whose options are all known: an unknown option makes the line undecidable, because it may name a file."""
