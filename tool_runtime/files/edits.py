"""Exact replacements in a text, all or none. Pure: the result of an edit is also computed before it runs, so that after
a crash the file shows if it happened."""

from __future__ import annotations

import difflib
import json
import locale
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from config.json_text import check_depth
from tool_runtime.output import candidates, looks_binary, strip_bom

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Edit(NamedTuple):
    """`old` is replaced by `new`: its only occurrence, or with `all` every one."""

    old: str
    new: str
    all: bool = False


class EditProblem(Exception):
    """The reason why nothing is edited. `number` is that of the edit, from 1; `found` is the number of matches of its
    old text in `text`, the result of the edits before it; None if that is not the problem."""

    def __init__(self, message: str, number: int, *, found: int | None = None, text: str = "") -> None:
        super().__init__(message)
        self.number = number
        self.found = found
        self.text = text

    def explain(self, path: str, edits: Sequence[Edit]) -> str:
        """The problem with information for a better edit."""
        which = f"edit {self.number} of {len(edits)}: " if len(edits) > 1 else ""
        old = edits[self.number - 1].old
        hint = ""
        if self.found == 0:
            hint = f"; {nearest_lines(self.text, old)}"
        elif self.found is not None:
            hint = f"; {_places(self.text, old)}: give more of the text around it, or set replaceAll to true"
        return f"{which}{self}; nothing was changed: {path}{hint}"


class EditedFile(NamedTuple):
    """`data` is the whole file as it is to be written, `places` how many places were replaced."""

    data: bytes
    places: int


def edits_from(arguments: Sequence[Mapping[str, Any]]) -> list[Edit]:
    """The edits as a call has them."""
    return [Edit(one["oldText"], one["newText"], one.get("replaceAll", False)) for one in arguments]


def edit_content(path: str, before: bytes, edits: Sequence[Edit]) -> EditedFile:
    """The file `before` with the edits made in what ReadFile shows of it. Raises EditProblem."""
    return (edit_notebook if path.lower().endswith(".ipynb") else apply_edits)(before, edits)


def apply_edits(before: bytes, edits: Sequence[Edit]) -> EditedFile:
    """The file `before` with the edits made one after the other. Byte order mark, encoding and line ends stay.

    A file that is no UTF-8 is read in the encoding of this system, or as Latin-1 (TR 6.3). In a file with CRLF line
    ends the LF of an edit stands for CRLF. Raises EditProblem.
    """
    skip, marked = strip_bom(before)
    if marked is None and looks_binary(before):
        raise EditProblem("it is a binary file", 1)
    text, encoding = _decode(before[skip:], marked)
    places = 0
    for number, edit in enumerate(edits, 1):
        text, replaced = _replace(text, edit, number)
        places += replaced
    try:
        return EditedFile(before[:skip] + text.encode(encoding), places)
    except UnicodeEncodeError as error:
        what = f"the new text has {error.object[error.start]!r}, which {encoding}, the file's encoding, does not have"
        raise EditProblem(what, len(edits)) from error


def _decode(data: bytes, marked: str | None) -> tuple[str, str]:
    for encoding in (marked,) if marked else candidates(None, locale.getpreferredencoding(False)):
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise EditProblem(f"the file is not {marked}, as its byte order mark indicates", 1)


def _replace(text: str, edit: Edit, number: int) -> tuple[str, int]:
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


# Edits of a notebook's cells, as ReadFile shows their sources (TR 4.2). All of the file but the sources that change
# stays as it is, byte for byte. An old text may begin with the line that is shown above a cell, and then means that
# cell. What fits no cell is tried on the file's own text, as for any other file.

_BOM: Final = b"\xef\xbb\xbf"
_HEAD: Final = re.compile(r"--- cell (\d+): [^\n]* ---\n")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_MANY: Final = re.compile(r"\[(\s*)(?=\S).*?(\s*)\]", re.DOTALL)
_DECODER: Final = json.JSONDecoder()


class _CellSource(NamedTuple):
    text: str
    begin: int
    end: int


