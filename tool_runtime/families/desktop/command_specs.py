"""RunCommand (TR 4.4), and what follows a command that runs on in the background (decision 0036)."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

RUN_COMMAND: Final = ToolSpec(
    "RunCommand",
    "Execute a shell command and return stdout, stderr, and exit code",
    parameters(
        ["command"],
        command=text("Shell command to execute", minLength=1),
        cwd=text("Working directory. Default: workspace root", minLength=1),
        timeout=integer("Timeout in seconds. Default: 300", minimum=1, maximum=600),
        stdin=text("Standard input to pipe to the command. Default: empty. There is no terminal"),
        background=flag(
            "Return an id at once and let the command run on, as a server does, until the session ends or timeout, if "
            "given, is over. CommandOutput and StopCommand take the id. Default: false"
        ),
    ),
    capability="Shell.Exec",
    subject=Subject("command", "command"),
    effect="other",
    category="commands",
    display="command",
)
_ID: Final = text("Id that RunCommand gave with background: true", minLength=1)
COMMAND_OUTPUT: Final = ToolSpec(
    "CommandOutput",
    "Read what a background command has printed, stdout and stderr together, and whether it still runs",
    parameters(
        ["id"],
        id=_ID,
        offset=integer("Byte to read from. Default: where the last read ended", minimum=0),
        limit=integer("Maximum number of bytes to return. Default: as many as fit in a result", minimum=1),
    ),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="none",
    category="files",
)
STOP_COMMAND: Final = ToolSpec(
    "StopCommand",
    "End a background command with all that it started",
    parameters(["id"], id=_ID),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="other",
    # A slot of its own kind: commands that wait for the one that is to end would keep it from those of commands.
    category="files",
)
