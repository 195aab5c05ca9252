"""Holding a thread, and all that it starts, to what a scope allows (Linux).

Privileges, capabilities, Landlock and filters of system calls belong to a thread. One that restricts itself and then
starts a program has a child that is held, while the rest of its process stays free: no program in between, and no code
between fork and exec. Such a thread has to end afterwards: nothing gives its rights back.
"""

from __future__ import annotations

import os

from config.lean_typing import NamedTuple
from tool_runtime.platform import landlock, linux_calls, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

    from tool_runtime.platform.landlock_rules import PathRule
    from tool_runtime.platform.seccomp import Network

NOT_BY_ANY: Final = (
    "locks on files that may be read",
    "how much memory, processor time and disk space is used",
    "datagrams, where any host is open, of a program that exchanges its sockets while it is asked about one",
)
"""Gaps of every level, in words for people."""
_OF_PROCESSES: Final = (
    "names, arguments and numbers of open files of other processes",
    "priorities and processors of other processes of the user",
)
NOT_BY_LANDLOCK: Final = (
    "mode, owner, times and attributes of files outside of the writable places",
    "names, sizes, attributes and link targets of hidden files, and when they change",
    "what lies in /dev/shm, and shared memory, semaphores and queues of System V and POSIX",
    "devices that have a place outside of /dev",
    *_OF_PROCESSES,
)
"""Gaps of every version of Landlock, in words for people."""
_BELOW_6: Final = ("signals to other processes", "sockets with abstract names")
_WITHOUT_SUPERVISOR: Final = ("to which addresses connections are made, where any host is open",)


class Restriction(NamedTuple):
    """Restrictions of a thread. `abi` is the version of Landlock that is used, 0 for none of it. `changes_modes`: as
    root it may change mode and times of files of others, since it sees none outside that could be changed. `ruleset` is
    one of `rules` that has been made before (`kept_rules`), and is there until the next command starts."""

    rules: Sequence[PathRule]
    abi: int
    network: Network
    with_listener: bool
    changes_modes: bool = False
    ruleset: landlock.Ruleset | None = None


def restrict_this_thread(wanted: Restriction, *, is_bounded: bool = False) -> int | None:
    """Hold the calling thread for good; the descriptor that asks about connections, where one is wanted. Raises
    OSError, and then the thread may be held in part, so that nothing is to be started by it. `is_bounded`: its programs
    get no more capabilities as it is."""
    known = linux_calls.numbers()
    if known is None:
        raise linux_calls.unknown_machine()
    linux_calls.drop_capabilities(known, changes_modes=wanted.changes_modes, is_bounded=is_bounded)
    linux_calls.forbid_new_privileges(known)
    if wanted.abi:
        hold_files(wanted)
    return seccomp.install(filter_of(wanted), with_listener=wanted.with_listener)


def filter_of(wanted: Restriction) -> bytes:
    """The filter of system calls, built once in a process for each kind."""
    return seccomp.program(seccomp.Filter(linux_calls.machine(), wanted.network, wanted.with_listener))


def hold_files(wanted: Restriction) -> None:
    """Hold this thread by Landlock alone, so that it opens only what the programs may open. Raises OSError."""
    known = linux_calls.numbers()
    if known is None:
        raise linux_calls.unknown_machine()
    linux_calls.forbid_new_privileges(known)
    if wanted.ruleset is not None:
        landlock.restrict_self(wanted.ruleset)
        return
    ruleset = ruleset_of(wanted)
    try:
        landlock.restrict_self(ruleset)
    finally:
        os.close(ruleset.descriptor)


def ruleset_of(wanted: Restriction) -> landlock.Ruleset:
    """A new ruleset, as the disk is now. Raises OSError."""
    # Whoever is asked connects and binds in the program's place: the program itself has no need to.
    hold_tcp = wanted.with_listener or wanted.network != "open"
    return landlock.make_ruleset(wanted.rules, wanted.abi, hold_tcp=hold_tcp)


def not_held(abi: int, *, is_supervised: bool) -> tuple[str, ...]:
    """Describe what a version of Landlock cannot enforce, for people."""
    below_6 = _BELOW_6 if abi < landlock.WHOLE_ABI else ()
    return (*NOT_BY_ANY, *NOT_BY_LANDLOCK, *below_6, *_limits_without_supervisor(is_supervised))


def not_held_by_namespaces(*, processes: bool, is_supervised: bool) -> tuple[str, ...]:
    """Describe what namespaces cannot enforce; `processes`: there is one of processes among them."""
    others = () if processes else _OF_PROCESSES
    return (
        *NOT_BY_ANY,
        "devices that have a place outside of /dev",
        *others,
        *_limits_without_supervisor(is_supervised),
    )


def _limits_without_supervisor(is_supervised: bool) -> tuple[str, ...]:
    return () if is_supervised else _WITHOUT_SUPERVISOR
