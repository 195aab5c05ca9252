"""A conversation's local sources besides sessions: records, the policy, the files of a step."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from agent_host.approval import form_of
from agent_host.chat import Choice
from agent_host.display_text import one_line
from agent_host.errors import AgentHostError
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.options import settings_from
from agent_host.host.own_policy import propose
from agent_host.host.records import session_id_of, stored_sessions
from agent_host.host.undo import undo_last_step
from agent_host.safe_open import read_real
from state import SessionPaths, StateError
from state.temporary import session_directory
from tool_runtime.platform.environment import find_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host import FormField
    from agent_host.host.dry_runs import Tried
    from agent_host.host.own_policy import Proposal
    from agent_host.session.reports import StoredSession
    from agent_host.session.transcript import Item, Transcript

_REFERENCE: Final = re.compile(r"artifacts/[A-Za-z0-9_]{1,64}")
_IN_OUTPUT: Final = re.compile(r"\[storage_ref: (artifacts/[A-Za-z0-9_]{1,64})\]\s*$")
_MOST_BYTES: Final = 2 * 1024 * 1024
_DIFFS: Final = frozenset({"WriteFile", "EditFile", "write_file", "cp__write_file"})
_CLIPBOARD_PROGRAMS: Final = (
    ("wl-paste", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"),
    ("pngpaste", "-"),
)
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MOST_PICTURE_BYTES: Final = 20 * 1024 * 1024
_WITHIN_S: Final = 5.0
_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60))


class LocalRecords:
    """See the module. `flags` are the settings of the command line."""

    def __init__(self, state_dir: str, workspace: str, flags: Mapping[str, Any]) -> None:
        self.state_dir = state_dir
        self.workspace = workspace
        self._flags = dict(flags)
        self._undone: set[str] = set()
        self._pictures = 0

    # Records

    def sessions(self, search: str = "") -> list[Choice]:
        """The sessions that no other process uses, newest first; their ids are the values."""
        rows = stored_sessions(self.state_dir).all(search=search)
        return [Choice(row.session_id, _line(row)) for row in rows if row.pid is None]

    def newest(self) -> str | None:
        """The id of the newest session of the workspace that no process uses."""
        for row in stored_sessions(self.state_dir).all():
            if row.pid is None and row.workspace and os.path.realpath(row.workspace) == self.workspace:
                return row.session_id
        return None

    def other_processes(self, own: str | None) -> list[str]:
        """A line for each session that another process uses in this workspace."""
        return [
            f"another process ({row.pid}) works in this workspace too: {one_line(row.title or row.session_id, 200)}"
            for row in stored_sessions(self.state_dir).all()
            if row.pid is not None and row.session_id != own and os.path.realpath(row.workspace) == self.workspace
        ]

    def items(self, session_id: str, task_id: str) -> list[Item]:
        """The recorded items of a task."""
        try:
            return stored_sessions(self.state_dir).record(session_id).items(task_id)
        except (AgentHostError, StateError, OSError):
            return []

    def transcript(self, session_id: str) -> Transcript:
        """The session's transcript. Raises AgentHostError, StateError."""
        return stored_sessions(self.state_dir).record(session_id).transcript()

    def session_id_of(self, key: str) -> str:
        """The full session id for typed text; see `host.records.session_id_of`. Raises SessionNotFound."""
        return session_id_of(self.state_dir, key)

    def diff_of_call(self, session_id: str, payload: Mapping[str, Any]) -> str:
        """The diff of a write from the session's folder, by its `tool_completed` or its item; empty if it has none."""
        if payload.get("toolName") not in _DIFFS or payload["status"] != "succeeded":
            return ""
        references = list(payload.get("storageRefs", ()))
        found = _IN_OUTPUT.search(str(payload.get("output", "")))
        references += [] if found is None else [found[1]]
        return self._artifact(session_id, references[0]) if references else ""

    def stored_output(self, session_id: str, payload: Mapping[str, Any]) -> list[str]:
        """All stored output lines of a command; else the text that the model got."""
        references = list((payload.get("storedParts") or {}).values())
        output = str(payload.get("output", ""))
        found = _IN_OUTPUT.search(output)
        if not references and found is not None:
            references = [found[1]]
        text = "".join(self._artifact(session_id, reference) for reference in references)
        if text or not references:
            return (text or output).removesuffix("\n").split("\n")
        records = SessionPaths(self.state_dir, session_id).records
        notes = [f"all of it: {os.path.join(records, one)}" for one in references if _REFERENCE.fullmatch(one)]
        return [*output.removesuffix("\n").split("\n"), *notes]

    def _artifact(self, session_id: str, reference: str) -> str:
        if _REFERENCE.fullmatch(reference) is None:
            return ""

        with contextlib.suppress(OSError):
            path = os.path.join(os.path.realpath(SessionPaths(self.state_dir, session_id).records), reference)
            return read_real(path, _MOST_BYTES).decode("utf-8", "replace")
        return ""

    # The policy

    def allowed_models(self) -> Sequence[str]:
        """The models that the policy allows."""
        try:
            return self._policy().bundle.llm_policy.allowed_models
        except AgentHostError:
            return ()

    def _policy(self) -> Tried:
        return policy_to_try(self._flags, workspace=self.workspace, state_dir=self.state_dir)

    def propose(self, session_id: str, tool: str, arguments: Mapping[str, Any]) -> Proposal | None:
        """The line that would allow this call; None if there is none to offer."""
        try:
            return propose(
                self._flags, tool, arguments, session_id=session_id, workspace=self.workspace, state_dir=self.state_dir
            )
        except (AgentHostError, OSError, ValueError):  # an invalid bundle has no line to add
            return None

    def make_default(self, proposal: Proposal) -> str:
        """Set `host.policy` of the user's configuration; return a message about it."""
        try:
            return proposal.make_default()
        except AgentHostError as error:
            return str(error)

    def mcp_servers(self) -> list[str]:
        """A line for each MCP server of the configuration."""
        settings = settings_from(self._flags, workspace=self.workspace)
        try:
            rows = self._policy().tools()
        except AgentHostError as error:
            return [str(error)]
        lines = []
        for server in settings.mcp.servers:
            name = str(server.get("name", ""))
            tools = [row for row in rows if row["toolName"].startswith(f"{name}/")]
            offered = sum(row["offered"] for row in tools)
            known = f"{offered} of {len(tools)} tools offered"
            lines.append(one_line(f"{name}: {known if tools else 'its tools are listed once it was connected'}", 400))
        return lines

    # Forms and files

    def form_fields(self, details: Mapping[str, Any]) -> Sequence[FormField]:
        """The fields of an MCP server's elicitation."""
        if "form" not in details:
            return ()
        return form_of(str(details["source"]), str(details["question"]), details["form"], None, str).fields

    def undo(self, session_id: str) -> tuple[list[str], str]:
        """Restore the files of the last step that changed some; return lines for the person, and a note for the model,
        empty if nothing was done."""
        try:
            done = undo_last_step(self.state_dir, session_id, self.workspace, self._undone)
        except AgentHostError as error:
            return [str(error)], ""
        self._undone.add(done.step_id)
        return done.lines, done.note

    def picture(self) -> bytes | None:
        """The clipboard's picture as PNG; None if there is none, or no program to read it. No program of the workspace
        is started."""
        for program, *arguments in _CLIPBOARD_PROGRAMS:
            path = find_program(program, os.environ.get("PATH", os.defpath), (self.workspace,))
            if path is None:
                continue
            try:
                found = subprocess.run([path, *arguments], capture_output=True, timeout=_WITHIN_S, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if found.stdout.startswith(_PNG) and len(found.stdout) <= _MOST_PICTURE_BYTES:
                return found.stdout
        return None

    def keep_picture(self, session_id: str, data: bytes) -> str:
        """Store a picture in the session's temporary directory; return its path. Raises OSError."""
        folder = session_directory(self.state_dir, session_id, os.environ)
        while True:
            self._pictures += 1
            path = os.path.join(folder, f"picture-{self._pictures}.png")
            with contextlib.suppress(FileExistsError):
                with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                    file.write(data)
                return path


def _line(row: StoredSession) -> str:
    age = ""
    with contextlib.suppress(ValueError):
        seconds = (datetime.now(UTC) - datetime.fromisoformat(row.updated_at)).total_seconds()
        age = next((f"{int(seconds // size)}{unit}" for unit, size in _UNITS if seconds >= size), "now")
    return one_line(f"{row.verdict:<11} {age:>4}  {row.title or '(no prompt)'}  {row.workspace}", 1000)
