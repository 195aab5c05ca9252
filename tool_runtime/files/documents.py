"""Notebooks as cells (TR 4.1): source, outputs as text, pictures; and the text of PDFs by page, if the extra `pdf` is
installed, which blocks. The file is untrusted: every part of it may be missing, of another type, or huge."""

from __future__ import annotations

import binascii
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from base64 import b64decode
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.display_text import count_noun
from config import json_text
from tool_runtime.files import open_file
from tool_runtime.files.images import check_image
from tool_runtime.files.read import LineWindow, refuse_size
from tool_runtime.output.terminal import reduce
from tool_runtime.platform import current
from tool_runtime.tool import os_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

    from tool_runtime.files.images import ImageFile
    from tool_runtime.files.read import ReadParams
    from tool_runtime.tool import Abandoned

MAX_BYTES: Final = 32 * 1024 * 1024  # a larger notebook is shown as text: it has to be in memory as a whole
MAX_PICTURES: Final = 8
_MAX_PICTURES_BYTES: Final = 8 * 1024 * 1024
_PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXTS: Final = ("text/markdown", "text/plain", "text/latex")


class NotANotebook(Exception):
    """It cannot be shown as cells; the message is the reason."""


class Notebook(NamedTuple):
    """A notebook as it is shown. `pictures` are those that a model may get, each with the line that stands for it in
    the text."""

    text: str
    pictures: tuple[tuple[str, ImageFile], ...]


def render(data: bytes) -> Notebook:
    """The notebook in `data`. Raises NotANotebook."""
    try:
        value = json_text.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise NotANotebook(f"it is not JSON: {error}") from error
    cells = value.get("cells") if isinstance(value, dict) else None
    if not isinstance(cells, list):
        raise NotANotebook("it has no list of cells, as notebooks since format 4 have")
    writer = _CellWriter()
    for number, cell in enumerate(cells, 1):
        writer.cell(number, cell if isinstance(cell, dict) else {})
    count = count_noun(len(cells), "cell")
    head = f"[Notebook, {_language(value)}{count}; raw: true shows the file's own text]\n"
    return Notebook(head + "".join(writer.parts), tuple(writer.pictures))


class _CellWriter:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.pictures: list[tuple[str, ImageFile]] = []
        self._numbers = 0
        self._bytes = 0

    def cell(self, number: int, cell: Mapping[str, Any]) -> None:
        kind, run = _word(cell.get("cell_type")), cell.get("execution_count")
        ran = f" [{run}]" if isinstance(run, int) else ""
        self._add(f"--- cell {number}: {kind}{ran} ---", _text(cell.get("source")))
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                self._add(f"--- output of cell {number} ---", "\n".join(self._output(output)))

    def _add(self, head: str, text: str) -> None:
        end = "" if not text or text.endswith("\n") else "\n"
        self.parts.append(f"{head}\n{text}{end}")

    def _output(self, output: Mapping[str, Any]) -> Iterator[str]:
        kind = output.get("output_type")
        if kind == "stream":
            yield _clean_output(_text(output.get("text")))
        elif kind == "error":
            traceback = output.get("traceback")
            lines = [line for line in traceback if isinstance(line, str)] if isinstance(traceback, list) else []
            text = _clean_output("\n".join(lines))
            name, why = _clean_output(_text(output.get("ename"))), _clean_output(_text(output.get("evalue")))
            error = f"{name}: {why}" if why else name
            # A traceback may be cut, or lack the error's message.
            yield text if error in text else f"{text}\n{error}".lstrip("\n")
        else:
            data = output.get("data")
            yield from self._data(data if isinstance(data, dict) else {})

    def _data(self, data: Mapping[str, Any]) -> Iterator[str]:
        text = next((_text(data[kind]) for kind in _TEXTS if kind in data), None)
        if text:
            yield _clean_output(text)
        for kind in data:
            if kind in _PICTURES:
                yield self._picture(kind, _text(data[kind]))
            elif kind not in _TEXTS and (text is None or kind.startswith("image/")):
                size = len(_text(data[kind]))
                yield f"[{_word(kind)}, {size} characters, not shown; raw: true shows the file's text]"

    def _picture(self, kind: str, encoded: str) -> str:
        self._numbers += 1
        try:
            data = b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            return f"[picture {self._numbers}: {kind}, not shown: it is not base64]"
        found = check_image(data)
        if found is None:
            return f"[picture {self._numbers}: {kind}, {len(data)} bytes, not shown: it does not begin like a picture]"
        header = found.header
        line = f"[picture {self._numbers}: {header.media_type}, {header.width}x{header.height}, {len(data)} bytes"
        problem = found.problem
        if not problem and len(self.pictures) == MAX_PICTURES:
            problem = f"{MAX_PICTURES} pictures of a notebook are shown at a time"
        elif not problem and self._bytes + len(data) > _MAX_PICTURES_BYTES:
            problem = "the pictures before it are large"
        if problem:
            return f"{line}, not shown: {problem}]"
        self._bytes += len(data)
        self.pictures.append((f"{line}]", found))
        return f"{line}]"


