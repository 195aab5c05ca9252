"""ReadOutput: what a result names by its storage_ref."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Subject, ToolSpec
from tool_runtime.families.schemas import integer, parameters, text

READ_OUTPUT: Final = ToolSpec(
    "ReadOutput",
    "Read what an earlier call of this session stored: all output of a command or request, the diff of a write. "
    "Results name it as storage_ref",
    parameters(
        ["ref"],
        ref=text("The storage_ref, such as artifacts/art_0123456789abcdef", minLength=1, maxLength=200),
        offset=integer(
            "Number of the line to start from (1-based). With a pattern it counts matching lines: 3 starts from the "
            "third that matches. Default: 1",
            minimum=1,
        ),
        limit=integer("Maximum number of lines, or of matching ones. Default: 200", minimum=1, maximum=10_000),
        pattern=text("Only lines that match this regular expression (RE2)", minLength=1, maxLength=4000),
    ),
    capability="Shell.Exec",
    subject=Subject("output", "ref"),
    effect="none",
    category="files",
)
"""It needs all that the call needed that left the output, which is a command's mostly."""
