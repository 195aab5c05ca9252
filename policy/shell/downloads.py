"""Which files a `curl` or a `wget` reads and writes that the line names.

Every word that looks like an option counts as one, also where it is another option's value: that can only find a file
too many.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from policy.names import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.shell.words import Word


class Transfer(NamedTuple):
    """A file of a download or an upload. `path` is None where only the run decides it; `pattern` stands for the names
    below `path`; `tilde` where it starts with an unquoted `~`."""

    mode: Literal["read", "write"]
    path: str | None
    pattern: str | None = None
    tilde: bool = False


class _Options(NamedTuple):
    """A program's options by what their values are: where it saves, in which directory, files that it writes or reads,
    text that may name a file to read behind an `@`. `valued` are the letters that take a value, `letters` those of
    them that stand for one of these options. By which options it saves under the URL's name, under one that the server
    gives, and more than one file."""

    output: str
    directory: str
    written: frozenset[str]
    read: frozenset[str]
    may_read: frozenset[str]
    valued: str
    letters: dict[str, str]
    by_url: frozenset[str]
    by_server: frozenset[str]
    trees: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """The long names of all that take a value."""
        return self.written | self.read | self.may_read | {self.output, self.directory}


_CURL = _Options(
    output="output",
    directory="output-dir",
    written=words("dump-header cookie-jar trace trace-ascii stderr libcurl etag-save hsts alt-svc ssl-sessions"),
    read=words("upload-file cert key cacert netrc-file proxy-cert proxy-key proxy-cacert etag-compare hsts alt-svc"),
    may_read=words(
        "data data-ascii data-binary data-urlencode json form header proxy-header write-out variable url url-query "
        "cookie"
    ),
    valued="AbcCdDeEFhHKmoPQrtTuUwxXyYz",
    letters={
        "o": "output", "D": "dump-header", "c": "cookie-jar", "T": "upload-file", "E": "cert", "b": "cookie",
        "d": "data", "F": "form", "H": "header", "w": "write-out",
    },
    by_url=words("O remote-name remote-name-all"),
    by_server=words("J remote-header-name"),
    trees=frozenset(),
)  # fmt: skip
_WGET = _Options(
    output="output-document",
    directory="directory-prefix",
    written=words("output-file append-output save-cookies hsts-file rejected-log warc-file warc-tempdir"),
    read=words(
        "input-file post-file body-file load-cookies certificate private-key ca-certificate crl-file pinnedpubkey "
        "warc-dedup"
    ),
    may_read=frozenset(),
    valued="aABDeIiloOPQRtTUwX",
    letters={
        "O": "output-document", "P": "directory-prefix", "o": "output-file", "a": "append-output", "i": "input-file",
    },
    by_url=frozenset(),
    by_server=words("content-disposition trust-server-names"),
    trees=words("r m p x recursive mirror page-requisites force-directories input-file i input-metalink metalink"),
)  # fmt: skip
_BEHIND = re.compile(r"(?:[^=@]*=)?[@<]\"?(?P<path>[^;,\"]*)|[^=@]*@(?P<behind>.*)", re.DOTALL)
_FILE_URL = re.compile(r"(?i)file:(?://(?:localhost|127\.0\.0\.1)?)?(?P<path>/.*)", re.DOTALL)
_SCHEME_IN_PIECES = re.compile(r"[^/:]*[\[{][^/]*://")
_LEAST = 3
"""Letters of a long option that stands for one that is longer."""


def curl_files(args: list[Word]) -> list[Transfer]:
    """The files that the arguments of `curl` name; it prints what it is not told to save."""
    given = _Given(_CURL, args)
    found = given.files()
    if given.has(_CURL.by_server):
        found.append(given.saved_as(None))
    elif given.has(_CURL.by_url):
        names = (_last_part(one, query=False) for one in args if _may_be_url(one))
        found += [given.saved_as(name) for name in names if name != ""]
    return found


def wget_files(args: list[Word]) -> list[Transfer]:
    """The files that the arguments of `wget` name; it saves what it is not told to print."""
    given = _Given(_WGET, args)
    found = given.files()
    if given.has(_WGET.trees):
        path = given.saved_as(None).path
        return [*found, Transfer("write", path, "**")]
    if given.outputs:
        return found
    if given.has(_WGET.by_server):
        return [*found, given.saved_as(None)]
    names = (_last_part(one, query=True) for one in args if _may_be_url(one))
    return [*found, *(given.saved_as("index.html" if name == "" else name) for name in names)]


class _Given:
    """What the arguments say about files."""

    def __init__(self, options: _Options, args: list[Word]) -> None:
        self.options = options
        self.texts = [word.text for word in args if word.text is not None]
        self.outputs: list[str | None] = []
        self.directories: list[str | None] = []
        self.others: list[Transfer] = []
        self.from_home: set[str] = set()
        for place, word in enumerate(args):
            if word.text is None:
                continue
            following = args[place + 1].text if place + 1 < len(args) else ""
            if place + 1 < len(args) and args[place + 1].tilde and following is not None:
                self.from_home.add(following)
            for name, joined in self._options(word.text):
                value = following if joined is None else joined
                if name == options.output:
                    self.outputs.append(value)
                elif name == options.directory:
                    self.directories.append(value)
                else:
                    self.others += self._of_option(name, value)
            self.others += _of_url(word.text)

    def files(self) -> list[Transfer]:
        """What options and file URLs name."""
        outputs = (Transfer("write", self._placed(one)) for one in self.outputs if one != "-")
        return [self._tilde(one) for one in (*self.others, *outputs)]

    def saved_as(self, name: str | None) -> Transfer:
        """What is saved by a name of its own, which may be any where it is None."""
        pattern = "**" if name is None else None
        return self._tilde(Transfer("write", self._placed("." if name is None else name), pattern))

    def _tilde(self, one: Transfer) -> Transfer:
        """With the directory of a value that the shell has put in place of a `~`."""
        if one.path is None or not any(one.path.startswith(value) for value in self.from_home):
            return one
        if one.path != "~" and not one.path.startswith("~/"):
            return Transfer(one.mode, None)  # somebody else's home
        return one._replace(tilde=True)

    def has(self, flags: frozenset[str]) -> bool:
        """Whether one of these options is there, a letter in a cluster or a long name, which may be cut short."""
        long = [one for one in flags if len(one) > 1]
        letters = [one for one in flags if len(one) == 1]
        for text in self.texts:
            if text.startswith("--"):
                given = text[2:].partition("=")[0]
                if len(given) >= _LEAST and any(one.startswith(given) for one in long):
                    return True
            elif text.startswith("-") and any(one in self._flags(text) for one in letters):
                return True
        return False

    def _flags(self, text: str) -> str:
        for at, letter in enumerate(text[1:], 1):
            if letter in self.options.valued:
                return text[1 : at + 1]
        return text[1:]

    def _options(self, text: str) -> Iterator[tuple[str, str | None]]:
        """The options of one word that may take a file, by long name, with a value that is joined to it."""
        names = self.options.names
        if text.startswith("--"):
            given, joined, value = text[2:].partition("=")
            meant = [given] if given in names else [one for one in sorted(names) if given and one.startswith(given)]
            yield from ((one, value if joined else None) for one in meant)
        elif text.startswith("-"):
            for at, letter in enumerate(text[1:], 1):
                if letter in self.options.valued:
                    if letter in self.options.letters:
                        yield self.options.letters[letter], text[at + 1 :] or None
                    return

    def _of_option(self, name: str, value: str | None) -> list[Transfer]:
        if name in self.options.may_read:
            return _behind_a_mark(name, value)
        if value in {"", "-"}:
            return []
        found: list[Transfer] = [Transfer("write", value)] if name in self.options.written else []
        return [*found, Transfer("read", value)] if name in self.options.read else found

    def _placed(self, path: str | None) -> str | None:
        """The path in the one directory that is named, if any; `#1` in it stands for a part of the URL."""
        if path is None or len(self.directories) > 1 or None in self.directories or re.search(r"#\d", path):
            return None
        return path if not self.directories or path.startswith("/") else f"{self.directories[0]}/{path}"


def _behind_a_mark(name: str, value: str | None) -> list[Transfer]:
    if value is None:
        return [Transfer("read", None)]
    if name == "write-out" and "%output" in value:
        return [Transfer("write", None)]
    if name == "cookie":  # without a `=` it is a file, and `@` has no meaning
        return [Transfer("read", value)] if value and "=" not in value else []
    match = _BEHIND.match(value)
    path = None if match is None else match["path"] if match["behind"] is None else match["behind"]
    return [Transfer("read", path)] if path and path != "-" else []


def _of_url(text: str) -> list[Transfer]:
    match = _FILE_URL.fullmatch(text)
    if match is not None:
        return [Transfer("read", None if set("[{%") & set(match["path"]) else match["path"])]
    return [Transfer("read", None)] if _SCHEME_IN_PIECES.match(text) else []


def _may_be_url(word: Word) -> bool:
    return word.text is None or not word.text.startswith(("-", "/", ".", "~"))


def _last_part(url: Word, *, query: bool) -> str | None:
    """The last part of a URL's path, by which a download is saved, "" where there is none; None where that cannot be
    said. `query`: what follows a `?` belongs to it."""
    if url.text is None:
        return None
    address, _, asked = url.text.partition("#")[0].partition("?")
    _, _, path = address.rpartition("://")[2].partition("/")
    name = path.rpartition("/")[2]
    if set("[{%") & set(name):
        return None
    return f"{name or 'index.html'}?{asked}".replace("/", "%2F") if query and asked else name
