"""Which capability each tool needs, and which of its arguments says on what it acts (AH 7.2).

One table. A tool that has no row here never runs (invariant 1), whatever a router offers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from policy.names import CapabilityName

SubjectKind = Literal["path", "command", "url", "upload"]
Category = Literal["commands", "files", "requests", "uploads"]
"""What a call takes of the machine: so many of each run at once (`tools.max_parallel_*` in the settings)."""
UPLOAD_ARTIFACT = "UploadArtifact"
"""The one tool that the host runs itself (AH 7.2)."""


class ToolRow(NamedTuple):
    """`argument` names the argument that holds the path, command or URL; `content_argument` the one with what will be
    written there, or what is uploaded in place of a file. `side_effects` is False only where running the call twice
    changes nothing (invariant 3)."""

    capability: str
    subject: SubjectKind
    argument: str
    side_effects: bool
    content_argument: str | None = None

    @property
    def category(self) -> Category:
        """Which calls it shares slots with."""
        return _CATEGORIES[self.subject]

    @property
    def changes_file(self) -> bool:
        """True when the call's whole effect is on one file, so that the disk can tell whether it happened."""
        return self.capability in ("File.Write", "File.Delete")


_CATEGORIES: dict[SubjectKind, Category] = {
    "path": "files",
    "command": "commands",
    "url": "requests",
    "upload": "uploads",
}

TOOLS: dict[str, ToolRow] = {
    "ReadFile": ToolRow("File.Read", "path", "path", side_effects=False),
    "WriteFile": ToolRow("File.Write", "path", "path", side_effects=True, content_argument="content"),
    "DeleteFile": ToolRow("File.Delete", "path", "path", side_effects=True),
    "RunCommand": ToolRow("Shell.Exec", "command", "command", side_effects=True),
    "HttpRequest": ToolRow("Network.Http", "url", "url", side_effects=True),
    # An upload that runs again stores nothing twice: a service knows the artifact of a step by its Idempotency-Key, and
    # the embedded home keeps equal contents once.
    UPLOAD_ARTIFACT: ToolRow("Workspace.Upload", "upload", "path", side_effects=False, content_argument="content"),
}

CAPABILITIES = tuple(sorted({row.capability for row in TOOLS.values()} | {CapabilityName.LLM_CALL.value}))
"""All that this host can make use of in a bundle."""
