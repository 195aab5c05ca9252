"""Work beside the loop: one function in a thread of its own, which somebody waits for before all ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Beside = Callable[[Callable[[], None]], "BackgroundJob"]


class BackgroundJob(Protocol):
    """Work that has been started."""

    def done(self) -> bool:
        """True if the work is over, well or not. Never waits."""
        ...

    def wait(self) -> None:
        """Return when the work is over. Raises what it raised."""
        ...


class ThreadJob:
    """A job in a thread of its own. Where the system gives no further thread, the work is done before this returns."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._raised: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="compaction")
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def done(self) -> bool:
        """See Job."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """See Job."""
        if self._thread is not None:
            self._thread.join()
        if self._raised is not None:
            raise self._raised

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  it is raised where the work is waited for
            self._raised = error
