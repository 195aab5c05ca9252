"""RunCommand (TR 4.4), and what follows a command that runs on in the background (decision 0036)."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

RUN_COMMAND: Final = ToolSpec(
    "RunCommand",
    "Run a shell command; returns stdout, stderr and exit code. There is no terminal",
    parameters(
        ["command"],
        command=text(minLength=1),
        cwd=text("Default: the workspace", minLength=1),
        timeout=integer("Seconds. Default: 300", minimum=1, maximum=600),
        stdin=text("Default: empty"),
        background=flag(
            "Return an id for CommandOutput and StopCommand at once, and let it run on, as a server does, until the "
            "session ends"
        ),
    ),
    capability="Shell.Exec",
    subject=Subject("command", "command"),
    effect="other",
    category="commands",
    display="command",
)
_ID: Final = text(minLength=1)
COMMAND_OUTPUT: Final = ToolSpec(
    "CommandOutput",
    "Read what a background command printed since the last read, and whether it still runs",
    parameters(
        ["id"],
        id=_ID,
        offset=integer("Byte to start from", minimum=0),
        limit=integer("Most bytes", minimum=1),
    ),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="none",
    category="files",
)
STOP_COMMAND: Final = ToolSpec(
    "StopCommand",
    "End a background command and all that it started",
    parameters(["id"], id=_ID),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="other",
    # A slot of its own kind: commands that wait for the one that is to end would keep it from those of commands.
    category="files",
)
