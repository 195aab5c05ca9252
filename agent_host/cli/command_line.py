"""From one command line to the options of its sessions, for `run`, `resume` and `serve` alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.api.options import LayeredOptions, OptionNames, SessionOptions, is_default_state_dir
from agent_host.cli.shared import SETTING_OPTIONS, given_settings
from agent_host.cli.streams import notice

if TYPE_CHECKING:
    import argparse

_OPTION_OF = {"session_id": "--session-id", "approvals": "--approve", **{key: name for name, key, _ in SETTING_OPTIONS}}
_NAMES = OptionNames(
    given_by="the command line",
    workspace="--workspace",
    client_workspace="workspaceHint.localPaths[0]:",
    approvals="--approve",
    not_text=lambda key, value: f"{_OPTION_OF.get(key, key)} {value!r}: it is not UTF-8",
)


class CommandLine:
    """The options of a command line. `source` gives those of each session, `no_input` forbids questions. Raises
    UsageError for options that cannot be used."""

    def __init__(self, namespace: argparse.Namespace) -> None:
        self._options = SessionOptions(
            workspace=namespace.workspace,
            state_dir=namespace.state_dir,
            session_id=getattr(namespace, "session_id", None),
            approvals=namespace.approve,
            approve_all=namespace.approve_all,
            settings=given_settings(namespace),
        )
        self.no_input: bool = getattr(namespace, "no_input", False)
        self.source = LayeredOptions(self._options, _NAMES, notice)

    def resume_command(self, session_id: str) -> str:
        """The command that resumes the session. It names the workspace where that differs from the recorded one, and
        the approvals that were given in advance, since none of them is recorded."""
        import shlex  # only what stops half-way is resumed

        source = self.source
        options = "" if is_default_state_dir(source.state_dir) else f" --state-dir {shlex.quote(source.state_dir)}"
        options += "" if source.moved is None else f" --workspace {shlex.quote(source.moved)}"
        options += "".join(f" --approve {shlex.quote(name)}" for name in source.approvals)
        options += " --approve-all" if self._options.approve_all else ""
        return f"agent-host resume {session_id}{options}"
