"""Start programs in namespaces of their own. This script is a small single-threaded process (see `launching.py`).

Only a single-threaded process may create a user namespace, so the host uses this one. It keeps one process ready, in
namespaces of its own. If the last two programs had the same sandbox, the ready process has it already: their view of
the disk, and no rights but theirs. The ready process takes the next request and becomes its program. The following one
is prepared while that program runs, which is usually while the model answers. The ready process runs a request only if
the rules made now would give the same sandbox: each of their paths is the same file as before (`mounts.SeenPlaces`),
with the same mounts. Otherwise it exits without having run anything, and the host asks again, for a process that is not
sandboxed yet (decision 0099).

A helper makes the namespaces, starts their first process (init) and the ready process, and exits. The first process
reaps orphans and exits with the last process, or with the host; the kernel then kills everything left in the namespace.
All of them are children of the host, which learns of each before it is used (`_announce`) and reaps it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # `signal` adds only names and is slow to import
import _socket as socket
import errno
import gc
import marshal
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from config.lean_typing import NamedTuple  # noqa: E402  found by the line above
from tool_runtime.platform import landlock, linux_calls, linux_sandbox, mounts, seccomp  # noqa: E402
from tool_runtime.platform.landlock import PathRule  # noqa: E402

CLONE_PARENT = 0x8000
NEW_MOUNTS, NEW_QUEUES, NEW_USERS, NEW_PROCESSES = 0x20000, 0x8000000, 0x10000000, 0x20000000
FAILED = 127
TAKEN, OUTDATED, AGAIN = b"t", b"o", b"a"
"""Reports of a ready process: it becomes the program; the mounts changed; the host must repeat the request."""
INTEGER = struct.Struct("i")
DESCRIPTORS = 5  # the reply, the three standard streams, the request
HIGHEST = 256  # more than the descriptors of this process
SETTLE_MS = 3
"""Time that a program runs before the next process is prepared, unless a request arrives first."""


class Work(NamedTuple):
    """Descriptors and namespaces of all processes here: requests arrive by `asked`; `host` is a pipe that closes with
    the host. `users` and `processes` are the namespaces that a program gets in addition to mounts and queues."""

    known: linux_calls.Numbers
    asked: socket.socket
    host: int
    users: bool
    processes: bool


class ProgramSandbox(NamedTuple):
    """The sandbox of a program: its view of the disk and the fields of its `Restriction`."""

    view: tuple[Any, ...]
    restriction: tuple[Any, ...]

    def make_view(self, known: linux_calls.Numbers) -> dict[str, tuple[int, int]]:
        """Give this process its view of the disk and return the identities of the mounted files. Raises OSError."""
        return mounts.make(mounts.DiskView(*self.view), known)


class Ready(NamedTuple):
    """The descriptors and sandbox of a process being prepared: it reports its outcome to `taken`, and `mounted` signals
    changed mounts. `sandbox` is its sandbox, with the paths in `seen`; None for no sandbox yet."""

    taken: int
    mounted: int
    sandbox: ProgramSandbox | None
    seen: mounts.SeenPlaces | None


def serve(work: Work) -> None:
    """Keep a process ready until the host has exited."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for network in ("open", "supervised", "closed"):  # built before the forks, so that each child has it
        for has_listener in (True, False):
            seccomp.program(seccomp.Filter(linux_calls.machine(), network, has_listener))
    gc.disable()  # a collection in a child would touch, and so copy, all of these objects
    gc.freeze()
    is_asked_for = False
    sandbox = before = None
    while True:
        # A ready process with the wrong sandbox costs more than one without a sandbox.
        taken_before, before = before, sandbox
        end, sandbox = make_ready(work, is_asked_for, sandbox if sandbox == taken_before else None)
        # One that exited before a request is not replaced until a request arrives, which then gets the error.
        is_asked_for = not end
        if wait_for((work.asked.fileno(), work.host), SETTLE_MS if end else None) == work.host:
            return


def make_ready(work: Work, is_asked_for: bool, sandbox: ProgramSandbox | None) -> tuple[bytes, ProgramSandbox | None]:
    """Prepare a process, in `sandbox` if given, and wait until it takes a request or exits. Return its report (empty
    if it was killed) and the sandbox that the next one may have."""
    read, taken = os.pipe()
    mounted = -1
    try:
        mounted = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)  # signals changes since it was opened
        seen = None if sandbox is None else look_if_settled(sandbox)
        if clone(work, CLONE_PARENT) == 0:
            status = FAILED
            try:
                _announce(work, os.getpid())
                os.close(read)
                status = helper(work, Ready(taken, mounted, sandbox if seen else None, seen), is_asked_for)
            finally:
                os._exit(status)
    except OSError as error:  # out of processes or descriptors
        if is_asked_for:
            refuse(work, error)
    finally:
        os.close(taken)
        if mounted >= 0:
            os.close(mounted)
    try:
        end = os.read(read, 1) if wait_for((read, work.host)) == read else b""
        if end == OUTDATED:
            return end, sandbox
        return end, ProgramSandbox(*marshal.loads(all_of(read))) if end == TAKEN else None  # noqa: S302  as in `receive`
    finally:
        os.close(read)


