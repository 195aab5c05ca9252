"""Which program runs a script: by its first line, else by its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.shell import NoInterpreter, interpreter_of
from tests.support.rows import each_row


@each_row(
    ("first", "name", "argv"),
    [
        (b"#!/usr/bin/env python3\nprint()", "fill", ("python3",)),
        (b"#!/usr/bin/env python3\r\nprint()", "fill.sh", ("python3",)),
        (b"#! /bin/env  node", "a", ("node",)),
        (b"#!/usr/bin/env -S uv run --script\n", "a.py", ("uv", "run", "--script")),
        (b"#!/usr/bin/env --split-string=deno run\n", "a", ("deno", "run")),
        (b"#!/bin/bash\n", "a", ("/bin/bash",)),
        (b"#!/bin/bash -e -u\n", "a", ("/bin/bash", "-e -u")),
        (b"print()", "a.py", ("python3",)),
        (b"", "a.sh", ("sh",)),
        (b"", "deep.name.mjs", ("node",)),
        (b"\xff\xfe", "a.rb", ("ruby",)),
    ],
)
def test_the_program(first: bytes, name: str, argv: tuple[str, ...]) -> None:
    assert interpreter_of(first, name, "posix") == argv


@each_row(
    ("first", "name"),
    [
        (b"", "a"),
        (b"\x7fELF", "a"),
        (b"", "a.exe"),
        (b"#!", "a.py"),
        (b"#!python3", "a.py"),
        (b"#!./python3", "a.py"),
        (b"#!/usr/bin/env", "a.py"),
        (b"#!/usr/bin/env -i python3", "a.py"),
        (b"#!/usr/bin/env -S A=b python3", "a.py"),
        (b"#!/usr/bin/env -S python3 $(id)", "a.py"),
        (b"#!/usr/bin/env python3 -u", "a.py"),
        (b"#!/" + b"x" * 300, "a.py"),
    ],
)
def test_nothing_says_which(first: bytes, name: str) -> None:
    with pytest.raises(NoInterpreter):
        interpreter_of(first, name, "posix")


def test_windows_has_its_own() -> None:
    assert interpreter_of(b"", "a.py", "windows") == ("python",)
    with pytest.raises(NoInterpreter):
        interpreter_of(b"", "a.bat", "windows")


@given(st.binary(max_size=400), st.text(max_size=30))
def test_any_file_has_one_or_says_why(first: bytes, name: str) -> None:
    for content in (first, b"#!" + first, b"#!/usr/bin/env " + first):
        try:
            argv = interpreter_of(content, name, "posix")
        except NoInterpreter:
            continue
        else:
            assert argv[0]
            assert argv[0].startswith("/") or "/" not in argv[0] or content.startswith(b"#!")
