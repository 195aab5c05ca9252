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


Mode = Literal["read", "write"]


class Transfer(NamedTuple):
    """A file of a download or an upload. `path` is None where only the run decides it; `pattern` stands for the names
    below `path`; `tilde` where it starts with an unquoted `~`."""

    mode: Mode
    path: str | None
    pattern: str | None = None
    tilde: bool = False

    def anywhere(self) -> Transfer:
        """Any file below its path."""
        return self._replace(pattern="**")


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


class _Value(NamedTuple):
    """The value of an option, None where only the run decides it; `tilde` where the shell puts a home directory in
    place of its `~`, which it does for a word of its own only."""

    text: str | None
    tilde: bool = False


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
    """The files that the arguments of `curl` name; it prints what no option has it save."""
    given = _Given(_CURL, args)
    found = given.files()
    if given.has(_CURL.by_server):
        found.append(given.saved_as(None))
    elif given.has(_CURL.by_url):
        names = (_last_part(one, query=False) for one in args if _may_be_url(one))
        found += [given.saved_as(name) for name in names if name != ""]
    return found


def wget_files(args: list[Word]) -> list[Transfer]:
    """The files that the arguments of `wget` name; it saves what no option has it print."""
    given = _Given(_WGET, args)
    found = given.files()
    if given.has(_WGET.trees) or (given.has(_WGET.by_server) and not given.outputs):
        return [*found, given.saved_as(None)]
    if given.outputs:
        return found
    names = (_last_part(one, query=True) for one in args if _may_be_url(one))
    return [*found, *(given.saved_as("index.html" if name == "" else name) for name in names)]


class _Given:
    """What the arguments say about files."""

    def __init__(self, options: _Options, args: list[Word]) -> None:
        self._options = options
        self._names = sorted({*options.written, *options.read, *options.may_read, options.output, options.directory})
        self._texts = [word.text for word in args if word.text is not None]
        self.outputs: list[_Value] = []
        self._directories: list[_Value] = []
        self._others: list[Transfer] = []
        for place, word in enumerate(args):
            if word.text is None:
                continue
            following = args[place + 1] if place + 1 < len(args) else None
            for name, joined in self._named(word.text):
                if joined is not None:
                    value = _Value(joined)
                else:
                    value = _Value("") if following is None else _Value(following.text, following.tilde)
                if name == options.output:
                    self.outputs.append(value)
                elif name == options.directory:
                    self._directories.append(value)
                else:
                    self._others += self._of_option(name, value)
            self._others += _of_url(word.text)

    def files(self) -> list[Transfer]:
        """What options and file URLs name."""
        return [*self._others, *(self._placed(one) for one in self.outputs if one.text != "-")]

    def saved_as(self, name: str | None) -> Transfer:
        """What is saved by a name of its own, which may be any where it is None."""
        return self._placed(_Value(".") if name is None else _Value(name))._replace(
            pattern="**" if name is None else None
        )

    def has(self, flags: frozenset[str]) -> bool:
        """Whether one of these options is there, a letter in a cluster or a long name, which may be cut short."""
        long = [one for one in flags if len(one) > 1]
        letters = [one for one in flags if len(one) == 1]
        for text in self._texts:
            if text.startswith("--"):
                given = text[2:].partition("=")[0]
                if len(given) >= _LEAST and any(one.startswith(given) for one in long):
                    return True
            elif text.startswith("-") and any(one in self._flags(text) for one in letters):
                return True
        return False

    def _flags(self, text: str) -> str:
        for at, letter in enumerate(text[1:], 1):
            if letter in self._options.valued:
                return text[1 : at + 1]
        return text[1:]

    def _named(self, text: str) -> Iterator[tuple[str, str | None]]:
        """The options of one word that may take a file, by long name, with a value that is joined to it."""
        options = self._options
        if text.startswith("--"):
            given, joined, value = text[2:].partition("=")
            if given:
                meant = [one for one in self._names if one.startswith(given)]
                yield from ((one, value if joined else None) for one in ([given] if given in meant else meant))
        elif text.startswith("-"):
            for at, letter in enumerate(text[1:], 1):
                if letter in options.valued:
                    if letter in options.letters:
                        yield options.letters[letter], text[at + 1 :] or None
                    return

    def _of_option(self, name: str, value: _Value) -> list[Transfer]:
        options = self._options
        if name in options.may_read:
            return _behind_a_mark(name, value)
        if value.text in {"", "-"}:
            return []
        modes: list[Mode] = []
        modes += ["write"] if name in options.written else []
        modes += ["read"] if name in options.read else []
        return [_transfer(mode, value) for mode in modes]

    def _placed(self, value: _Value) -> Transfer:
        """What is written to the path in the one directory that is named, if any; `#1` in it stands for a part of the
        URL."""
        path = value.text
        if path is None or len(self._directories) > 1 or re.search(r"#\d", path):
            return Transfer("write", None)
        if not self._directories or path.startswith("/") or value.tilde:
            return _transfer("write", value)
        directory = self._directories[0]
        joined = None if directory.text is None else f"{directory.text}/{path}"
        return _transfer("write", _Value(joined, directory.tilde))


def _transfer(mode: Mode, value: _Value) -> Transfer:
    path = value.text
    if value.tilde and path is not None and path != "~" and not path.startswith("~/"):
        return Transfer(mode, None)  # somebody else's home
    return Transfer(mode, path, tilde=value.tilde)


def _behind_a_mark(name: str, value: _Value) -> list[Transfer]:
    text = value.text
    if text is None:
        return [Transfer("read", None)]
    if name == "write-out" and "%output" in text:
        return [Transfer("write", None)]
    if name == "cookie":  # without a `=` it is a file, and `@` has no meaning
        return [_transfer("read", value)] if text and "=" not in text else []
    match = _BEHIND.match(text)
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
