"""The one thing that is read of a repository's configuration: by which hash its objects are named.

The file is the workspace's own, so it may hold anything. It is read as text; no program runs, and nothing that it names
is opened: git itself follows no `include` for this value either.
"""

from __future__ import annotations

from typing import Final

_SECTION, _NAME, _DEFAULT = b"extensions", b"objectformat", "sha1"
_COMMENTS: Final = (b"#", b";")


def object_format(config: bytes) -> str:
    """`extensions.objectFormat` in small letters, as git-config(1) has its syntax; the last value counts, and `sha1`
    stands for none. A value that is written in a way that only git reads, as with escapes, comes as it stands."""
    section, value = b"", _DEFAULT
    for raw in _lines(config):
        line = raw.strip()
        if line.startswith(b"["):
            head, _, line = line[1:].partition(b"]")
            section, line = head.strip().lower(), line.strip()
        name, is_set, said = line.partition(b"=")
        if section == _SECTION and name.strip().lower() == _NAME:
            value = _value(said) if is_set else ""
    return value


def _lines(config: bytes) -> list[bytes]:
    """Its lines as git takes them: one that ends in a backslash goes on with the next."""
    joined = config.removeprefix(b"\xef\xbb\xbf").replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    return joined.split(b"\n")


def _value(said: bytes) -> str:
    """A value without its quotes and the comment behind it."""
    for mark in _COMMENTS:
        said = said.partition(mark)[0]
    return said.strip().strip(b'"').decode("ascii", "replace").lower()
