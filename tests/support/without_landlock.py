"""The host as on a kernel without Landlock: `python -m tests.support.without_landlock ARGUMENTS` is `agent-host
ARGUMENTS` with a filter that says so."""

from __future__ import annotations

import errno
import struct
import sys

from agent_host.cli.main import main
from tool_runtime.platform import linux_calls, seccomp

_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def without_landlock() -> None:
    """From here on this process and its children have no Landlock."""
    known = linux_calls.numbers()
    assert known is not None
    linux_calls.forbid_new_privileges(known)
    code = (
        (_LOAD_NUMBER, 0, 0, 0),
        (_IF_EQUAL, 0, 1, linux_calls.LANDLOCK_CREATE_RULESET),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    seccomp.install(b"".join(struct.pack("=HBBI", *one) for one in code), with_listener=False)


if __name__ == "__main__":
    without_landlock()
    sys.exit(main(sys.argv[1:]))
