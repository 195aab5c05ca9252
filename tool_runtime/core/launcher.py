"""Starts programs in namespaces of their own: a small process of one thread, as a script (see `launching.py`).

Only a process with one thread may give itself a user namespace, so the host asks this one. For each program it clones
a helper, which is the host's child: it makes the namespaces and the view of the disk, starts their first process and
the program, and ends. The first process reaps what loses its parents and ends with the last of them, or with the host,
and then the kernel ends all that is left in there.
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

from tool_runtime.platform import linux_calls, linux_sandbox, mounts  # noqa: E402  found by the line above
from tool_runtime.platform.landlock_rights import PathRule  # noqa: E402

CLONE_PARENT = 0x8000
NEW_MOUNTS, NEW_QUEUES, NEW_USERS, NEW_PROCESSES = 0x20000, 0x8000000, 0x10000000, 0x20000000
FAILED = 127
INTEGER = struct.Struct("i")
DESCRIPTORS = 4  # the reply, and the three standard streams


def serve(asked: socket.socket, host: int) -> None:
    """Until the host is gone. `host` is a pipe that ends with it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    known = linux_calls.numbers()
    if known is None:
        return
    gc.disable()  # each process would go through all of these objects, and have a copy of them made
    gc.freeze()
    while True:
        message = receive(asked)
        if message is None:
            return
        request, descriptors = message
        linux_sandbox.filter_of(restriction_of(request))  # before the copy, so that the next ones find it
        if clone(known, CLONE_PARENT) == 0:
            status = FAILED
            try:
                status = helper(known, request, descriptors, host)
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)


def receive(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A request and its descriptors."""
    head, descriptors = with_descriptors(asked, 4, DESCRIPTORS)
    if len(head) < 4:
        return None
    size = struct.unpack("=I", head)[0]
    data = bytearray()
    while len(data) < size:
        piece = asked.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return marshal.loads(data), descriptors  # noqa: S302  of the host, by a socket that no other process has


def with_descriptors(source: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """So many bytes at most, and the descriptors that came with them."""
    given: list[int] = []
    data, ancillary, _, _ = source.recvmsg(size, socket.CMSG_LEN(most * INTEGER.size))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = content[: len(content) - len(content) % INTEGER.size]
            given += (number for (number,) in INTEGER.iter_unpack(whole))
    return data, given


def clone(known: linux_calls.Numbers, flags: int) -> int:
    """As fork; with CLONE_PARENT the child is one of this process's own parent."""
    return linux_calls.call(known.clone, flags | signal.SIGCHLD, 0, 0, 0, 0)


def helper(known: linux_calls.Numbers, request: dict[str, Any], descriptors: list[int], host: int) -> int:
    """Makes the namespaces and what runs in them; what goes wrong is told by the reply."""
    reply = socket.socket(fileno=descriptors[0])
    tell(reply, {"helper": os.getpid()})
    try:
        own_namespaces(known, request)
        read, write = os.pipe()
        if request["processes"] and os.fork() == 0:
            for descriptor in (write, *descriptors):
                os.close(descriptor)
            first_process(read, host)
        # The kernel takes what is mounted for the processes of the namespace: the first one has to be there.
        program_in_view(known, request, descriptors, reply, write)
    except OSError as error:
        tell(reply, {"errno": error.errno, "step": "namespaces"})
        return FAILED
    return 0


def own_namespaces(known: linux_calls.Numbers, request: dict[str, Any]) -> None:
    """Raises OSError."""
    user, group = os.getuid(), os.getgid()
    flags = NEW_MOUNTS | NEW_QUEUES | (NEW_PROCESSES if request["processes"] else 0)
    if request["users"]:
        linux_calls.call(known.unshare, flags | NEW_USERS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    else:
        linux_calls.call(known.unshare, flags)


def first_process(read: int, host: int) -> None:
    """Waits for the program, then for all that it has left, and does not outlive the host."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what has lost its parents
    program = os.read(read, 16)
    os.close(read)
    poll = select.poll()
    poll.register(host, select.POLLIN | select.POLLHUP)
    try:
        if program:
            poll.register(os.pidfd_open(int(program)), select.POLLIN)
            if any(descriptor == host for descriptor, _ in poll.poll()):
                os._exit(0)
    except OSError:  # it has ended, and what it left is waited for
        pass
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0 and poll_host(host, 250):
                break
        except ChildProcessError:
            break
    os._exit(0)


def poll_host(host: int, timeout_ms: int) -> bool:
    """True if the host has gone, after so long at most."""
    poll = select.poll()
    poll.register(host, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(timeout_ms))


def program_in_view(
    known: linux_calls.Numbers, request: dict[str, Any], descriptors: list[int], reply: socket.socket, write: int
) -> None:
    """The program, a child of the host; this process goes on. Raises OSError."""
    pid = clone(known, CLONE_PARENT)
    if pid:
        tell(reply, {"program": pid})
        os.close(write)
        return
    step = "view"
    try:
        os.write(write, b"%d" % os.getpid())
        os.close(write)
        view = request["view"]
        writes, guarded, hidden = (tuple(view[name]) for name in ("writes", "guarded", "hidden"))
        mounts.make(mounts.View(writes, guarded, hidden, request["processes"]), known)
        step = "program"
        start(request, descriptors, reply)
    except OSError as error:
        tell(reply, {"errno": error.errno, "step": step, "file": error.filename})
    finally:
        os._exit(FAILED)


def start(request: dict[str, Any], descriptors: list[int], reply: socket.socket) -> None:
    """Becomes the program. Raises OSError."""
    os.setsid()
    os.chdir(request["cwd"])
    listener = linux_sandbox.restrict_this_thread(restriction_of(request))
    if listener is not None:
        hand_over(reply, listener, by_message=request["restriction"]["network"] != "open")
        os.close(listener)
    for target, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, reply.fileno())
    os.closerange(reply.fileno() + 1, 256)
    os.set_inheritable(reply.fileno(), False)
    os.execvpe(request["argv"][0], request["argv"], request["env"])  # noqa: S606  as Popen does; policy decides which


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


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
