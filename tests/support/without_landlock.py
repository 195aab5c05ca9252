"""The host as on a kernel without Landlock: `python -m tests.support.without_landlock ARGUMENTS` is `agent-host
ARGUMENTS` with a filter that says so. With `ANSWER=CALL:ERRNO` in the environment another call has another answer."""

from __future__ import annotations

import errno
import os
import struct
import sys

from agent_host.cli.main import main
from tool_runtime.platform import linux_calls, seccomp

_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def answer_to(call: str, name: str) -> None:
    """From here on the kernel answers this process and its children with the errno `name` to a system call."""
    known = linux_calls.numbers()
    assert known is not None
    number = {
        "landlock_create_ruleset": linux_calls.LANDLOCK_CREATE_RULESET,
        "landlock_restrict_self": linux_calls.LANDLOCK_RESTRICT_SELF,
        "seccomp": known.seccomp,
        "unshare": known.unshare,
        "mount": known.mount,
    }[call]
    linux_calls.forbid_new_privileges(known)
    code = (
        (_LOAD_NUMBER, 0, 0, 0),
        (_IF_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERROR | getattr(errno, name)),
        (_RETURN, 0, 0, _ALLOW),
    )
    seccomp.install(b"".join(struct.pack("=HBBI", *one) for one in code), with_listener=False)


if __name__ == "__main__":
    answer_to(*os.environ.pop("ANSWER", "landlock_create_ruleset:ENOSYS").split(":"))
    sys.exit(main(sys.argv[1:]))
