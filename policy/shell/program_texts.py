"""Arguments that have a language of their own: git's addresses that start a program and keys of its configuration that
name none; the files that a `curl` or a `wget` saves or sends, beyond those that an option plainly names."""

from __future__ import annotations

import re
from itertools import dropwhile, pairwise, takewhile
from typing import TYPE_CHECKING

from policy import words
from policy.paths import ANY_DEPTH
from policy.programs import PROGRAMS
from policy.shell.findings import ANY_FILE, FileUse, use_of
from policy.shell.words import UNKNOWN, Word, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.shell.findings import FileCase, Findings
    from policy.shell.words import Given

_ADDRESS_FIRST = words("clone fetch ls-remote pull push")
_ADDRESSED = _ADDRESS_FIRST | words("remote submodule")
"""Subcommands that take an address: as their first operand, or further on."""
_ADDRESS = re.compile(
    r"(?:--repo?=)?(?!(?:https?|ftps?|file|git|ssh|git\+ssh|ssh\+git)://)[A-Za-z0-9][A-Za-z0-9+.-]*:(?::|//)"
)
"""Prefix of an address that git passes to the program `git-remote-NAME`."""
_ADDRESS_BEGINS = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9+.-]*(?::/?)?)?")
"""Text that may become such an address if something unknown follows."""
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
_STARTERS = words(
    "remote-ext remote-fd daemon instaweb send-email imap-send shell for-each-repo web--browse cvsserver http-backend "
    "maintenance hook submodule--helper credential credential-cache fast-import "
    "merge-index credential-cache--daemon fsmonitor--daemon"
)
"""Subcommands that start a program which they are given, or that outlive the command."""
_SUBCOMMANDS = words(" ".join(name for name, _ in PROGRAMS["git"].subcommands))
_FILE_IN_VALUE = re.compile(r"(?:[^=@]*=)?[@<]\"?(?P<path>[^;,\"]*)|[^=@]*@(?P<after>.*)", re.DOTALL)
_FILE_URL = re.compile(r"(?i)file:(?://(?:localhost|127\.0\.0\.1)?)?(?P<path>/.*)", re.DOTALL)
_FILE = re.compile(r"(?i)file:")
_SCHEME_IN_PIECES = re.compile(r"[^/:]*[\[{][^/]*://")
_BY_SERVER = Word(None, "./", pattern="./**/?*", globs=True)  # a hidden name, too


def judge_git(subcommand: str | None, lead: Given, found: Findings) -> None:
    """Notes which of git's arguments start a program. `lead` are those before the subcommand."""
    unread = lead.unknown or (["--help"] if lead.rest and lead.has("manual") else [])
    if unread:
        found.undecidable(f"git {unread[0]} is not followed")
        return
    if any(word.is_several or word.text == "" for word in lead.values("directory")):
        found.undecidable("git -C is given an expansion, or nothing")
    settings = lead.values("setting")
    if any(word.is_several or not _CONFIG_HARMLESS.fullmatch(word.prefix.partition("=")[0]) for word in settings):
        found.undecidable("git -c sets what may start a program")
    rest = lead.rest
    if not rest:
        return
    if rest[0].text is None:
        found.undecidable("git with an expansion as its subcommand")
    elif rest[0].text in _STARTERS:
        found.undecidable(f"git {rest[0].text} starts a program, or writes what one reads")
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
        values = []  # one word after a key is its value, or an option that requests it
    options = [word for word in values if word.may_be_option or word.prefix.startswith("-")]
    if options or first is None or not _CONFIG_HARMLESS.fullmatch(first):
        found.undecidable("git config changes what git runs")


def _may_be_address(subcommand: str, args: list[Word], place: int) -> bool:
    """True if a word is an address that starts a program, or may become one; also after `--`."""
    word = args[place]
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


# sed's language, as far as it neither runs nor writes anything: read command by command, anything else is undecidable.
#
# GNU sed ends a regular expression at the next bare delimiter, BSD's reads bracket expressions first. So a delimiter in
# one is not read at all; nor is anything else that the two parse differently.

_BRACKETS = r"\[\^?\]?(?:\[:[a-z]+:\]|\[(?![:.=])|\\[^\]\n{0}]|[^\[\]\\\n{0}])*\]"
_PLACE = r"(?:[0-9]+(?:~[0-9]+)?|\$|/(?:\\.|" + _BRACKETS.format("/") + r"|[^\[\\/\n])*/I?)"
_SED_ADDRESS = rf"(?:{_PLACE}(?:,\s*(?:{_PLACE}|[+~][0-9]+))?\s*(?:!\s*)?)?"


def _substitution(mark: str) -> str:
    mark = re.escape(mark)
    pattern = rf"(?:\\.|{_BRACKETS.format(mark)}|[^\[\\\n{mark}])*"
    return rf"s{mark}{pattern}{mark}(?:\\[^\n]|[^\\\n{mark}])*{mark}[gpiIm0-9]*"


