"""Starts programs in namespaces of their own: a small process of one thread, as a script (see `launching.py`).

Only a process with one thread may give itself a user namespace, so the host asks this one. It has one process ready at
a time, in namespaces of its own, which has no rights of any scope yet: it has the launcher's own, as none of a
command's programs has, and nobody but the host can reach it. That process takes the next request, makes the view of
the disk, gives up its rights for those of the request, and becomes the program. The next one is made ready when the
program runs: while the model answers, that is. If the mounts of the machine have changed meanwhile it does not run and
has the host ask again.

A helper makes the namespaces, starts their first process and the one that gets ready, and ends. The first process reaps
what loses its parents and ends with the last of them, or with the host, and then the kernel ends all that is left in
there. All of them are the host's children, which is told of each before it is of use (`_announce`), and reaps them.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds names alone, and takes long to import
import _socket as socket
import errno
import gc
import marshal
import os
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from config.lean_typing import NamedTuple  # noqa: E402  found by the line above
from tool_runtime.platform import landlock, landlock_rights, linux_calls, linux_sandbox, mounts, seccomp  # noqa: E402
from tool_runtime.platform.landlock_rights import PathRule  # noqa: E402

CLONE_PARENT = 0x8000
NEW_MOUNTS, NEW_QUEUES, NEW_USERS, NEW_PROCESSES = 0x20000, 0x8000000, 0x10000000, 0x20000000
FAILED = 127
INTEGER = struct.Struct("i")
DESCRIPTORS = 5  # the reply, the three standard streams, the request
HIGHEST = 256  # this process has fewer descriptors
SETTLE_MS = 10
"""So long a program has the processor before the next one is made ready, unless that is asked for."""


class Work(NamedTuple):
    """What all processes of here have: `asked` is where requests come from, `host` a pipe that ends with it. `users`
    and `processes` are the namespaces that a program gets besides those of mounts and queues."""

    known: linux_calls.Numbers
    asked: socket.socket
    host: int
    users: bool
    processes: bool


def serve(work: Work) -> None:
    """Have a process ready until the host is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for network in ("open", "supervised", "closed"):  # built before the copies, so that each of them has it
        for has_listener in (True, False):
            seccomp.program(seccomp.Filter(linux_calls.machine(), network, has_listener))
    gc.disable()  # each process would go through all of these objects, and have a copy of them made
    gc.freeze()
    is_asked_for = False
    while True:
        was_taken = make_ready(work, is_asked_for)
        # One that ended before it was asked is not made again before somebody asks, and then says what is wrong.
        is_asked_for = not was_taken
        if wait_for((work.asked.fileno(), work.host), SETTLE_MS if was_taken else None) == work.host:
            return


def make_ready(work: Work, is_asked_for: bool) -> bool:
    """Make a process ready, and wait until it has taken a request (True) or has ended."""
    read, taken = os.pipe()
    mounted = -1
    try:
        mounted = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)  # it tells of changes since it was opened
        child = clone(work, CLONE_PARENT)
        if child == 0:
            status = FAILED
            try:
                os.close(read)
                status = helper(work, taken, mounted, is_asked_for)
            finally:
                os._exit(status)
        _announce(work, child)
    except OSError as error:  # no more processes, or no descriptors
        if is_asked_for:
            refuse(work, error)
    finally:
        os.close(taken)
        if mounted >= 0:
            os.close(mounted)
    try:
        return wait_for((read, work.host)) == read and bool(os.read(read, 1))
    finally:
        os.close(read)


def wait_for(descriptors: tuple[int, ...], timeout_ms: int | None = None) -> int | None:
    """The last of `descriptors` that has something to read or is at its end."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = dict(poll.poll(timeout_ms))
    return next((one for one in reversed(descriptors) if one in ready), None)


def receive(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request with its descriptors; None where the host has gone."""
    data, ancillary, _, _ = asked.recvmsg(1, socket.CMSG_LEN(DESCRIPTORS * INTEGER.size))
    if not data:
        return None
    given: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = content[: len(content) - len(content) % INTEGER.size]
            given += (number for (number,) in INTEGER.iter_unpack(whole))
    request = given.pop()
    content = os.pread(request, os.fstat(request).st_size, 0)
    os.close(request)
    return marshal.loads(content), given  # noqa: S302  of the host, by a socket that no other process has


