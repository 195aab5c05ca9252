"""Artifacts on their way to the Workspace Service (AH 7.5): in order, in the background, and nobody waits.

What waits is bounded in bytes and in time. What finds no room, comes too late, or is refused is given up and reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from agent_host.contracts import Artifact
from agent_host.services.workspace import INLINE_BYTES, UploadFailed, displayable_name
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.contracts import ArtifactType, Spooled
    from agent_host.services.workspace import WorkspaceService

_RETRY_S = (0.5, 10.0)  # the first wait for a service that is away, and the longest
_RESUMED = "was not stored before the process ended; a resume of the session uploads it"
_ENDED = "was not stored before the session ended"


class UploadLimits(NamedTuple):
    """Limits on how far uploads may be behind: `max_pending_bytes` of data may wait, each for `max_behind_s` seconds.
    `end_s` is what the clean end of a headless run waits for them (`services.upload_*` in the settings)."""

    max_pending_bytes: int = 64 * 1024 * 1024
    max_behind_s: float = 60.0
    end_s: float = 5.0


class Upload(NamedTuple):
    """One artifact that is to be uploaded.

    `data` gives its content, of about `size` bytes, when its turn comes, and may raise UploadFailed; it is called in a
    thread where that is worth one, and a file that it gives is closed here. `on_stored` gets the URI. `on_missed` gets
    the reason, and whether a resume of the session tries again. Each upload ends with one call of one of the two, on
    the event loop, except for a history that a newer one replaces before its turn.
    """

    artifact_type: ArtifactType
    name: str
    content_type: str
    size: int
    data: Callable[[], bytes | Spooled]
    on_stored: Callable[[str], None]
    on_missed: Callable[[str, bool], None]
    task_id: str | None
    step_id: str | None = None


class UploadQueue:
    """Uploads to `service`, one after the other. Use it on one event loop; `close` before the service is closed."""

    def __init__(self, service: WorkspaceService, limits: UploadLimits) -> None:
        self._service = service
        self.limits = limits
        self._line: deque[tuple[Upload, float]] = deque()  # each with its time on the loop's clock
        self._pending_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._at_work: Upload | None = None
        self._closing = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """True if the end has begun: what comes now is given up at once."""
        return self._closing.is_set()

    def put(self, upload: Upload) -> None:
        """Have it uploaded behind all others. Never waits."""
        limits = self.limits
        if self.is_closed:
            upload.on_missed(_describe(upload, _ENDED), False)
            return
        if upload.artifact_type == "session_history":
            self._replace_history()
        if self._pending_bytes + upload.size > limits.max_pending_bytes:
            waits = f"{self._pending_bytes} bytes wait already, and {upload.size} more would exceed"
            bound = f"services.upload_max_pending_bytes ({limits.max_pending_bytes})"
            upload.on_missed(_describe(upload, f"was not uploaded: {waits} {bound}"), False)
            return
        loop = asyncio.get_running_loop()
        self._line.append((upload, loop.time() + limits.max_behind_s))
        self._pending_bytes += upload.size
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work(), name="uploads")

    async def close(self, within_s: float, *, resumable: bool) -> None:
        """The end: what waits has `within_s` seconds, and one more try each at a service that is away. What is left
        then is missed; `resumable`: a resume of the session tries again. Leaves no task."""
        self._closing.set()
        worker = self._worker
        if worker is not None and not worker.done():
            try:
                await asyncio.wait([worker], timeout=within_s)
            finally:
                if worker.cancel():
                    await asyncio.wait([worker])
        left, self._line = self._line, deque()
        self._pending_bytes = 0
        for upload, _ in left:
            upload.on_missed(_describe(upload, _RESUMED if resumable else _ENDED), resumable)

    def _replace_history(self) -> None:
        """A session has one history: of several that wait only the last is worth its upload."""
        waiting = [one for one in self._line if one[0].artifact_type == "session_history"]
        for one in waiting:
            if one[0] is not self._at_work:
                self._line.remove(one)
                self._pending_bytes -= one[0].size

    async def _work(self) -> None:
        while self._line:
            upload, until = self._line[0]
            self._at_work = upload
            missed = uri = ""
            try:
                uri = await self._upload(upload, until)
            except UploadFailed as error:
                missed = str(error)
            self._at_work = None
            self._line.popleft()
            self._pending_bytes -= upload.size
            if uri:
                upload.on_stored(uri)
            else:
                upload.on_missed(missed, False)

    async def _upload(self, upload: Upload, until: float) -> str:
        """The URI. A service that is away is asked again until the time is over. Raises UploadFailed."""
        said = "the service did not answer"
        wait_s, longest_s = _RETRY_S
        try:
            async with asyncio.timeout_at(until):
                data = await asyncio.to_thread(upload.data) if upload.size > INLINE_BYTES else upload.data()
                with contextlib.closing(
                    Artifact(upload.artifact_type, upload.name, upload.content_type, data)
                ) as artifact:
                    while True:
                        try:
                            return await self._service.upload(artifact, task_id=upload.task_id, step_id=upload.step_id)
                        except UploadFailed as error:
                            if not error.passing or self.is_closed:
                                raise
                            said = str(error)
                        await self._pause(wait_s)
                        wait_s = min(2 * wait_s, longest_s)
        except TimeoutError:
            behind = f"services.upload_max_behind_s ({self.limits.max_behind_s:g} s)"
            raise UploadFailed(_describe(upload, f"was not stored within {behind}: {said}")) from None

    async def _pause(self, wait_s: float) -> None:
        """Wait before the next try; the end cuts it short."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closing.wait()


def _describe(upload: Upload, what: str) -> str:
    return f"artifact {displayable_name(upload.name)} {what}"
