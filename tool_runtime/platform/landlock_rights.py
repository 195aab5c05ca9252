"""The rights to files that Landlock knows, by their bits. Importing this loads nothing that calls the kernel."""

from __future__ import annotations

from config.lean_typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
REMOVE_DIR: Final = 1 << 4
REMOVE_FILE: Final = 1 << 5
MAKE_CHAR: Final = 1 << 6
MAKE_DIR: Final = 1 << 7
MAKE_REG: Final = 1 << 8
MAKE_SOCK: Final = 1 << 9
MAKE_FIFO: Final = 1 << 10
MAKE_BLOCK: Final = 1 << 11
MAKE_SYM: Final = 1 << 12
REFER: Final = 1 << 13
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15

READ: Final = EXECUTE | READ_FILE | READ_DIR
WRITE: Final = (
    WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM | REFER | TRUNCATE
)


class PathRule(NamedTuple):
    """`path` is absolute and no link; `rights` hold for it and for all below it."""

    path: str
    rights: int
