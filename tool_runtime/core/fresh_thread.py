"""Work by a thread that gives up its rights, and ends with it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_fresh_thread(work: Callable[[], T]) -> T:
    """`work()` by a thread that ends with it, and whose rights may be given up: what it raises is raised here."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - handed unchanged to the caller that waits for it
            failed.append(error)

    thread = threading.Thread(target=run, name="sandbox-start")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
