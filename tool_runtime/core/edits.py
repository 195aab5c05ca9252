"""Exact replacements in a text, all or none. Pure: what an edit will leave is also computed before it runs, so that
after a crash the file itself tells whether it happened."""

from __future__ import annotations

import locale
from typing import TYPE_CHECKING, Any, NamedTuple

from tool_runtime.output.text import candidates, looks_binary, strip_bom

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Edit(NamedTuple):
    """`old` is replaced by `new`: its only occurrence, or with `all` every one."""

    old: str
    new: str
    all: bool = False


class EditProblem(Exception):
    """Why nothing is edited. `number` is that of the edit, from 1; `found` says how often its old text was found in
    `text`, the text that the edits before it leave; None where that is not what is wrong."""

    def __init__(self, message: str, number: int, *, found: int | None = None, text: str = "") -> None:
        super().__init__(message)
        self.number = number
        self.found = found
        self.text = text


class EditedFile(NamedTuple):
    """`data` is the whole file as it is to be written, `places` how many places were replaced."""

    data: bytes
    places: int


def edits_from(arguments: Sequence[Mapping[str, Any]]) -> list[Edit]:
    """The edits as a call has them."""
    return [Edit(one["oldText"], one["newText"], one.get("replaceAll", False)) for one in arguments]


def is_notebook(path: str) -> bool:
    """True for a file that is shown, and edited, as cells."""
    return path.lower().endswith(".ipynb")


def edited_file(path: str, before: bytes, edits: Sequence[Edit]) -> EditedFile:
    """The file `before` with the edits made in what ReadFile shows of it. Raises EditProblem."""
    if not is_notebook(path):
        return edited(before, edits)
    from tool_runtime.core.notebook_edits import edited_notebook

    return edited_notebook(before, edits)


def edited(before: bytes, edits: Sequence[Edit]) -> EditedFile:
    """The file `before` with the edits made one after the other. Byte order mark, encoding and line ends stay.

    A file that is no UTF-8 is read in the encoding of this system, or as Latin-1 (TR 6.3). In a file with CRLF line
    ends the LF of an edit stands for CRLF. Raises EditProblem.
    """
    skip, marked = strip_bom(before)
    if marked is None and looks_binary(before):
        raise EditProblem("it is a binary file", 1)
    text, encoding = _decoded(before[skip:], marked)
    places = 0
    for number, edit in enumerate(edits, 1):
        text, replaced = _replaced(text, edit, number)
        places += replaced
    try:
        return EditedFile(before[:skip] + text.encode(encoding), places)
    except UnicodeEncodeError as error:
        what = f"the new text has {error.object[error.start]!r}, which {encoding}, the file's encoding, does not have"
        raise EditProblem(what, len(edits)) from error


def _decoded(data: bytes, marked: str | None) -> tuple[str, str]:
    for encoding in (marked,) if marked else candidates(None, locale.getpreferredencoding(False)):
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise EditProblem(f"the file is not {marked}, which its byte order mark says", 1)


def _replaced(text: str, edit: Edit, number: int) -> tuple[str, int]:
    """The text after one edit, and how many places it changed."""
    crlf = text.count("\r\n") if "\r" in text else 0
    old, new = edit.old, edit.new
    found = text.count(old)
    if not found and crlf and "\n" in old:
        old = _crlf(old)
        found = text.count(old)
        new = _crlf(new) if found else new
    elif crlf and crlf == text.count("\n"):
        new = _crlf(new)
    if not found:
        raise EditProblem("the old text is not in the file", number, found=0, text=text)
    if found > 1 and not edit.all:
        message = f"the old text is in the file {found} times"
        raise EditProblem(message, number, found=found, text=text)
    if old == new:
        raise EditProblem("the new text is the old one", number)
    return text.replace(old, new), found


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")
