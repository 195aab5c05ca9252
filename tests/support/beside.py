"""Work beside the loop as tests want it: in the loop's own thread, at a moment that is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.disk import ThreadJob

if TYPE_CHECKING:
    from collections.abc import Callable


class Later(ThreadJob):
    """A job that is done after it was asked for more than `times` times, or waited for.

    As it is, it is done at once: a compaction ends with the sync that begins it.
    """

    def __init__(self, work: Callable[[], None], times: int = 0) -> None:
        self._left: Callable[[], None] | None = work
        self._times = times
        self._raised: BaseException | None = None

    def done(self) -> bool:
        """See ThreadJob."""
        self._times -= 1
        if self._times < 0:
            self._do()
        return self._left is None

    def wait(self) -> None:
        """See ThreadJob."""
        self._do()
        if self._raised is not None:
            raise self._raised

    def _do(self) -> None:
        work, self._left = self._left, None
        if work is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised where it is waited for, as a thread does
                self._raised = error
