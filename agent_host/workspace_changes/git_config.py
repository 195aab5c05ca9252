"""The two things that are read of git's configuration: by which hash the objects of a repository are named, and where
the user has a file of patterns that are ignored everywhere.

The file of a repository is the workspace's own, so it may hold anything. It is read as text; no program runs, and
nothing that it names is opened: git itself follows no `include` for this value either. Where the user's patterns are is
read from the user's own files alone.
"""

from __future__ import annotations

from typing import Final

_SECTION, _NAME, _DEFAULT = b"extensions", b"objectformat", "sha1"
_COMMENTS: Final = (b"#", b";")


def object_format(config: bytes) -> str:
    """`extensions.objectFormat` in small letters, as git-config(1) has its syntax; the last value counts, and `sha1`
    stands for none. A value that is written in a way that only git reads, as with escapes, comes as it stands."""
    value = last_value(config, _SECTION, _NAME)
    return _DEFAULT if value is None else value.decode("ascii", "replace").lower()


def last_value(config: bytes, section: bytes, name: bytes) -> bytes | None:
    """The last value of `section.name`, both in small letters, without quotes and comments; None where it is not set.
    Sections with a second name are others."""
    within, found = b"", None
    for raw in _lines(config):
        line = raw.strip()
        if line.startswith(b"["):
            head, _, line = line[1:].partition(b"]")
            within, line = head.strip().lower(), line.strip()
        key, is_set, said = line.partition(b"=")
        if within == section and key.strip().lower() == name:
            found = _value(said) if is_set else b""
    return found


def _lines(config: bytes) -> list[bytes]:
    """Its lines as git takes them: one that ends in a backslash goes on with the next."""
    joined = config.removeprefix(b"\xef\xbb\xbf").replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    return joined.split(b"\n")


def _value(said: bytes) -> bytes:
    """A value without its quotes and the comment behind it."""
    for mark in _COMMENTS:
        said = said.partition(mark)[0]
    return said.strip().strip(b'"')
