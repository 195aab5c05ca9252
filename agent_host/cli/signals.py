"""SIGINT, SIGTERM and SIGHUP on the event loop, on every platform."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def on_signals(stop: Callable[[int], None]) -> None:
    """Have `stop(number)` called on the running loop for each SIGINT and SIGTERM.

    The same signal that comes twice before the loop turns counts once: `timeout` sends it to its child, and then to the
    process group that the child is in.

    A terminal that is closed counts as SIGTERM, once: the kernel and the shell may both say so, and nobody is
    impatient. Not where it was to be ignored from the start, as `nohup` has it.
    """
    loop = asyncio.get_running_loop()
    taken: set[int] = set()

    def take(number: int) -> None:
        if number not in taken:
            taken.add(number)
            loop.call_soon(taken.discard, number)
            stop(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, take, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(take, received))
    hang_up = getattr(signal, "SIGHUP", None)  # none on Windows
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return

    def hung_up() -> None:
        loop.add_signal_handler(hang_up, lambda: None)
        stop(signal.SIGTERM)

    loop.add_signal_handler(hang_up, hung_up)