def clone(work: Work, flags: int) -> int:
    """As fork; with CLONE_PARENT the child is one of this process's own parent."""
    return linux_calls.call(work.known.clone, flags | signal.SIGCHLD, 0, 0, 0, 0)


def helper(work: Work, taken: int, mounted: int, is_asked_for: bool) -> int:
    """Make the namespaces and what runs in them. What goes wrong is told to the request that waits for it, if any."""
    try:
        own_namespaces(work)
        write = first_process(work) if work.processes else -1
        # The kernel takes what is mounted for the processes of the namespace: the first one has to be there.
        own, number = os.pipe()
        child = clone(work, CLONE_PARENT)
        if child == 0:
            os.close(number)
            waiting_program(work, own, write, taken, mounted)
        _announce(work, child)
        os.write(number, INTEGER.pack(child))
    except OSError as error:
        if is_asked_for:
            refuse(work, error)
        return FAILED
    return 0


def refuse(work: Work, error: OSError) -> None:
    """Answer the request that waits with what went wrong."""
    message = receive(work.asked)
    if message is not None:
        descriptors = message[1]
        tell(socket.socket(fileno=descriptors[0]), {"errno": error.errno, "step": "namespaces"})
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def own_namespaces(work: Work) -> None:
    """Raises OSError."""
    user, group = os.getuid(), os.getgid()
    flags = NEW_MOUNTS | NEW_QUEUES | (NEW_PROCESSES if work.processes else 0)
    if work.users:
        linux_calls.call(work.known.unshare, flags | NEW_USERS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    else:
        linux_calls.call(work.known.unshare, flags)


def first_process(work: Work) -> int:
    """Start the first process of the namespace; where it is told of the program. Raises OSError."""
    read, write = os.pipe()
    child = clone(work, CLONE_PARENT)
    if child == 0:
        try:
            keep_only(read, work.host)
            wait_for_programs(read, work.host)
        finally:
            os._exit(0)
    os.close(read)
    _announce(work, child)
    return write


def wait_for_programs(read: int, host: int) -> None:
    """Wait for the program, then for all that it has left, and do not outlive the host."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what has lost its parents
    if wait_for((read, host)) == host:
        return
    program = os.read(read, 16)
    os.close(read)
    try:
        if program and wait_for((os.pidfd_open(int(program)), host)) == host:
            return
    except OSError:  # it has ended, and what it left is waited for
        pass
    try:
        while os.waitpid(-1, os.WNOHANG)[0] or wait_for((host,), 250) is None:
            pass
    except ChildProcessError:
        pass


def keep_only(*kept: int) -> None:
    """Close all descriptors but the standard streams and these: what ends with the last copy of one would not end."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, HIGHEST)


def waiting_program(work: Work, own: int, write: int, taken: int, mounted: int) -> None:
    """Wait for a request, and become its program; does not return. `own` gives this process's number as the host sees
    it, `write` takes the one that the first process sees."""
    try:
        number = os.read(own, INTEGER.size)
        rehearse(work)
        if write >= 0:
            os.write(write, b"%d" % os.getpid())
            os.close(write)
        message = receive(work.asked) if number else None
        if message is not None:
            request, descriptors = message
            os.write(taken, b"t")
            reply = socket.socket(fileno=descriptors[0])
            if has_changed(mounted):
                tell(reply, {"again": True})
            else:
                tell(reply, {"program": INTEGER.unpack(number)[0]})
                program_in_view(work, request, descriptors[1:], reply)
    finally:
        os._exit(FAILED)


def rehearse(work: Work) -> None:
    """Use what a start uses, so that it has its own copy of that memory before it is waited for. It may fail: the start
    says so."""
    try:
        linux_calls.bound_capabilities(work.known, linux_calls.kept_capabilities(changes_modes=True))
        landlock.make_ruleset([PathRule("/", landlock_rights.READ)], landlock.abi(), hold_tcp=True)
    except OSError:
        pass


def has_changed(mounted: int) -> bool:
    """True if something was mounted or unmounted since `mounted` was opened: no namespace made before shows it."""
    poll = select.poll()
    poll.register(mounted, select.POLLPRI | select.POLLERR)
    return bool(poll.poll(0))


def program_in_view(work: Work, request: dict[str, Any], streams: list[int], reply: socket.socket) -> None:
    """Become the program; returns where that fails, which is told by `reply`."""
    step = "view"
    try:
        view = request["view"]
        writes, guarded, hidden = (tuple(view[name]) for name in ("writes", "guarded", "hidden"))
        mounts.make(mounts.View(writes, guarded, hidden, work.processes), work.known)
        step = "program"
        start(request, streams, reply)
    except OSError as error:
        tell(reply, {"errno": error.errno, "step": step, "file": error.filename})


def start(request: dict[str, Any], streams: list[int], reply: socket.socket) -> None:
    """Becomes the program. Raises OSError."""
    os.setsid()
    os.chdir(request["cwd"])
    listener = linux_sandbox.restrict_this_thread(restriction_of(request))
    if listener is not None:
        hand_over(reply, listener, by_message=request["restriction"]["network"] != "open")
        os.close(listener)
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    keep_only(reply.fileno())
    os.set_inheritable(reply.fileno(), False)
    execute(request["argv"], request["env"])


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Become the program that `argv` names, found by PATH as a shell finds it. Raises OSError. (`os.execvpe` imports a
    module first, which the program may not be allowed to read.)"""
    name = argv[0]
    folders = [""] if "/" in name else [f"{folder}/" for folder in env.get("PATH", os.defpath).split(":")]
    problem: OSError | None = None
    for folder in folders:
        try:
            os.execve(folder + name, argv, env)  # noqa: S606  as Popen does; policy decides which
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = problem or error
        except OSError as error:
            if len(folders) == 1 or error.errno != errno.EACCES:
                raise
            problem = error
    if problem is not None:
        raise problem


def hand_over(reply: socket.socket, listener: int, *, by_message: bool) -> None:
    """Give the host the descriptor that asks. Where messages are asked about themselves, the host takes a copy of it,
    before this process becomes the program. Raises OSError."""
    if by_message:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, INTEGER.pack(listener))
        reply.sendmsg([marshal.dumps({})], [rights])
        return
    tell(reply, {"listener": listener})
    if not reply.recv(1):
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))


def restriction_of(request: dict[str, Any]) -> linux_sandbox.Restriction:
    """What the program is held to."""
    held = request["restriction"]
    rules = [PathRule(path, rights) for path, rights in held["rules"]]
    return linux_sandbox.Restriction(rules, held["abi"], held["network"], held["with_listener"], changes_modes=True)


def tell(reply: socket.socket, what: dict[str, Any]) -> None:
    """One message to the host, which may be gone."""
    try:  # noqa: SIM105  `contextlib` takes longer to import than all of this
        reply.send(marshal.dumps(what))
    except OSError:
        pass


def _announce(work: Work, child: int) -> None:
    try:  # noqa: SIM105  as above
        work.asked.send(INTEGER.pack(child), socket.MSG_DONTWAIT)
    except OSError:  # the host has gone
        pass


if __name__ == "__main__":
    numbers = linux_calls.numbers()
    if numbers is not None:
        channel, pipe, namespaces = sys.argv[1:]
        serve(Work(numbers, socket.socket(fileno=int(channel)), int(pipe), "u" in namespaces, "p" in namespaces))
