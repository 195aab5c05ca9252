"""From the command line to what a session is started with, for `run`, `resume` and `serve` alike."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from agent_host.app.launches import is_text, launch_of, portable, settings_from
from agent_host.approval.request import REPLAY_PREFIX
from agent_host.cli.shared import (
    SETTING_OPTIONS,
    given_settings,
    is_default_state_dir,
    snapshot_limit,
    state_dir_of,
)
from agent_host.cli.streams import notice
from agent_host.errors import UsageError
from agent_host.session.opening import Launch, recorded_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from config.settings import Settings


class Launcher:
    """Makes launches out of one command line. Raises UsageError for options that cannot be used."""

    def __init__(self, namespace: argparse.Namespace) -> None:
        self._flags = portable(given_settings(namespace))
        self._workspace: str | None = namespace.workspace
        self._approvals = [name for name in namespace.approve if not name.startswith(REPLAY_PREFIX)]
        self._replays = frozenset(namespace.approve) - frozenset(self._approvals)
        self._approve_all: bool = namespace.approve_all
        self._session_id: str | None = getattr(namespace, "session_id", None)
        self._moved: str | None = None
        self.state_dir = state_dir_of(namespace)

    def new(self, workspace: str | None = None) -> Launch:
        """For a new session in `workspace`, a client's choice, else in the command line's, else in the current
        directory."""
        if self._replays:
            raise UsageError(f"--approve {min(self._replays)}: that is a call of another session; `resume` runs it")
        return self._launch(
            self._flags,
            workspace=workspace or self._workspace or ".",
            named_by="--workspace" if workspace is None else "workspaceHint.localPaths[0]:",
            session_id=self._session_id,
            approvals=self._approvals,
            approve_all=self._approve_all,
        )

    def again(self, session_id: str) -> Launch:
        """For a session that is resumed: as it was started, with what the command line says over it. Raises
        SessionNotFound, CheckpointUnreadable."""
        self._moved = self._workspace
        options = recorded_options(self.state_dir, session_id, snapshot_limit_bytes=snapshot_limit())
        launch = self._launch(
            {**options["flags"], **self._flags},
            workspace=self._workspace or options["workspace"],
            named_by="--workspace" if self._workspace else "the session's workspace",
            session_id=session_id,
            approvals=self._approvals,
            approve_all=self._approve_all,
            replays=self._replays,
        )
        self._moved = None if launch.workspace == options["workspace"] else launch.workspace
        return launch

    def own_settings(self) -> Settings:
        """The settings of the process itself, whichever workspace its session will have. Raises UsageError."""
        return settings_from(self._flags, workspace=None)

    def max_steps(self, launch: Launch) -> int | None:
        """The limit of steps where the command line gave one, as the workspace may have tightened it."""
        return launch.settings.integer("host.max_steps") if "host.max_steps" in self._flags else None

    def resume_command(self, session_id: str) -> str:
        """The command that resumes the session. It names the workspace where that differs from the recorded one, and
        the approvals that were given in advance, since none of them is recorded."""
        options = "" if is_default_state_dir(self.state_dir) else f" --state-dir {shlex.quote(self.state_dir)}"
        options += "" if self._moved is None else f" --workspace {shlex.quote(self._moved)}"
        options += "".join(f" --approve {shlex.quote(name)}" for name in self._approvals)
        options += " --approve-all" if self._approve_all else ""
        return f"agent-host resume {session_id}{options}"

    def _launch(
        self,
        flags: Mapping[str, Any],
        *,
        workspace: str,
        session_id: str | None,
        approvals: list[str],
        approve_all: bool,
        replays: frozenset[str] = frozenset(),
        named_by: str = "--workspace",
    ) -> Launch:
        _refuse_what_is_no_text({"--session-id": session_id, "--approve": approvals}, flags)
        launch = launch_of(
            flags,
            workspace=workspace,
            state_dir=self.state_dir,
            session_id=session_id,
            approvals=approvals,
            approve_all=approve_all,
            replays=replays,
            named_by=named_by,
        )
        for line in launch.settings.ignored:
            notice(line)
        return launch


def _refuse_what_is_no_text(options: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    """Raises UsageError for a value that a session's record could not hold."""
    for option, given in (*options.items(), *((option, flags.get(key)) for option, key, _ in SETTING_OPTIONS)):
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and not is_text(value):
                raise UsageError(f"{option} {value!r}: it is not UTF-8")
