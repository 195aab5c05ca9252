"""Everything that can go wrong inside a tool: one enum, one exception, and the one place that reads an OSError."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.errors import ErrorCode
    from tool_runtime.tool import ToolOutput


class FaultKind(Enum):
    """What went wrong, in no family's words; `families/dialects.py` renders it."""

    UNKNOWN_TOOL = auto()
    INVALID_ARGUMENT = auto()
    NOT_FOUND = auto()
    IS_DIRECTORY = auto()
    NOT_REGULAR = auto()
    TOO_LARGE = auto()
    RESPONSE_TOO_LARGE = auto()
    OUT_OF_SCOPE = auto()
    PATH_CHANGED = auto()
    CHANGED = auto()
    EXISTS = auto()
    ACCESS_DENIED = auto()
    ADDRESS_REFUSED = auto()
    NETWORK = auto()
    SYSTEM = auto()
    TIMED_OUT = auto()
    EXIT_NONZERO = auto()
    INTERRUPTED = auto()
    RATE_LIMITED = auto()
    REFUSED = auto()


class ToolFault(Exception):
    """A tool call that failed; `str()` is one line for the model, `partial` what there was of output by then. `code` is
    the name that another service of the interface has given it, in place of the family's."""

    def __init__(
        self, kind: FaultKind, message: str, *, partial: ToolOutput | None = None, code: ErrorCode | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.partial = partial
        self.code = code


_KIND_OF_ERRNO = {
    errno.ENOENT: FaultKind.NOT_FOUND,
    errno.ENOTDIR: FaultKind.NOT_FOUND,
    errno.EISDIR: FaultKind.IS_DIRECTORY,
    errno.EACCES: FaultKind.ACCESS_DENIED,
    errno.EPERM: FaultKind.ACCESS_DENIED,
    errno.EROFS: FaultKind.ACCESS_DENIED,
    errno.ELOOP: FaultKind.PATH_CHANGED,
    errno.ENAMETOOLONG: FaultKind.INVALID_ARGUMENT,
    errno.EFBIG: FaultKind.TOO_LARGE,
    errno.ENXIO: FaultKind.NOT_REGULAR,
}


def fault_of(error: OSError, subject: str) -> ToolFault:
    """`error`, met while working on `subject` (a path, a command, an address), as a fault."""
    kind = _KIND_OF_ERRNO.get(error.errno or 0, FaultKind.SYSTEM)
    return ToolFault(kind, f"{error.strerror or type(error).__name__}: {subject}")


@contextmanager
def os_faults(subject: str) -> Iterator[None]:
    """Turns an OSError of the block into the fault that it stands for."""
    try:
        yield
    except OSError as error:
        raise fault_of(error, subject) from error
