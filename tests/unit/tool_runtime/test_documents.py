"""ReadFile of notebooks and of PDFs: what they show, and nothing more than they should cost."""

from __future__ import annotations

import base64
import importlib.util
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pictures import png
from tests.unit.tool_runtime.conftest import error_of, text_of
from tool_runtime.files import Scope, documents
from tool_runtime.files.documents import PdfLimits, read_pdf
from tool_runtime.files.read import ReadParams
from tool_runtime.tool import Abandoned, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import Call

PICTURE = png(3, 2)


def notebook(*cells: dict[str, Any]) -> str:
    return json.dumps({"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4})


def code(source: Any, *outputs: dict[str, Any], run: Any = 1) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": outputs, "execution_count": run}


def data(**kinds: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {kind.replace("_", "/"): value for kind, value in kinds.items()}}


PLOT = data(image_png=base64.b64encode(PICTURE).decode() + "\n", text_plain=["<Figure>"])
WHOLE = notebook(
    {"cell_type": "markdown", "source": ["# Title\n", "text"]},
    code("print(1)\n1 / 0", {"output_type": "stream", "name": "stdout", "text": ["10%\r", "20%\n"]}, {
        "output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mZeroDivisionError\x1b[0m", "at 1"],
    }),
    code("plot()", PLOT, data(text_html="<b>bold</b>"), run=None),
)  # fmt: skip
SHOWN = f"""\
[Notebook, python, 3 cells; raw: true shows the file's own text]
--- cell 1: markdown ---
# Title
text
--- cell 2: code [1] ---
print(1)
1 / 0
--- output of cell 2 ---
20%
--- output of cell 2 ---
ZeroDivisionError
at 1
E: v
--- cell 3: code ---
plot()
--- output of cell 3 ---
<Figure>
[picture 1: image/png, 3x2, {len(PICTURE)} bytes]
--- output of cell 3 ---
[text/html, 11 characters, not shown; raw: true shows the file's text]
"""


async def test_a_notebook_is_shown_as_its_cells_with_its_pictures(call: Call, workspace: Path) -> None:
    path = workspace / "a.ipynb"
    path.write_text(WHOLE)
    found = await call("ReadFile", path=str(path))
    assert text_of(found) == SHOWN
    assert [(image.text, image.data) for image in found.images] == [
        (f"image/png, 3x2, {len(PICTURE)} bytes", PICTURE),
    ]
    window = await call("ReadFile", path=str(path), offset=6, limit=2)
    assert (text_of(window), window.images) == ("print(1)\n1 / 0\n", ())
    behind = await call("ReadFile", path=str(path), offset=100)
    assert text_of(behind) == "[The notebook's cells end before line 100]"
    raw = await call("ReadFile", path=str(path), raw=True)
    assert (text_of(raw), raw.images) == (WHOLE, ())
    assert raw.seen == found.seen


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "it is not JSON"),
        ("[]", "no list of cells"),
        ('{"worksheets": []}', "no list of cells"),
        ("[" * 100_000, "it is not JSON"),
        ("", "it is not JSON"),
    ],
)
async def test_what_is_no_notebook_is_shown_as_text(call: Call, workspace: Path, content: str, why: str) -> None:
    path = workspace / "a.IPYNB"
    path.write_text(content)
    note, _, text = text_of(await call("ReadFile", path=str(path))).partition("\n")
    assert note.startswith("[This file cannot be shown as a notebook: ")
    assert why in note
    assert text[:1000] == (content or "[The file is empty]")[:1000]


async def test_a_notebook_keeps_within_the_limits_of_files(call: Call, workspace: Path) -> None:
    assert error_of(await call("ReadFile", path=str(workspace / "no.ipynb")))[0] == "FILE_NOT_FOUND"


def test_pictures_that_no_model_should_get_are_named() -> None:
    broken = base64.b64encode(PICTURE[:-5]).decode()
    many = [data(image_png=base64.b64encode(PICTURE).decode()) for _ in range(documents.MAX_PICTURES + 1)]
    found = documents.render(notebook(code("", data(image_png=broken), data(image_png="?"), *many)).encode())
    assert len(found.pictures) == documents.MAX_PICTURES
    assert "not shown: the file is damaged or cut short]" in found.text
    assert "[picture 2: image/png, not shown: it is not base64]" in found.text
    assert "8 pictures of a notebook are shown at a time" in found.text


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["stream", "error", "aGk="]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cell_type", "source", "outputs", "data", "text", "output_type", "image/png", "traceback"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=100)
@given(st.lists(JSON, max_size=4))
def test_whatever_a_notebook_holds_it_is_shown(cells: list[Any]) -> None:
    found = documents.render(json.dumps({"cells": cells}).encode())
    assert found.text.count("--- cell ") >= len(cells)