_COMMAND = "|".join(
    [*map(_substitution, "/|#,:@!_"), r"y/(?:\\.|[^\\/\n])*/(?:\\.|[^\\/\n])*/", r"[pPdDnNgGhHxz=]", r"[qQl][0-9]*"]
)
_STEP = re.compile(
    rf"[\s;]*{_SED_ADDRESS}(?:\{{|(?:{_COMMAND}|:\s*[A-Za-z0-9_]+|[bt]\s*[A-Za-z0-9_]*)[ \t]*(?=[;\n}}]|\Z)|\}})"
)
_REST = re.compile(rf"[\s;]*(?:{_SED_ADDRESS}[aic](?:[^\\\n]|\\[\s\S])*)?")
"""Nothing, or text to insert, which runs to the end of the line and so is alone or last."""
_MAX_ENDS = 4_000
_ENDS = ";{}\n"
_ADDRESSES = re.compile(r"(?:[0-9$,!+~\sI]|/[^/]*/)*")
_SEVERAL = re.compile(r"[;{}\\\n]")
_SUBSTITUTION_THEN_WRITE = re.compile(r"s(.)(?:(?!\1).)*\1(?:(?!\1).)*\1[gpiIm0-9]*w")


def judge_sed(case: FileCase) -> None:
    """Notes a script that may run or write something."""
    given = case.given
    scripts = [word.text for word in given.values("script")]
    operands = [word.text for word in given.operands]
    in_place = (one for one in given.used if "inplace" in one.option.roles)
    takes_suffix = any(one.value is None or not one.value.text for one in in_place)
    if given.doubtful:
        case.found.undecidable("sed is given an expansion that may become an option")
    named = [text for text in operands if text != ""]
    if not scripts:
        scripts, named = named[:1], named[1:]
    # BSD's sed takes the word after -i for a suffix, and so an operand for the script.
    if takes_suffix and any(text is not None and _may_write(text) for text in named[:1]):
        case.found.undecidable("sed -i is given an operand that may be a script")
    if any(sum(map(script.count, _ENDS)) > _MAX_ENDS for script in scripts if script is not None):
        case.found.give_up(f"sed is given a script of more than {_MAX_ENDS} commands")
    elif not all(script is not None and is_plain(script) for script in scripts):
        case.found.undecidable("sed is given a script that may run or write something")


def _may_write(name: str) -> bool:
    """True if the name of a file is also a script that writes another file, or the result of a substitution."""
    if _SEVERAL.search(name):
        return True
    command = _ADDRESSES.sub("", name, count=1)
    if command.startswith(("w", "W")):
        target = command[1:].lstrip()
        return target.startswith(("/", "~")) or ".." in target.split("/")
    return _SUBSTITUTION_THEN_WRITE.match(command) is not None


def is_plain(script: str) -> bool:
    """True if a script only reads and edits."""
    place = 0
    while not _REST.fullmatch(script, place):
        step = _STEP.match(script, place)
        if step is None:
            return False
        place = step.end()
    return True


# find: its starting points, the names that it filters by, and the values of `{}`.

WRITES = words("-fprint -fprint0 -fprintf -fls")
_BEGINS = re.compile(r"-|\(|!|\Z")
_LEADING = words("-H -L -P")
_FOLLOWS = words("-L -follow")
_ACTIONS = words("-delete -exec -execdir -ok -okdir") | WRITES
_ALTERNATIVES = words("-o -or ,")
_ALONE = words(
    "( ) -a -and -empty -executable -readable -writable -true -depth -d -daystart -mount -xdev -follow -noleaf -warn "
    "-nowarn -nouser -nogroup -print -print0 -ls -prune -quit -ignore_readdir_race"
)
_VALUED = words(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -xtype -size -mtime -atime "
    "-ctime -mmin -amin -cmin -newer -anewer -cnewer -user -group -uid -gid -perm -links -inum -samefile -fstype "
    "-maxdepth -mindepth -used -printf -regextype"
)
_NEWER = re.compile(r"-newer[aBcmt]{2}")


def found_below(args: Sequence[Word]) -> list[Word]:
    """One word for each starting point: the pattern of what find may match there."""
    if any(word.text in _FOLLOWS for word in args):
        return [UNKNOWN]
    starts, rest = _split(args)
    name = _filter(rest)
    found = []
    for word in starts or [Word(".", ".")]:
        path = word.pattern if word.text is None else word.text
        if path is None:
            found.append(UNKNOWN)
            continue
        below = f"{path.rstrip('/')}/"
        found.append(Word(None, below, tilde=word.tilde, globs=True, pattern=f"{below}{ANY_DEPTH}/{name}"))
    return found


def _split(args: Sequence[Word]) -> tuple[list[Word], list[str | None]]:
    rest = list(dropwhile(lambda word: word.text in _LEADING, args))
    starts = list(takewhile(lambda word: word.text is None or not _BEGINS.match(word.text), rest))
    return starts, [word.text for word in rest[len(starts) :]]


