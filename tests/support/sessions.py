"""A session around a loop (`tests.support.loop`), with a service that remembers what it was told."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from agent_host.events.emitter import Losses
from agent_host.ids import MACHINE
from agent_host.services.session import NewSession, SessionGrant
from agent_host.session.lifecycle import LiveSession
from config.load import load
from state import SessionPaths, make_private_dir
from tests.support.loop import Loop
from tests.support.loop_parts import SESSION, Person

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loop_parts import Turn


class Service:
    """A `SessionService`; `ends` are the reasons that it was given, `fault` what it raises instead."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.fault: Exception | None = None

    async def create(self, new: NewSession) -> SessionGrant:
        """See SessionService."""
        return SessionGrant(new.session_id or SESSION, "w")

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:
        """See SessionService."""
        return SessionGrant(session_id, "w")

    async def cancel(self, session_id: str, *, reason: str) -> None:
        """See SessionService."""
        if self.fault is not None:
            raise self.fault
        self.ends.append(reason)


class Opened:
    """One process with a session in `folder`, which holds the workspace and the state directory. `released` says
    whether its resources were let go."""

    def __init__(self, folder: Path, *turns: Turn, flags: dict[str, Any] | None = None, **more: Any) -> None:
        self.folder = folder
        self.workspace = folder / "ws"
        self.workspace.mkdir(exist_ok=True)
        self.loop = Loop(self.workspace, *turns, **more)
        self.paths = SessionPaths(str(folder / "state"), SESSION)
        make_private_dir(self.paths.records)
        self.service = Service()
        self.released = False
        self.broken: list[BaseException] = []
        resources = AsyncExitStack()
        resources.callback(self._release)
        gate, config = more.get("gate"), folder / "config.toml"
        config.touch()
        self.session = LiveSession(
            self.loop.ctx,
            self.paths,
            pending_approvals=gate.pending_approvals if isinstance(gate, Person) else None,
            service=self.service,
            resources=resources,
            settings=load(flags or {}, workspace=str(self.workspace), environ={"AGENT_HOST_CONFIG": str(config)}),
            undelivered=lambda: ["an observer"],
            losses=Losses(MACHINE.monotonic),
        )
        self.session.on_broken = self.broken.append

    def _release(self) -> None:
        self.released = True

    def again(self, *turns: Turn, **more: Any) -> Opened:
        """The next process."""
        self.loop.ctx.journal.store.close()
        kept = {
            "policy": self.loop.ctx.judge.bundle,
            "artifacts": self.loop.artifacts,
            "home": self.loop.home,
            "sessions": self.loop.sessions,
        }
        return Opened(self.folder, *turns, **{**kept, **more})

    @property
    def is_kept(self) -> bool:
        """Whether the store still has the session, for somebody else to take over."""
        return any(row.session_id == SESSION and row.pid is None for row in self.loop.sessions.list())
