"""The command line; this module has the standard streams of its process.

A failing stream never stops a task: output that the stream refuses is lost, and nothing else happens.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # see cli/main.py
if TYPE_CHECKING:
    from typing import TextIO

    from _typeshed import ReadableBuffer


GITHUB, GITLAB = "GITHUB_ACTIONS", "GITLAB_CI"
RUNNERS = (GITHUB, "TF_BUILD", "TEAMCITY_VERSION", GITLAB)
"""Variables of CI runners that execute commands in a program's output."""


def is_for_a_runner() -> bool:
    """True if the output goes into the log of such a CI runner."""
    return any(map(os.environ.get, RUNNERS))


class _PatientFile(io.FileIO):
    """A descriptor whose writes wait when they would block. Another program with the same pipe or terminal may have
    made it non-blocking; that flag is shared by all its users, so it must not be reset here."""

    def write(self, data: ReadableBuffer) -> int:
        while True:
            try:
                return os.write(self.fileno(), data)
            except BlockingIOError:
                import select  # rarely needed

                select.select((), (self,), ())


def patient_stream(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard output or error that writes everything: it waits for a slow reader, and replaces characters that its
    encoding lacks. Do not write to `stream` afterwards."""
    errors = "replace" if stream.errors in ("strict", "surrogateescape") else stream.errors
    if sys.platform == "win32":  # there a pipe always blocks, and a console is not a descriptor
        stream.reconfigure(errors=errors)
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_PatientFile(stream.fileno(), "w", closefd=False)),
        stream.encoding,
        errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def put(stream: TextIO, data: str | bytes) -> Exception | None:
    """Write `data` and flush. Returns the reason if the stream refused it, else None. After a refusal the stream
    discards everything."""
    try:
        if isinstance(data, bytes):
            stream.buffer.write(data)
        else:
            stream.write(data)
        stream.flush()
    except (OSError, ValueError) as error:
        _discard(stream)
        return error
    return None


def notice(line: str) -> None:
    """One line on stderr; characters that would steer a terminal are shown as their escapes."""
    text = " ".join(line.split())
    if not text.isprintable():
        from agent_host.display_text import escape  # rarely needed

        text = escape(text, keep="")
    put(sys.stderr, f"agent-host: {text}\n")


def answer(data: str | bytes) -> None:
    """Print the answer of a command on stdout. Raises OutputRefused."""
    refused = put(sys.stdout, data)
    if refused is not None:
        from agent_host.errors import OutputRefused  # `--version` does not need it

        raise OutputRefused(f"the answer could not be written to stdout: {reason_of(refused)}") from refused


def flush(stream: TextIO) -> Exception | None:
    """Write buffered output, as `put` does: the interpreter's own flush at exit would print an error and change the
    exit code."""
    return put(stream, "")


def reason_of(error: Exception) -> str:
    """Describe the reason for a stream's refusal."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _discard(stream: TextIO) -> None:
    """Discard what is still in the stream's buffer, because every flush would fail again."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # it has no descriptor
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != fd:
        os.dup2(nowhere, fd)
        os.close(nowhere)


def protocol_streams() -> tuple[int, int]:
    """Descriptors of the protocol. Anything else printed to standard output goes to standard error instead."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return read_fd, write_fd
