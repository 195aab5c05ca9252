"""One file's change as git writes it, so that `git apply` takes it: text as hunks, anything else as a binary patch.

Pure. Names are paths relative to the folder that the patch is applied in, with slashes.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.diffs import compare, replaced_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TEXT_BYTES: Final = 16 * 1024 * 1024
"""Of each side. A larger text is shown as a binary patch, up to MAX_PATCH_BYTES."""
MAX_TEXT_LINES: Final = 400_000
"""Of each side, in the same way: a line costs more than its bytes."""
MAX_PATCH_BYTES: Final = 32 * 1024 * 1024
"""Of each side. What is larger has no patch."""
MAX_PACKED_BYTES: Final = 16 * 1024 * 1024
"""Of both sides, packed, in a binary patch. What is larger has no patch: it would be a line of JSON all the same."""

_NO_OBJECT: Final = "0" * 40
_LINE_BYTES: Final = 52
_SLICE_BYTES: Final = _LINE_BYTES * 4096
_LENGTHS: Final = " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class GitPatch(NamedTuple):
    """A file's patch, with the lines that it puts in and takes out: 0 of binary content. `summary` says what is in
    it where that is not for reading; None for hunks. `text` is "" where there is no patch, and `summary` says why."""

    text: str
    additions: int
    deletions: int
    summary: str | None = None


def git_patch(name: str, before: bytes | None, after: bytes | None, *, mode: str = "100644") -> GitPatch:
    """What turns `before` into `after`, of which one may be None (no file) and none larger than MAX_PATCH_BYTES.

    `mode` is that of a new file, 100644 or 100755. An old one's is not known, and stays as it is.
    """
    old, new = before or b"", after or b""
    if not (_is_text(old) and _is_text(new)):
        return _binary_patch(name, before, after, mode, GitPatch("", 0, 0, "binary content differs"))
    if not (_is_short(old) and _is_short(new)):
        added, deleted = replaced_lines(old, len(new), lambda at, size: new[at : at + size]) or (0, 0)
        counted = GitPatch("", added, deleted, "too large for a diff of lines")
        return _binary_patch(name, before, after, mode, counted)
    diff = compare(old, new)
    text = _header(name, before, after, mode)
    if diff.hunks:  # an empty file has a header and no hunks
        text += "--- " + ("/dev/null" if before is None else quoted(f"a/{name}")) + "\n"
        text += "+++ " + ("/dev/null" if after is None else quoted(f"b/{name}")) + "\n"
        text += diff.hunks.decode()
    return GitPatch(text, diff.additions, diff.deletions)


def git_rename(old_name: str, name: str, before: bytes, after: bytes, alike: int) -> GitPatch | None:
    """What renames the file, and turns `before` into `after`; None where they differ and one is no text, or too long
    for a diff of lines. `alike` is how much of them is the same, in percent."""
    text = (
        f"diff --git {quoted(f'a/{old_name}')} {quoted(f'b/{name}')}\n"
        f"similarity index {alike}%\nrename from {quoted(old_name)}\nrename to {quoted(name)}\n"
    )
    if before == after:
        return GitPatch(text, 0, 0)
    if not all(_is_text(one) and _is_short(one) for one in (before, after)):
        return None
    diff = compare(before, after)
    text += f"--- {quoted(f'a/{old_name}')}\n+++ {quoted(f'b/{name}')}\n{diff.hunks.decode()}"
    return GitPatch(text, diff.additions, diff.deletions)


def quoted(name: str) -> str:
    """A file name as git writes it: in quotes, C-style, when it holds what would break the line."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    return '"' + "".join(_ESCAPES.get(char, char) if char.isprintable() else _octal(char) for char in name) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\"}


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))


def _is_text(data: bytes) -> bool:
    """True for UTF-8 without null bytes."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _is_short(data: bytes) -> bool:
    return len(data) <= MAX_TEXT_BYTES and data.count(b"\n") <= MAX_TEXT_LINES


def _header(name: str, before: bytes | None, after: bytes | None, mode: str) -> str:
    header = f"diff --git {quoted(f'a/{name}')} {quoted(f'b/{name}')}\n"
    if before is None:
        header += f"new file mode {mode}\n"
    if after is None:
        header += "deleted file mode 100644\n"
    return header


def _binary_patch(name: str, before: bytes | None, after: bytes | None, mode: str, counted: GitPatch) -> GitPatch:
    """`counted` with its text as `git diff --binary` writes it, both ways."""
    new, old = zlib.compress(after or b""), zlib.compress(before or b"")
    if len(new) + len(old) > MAX_PACKED_BYTES:
        return counted._replace(summary=f"too large to be shown: {len(after or b'')} bytes")
    text = (
        _header(name, before, after, mode),
        # Without the full names of both objects git refuses it.
        f"index {_object_name(before)}..{_object_name(after)}\nGIT binary patch\n",
        *_literal(len(after or b""), new),
        *_literal(len(before or b""), old),
    )
    return counted._replace(text="".join(text))


def _object_name(data: bytes | None) -> str:
    if data is None:
        return _NO_OBJECT
    found = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    found.update(data)
    return found.hexdigest()


def _literal(size: int, packed: bytes) -> Iterator[str]:
    """So many bytes as zlib has packed them: 52 of those a line, in base85, behind a letter that says how many."""
    yield f"literal {size}\n"
    for at in range(0, len(packed), _SLICE_BYTES):
        part = packed[at : at + _SLICE_BYTES]
        digits = base64.b85encode(part, pad=True).decode()
        for number, begun in enumerate(range(0, len(part), _LINE_BYTES)):
            length = min(_LINE_BYTES, len(part) - begun)
            yield f"{_LENGTHS[length]}{digits[number * 65 : (number + 1) * 65]}\n"
    yield "\n"