def edit_notebook(before: bytes, edits: Sequence[Edit]) -> EditedFile:
    """`apply_edits` for a notebook by its cells. Raises EditProblem, also if its text would no longer be JSON."""
    try:
        text = before.removeprefix(_BOM).decode()
        sources = list(_sources(text))
    except ValueError:  # no JSON, or no notebook
        return apply_edits(before, edits)
    try:
        return _edit_in_cells(before, text, sources, edits)
    except EditProblem as problem:
        if problem.found != 0:
            raise
        try:
            found = apply_edits(before, edits)
            check_depth(found.data)
            json.loads(found.data.removeprefix(_BOM))
        except EditProblem as of_text:
            raise (problem if of_text.found == 0 else of_text) from None
        except ValueError as error:
            why = f"the notebook would not be JSON any more ({error}): edit its cells as they are shown"
            raise EditProblem(why, problem.number) from error
        return found


def _edit_in_cells(before: bytes, text: str, sources: Sequence[_CellSource], edits: Sequence[Edit]) -> EditedFile:
    now = [source.text for source in sources]
    places = sum(_edit_cells(now, edit, number) for number, edit in enumerate(edits, 1))
    parts, at = [], 0
    for source, changed in zip(sources, now, strict=True):
        if changed != source.text:
            parts += [text[at : source.begin], _encode_source(text, source, changed)]
            at = source.end
    lead = _BOM if before.startswith(_BOM) else b""
    return EditedFile(lead + ("".join(parts) + text[at:]).encode(), places)


def _edit_cells(now: list[str], edit: Edit, number: int) -> int:
    old, new, cells = edit.old, edit.new, range(len(now))
    head = _HEAD.match(old)
    if head is not None and new.startswith(head[0]) and 0 < int(head[1]) <= len(now):
        old, new, cells = old[head.end() :], new[head.end() :], range(int(head[1]) - 1, int(head[1]))
    shown = {cell: _display(now[cell]) for cell in cells}
    found = {cell: source.count(old) for cell, source in shown.items() if old and old in source}
    if head is not None and not old and len(cells) == 1:  # above the cell's content
        now[cells[0]] = new.removesuffix("\n") if not now[cells[0]] else new + now[cells[0]]
        return 1
    count = sum(found.values())
    if not count:
        shown_text = "".join(map(_display, now))
        raise EditProblem("the old text is in no cell's source", number, found=0, text=shown_text)
    if count > 1 and not edit.all:
        where = ", ".join(str(cell + 1) for cell in found)
        places = f"the old text is in the notebook {count} times, in cell {where}"
        raise EditProblem(f"{places}: begin it with the line above the cell", number)
    if old == new:
        raise EditProblem("the new text is the old one", number)
    for cell in found:
        changed = shown[cell].replace(old, new)
        now[cell] = changed if shown[cell] == now[cell] else changed.removesuffix("\n")
    return count


def _display(source: str) -> str:
    return source if not source or source.endswith("\n") else f"{source}\n"


def _encode_source(text: str, source: _CellSource, changed: str) -> str:
    was = text[source.begin : source.end]
    ascii_alone = text.isascii() and "\\u" in text
    if not was.startswith("["):
        return json.dumps(changed, ensure_ascii=ascii_alone)
    lines = [json.dumps(line, ensure_ascii=ascii_alone) for line in re.findall(r"[^\n]*\n|[^\n]+", changed)]
    if not lines:
        return "[]"
    form = _MANY.match(was)
    if form is None:  # it was empty: as a line below its own
        line = text[: source.begin].rpartition("\n")[2]
        indent = line[: len(line) - len(line.lstrip())]
        lead, end = (f"\n{indent} ", f"\n{indent}") if "\n" in text[: source.begin] else ("", "")
    else:
        lead, end = form[1], form[2]
    return f"[{lead}{(',' + (lead or ' ')).join(lines)}{end}]"


def _sources(text: str) -> Iterator[_CellSource]:
    check_depth(text)
    cells = next((begin for name, begin, _ in _members(text, 0) if name == "cells"), None)
    if cells is None or text[cells] != "[":
        raise ValueError("no list of cells")
    for begin, _, _ in _parts(text, cells, "[]"):
        for name, at, end in _members(text, begin):
            if name == "source":
                value = json.loads(text[at:end])
                source = "".join(value) if isinstance(value, list) else value
                if not isinstance(source, str):
                    raise ValueError("a source is not text")
                yield _CellSource(source, at, end)
                break
        else:
            raise ValueError("a cell has no source")


