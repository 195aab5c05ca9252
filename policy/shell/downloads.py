"""Files that a `curl` or a `wget` saves or sends, beyond those that an option plainly names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.shell.findings import FileUse, use_of
from policy.shell.words import Word, plain

if TYPE_CHECKING:
    from policy.shell.findings import FileCase, Findings
    from policy.shell.options import Given

_BEHIND = re.compile(r"(?:[^=@]*=)?[@<]\"?(?P<path>[^;,\"]*)|[^=@]*@(?P<behind>.*)", re.DOTALL)
_FILE_URL = re.compile(r"(?i)file:(?://(?:localhost|127\.0\.0\.1)?)?(?P<path>/.*)", re.DOTALL)
_FILE = re.compile(r"(?i)file:")
_SCHEME_IN_PIECES = re.compile(r"[^/:]*[\[{][^/]*://")
_BY_SERVER = Word(None, "./", pattern="./**", globs=True)
"""A name that the server gives."""


def curl_files(case: FileCase, found: Findings) -> list[FileUse]:
    """The files that the arguments of `curl` name; it prints what no option has it save."""
    given = case.given
    if any(word.text not in {"http", "https"} for word in given.values("proto")):
        found.undecidable("curl --proto-default makes files of addresses")
    uses = [one for word in _texts(given) for one in _files_of_url(word)]
    uses += [FileUse("", "read", None) for word in given.operands if word.text is None and _FILE.match(word.prefix)]
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


def wget_files(case: FileCase, _found: Findings) -> list[FileUse]:
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
        return FileUse("", "write", None)
    if not directories or (path is not None and path.startswith("/")) or word.tilde:
        return use_of("write", word)
    directory = directories[0]
    if directory.text is None:
        return FileUse("", "write", None)
    if path is None:
        return FileUse("", "write", directory.text, directory.tilde, pattern="**")
    return FileUse("", "write", f"{directory.text}/{path}", directory.tilde)


def _files_after_mark(roles: frozenset[str], value: Word | None) -> list[FileUse]:
    """Files that the text of an option names behind an `@`."""
    if value is None or roles.isdisjoint({"cookie", "data"}):
        return []
    text = value.text
    if text is None:
        return [] if value.prefix and not value.prefix.startswith(("@", "<")) else [FileUse("", "read", None)]
    if "%output" in text:
        return [FileUse("", "write", None)]
    if "cookie" in roles:  # without a `=` it is a file, and `@` has no meaning
        return [use_of("read", value)] if text and "=" not in text else []
    match = _BEHIND.match(text)
    path = None if match is None else match["path"] if match["behind"] is None else match["behind"]
    return [FileUse("", "read", path)] if path and path != "-" else []


def _files_of_url(text: str) -> list[FileUse]:
    match = _FILE_URL.fullmatch(text)
    if match is not None:
        return [FileUse("", "read", None if set("[{%") & set(match["path"]) else match["path"])]
    return [FileUse("", "read", None)] if _SCHEME_IN_PIECES.match(text) else []


def _may_be_url(word: Word) -> bool:
    return word.text is None or not word.text.startswith(("-", "/", ".", "~"))


def _last_part(url: Word, *, asks: bool) -> str | None:
    """The last part of a URL's path, by which a download is saved, "" where there is none; None where that cannot be
    said. `asks`: what follows a `?` belongs to it."""
    if url.text is None:
        return None
    address, _, asked = url.text.partition("#")[0].partition("?")
    _, _, path = address.rpartition("://")[2].partition("/")
    name = path.rpartition("/")[2]
    if set("[{%") & set(name):
        return None
    return f"{name or 'index.html'}?{asked}".replace("/", "%2F") if asks and asked else name
