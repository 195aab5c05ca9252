"""The numbers that the specifications prescribe are the program's own. What becomes of a call beyond one of them is
tried elsewhere, with smaller numbers that tests set."""

from __future__ import annotations

import pytest

from agent_host.ids import MACHINE
from config.load import load
from tests.support.rows import each_row
from tool_runtime.families import native, skills
from tool_runtime.tool import RuntimeSettings

MIB = 1024 * 1024
DEFAULTS = load({}, workspace=None, environ={"AGENT_HOST_CONFIG": ""})
ROUTER = RuntimeSettings(outside=MACHINE, workspace="/w")

# (where it is prescribed, what it is, the program's, the specification's)
NUMBERS = [
    ("AH 4.3", "steps of a task", DEFAULTS["host.max_steps"], 40),
    ("AH 6.4", "retries of a model call", DEFAULTS["llm.max_retries"], 3),
    ("AH 7.4", "seconds for a file", DEFAULTS["tools.file_timeout_s"], 30),
    ("AH 7.4", "seconds for a command", DEFAULTS["tools.command_timeout_s"], 300),
    ("AH 7.4", "seconds for a request", DEFAULTS["tools.http_timeout_s"], 60),
    ("AH 7.4", "seconds for a backend tool", DEFAULTS["backend.timeout_s"], 120),
    ("AH 10.3", "seconds for an approval", DEFAULTS["approvals.timeout_s"], 5 * 60),
    ("TR 4.4", "bytes of an output", DEFAULTS["tools.max_output_bytes"], 100 * 1024),
    ("TR 4.5", "redirects of a request", ROUTER.http_max_redirects, 5),
    ("TR 4.5", "bytes of a body", DEFAULTS["tools.max_response_bytes"], 10 * MIB),
    ("TR 6.2", "seconds from asking a tree to end to ending it", ROUTER.kill_grace_s, 5),
    ("TR 7.2", "bytes that an artifact begins at", ROUTER.artifact_threshold_bytes, 10 * 1024),
    ("TR 8.2", "seconds that a command may ask for", DEFAULTS["tools.command_timeout_max_s"], 600),
    ("SK 5.4.2", "seconds for a script", DEFAULTS["skills.script_timeout_s"], 30),
    ("SK 5.4.2", "scripts of a task", DEFAULTS["skills.max_script_runs"], 6),
    ("SK 5.4.2", "characters of a stream", skills.OUTPUT_CHARS, 10_000),
    ("NT Tool Behaviors", "bytes of a file", native.MAX_FILE_BYTES, MIB),
    ("NT Tool Behaviors", "entries of a page", native.PAGE_SIZE, 200),
    ("NT Tool Behaviors", "entries of a page at most", native.MAX_PAGE_SIZE, 10_000),
    ("NT Tool Behaviors", "matches of a search", native.MAX_RESULTS, 1000),
    ("NT Tool Behaviors", "files of a search", native.MAX_FILES_VISITED, 10_000),
    ("NT Tool Behaviors", "milliseconds for a program", native.EXEC_TIMEOUT_MS, 30_000),
    ("NT Tool Behaviors", "bytes of stdout", native.STDOUT_BYTES, 2 * MIB),
    ("NT Monitoring", "bytes of stderr", native.STDERR_BYTES, 1024),
    ("NT Security", "milliseconds for a fetch", native.FETCH_TIMEOUT_MS, 5_000),
    ("NT Security", "redirects of a fetch", native.FETCH_REDIRECTS, 5),
    ("NT Security", "bytes of a fetched body", native.FETCH_BODY_BYTES, 2 * MIB),
]


@each_row(("where", "what", "ours", "theirs"), NUMBERS, ids=[what for _, what, *_ in NUMBERS])
def test_the_program_has_the_numbers_of_the_specifications(where: str, what: str, ours: float, theirs: float) -> None:
    assert ours == theirs, f"{where}: {what}"


@pytest.mark.parametrize(
    ("runtime", "setting"),
    [
        ("file_timeout_s", "tools.file_timeout_s"),
        ("command_timeout_s", "tools.command_timeout_s"),
        ("http_timeout_s", "tools.http_timeout_s"),
        ("max_output_bytes", "tools.max_output_bytes"),
        ("http_max_body_bytes", "tools.max_response_bytes"),
        ("script_timeout_s", "skills.script_timeout_s"),
    ],
)
def test_a_runtime_without_settings_of_its_own_has_the_same(runtime: str, setting: str) -> None:
    assert getattr(ROUTER, runtime) == DEFAULTS[setting]
