"""docs/conformance.md and its rows: every test that a row names is there, and nothing stands there twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.conformance_page import PAGE, ROOT, ROWS, SPECS, page, problems, read

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
name = "XY"
title = "A specification"
[[section]]
at = "1"
title = "Something"
"""


def found(folder: Path, *rows: str) -> list[str]:
    """What is wrong with these rows, beside a file with the test `test_here` and two that never run."""
    (folder / "rows.toml").write_text(FILE + "".join(f"[[section.row]]\n{row}\n" for row in rows))
    (folder / "test_a.py").write_text(
        "import pytest\n"
        "def test_here() -> None: ...\n"
        "@pytest.mark.skip('never')\ndef test_skipped() -> None: ...\n"
        "@pytest.mark.skipif(True, reason='elsewhere')\ndef test_somewhere() -> None: ...\n"
        "def helper() -> None: ...\n"
        "class TestMany:\n    def test_inside(self) -> None: ...\n"
    )
    return list(problems(read(folder / "rows.toml"), folder))


@pytest.mark.parametrize("name", SPECS)
def test_every_named_test_is_there_and_no_row_stands_twice(name: str) -> None:
    assert list(problems(read(ROWS / f"{name}.toml"), ROOT)) == []


def test_every_file_of_rows_is_on_the_page() -> None:
    assert sorted(path.stem for path in ROWS.glob("*.toml")) == sorted(SPECS)


def test_the_page_is_made_from_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.support.conformance_page"


def test_rows_without_fault(tmp_path: Path) -> None:
    good = [
        'says = "a"\ntests = ["test_a.py::test_here", "test_a.py::TestMany::test_inside", "test_a.py::test_somewhere"]',
        'says = "b"\nopen = "not yet"',
        'says = "c"\nnot_here = "elsewhere"',
        'says = "d"\ntests = ["test_a.py::test_here"]\ndiffers = "on purpose"',
    ]
    assert found(tmp_path, *good) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (['says = "a"\ntests = ["test_a.py::test_gone"]'], "no test test_a.py::test_gone"),
        (['says = "a"\ntests = ["test_a.py::helper"]'], "no test test_a.py::helper"),
        (['says = "a"\ntests = ["test_a.py::test_skipped"]'], "no test test_a.py::test_skipped"),
        (['says = "a"\ntests = ["test_b.py::test_here"]'], "no test test_b.py::test_here"),
        (['says = "a"\ntests = []'], "names no test"),
        (['says = "a"\ntests = []\ndiffers = "on purpose"'], "names no test"),
        (['says = "a"\nopen = "this | that"'], "ends the cell"),
        (['says = "a"\nopen = "x"', 'says = "a"\nopen = "y"'], "stands there twice"),
        (['says = "a"\ntests = ["test_a.py::test_here", "test_a.py::test_here"]'], "names a test twice"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, rows: list[str], said: str) -> None:
    (problem,) = found(tmp_path, *rows)
    assert problem.startswith("XY 1: 'a'")
    assert said in problem


@pytest.mark.parametrize(
    "row", ['says = "a"', 'says = "a"\nopen = "x"\nnot_here = "y"', 'open = "x"', 'says = "a"\nx = 1']
)
def test_a_row_has_one_state(tmp_path: Path, row: str) -> None:
    with pytest.raises(ValueError, match=r"rows\.toml 1: .*one of tests"):
        found(tmp_path, row)
