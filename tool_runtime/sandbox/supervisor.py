"""Answers for the kernel about the sockets of commands that are held: who may connect where, and listen at which port.

A thread of its own waits for the questions of all commands of a session. On the event loop a command could stop the
host: whoever connects in a program's place may be made to wait by that program. Each call is done on a copy of the
program's descriptor, with an address that was read once, so that nothing can be exchanged after it was judged.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.platform import seccomp_notify
from tool_runtime.sandbox.own_sockets import Listeners
from tool_runtime.sandbox.sockets import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from tool_runtime.platform.seccomp_notify import WaitingSyscall
    from tool_runtime.sandbox.sockets import Connect, HeldSockets

_RETRY_S: Final = 0.02
_LEAVING_MS: Final = 20
"""So long a program that has just ended may still count as one, with the thread of the host that has started it."""
_LONGEST_WAIT_S: Final = 150.0
_MAX_WAITING: Final = 128
"""So many connections are waited for at once: each takes up to two of the host's descriptors."""
_HUNG_UP: Final = select.EPOLLHUP | select.EPOLLERR


class _PendingConnection(NamedTuple):
    """A connection that is not made yet, for a program that waits for it."""

    listener: int
    notice_id: int
    wanted: Connect
    since: float

    def close(self) -> None:
        """Let go of its descriptors."""
        os.close(self.wanted.copy)
        if self.wanted.place >= 0:
            os.close(self.wanted.place)


class SocketSupervisor:
    """For the commands of one session. Made with the first that is held; `watch` from any thread."""

    def __init__(self) -> None:
        self.listeners = Listeners()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._held: dict[int, tuple[HeldSockets, Callable[[], None]]] = {}
        self._closing_one = threading.Lock()
        self._connecting: dict[int, _PendingConnection] = {}
        self._again: list[_PendingConnection] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sandbox-supervisor", daemon=True)
        self._thread.start()

    def watch(self, listener: int, held: HeldSockets, gone: Callable[[], None]) -> None:
        """Answer for the programs of one command, by what `held` says, until none is left; then the descriptor is
        closed and `gone` called, in the supervisor's thread."""
        self._held[listener] = held, gone
        self._poll.register(listener, select.EPOLLIN)

    def has_programs(self, listener: int) -> bool:
        """True if a program is left of the command that `watch` was given this descriptor for. Safe from any thread."""
        with self._closing_one:  # so that the number is nobody else's meanwhile
            if listener not in self._held:
                return False
            poll = select.poll()
            poll.register(listener, 0)
            return not poll.poll(_LEAVING_MS)

    def close(self) -> None:
        """Answer nobody any more: what still runs has no socket that is looked into. Once; blocks for a moment."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(1.0)
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._closing:
                for descriptor, events in self._poll.poll(_RETRY_S if self._again else None):
                    self._ready(descriptor, events)
                self._try_again()
        finally:  # whatever ended this: a program must not wait for an answer that never comes
            for listener in list(self._held):
                self._let_go(listener)
            for waiting in (*self._connecting.values(), *self._again):
                waiting.close()
            self._poll.close()
            self.listeners.close()

    def _ready(self, descriptor: int, events: int) -> None:
        if descriptor in self._held:
            if events & select.EPOLLIN:
                notice = seccomp_notify.receive(descriptor)
                if notice is not None:
                    self._decide(descriptor, notice)
            elif events & _HUNG_UP:
                self._let_go(descriptor)
        elif descriptor in self._connecting:
            self._on_connection(self._connecting.pop(descriptor))

    def _let_go(self, listener: int) -> None:
        with self._closing_one:
            _, gone = self._held.pop(listener)
            with suppress(OSError):
                self._poll.unregister(listener)
            os.close(listener)
        gone()

    def _decide(self, listener: int, notice: WaitingSyscall) -> None:
        held, _ = self._held[listener]
        try:
            answer = held.decide(listener, notice)
        except OSError as error:  # the program is gone, or does not let itself be looked into
            answer = error.errno or errno.EACCES
        except (ValueError, OverflowError, struct.error):  # it passed what no address or message is
            answer = errno.EINVAL
        if isinstance(answer, int):
            seccomp_notify.answer(listener, notice.notice_id, answer)
        elif isinstance(answer, Done):
            if answer.value is None:
                seccomp_notify.let_through(listener, notice.notice_id)
            else:
                seccomp_notify.answer(listener, notice.notice_id, 0, answer.value)
        else:
            self._connect(_PendingConnection(listener, notice.notice_id, answer, time.monotonic()))

    def _connect(self, waiting: _PendingConnection) -> None:
        """Begin a connection without waiting for it."""
        copy, address = waiting.wanted.copy, waiting.wanted.address
        flags = fcntl.fcntl(copy, fcntl.F_GETFL)
        blocking = not flags & os.O_NONBLOCK
        if blocking:  # it is the program's own, too, which waits for this call
            fcntl.fcntl(copy, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        try:
            code = seccomp_notify.socket_call("connect", copy, address, len(address))
        finally:
            if blocking:
                fcntl.fcntl(copy, fcntl.F_SETFL, flags)
        is_full = len(self._connecting) + len(self._again) >= _MAX_WAITING
        if blocking and code in (errno.EINPROGRESS, errno.EAGAIN) and is_full:
            self._answer(waiting, errno.EAGAIN)
        elif blocking and code == errno.EINPROGRESS:
            self._connecting[copy] = waiting
            self._poll.register(copy, select.EPOLLOUT)
        elif blocking and code == errno.EAGAIN:  # a unix socket, whose server takes no more at the moment
            self._again.append(waiting)
        else:
            self._answer(waiting, code)

    def _on_connection(self, waiting: _PendingConnection) -> None:
        with suppress(OSError):
            self._poll.unregister(waiting.wanted.copy)
        self._answer(waiting, seccomp_notify.socket_error(waiting.wanted.copy))

    def _try_again(self) -> None:
        again, self._again = self._again, []
        for waiting in again:
            if not seccomp_notify.is_waiting(waiting.listener, waiting.notice_id):
                waiting.close()
            elif time.monotonic() - waiting.since > _LONGEST_WAIT_S:
                self._answer(waiting, errno.ETIMEDOUT)
            else:
                self._connect(waiting)

    def _answer(self, waiting: _PendingConnection, code: int) -> None:
        waiting.close()
        if waiting.listener in self._held:
            seccomp_notify.answer(waiting.listener, waiting.notice_id, code)
