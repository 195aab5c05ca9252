"""The text of a PDF by page (TR 4.1), where the extra `pdf` is installed. Blocking: callers run it in a thread.

A process of its own reads the file, with bounds on its memory and its time: a PDF of some kilobytes can stand for
gigabytes, or never come to an end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tool_runtime.files.lines import LineWindow
from tool_runtime.files.paths import open_file
from tool_runtime.files.read import refuse_size
from tool_runtime.platform import current
from tool_runtime.tool import os_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from tool_runtime.files.lines import WantedLines
    from tool_runtime.files.read import ReadParams
    from tool_runtime.tool import Abandoned

HOW_TO_INSTALL: Final = "its text is shown where the extra is installed: pip install 'agent-host[pdf]'"
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
    """`text` is what is shown, within its limit. `problem` says why not all of it was read."""

    text: str
    size_bytes: int
    past_end: bool
    problem: str | None


def find_extra() -> str | None:
    """The place where the extra is installed, None if it is not. The host keeps workspaces off its search path."""
    found = importlib.util.find_spec("pypdf")
    return None if found is None or found.origin is None else os.path.dirname(os.path.dirname(found.origin))


def read_pdf(
    params: ReadParams, wanted: WantedLines, place: str, abandoned: Abandoned, limits: PdfLimits = PDF_LIMITS
) -> PdfOutcome:
    """The text of the file, or a window of its lines. `place` is what `installed` gave. Raises ToolFault."""
    with os_faults(params.path):
        _, fd, status = open_file(params.path, params.scope)
        with open(fd, "rb", buffering=0) as file:
            refuse_size(status.st_size, params.max_file_size_bytes, params.path)
            window = LineWindow(wanted, params.max_output_bytes)
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
    """One run of the program, which `close` ends."""

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
        """Each page's text behind a line that names it. Afterwards `problem` says what was not read."""
        output = self._process.stdout
        size = at = count = 0
        while output is not None and (line := output.readline(_MAX_LINE_BYTES)):
            size += len(line)
            said = _parse(line)
            if said is None or size > self._limits.text_bytes:
                self.problem = "it has more text than is read"
                return
            if "problem" in said:
                self.problem = str(said["problem"])[:_MAX_MESSAGE]
                return
            at, count, text = said["page"], said["of"], said["text"]
            shown = text.encode("utf-8", "replace").decode().strip("\n") or "[no text on this page]"
            yield f"--- page {at} of {count} ---\n{shown}\n"
        if at < count or at == 0:
            what = (
                f"reading it took more than {self._limits.time_s:g} seconds" if self._is_late() else "its reader ended"
            )
            self.problem = f"{what} at page {at + 1}"

    def close(self) -> None:
        """End it, whatever it does."""
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
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    is_page = (
        isinstance(said.get("page"), int) and isinstance(said.get("of"), int) and isinstance(said.get("text"), str)
    )
    return said if is_page or "problem" in said else None
