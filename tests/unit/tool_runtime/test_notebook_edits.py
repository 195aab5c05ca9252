"""EditFile of a notebook: its cells as ReadFile shows them, and nothing else of the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.tools import TOOLS
from tests.unit.tool_runtime.conftest import error_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call

CELLS: list[dict[str, Any]] = [
    {"cell_type": "markdown", "metadata": {}, "source": ["# Título\n", "text \"quoted\""]},
    {
        "cell_type": "code", "execution_count": 3, "metadata": {"x": 1.50}, "source": ['x = "a"\n', "print(x)"],
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["only printed\n"]}],
    },
    {"cell_type": "code", "execution_count": None, "metadata": {}, "source": "print(x)", "outputs": []},
    {"cell_type": "code", "execution_count": None, "metadata": {}, "source": [], "outputs": []},
]  # fmt: skip


@pytest.fixture(params=[1, 2, None, "ascii", "crlf", "bom"])
def notebook(request: pytest.FixtureRequest, workspace: Path) -> Path:
    """One in each way that programs write them."""
    way = request.param
    indent = way if isinstance(way, int) else None if way is None else 1
    text = json.dumps({"cells": CELLS, "metadata": {}, "nbformat": 4}, indent=indent, ensure_ascii=way == "ascii")
    data = (text.replace("\n", "\r\n") if way == "crlf" else text).encode() + b"\n"
    path = workspace / "n.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + data if way == "bom" else data)
    return path


def content(path: Path) -> bytes:
    return path.read_bytes()


def format_number(path: Path) -> int:
    return int(json.loads(path.read_text("utf-8-sig"))["nbformat"])


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8-sig"))["cells"]]


async def edit(call: Call, path: Path, *pairs: tuple[str, str], **more: Any) -> Any:
    edits = [{"oldText": old, "newText": new, **more} for old, new in pairs]
    before = content(path)
    arguments = {"path": str(path), "edits": edits}
    result = await call("EditFile", None, **arguments)
    after = TOOLS["EditFile"].after
    assert after is not None
    if result.status == "succeeded":
        assert after(arguments, before) == content(path)  # by which a resume knows
    return result


async def test_what_is_shown_is_what_is_edited(call: Call, notebook: Path) -> None:
    before = content(notebook)
    text_of(await edit(call, notebook, ('x = "a"\nprint(x)\n', 'x = "ñ"\ny = 2\nprint(x)\n')))
    assert sources(notebook)[1] == 'x = "ñ"\ny = 2\nprint(x)'
    text_of(await edit(call, notebook, ('x = "ñ"\ny = 2\n', 'x = "a"\n')))
    assert content(notebook) == before


async def test_the_line_above_a_cell_names_it(call: Call, notebook: Path) -> None:
    message = error_of(await edit(call, notebook, ("print(x)", "print(y)")))[1]
    assert "in cell 2, 3" in message
    shown = text_of(await call("ReadFile", None, path=str(notebook)))
    heads = [line for line in shown.splitlines() if line.startswith("--- cell ")]
    third, fourth = (f"{head}\n" for head in heads[2:])
    text_of(await edit(call, notebook, (f"{third}print(x)", f"{third}print(y)"), (fourth, f"{fourth}a = 1\nb = 2\n")))
    assert sources(notebook)[1:] == ['x = "a"\nprint(x)', "print(y)", "a = 1\nb = 2"]
    text_of(await edit(call, notebook, ("print(", "log("), replaceAll=True))
    assert sources(notebook)[1:3] == ['x = "a"\nlog(x)', "log(y)"]


async def test_what_no_cell_has_is_said_with_what_is_near(call: Call, notebook: Path) -> None:
    before = content(notebook)
    assert 'x = "a"' in error_of(await edit(call, notebook, ('x = "b"', "y")))[1]
    assert "JSON" in error_of(await edit(call, notebook, ('"nbformat": 4', '"nbformat": ')))[1]
    assert content(notebook) == before
    text_of(await edit(call, notebook, ('"nbformat": 4', '"nbformat": 5')))
    assert format_number(notebook) == 5


async def test_what_is_called_a_notebook_and_is_none_is_text(call: Call, workspace: Path) -> None:
    for text in ("a = 1\n", '{"cells": 3}', '[{"source": "a = 1"}]', '{"cells": [{"source": 3}], "a = 1": 0}'):
        (workspace / "n.ipynb").write_text(text)
        result = await edit(call, workspace / "n.ipynb", ("a = 1", "b = 1"))
        assert (workspace / "n.ipynb").read_text() == text.replace("a = 1", "b = 1"), result
