"""What a finished command or HTTP exchange looks like to the model (TR 4.4, 4.5), and what is kept as an artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tool_runtime.families.programs import told_of
from tool_runtime.output import artifacts
from tool_runtime.output.terminal import without_controls
from tool_runtime.output.text import charset_of, decode_body, decode_output
from tool_runtime.output.truncate import HeadTail, truncate_text
from tool_runtime.platform import current
from tool_runtime.tool import CallContext, ToolOutput

if TYPE_CHECKING:
    from agent_host.contracts import Artifact
    from tool_runtime.core.http import HttpOutcome
    from tool_runtime.core.process import CommandOutcome


def command_output(call: CallContext, outcome: CommandOutcome) -> ToolOutput:
    """TR 4.4; the output limit is shared, and what one stream does not need the other may have."""
    out, err, limit = outcome.stdout.shown(), outcome.stderr.shown(), call.max_output_bytes
    err_limit = min(err.total, max(limit // 2, limit - out.total))
    text = (
        f"Exit code: {outcome.exit_code}\n"
        f"--- stdout ---\n{_printed(out, limit - err_limit)}"
        f"--- stderr ---\n{_printed(err, err_limit)}"
    )
    kept: list[Artifact] = []
    for name, captured in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if captured.spill.problem is not None:
            text += f"[Of {name} only a part is kept, for the rest could not be written: {captured.spill.problem}]\n"
        rewritten, is_all = captured.rewritten()
        if rewritten:
            count = rewritten if is_all else f"{rewritten} or more"
            text += f"[Characters of {name} that were drawn over, and are not shown: {count}]\n"
        if captured.ends.total > call.settings.artifact_threshold_bytes:
            kept_bytes, total = captured.spill.kept, captured.ends.total
            if kept_bytes < total and captured.spill.problem is None:
                text += f"[Of the {total} bytes of {name} the first {kept_bytes} are stored, and the end]\n"
            content = captured.spill.content(captured.ends)
            kept.append(artifacts.tool_output(call.request, content, part=name))
        else:
            captured.spill.close()
    text += outcome.refused
    output = ToolOutput(text, tuple(kept), capped=True, exit_code=outcome.exit_code, stderr=told_of(outcome.stderr))
    return output._replace(denials=outcome.denials)


def _printed(ends: HeadTail, limit: int) -> str:
    text = decode_output(without_controls(ends.render(limit)), crlf=current.CRLF)
    return text if not text or text.endswith("\n") else text + "\n"


def http_output(call: CallContext, outcome: HttpOutcome, note: str = "") -> ToolOutput:
    """TR 4.5; `note` stands in front."""
    content_type = _content_type(outcome)
    packed = "content-encoding" in outcome.headers
    length = len(outcome.body) if packed else outcome.headers.get("content-length", len(outcome.body))
    text = decode_body(outcome.body, charset_of(content_type))
    if text is None:
        text = f"Binary body, {len(outcome.body)} bytes"
    head = f"{note}HTTP {outcome.status} {outcome.reason}\nContent-Type: {content_type}\nContent-Length: {length}\n\n"
    kept: tuple[Artifact, ...] = ()
    if len(outcome.body) > call.settings.artifact_threshold_bytes:
        kept = (artifacts.tool_output(call.request, outcome.body, part="body", content_type=content_type),)
    return ToolOutput(head + truncate_text(text, call.max_output_bytes), kept, capped=True)


def saved_output(outcome: HttpOutcome, path: str) -> ToolOutput:
    """A response whose body has gone to the file at `path`."""
    size = len(outcome.body)
    head = f"HTTP {outcome.status} {outcome.reason}\nContent-Type: {_content_type(outcome)}\nContent-Length: {size}\n\n"
    return ToolOutput(f"{head}Saved {size} bytes to {path}")


def _content_type(outcome: HttpOutcome) -> str:
    return outcome.headers.get("content-type", "unknown")
