"""What a CI runner would obey does not get into its log, however it comes; all else does."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.cli.runner_log import _Log, _Text, clean_json
from config import json_text

ROOT = Path(__file__).resolve().parents[3]
PIECES = st.lists(
    st.tuples(
        st.sampled_from(["out", "err"]),
        st.text(st.sampled_from("#:[v\r\n x\u2028\x85\u00a0\u200b\u00ad\u115fé\t\x0b\x1c\x00")) | st.sampled_from(
            ["::", "##", "#", ":", "##vso", "##vso[", "##teamcity[", "##TEAMCITY[", "##[", "so[", "::a::", "\r", "\r\n"]
        ),
    ),
    max_size=12,
)  # fmt: skip


def obeyed(log: str) -> list[str]:
    """What a runner would take for a command; lines end where any of them may see an end."""
    shown = re.sub(r"[^\t\n\r -~\w\s]|\u115f", "", log)  # as a comparison of texts sees it
    lines = re.split(r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", shown)
    starts = [line for line in lines if line.strip("\t \u00a0\x00\x1f").startswith("::")]
    anywhere = re.findall(r"##(?:vso|teamcity)?\[", shown, re.IGNORECASE)
    return starts + anywhere + re.findall(r"\r(?!\n)", log)


def logged(pieces: list[tuple[str, str]]) -> tuple[str, str, str]:
    """What a runner reads that has both streams in one, and of each of them alone."""
    both, alone = io.StringIO(newline=""), {"out": io.StringIO(newline=""), "err": io.StringIO(newline="")}

    class Tee(io.TextIOWrapper):
        def __init__(self, name: str) -> None:
            super().__init__(io.BytesIO())
            self._name = name

        def write(self, text: str) -> int:
            both.write(text)
            return alone[self._name].write(text)

    log = _Log()
    streams = {name: _Text(Tee(name), log) for name in alone}
    for name, text in pieces:
        assert streams[name].write(text) == len(text)
    return both.getvalue(), alone["out"].getvalue(), alone["err"].getvalue()


@given(PIECES)
def test_no_marker_gets_through_in_any_pieces_of_either_stream(pieces: list[tuple[str, str]]) -> None:
    for log in logged(pieces):
        assert obeyed(log) == []


@given(PIECES)
def test_nothing_else_is_changed(pieces: list[tuple[str, str]]) -> None:
    given_out = "".join(text for name, text in pieces if name == "out")
    _, out, _ = logged(pieces)
    wanted = re.sub(r"\r(?!\n)", r"\\r", given_out.removesuffix("\r"))
    assert out.replace(" ", "") == wanted.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        "std::vector a::b é::x",
        "## Title\n### [x]\n# [a](b)\n",
        "a: b, [1] #2\r\nok\r\n",
        "x[#]",
    ],
)
def test_ordinary_text_is_as_it_was(text: str) -> None:
    assert logged([("out", text)])[1] == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", ": :error::x"),
        (" \t\u00a0::stop-commands::x", " \t\u00a0: :stop-commands::x"),
        ("a\r::add-mask::x\n", "a\\r: :add-mask::x\n"),
        ("x ##[group]y", "x ## [group]y"),
        ("###[x", "### [x"),
        ("##vso[task.x]##TeamCity[y", "##vso [task.x]##TeamCity [y"),
    ],
)
def test_a_marker_gets_a_space(text: str, shown: str) -> None:
    assert logged([("out", text)])[1] == shown
    assert logged([("out", char) for char in text])[1] == shown


TEXTS = st.text(st.sampled_from('#:[v\\"\r\n x\u2028\u200b{'))
MARKED = st.sampled_from(["##[", "##vso[a", " ::x", "##teamcity["])
KEYS = st.sampled_from(["##[", "::", "a"])
VALUES = st.recursive(
    TEXTS | MARKED, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


@given(VALUES, st.booleans())
def test_json_is_equal_when_parsed(value: Any, indented: bool) -> None:
    data = json_text.dumps(value, option=orjson.OPT_INDENT_2 if indented else 0)
    clean = clean_json(data)
    assert json.loads(clean) == value
    assert obeyed(clean.decode()) == []


def test_a_traceback_and_a_usage_error_are_output_too() -> None:
    code = (
        "import sys; from agent_host.cli import runner_log; runner_log.install()\n"
        "sys.stdout.buffer.write(b'[\"##[a\"]\\n'); sys.stdout.flush(); print('x ##vso[a', file=sys.stderr)\n"
        "raise ValueError('##[error]\\r::x')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    assert done.stdout == b'["##\\u005ba"]\n'
    assert done.stderr.startswith(b"x ##vso [a\n")
    assert done.stderr.endswith(b"ValueError: ## [error]\\r: :x\n")