def _members(text: str, begin: int) -> Iterator[tuple[str, int, int]]:
    for _, name, end in _parts(text, begin, "{}"):
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":" or not isinstance(name, str):
            raise ValueError("no object")
        start = _skip(text, colon + 1)
        yield name, start, _DECODER.raw_decode(text, start)[1]


def _parts(text: str, begin: int, ends: str) -> Iterator[tuple[int, Any, int]]:
    """The parts between brackets and commas: the start of each, its first value, and the end of that."""
    at = _skip(text, begin)
    if text[at : at + 1] != ends[0]:
        raise ValueError(f"no {ends}")
    at = _skip(text, at + 1)
    while text[at : at + 1] != ends[1]:
        value, end = _DECODER.raw_decode(text, at)
        yield at, value, end
        at = _skip(text, end)
        if text[at : at + 1] == ":":  # a member: its value follows
            at = _skip(text, _DECODER.raw_decode(text, _skip(text, at + 1))[1])
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != ends[1]:
            raise ValueError("it is not JSON")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


_MAX_LINES: Final = 20_000
_MAX_LINE_CHARS: Final = 200
_MAX_SHOWN: Final = 5
_MAX_COMPARED: Final = 400
_LIKENESS: Final = 0.5


def nearest_lines(text: str, old: str) -> str:
    """Lines of `text` that are most similar to the first nonempty line of `old`, with their numbers, as a sentence.
    Searches the first 20,000 lines."""
    lines = text.splitlines()[:_MAX_LINES]
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    if not wanted or not lines:
        return "the file is empty" if not text.strip() else "no line of it is like the old text"
    same = [number for number, line in enumerate(lines, 1) if line.strip() == wanted]
    if same:
        difference = "is there with other spaces or followed by other lines"
        return f"its first line {difference}: {_render(lines, same)}"
    like = _similar_lines(lines, wanted)
    return f"the nearest lines are: {_render(lines, like)}" if like else "no line of it is like the old text"


def _places(text: str, old: str) -> str:
    found: dict[int, None] = {}
    start = text.find(old)
    if start < 0:  # found with other line ends
        old = old.replace("\r\n", "\n").replace("\n", "\r\n")
        start = text.find(old)
    while start >= 0 and len(found) <= _MAX_SHOWN:
        found[text.count("\n", 0, start) + 1] = None
        start = text.find(old, start + len(old))
    shown = ", ".join(map(str, list(found)[:_MAX_SHOWN]))
    return f"it begins in line{'s' if len(found) > 1 else ''} {shown}{' and more' if len(found) > _MAX_SHOWN else ''}"


def _similar_lines(lines: list[str], wanted: str) -> list[int]:
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[:_MAX_LINE_CHARS])
    pieces = _pieces(wanted)
    # Comparing is slow, so only lines that share most with the wanted one are compared.
    ranked = sorted(
        ((len(pieces & _pieces(line)), number) for number, line in enumerate(lines, 1)),
        key=lambda one: (-one[0], one[1]),
    )[:_MAX_COMPARED]
    likeness: list[tuple[float, int]] = []
    for number in (number for shared, number in ranked if shared):
        matcher.set_seq1(lines[number - 1].strip()[:_MAX_LINE_CHARS])
        likeness.append((-matcher.ratio(), number))
    return [number for ratio, number in sorted(likeness)[:_MAX_SHOWN] if -ratio >= _LIKENESS]


def _pieces(line: str) -> set[str]:
    line = line.strip()[:_MAX_LINE_CHARS]
    return {line[place : place + 3] for place in range(max(1, len(line) - 2))}


def _render(lines: list[str], numbers: list[int]) -> str:
    def cut(line: str) -> str:
        return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"

    return " | ".join(f"{number}: {cut(lines[number - 1].rstrip(chr(13)))}" for number in numbers[:_MAX_SHOWN])