def _text(value: object) -> str:
    """A text, which a notebook may have as a list of lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""


def _word(value: object) -> str:
    return value[:40] if isinstance(value, str) and value.isprintable() and value else "?"


def _clean_output(text: str) -> str:
    return reduce(text.encode("utf-8", "replace")).decode("utf-8", "replace").rstrip("\n")


def _language(value: Mapping[str, Any]) -> str:
    metadata = value.get("metadata")
    info = metadata.get("language_info") if isinstance(metadata, dict) else None
    name = info.get("name") if isinstance(info, dict) else None
    return "" if name is None else f"{_word(name)}, "


# A PDF is read by a process of its own, with bounds on its memory and its time: one of some kilobytes can stand for
# gigabytes, or never come to an end.

HOW_TO_INSTALL: Final = "its text is shown if the extra is installed: pip install 'agent-host[pdf]'"
_SCRIPT: Final = os.path.join(os.path.dirname(__file__), "pdf_pages.py")
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_MAX_MESSAGE: Final = 300
_ENDING_S: Final = 1.0


class PdfLimits(NamedTuple):
    """Limits on the process that reads a PDF, in bytes and seconds."""

    memory_bytes: int = 768 * 1024 * 1024
    time_s: float = 20.0
    text_bytes: int = 64 * 1024 * 1024


PDF_LIMITS: Final = PdfLimits()


class PdfOutcome(NamedTuple):
    """`text` is the shown text, within its limit. `problem` is the reason why not all of it was read."""

    text: str
    size_bytes: int
    past_end: bool
    problem: str | None


def find_extra() -> str | None:
    """The extra's location, None if it is not installed. The host excludes workspaces from its search path."""
    found = importlib.util.find_spec("pypdf")
    return None if found is None or found.origin is None else os.path.dirname(os.path.dirname(found.origin))


def read_pdf(params: ReadParams, place: str, abandoned: Abandoned, limits: PdfLimits = PDF_LIMITS) -> PdfOutcome:
    """The text of the file, or a window of its lines. `place` is what `installed` gave. Raises ToolFault."""
    with os_faults(params.path):
        _, fd, status = open_file(params.path, params.scope)
        with open(fd, "rb", buffering=0) as file:
            refuse_size(status.st_size, params.max_file_size_bytes, params.path)
            window = LineWindow(params.offset, params.limit, params.max_output_bytes)
            reading = _PdfReading(file, place, limits)
            try:
                for page in reading.pages():
                    abandoned.refuse()
                    window.add(page)
                    if window.done:
                        break
            finally:
                reading.close()
            problem = None if window.done else reading.problem
            return PdfOutcome(window.text(), status.st_size, window.past_end, problem)


class _PdfReading:
    def __init__(self, file: IO[bytes], place: str, limits: PdfLimits) -> None:
        self.problem: str | None = None
        self._limits = limits
        self._late = False
        argv = [sys.executable, "-I", "-S", _SCRIPT, place]
        self._process, self._end = current.start_limited(
            argv, memory_bytes=limits.memory_bytes, cpu_s=limits.time_s, stdin=file, cwd=os.path.dirname(_SCRIPT)
        )
        self._timer = threading.Timer(limits.time_s, self._end_late)
        self._timer.daemon = True
        self._timer.start()

    def pages(self) -> Iterator[str]:
        """Each page's text after a line with its number. Afterwards `problem` describes unread parts."""
        output = self._process.stdout
        size = at = count = 0
        while output is not None and (line := output.readline(_MAX_LINE_BYTES)):
            size += len(line)
            record = _parse(line)
            if record is None or size > self._limits.text_bytes:
                self.problem = "it has more text than is read"
                return
            if "problem" in record:
                self.problem = str(record["problem"])[:_MAX_MESSAGE]
                return
            at, count, text = record["page"], record["of"], record["text"]
            shown = text.encode("utf-8", "replace").decode().strip("\n") or "[no text on this page]"
            yield f"--- page {at} of {count} ---\n{shown}\n"
        if at < count or at == 0:
            late = f"reading it took more than {self._limits.time_s:g} seconds"
            self.problem = f"{late if self._is_late() else 'its reader ended'} at page {at + 1}"

    def close(self) -> None:
        self._timer.cancel()
        self._end()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()

    def _is_late(self) -> bool:
        """True if it was ended for its time, by the timer or by the system for the time of its processor."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        return self._late or self._process.returncode == -getattr(signal, "SIGXCPU", 0) != 0

    def _end_late(self) -> None:
        self._late = True
        self._end()


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line of the program; None for one that is cut or is not of its making."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    kinds = {"page": int, "of": int, "text": str}
    is_page = all(isinstance(record.get(name), kind) for name, kind in kinds.items())
    return record if is_page or "problem" in record else None