# PDFs


def pdf(*pages: bytes) -> bytes:
    """A file with one stream of content a page."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(pages), kids),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, content in enumerate(pages):
        packed = zlib.compress(content)
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Resources<</Font<</F 3 0 R>>>>/Contents %d 0 R>>"
            % (5 + 2 * number),
            b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed),
        ]
    made, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj%s endobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return (
        made + head + table + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(made))
    )


def line(text: str) -> bytes:
    return b"BT /F 12 Tf 10 100 Td (%s) Tj ET" % text.encode()


def reading(path: Path) -> ReadParams:
    return ReadParams(str(path), Scope((str(path.parent),), ()), 100_000)


async def test_a_pdf_is_shown_as_the_text_of_its_pages(call: Call, workspace: Path) -> None:
    path = workspace / "a.dat"
    path.write_bytes(pdf(line("First page"), b"", line("Third page")))
    texts = ("First page", "[no text on this page]", "Third page")
    shown = "".join(f"--- page {number} of 3 ---\n{text}\n" for number, text in enumerate(texts, 1))
    assert text_of(await call("ReadFile", path=str(path))) == shown
    assert text_of(await call("ReadFile", path=str(path), offset=5, limit=1)) == "--- page 3 of 3 ---\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"%PDF-1.4\nnothing", "at page|Error"),
        (pdf(line("x" * 50) * 3000, line("end")), "more text than is read"),
    ],
    ids=["broken", "long"],
)
def test_what_cannot_be_read_of_a_pdf_is_said(workspace: Path, content: bytes, why: str) -> None:
    path = workspace / "a.pdf"
    path.write_bytes(content)
    found = read_pdf(reading(path), place(), Abandoned(), PdfLimits(text_bytes=50_000))
    assert found.problem is not None
    assert any(one in found.problem for one in why.split("|"))


def place() -> str:
    found = importlib.util.find_spec("pypdf")
    assert found is not None
    assert found.origin is not None
    return found.origin.rpartition("/pypdf/")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "limits", "why"),
    [
        (b"q " * 80_000_000, PdfLimits(memory_bytes=150_000_000), "memory|its reader ended|Error"),
        (line("again") * 400_000, PdfLimits(time_s=1), "took more than 1 seconds at page 1"),
    ],
    ids=["memory", "time"],
)
def test_a_hostile_pdf_costs_no_more_than_its_limits(
    workspace: Path, content: bytes, limits: PdfLimits, why: str
) -> None:
    path = workspace / "bomb.pdf"
    path.write_bytes(pdf(content))
    found = read_pdf(reading(path), place(), Abandoned(), limits)
    assert found.problem is not None
    assert any(one in found.problem for one in why.split("|"))


def test_a_pdf_nobody_waits_for_is_left(workspace: Path) -> None:
    path = workspace / "a.pdf"
    path.write_bytes(pdf(line("x"), line("y")))
    abandoned = Abandoned()
    abandoned.flag = True
    with pytest.raises(ToolFault, match="abandoned"):
        read_pdf(reading(path), place(), abandoned)


async def test_without_the_extra_it_says_how_to_have_it(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    path = workspace / "a.pdf"
    path.write_bytes(pdf(line("x")))
    size = path.stat().st_size
    assert text_of(await call("ReadFile", path=str(path))) == (
        f"PDF file, {size} bytes; its text is shown if the extra is installed: pip install 'agent-host[pdf]'"
    )


async def test_the_reader_takes_nothing_from_where_it_is_pointed(
    call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither modules of the workspace nor what the environment says count for the process that reads a PDF."""
    for name in ("pypdf", "json", "logging"):
        (workspace / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("PYTHONPATH", str(workspace))
    path = workspace / "a.pdf"
    path.write_bytes(pdf(line("Hello")))
    assert "Hello" in text_of(await call("ReadFile", path=str(path)))
