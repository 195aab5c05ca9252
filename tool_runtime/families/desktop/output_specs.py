"""ReadOutput: what a result names by its storage_ref."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Subject, ToolSpec
from tool_runtime.families.schemas import integer, parameters, text

READ_OUTPUT: Final = ToolSpec(
    "ReadOutput",
    "Read what an earlier call left, such as all output of a command: its result names it as storage_ref",
    parameters(
        ["ref"],
        ref=text("The storage_ref", minLength=1, maxLength=200),
        offset=integer(
            "First line, from 1; with a pattern the number of the match",
            minimum=1,
        ),
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        pattern=text("Only lines that match (RE2)", minLength=1, maxLength=4000),
    ),
    capability="Shell.Exec",
    subject=Subject("output", "ref"),
    effect="none",
    category="files",
)
"""It needs all that the call needed that left the output, which is a command's mostly."""