def look_if_settled(sandbox: ProgramSandbox) -> mounts.SeenPlaces | None:
    """Return the current identities of the paths; None if a later change of one might be missed."""
    now = time.time_ns()
    seen = mounts.look_at(mounts.DiskView(*sandbox.view), (path for path, _ in sandbox.restriction[0]))
    return seen if all(mounts.is_settled(one[2], now) for one in seen.others if one) else None


def all_of(read: int) -> bytes:
    """Read a message from a pipe: four bytes of length, then the content. Raises OSError if it is cut off."""
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + INTEGER.unpack_from(data)[0]:
        piece = os.read(read, 65536)
        if not piece:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        data += piece
    return bytes(data[4:])


def wait_for(descriptors: tuple[int, ...], timeout_ms: int | None = None) -> int | None:
    """Return the last of `descriptors` that is readable or closed; None after a timeout."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = dict(poll.poll(timeout_ms))
    return next((one for one in reversed(descriptors) if one in ready), None)


def receive(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request with its descriptors; None if the host has exited."""
    data, ancillary, _, _ = asked.recvmsg(1, socket.CMSG_LEN(DESCRIPTORS * INTEGER.size))
    if not data:
        return None
    given: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            complete = content[: len(content) - len(content) % INTEGER.size]
            given += (number for (number,) in INTEGER.iter_unpack(complete))
    request = given.pop()
    content = os.pread(request, os.fstat(request).st_size, 0)
    os.close(request)
    return marshal.loads(content), given  # noqa: S302 from the host, by a socket that no other process has


def clone(work: Work, flags: int) -> int:
    """Fork; with CLONE_PARENT the child becomes a child of this process's parent."""
    return linux_calls.call(work.known.clone, flags | signal.SIGCHLD, 0, 0, 0, 0)


def helper(work: Work, ready: Ready, is_asked_for: bool) -> int:
    """Make the namespaces and their processes. An error is the reply to the waiting request, if there is one."""
    try:
        own_namespaces(work)
        write = first_process(work) if work.processes else -1
        # A mounted /proc shows the namespace's processes, so the first one must exist.
        own, number = os.pipe()
        child = clone(work, CLONE_PARENT)
        if child == 0:
            os.close(number)
            waiting_program(work, own, write, ready)
        _announce(work, child)
        os.write(number, INTEGER.pack(child))
    except OSError as error:
        if is_asked_for:
            refuse(work, error)
        return FAILED
    return 0


def refuse(work: Work, error: OSError) -> None:
    """Answer the waiting request with the error."""
    message = receive(work.asked)
    if message is not None:
        descriptors = message[1]
        send(socket.socket(fileno=descriptors[0]), {"errno": error.errno, "step": "namespaces"})
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def own_namespaces(work: Work) -> None:
    """Unshare the namespaces, and map only this user and group. Raises OSError."""
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
    """Start the first process of the namespace; return the pipe that tells it the program's process ID. Raises
    OSError."""
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
    """Wait for the program, then for its remaining children; return early if the host exits."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    if wait_for((read, host)) == host:
        return
    program = os.read(read, 16)
    os.close(read)
    try:
        if program and wait_for((os.pidfd_open(int(program)), host)) == host:
            return
    except OSError:  # it has ended; wait for its remaining children
        pass
    try:
        while os.waitpid(-1, os.WNOHANG)[0] or wait_for((host,), 250) is None:
            pass
    except ChildProcessError:
        pass


def keep_only(*kept: int) -> None:
    """Close all descriptors but the standard streams and these, because a leaked copy of a pipe keeps it open."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, HIGHEST)


def waiting_program(work: Work, own: int, write: int, ready: Ready) -> None:
    """Become the program of a request; does not return. This process's host PID is read from `own`; its PID in the
    namespace is written to `write`."""
    try:
        number = os.read(own, INTEGER.size)
        if write >= 0:
            os.write(write, b"%d" % os.getpid())
            os.close(write)
        rehearse(work)
        listener = None
        if ready.sandbox is not None and ready.seen is not None:
            if ready.sandbox.make_view(work.known) != ready.seen.trees:
                return
            listener, granted = restrict(ready.sandbox)
            if granted != ready.seen.granted:
                return
            content = marshal.dumps((tuple(ready.sandbox), tuple(ready.seen)))  # compared with a request as read
            if marshal.loads(content) != (ready.sandbox, ready.seen):  # noqa: S302  its own
                return
        poll = select.poll()
        poll.register(work.asked.fileno(), select.POLLIN)
        poll.register(ready.mounted, select.POLLPRI | select.POLLERR)
        if number and all(descriptor == ready.mounted for descriptor, _ in poll.poll()):
            os.write(ready.taken, OUTDATED)
            return
        message = receive(work.asked) if number else None
        if message is not None:
            take(work, INTEGER.unpack(number)[0], ready, listener, message)
    finally:
        os._exit(FAILED)