def _filter(expression: list[str | None]) -> str:
    """A pattern that matches every name on which find acts; `*` if unknown."""
    if any(text is None or text in _ALTERNATIVES for text in expression):
        return "*"
    name, is_negated = "*", False
    pending = iter(one or "" for one in expression)
    for text in pending:
        if text in _ACTIONS:
            break
        if text in {"!", "-not"}:
            is_negated = True
            continue
        if text in _VALUED or _NEWER.fullmatch(text):
            value = next(pending, "")
            if text in {"-name", "-iname"} and name == "*" and value and not is_negated and "/" not in value:
                name = value
        elif text not in _ALONE:
            return "*"
        is_negated = False
    return name


def curl_files(case: FileCase) -> list[FileUse]:
    """The files that the arguments of `curl` name; it prints what no option has it save."""
    given = case.given
    if any(word.text not in {"http", "https"} for word in given.values("proto")):
        case.found.undecidable("curl --proto-default makes files of addresses")
    uses = [one for word in _texts(given) for one in _files_of_url(word)]
    uses += [FileUse("read", None) for word in given.operands if word.text is None and _FILE.match(word.prefix)]
    if given.has("upload"):
        uses += [one._replace(mode="write") for one in uses]
    uses += [one for used in given.used for one in _files_after_mark(used.option.roles, used.value)]
    uses += [_place(word, given) for word in given.values("output") if word.text != "-"]
    if given.has("by-server"):
        uses.append(_place(_BY_SERVER, given))
    elif given.has("by-url"):
        urls = [*given.operands, *given.values("url")]
        names = (_last_part(one, asks=False) for one in urls if _may_be_url(one))
        uses += [_place(_target_name(name), given) for name in names if name != ""]
    return uses


def wget_files(case: FileCase) -> list[FileUse]:
    """The files that the arguments of `wget` name; it saves what no option has it print."""
    given = case.given
    outputs = given.values("output")
    uses = [one for word in _texts(given) for one in _files_of_url(word)]
    uses += [_place(word, given) for word in outputs if word.text != "-"]
    if given.has("many") or (given.has("by-server") and not outputs):
        return [*uses, _place(_BY_SERVER, given)]
    if outputs:
        return uses
    page = next((word.text for word in reversed(given.values("page"))), "index.html")
    names = (_last_part(one, asks=True) for one in given.operands if _may_be_url(one))
    return [*uses, *(_place(_target_name(page if name == "" else name), given) for name in names)]


def _texts(given: Given) -> list[str]:
    words = [*given.operands, *given.values("url", "data", "output")]
    return [word.text for word in words if word.text is not None]


def _target_name(name: str | None) -> Word:
    return _BY_SERVER if name is None else plain(name)


def _place(word: Word, given: Given) -> FileUse:
    """The file in the one directory that is named, if any; `#1` in it stands for a part of the URL."""
    directories, path = given.values("directory"), word.text
    if path is None and word is not _BY_SERVER:
        return use_of("write", word)
    if len(directories) > 1 or (path is not None and re.search(r"#\d", path)):
        return ANY_FILE
    if not directories or (path is not None and path.startswith("/")) or word.tilde:
        return use_of("write", word)
    directory = directories[0]
    if directory.text is None:
        return ANY_FILE
    if path is None:
        return FileUse("write", directory.text, directory.tilde, pattern="**/?*")
    return FileUse("write", f"{directory.text}/{path}", directory.tilde)


def _files_after_mark(roles: frozenset[str], value: Word | None) -> list[FileUse]:
    if value is None or roles.isdisjoint({"cookie", "data"}):
        return []
    text = value.text
    if text is None:
        return [] if value.prefix and not value.prefix.startswith(("@", "<")) else [FileUse("read", None)]
    if "%output" in text:
        return [ANY_FILE]
    if "cookie" in roles:  # without a `=` it is a file, and `@` has no meaning
        return [use_of("read", value)] if text and "=" not in text else []
    match = _FILE_IN_VALUE.match(text)
    path = None if match is None else match["path"] if match["after"] is None else match["after"]
    return [FileUse("read", path)] if path and path != "-" else []


def _files_of_url(text: str) -> list[FileUse]:
    match = _FILE_URL.fullmatch(text)
    if match is not None:
        return [FileUse("read", None if set("[{%") & set(match["path"]) else match["path"])]
    return [FileUse("read", None)] if _SCHEME_IN_PIECES.match(text) else []


def _may_be_url(word: Word) -> bool:
    return word.text is None or not word.text.startswith(("-", "/", ".", "~"))


def _last_part(url: Word, *, asks: bool) -> str | None:
    """The last part of a URL's path (`asks`: with its query), "" for none; None if unknown."""
    if url.text is None:
        return None
    address, _, asked = url.text.partition("#")[0].partition("?")
    _, _, path = address.rpartition("://")[2].partition("/")
    name = path.rpartition("/")[2]
    if set("[{%;") & set(name):
        return None
    return f"{name or 'index.html'}?{asked}".replace("/", "%2F") if asks and asked else name
