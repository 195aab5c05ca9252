"""The specifications of the desktop family (TR 5, AH 7.2), a file for each kind of tool.

Apart from the tools themselves, because a session's first request needs these and none of those.
"""

from __future__ import annotations

from typing import Final

from tool_runtime.families.desktop.command_specs import COMMAND_OUTPUT, RUN_COMMAND, STOP_COMMAND
from tool_runtime.families.desktop.file_specs import DELETE_FILE, EDIT_FILE, MOVE_FILE, READ_FILE, WRITE_FILE
from tool_runtime.families.desktop.output_specs import READ_OUTPUT
from tool_runtime.families.desktop.request_specs import HTTP_REQUEST
from tool_runtime.families.desktop.tree_specs import FIND_FILES, GREP, LIST_DIRECTORY

SPECS: Final = (
    READ_FILE,
    LIST_DIRECTORY,
    FIND_FILES,
    GREP,
    WRITE_FILE,
    EDIT_FILE,
    DELETE_FILE,
    MOVE_FILE,
    RUN_COMMAND,
    COMMAND_OUTPUT,
    STOP_COMMAND,
    HTTP_REQUEST,
    READ_OUTPUT,
)
"""The family, in the order in which the model is shown it."""