def take(
    work: Work, number: int, ready: Ready, listener: int | None, message: tuple[dict[str, Any], list[int]]
) -> None:
    """Become the program of a request, unless that needs another sandbox. `listener` is that of this process's
    filter."""
    request, (answer, *streams) = message
    reply = socket.socket(fileno=answer)
    sandbox = ProgramSandbox(*request["held"])
    is_sandboxed = ready.sandbox is not None
    if has_changed(ready.mounted) or (is_sandboxed and (sandbox, request["seen"]) != (ready.sandbox, ready.seen)):
        os.write(ready.taken, AGAIN)
        send(reply, {"again": True})
        return
    send(reply, {"program": number})
    step = "view"
    try:
        if not is_sandboxed:
            sandbox.make_view(work.known)
        step = "program"
        if not is_sandboxed:
            listener, _ = restrict(sandbox)
        start(request, streams, reply, listener, ready.taken)
    except OSError as error:
        send(reply, {"errno": error.errno, "step": step, "file": error.filename})


def restrict(sandbox: ProgramSandbox) -> tuple[int | None, dict[str, tuple[int, int]]]:
    """Give up this process's rights; return the filter's listener and the identities of the granted shared files.
    Raises OSError."""
    rules, abi, network, with_listener = sandbox.restriction
    places = [PathRule(*rule) for rule in rules]
    # This process sees nothing outside its view that it could change.
    restriction = linux_sandbox.Restriction(places, abi, network, with_listener, changes_modes=True)
    ruleset = linux_sandbox.ruleset_of(restriction)
    listener = linux_sandbox.restrict_this_thread(restriction._replace(ruleset=ruleset), is_bounded=True)
    shared = mounts.find_shared(mounts.DiskView(*sandbox.view), ruleset.granted)
    return listener, {place: ruleset.granted[place] for place in shared}


def rehearse(work: Work) -> None:
    """Drop the capabilities that no program gets, and run the code that a start runs, so that its memory pages are
    copied in advance."""
    linux_calls.bound_capabilities(work.known, linux_calls.capabilities_to_keep(changes_modes=True))
    one = PathRule("/", landlock.READ)
    try:  # noqa: SIM105  as in `send`
        os.close(linux_sandbox.make_ruleset([one], linux_sandbox.abi(), restrict_tcp=True).descriptor)
    except OSError:  # the start reports it
        pass


def has_changed(mounted: int) -> bool:
    """True if something was mounted or unmounted since `mounted` was opened: namespaces made before do not show it."""
    poll = select.poll()
    poll.register(mounted, select.POLLPRI | select.POLLERR)
    return bool(poll.poll(0))


def start(request: dict[str, Any], streams: list[int], reply: socket.socket, listener: int | None, taken: int) -> None:
    """Become the program. Raises OSError."""
    sandbox = ProgramSandbox(*request["held"])
    os.setsid()
    os.chdir(request["cwd"])
    if listener is not None:
        hand_over(reply, listener, by_message=sandbox.restriction[2] != "open")
        os.close(listener)
    content = marshal.dumps(tuple(sandbox))
    try:  # noqa: SIM105  as in `send`
        os.write(
            taken, TAKEN + INTEGER.pack(len(content)) + content
        )  # not earlier, because the launcher would compete for the processor
    except BrokenPipeError:  # the launcher has died; the program runs anyway
        pass
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    keep_only(reply.fileno())
    os.set_inheritable(reply.fileno(), False)
    execute(request["argv"], request["env"])


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Become the program that `argv` names, looked up in PATH like a shell does. Raises OSError. (`os.execvpe` first
    imports a module, which the sandbox may not allow to read.)"""
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
    """Give the host the listener: by a message, or by its number, for the host to copy, if the filter also stops
    messages. Raises OSError."""
    if by_message:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, INTEGER.pack(listener))
        reply.sendmsg([marshal.dumps({})], [rights])
        return
    send(reply, {"listener": listener})
    if not reply.recv(1):
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))


def send(reply: socket.socket, what: dict[str, Any]) -> None:
    """Send one message to the host, which may have exited."""
    try:  # noqa: SIM105  `contextlib` takes longer to import than all of this
        reply.send(marshal.dumps(what))
    except OSError:
        pass


def _announce(work: Work, child: int) -> None:
    try:  # noqa: SIM105  as above
        work.asked.send(INTEGER.pack(child), socket.MSG_DONTWAIT)
    except OSError:  # the host has exited
        pass


if __name__ == "__main__":
    numbers = linux_calls.numbers()
    if numbers is not None:
        channel, pipe, namespaces = sys.argv[1:]
        serve(Work(numbers, socket.socket(fileno=int(channel)), int(pipe), "u" in namespaces, "p" in namespaces))
