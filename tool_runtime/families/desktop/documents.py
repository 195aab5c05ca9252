"""What ReadFile shows of notebooks and of PDFs (TR 4.1), over `core.notebooks` and `core.pdf`. Blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.contracts import Image
from tool_runtime.core import notebooks, pdf
from tool_runtime.core.files import read_whole
from tool_runtime.core.lines import Wanted, Window
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.tool import ToolOutput

if TYPE_CHECKING:
    from tool_runtime.core.files import ReadOutcome, ReadParams
    from tool_runtime.tool import Abandoned


def notebook_output(params: ReadParams, abandoned: Abandoned) -> ToolOutput | str:
    """The cells of a notebook, or why the file cannot be shown as that. Raises ToolFault."""
    limit = params.max_file_size_bytes
    most = notebooks.MAX_BYTES if limit is None else min(limit, notebooks.MAX_BYTES)
    try:
        data, seen = read_whole(params.path, params.scope, most, abandoned)
        found = notebooks.shown(data)
    except notebooks.NotANotebook as error:
        return f"This file cannot be shown as a notebook: {error}"
    except ToolFault as fault:
        if fault.kind is not FaultKind.TOO_LARGE or most == limit:
            raise
        return f"This notebook has more than {most} bytes, and is not shown as cells"
    window = Window(Wanted(params.offset, params.limit), params.max_output_bytes)
    window.add(found.text)
    if window.past_end:
        return ToolOutput(f"[The notebook's cells end before line {params.offset}]", capped=True, seen=str(seen))
    text = window.text()
    images = tuple(
        Image(one.file.header.media_type, one.file.header.width, one.file.header.height, one.file.data)
        for one in found.pictures
        if one.file.data is not None and one.line in text
    )
    return ToolOutput(text, capped=True, seen=str(seen), images=images)


def pdf_output(params: ReadParams, outcome: ReadOutcome, abandoned: Abandoned) -> ToolOutput:
    """The text of a PDF's pages, or how to have it. Raises ToolFault."""
    place = pdf.installed()
    if place is None:
        text = f"PDF file, {outcome.size_bytes} bytes; {pdf.HOW_TO_INSTALL}"
        return ToolOutput(text, capped=True, seen=str(outcome.seen))
    found = pdf.read_pdf(params, Wanted(params.offset, params.limit), place, abandoned)
    text = f"[The text of the pages ends before line {params.offset}]\n" if found.past_end else found.text
    if found.problem is not None:
        text += f"[Not all of this PDF of {found.size_bytes} bytes was read: {found.problem}]\n"
    return ToolOutput(text, capped=True, seen=str(outcome.seen))
