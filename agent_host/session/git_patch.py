"""One file's change as git writes it, so that `git apply` takes it: text as hunks, anything else as a binary patch.

Pure. Names are paths relative to the folder that the patch is applied in, with slashes.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.diffs import compare, replaced_lines
from state.blobs import LINK, PLAIN_FILE

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
    it where that is not for reading; None for hunks. `text` is "" where there is no patch, and `summary` says why.
    `reading` is what git shows in place of a binary patch."""

    text: str
    additions: int
    deletions: int
    summary: str | None = None
    reading: str | None = None


def git_patch(
    name: str, before: bytes | None, after: bytes | None, *, mode: str = PLAIN_FILE, old_mode: str | None = None
) -> GitPatch:
    """What turns `before` into `after`, of which one may be None (no file) and none larger than MAX_PATCH_BYTES.

    `mode` is that of the file after, `old_mode` the one before; None where it has not changed. What becomes a link, or
    was one, is deleted and added.
    """
    if None not in (before, after) and old_mode is not None and LINK in (mode, old_mode) and mode != old_mode:
        gone = git_patch(name, before, None, old_mode=old_mode)
        made = git_patch(name, None, after, mode=mode)
        whole = gone.text + made.text if gone.text and made.text else ""
        reading = (gone.reading or gone.text) + (made.reading or made.text)
        summary = gone.summary or made.summary
        return GitPatch(whole, made.additions, gone.deletions, summary, reading if summary else None)
    old, new = before or b"", after or b""
    if not (_is_text(old) and _is_text(new)):
        counted = GitPatch("", 0, 0, "binary content differs")
        return _binary_patch(name, before, after, _header(name, before, after, mode, old_mode), counted)
    if not (_is_short(old) and _is_short(new)):
        added, deleted = replaced_lines(old, len(new), lambda at, size: new[at : at + size]) or (0, 0)
        counted = GitPatch("", added, deleted, "too large for a diff of lines")
        return _binary_patch(name, before, after, _header(name, before, after, mode, old_mode), counted)
    diff = compare(old, new)
    text = _header(name, before, after, mode, old_mode)
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


def _header(name: str, before: bytes | None, after: bytes | None, mode: str, old_mode: str | None) -> str:
    header = f"diff --git {quoted(f'a/{name}')} {quoted(f'b/{name}')}\n"
    if before is None:
        header += f"new file mode {mode}\n"
    if after is None:
        header += f"deleted file mode {old_mode or PLAIN_FILE}\n"
    if None not in (before, after) and old_mode not in (None, mode):
        header += f"old mode {old_mode}\nnew mode {mode}\n"
    return header


def _binary_patch(name: str, before: bytes | None, after: bytes | None, header: str, counted: GitPatch) -> GitPatch:
    """`counted` with its text as `git diff --binary` writes it, both ways."""
    if before == after:  # the mode alone is another one
        return GitPatch(header, 0, 0)
    sides = (
        "/dev/null" if before is None else quoted(f"a/{name}"),
        "/dev/null" if after is None else quoted(f"b/{name}"),
    )
    counted = counted._replace(reading=f"{header}Binary files {sides[0]} and {sides[1]} differ\n")
    new, old = zlib.compress(after or b""), zlib.compress(before or b"")
    if len(new) + len(old) > MAX_PACKED_BYTES:
        return counted._replace(summary=f"too large to be shown: {len(after or b'')} bytes")
    text = (
        header,
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
