"""Pictures among files: recognised by what is in them, measured without decompressing, and never a broken one sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.contracts import Image, ToolConstraints
from tests.support.pictures import gif, jpeg, png, webp
from tests.support.results import wire_of
from tests.unit.tool_runtime.conftest import Call, error_of, request, text_of
from tool_runtime.files.images import MAX_BYTES, Header, check_image, header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.tool_runtime.conftest import MakeRouter

FORMATS: dict[str, tuple[str, Callable[[int, int], bytes]]] = {
    "png": ("image/png", png),
    "jpeg": ("image/jpeg", jpeg),
    "progressive": ("image/jpeg", lambda width, height: jpeg(width, height, 0xC2)),
    "gif": ("image/gif", gif),
    "lossy webp": ("image/webp", webp),
    "lossless webp": ("image/webp", lambda width, height: webp(width, height, b"VP8L")),
    "extended webp": ("image/webp", lambda width, height: webp(width, height, b"VP8X")),
}
a_format = st.sampled_from(sorted(FORMATS))
# A real one of each family of headers would have no more than 14 bits a side.
sides = st.integers(1, 300) | st.sampled_from([255, 256, 8000, 8001, 16383])


@given(a_format, sides, sides)
def test_a_header_says_what_the_picture_is(name: str, width: int, height: int) -> None:
    media_type, make = FORMATS[name]
    small = name == "png" and width * height > 10**6  # the pixels would be there
    data = make(width, 1 if small else height)
    assert header_of(data) == Header(media_type, width, 1 if small else height, is_complete=True)


@given(a_format, st.data())
def test_a_picture_that_is_cut_short_is_not_whole(name: str, data: st.DataObject) -> None:
    whole = FORMATS[name][1](640, 480)
    header = header_of(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert header is None or not header.is_complete


@given(a_format, st.binary(max_size=200), st.integers(0, 60), st.integers(0, 60))
def test_any_bytes_have_an_answer(name: str, put: bytes, at: int, gone: int) -> None:
    whole = FORMATS[name][1](640, 480)
    header = header_of(whole[:at] + put + whole[at + gone :])
    assert header is None or (header.width > 0) == (header.height > 0)
    header_of(put)


@given(st.integers(16, 60), st.integers(1, 255))
def test_a_png_with_a_changed_byte_is_not_whole(at: int, by: int) -> None:
    data = bytearray(png(40, 30))
    data[at] ^= by
    header = header_of(bytes(data))
    assert header is not None
    assert not header.is_complete


def test_pictures_without_pixels_are_none() -> None:
    for make in (png, jpeg, gif):
        found = check_image(make(0, 5))
        assert found is not None
        assert (found.data, found.problem, found.header.width) == (None, "the file is damaged or cut short", 0)


@pytest.mark.parametrize("name", FORMATS)
async def test_the_model_gets_the_picture_whatever_its_name(call: Call, workspace: Path, name: str) -> None:
    media_type, make = FORMATS[name]
    data = make(640, 480)
    (workspace / "notes.txt").write_bytes(data)
    result = await call("ReadFile", path=f"{workspace}/notes.txt")
    assert text_of(result) == f"{media_type}, 640x480, {len(data)} bytes"
    assert result.images == (Image(media_type, 640, 480, data),)
    assert "images" not in wire_of(result)


async def test_what_only_looks_like_a_picture_is_read_as_it_was(call: Call, workspace: Path) -> None:
    (workspace / "a.png").write_text("GIF89a is a format of pictures")
    (workspace / "b.png").write_bytes(b"\0\1binary")
    assert text_of(await call("ReadFile", path=f"{workspace}/a.png")) == "GIF89a is a format of pictures"
    assert text_of(await call("ReadFile", path=f"{workspace}/b.png")) == "Binary file, 8 bytes"
    (workspace / "c.png").write_bytes(png())
    as_text = await call("ReadFile", path=f"{workspace}/c.png", encoding="latin-1")
    assert (text_of(as_text)[1:4], as_text.images) == ("PNG", ())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (png(8001, 1), "image/png, 8001x1, {} bytes; not shown: a side may have at most 8000 pixels"),
        (png(5, 5, MAX_BYTES), f"image/png, {{}} bytes; not shown: a picture may have at most {MAX_BYTES} bytes"),
        (png(5, 5)[:-1], "image/png, 5x5, {} bytes; not shown: the file is damaged or cut short"),
        (b"\xff\xd8\xff\0", "image/jpeg, {} bytes; not shown: the file is damaged or cut short"),
    ],
)
async def test_a_picture_that_would_be_refused_is_named(call: Call, workspace: Path, data: bytes, said: str) -> None:
    (workspace / "p").write_bytes(data)
    result = await call("ReadFile", path=f"{workspace}/p")
    assert text_of(result).replace("5x5, ", "", "may have at most" in said) == said.format(len(data))
    assert result.images == ()


async def test_the_largest_picture_goes(call: Call, workspace: Path) -> None:
    data = png(5, 5, MAX_BYTES - len(png(5, 5, 1)) + 1)
    assert len(data) == MAX_BYTES
    (workspace / "p").write_bytes(data)
    (found,) = (await call("ReadFile", path=f"{workspace}/p")).images
    assert found.data == data


async def test_the_limits_of_the_policy_count_first(make_router: MakeRouter, workspace: Path) -> None:
    (workspace / "p").write_bytes(png(5, 5, 5000))
    asked = request("ReadFile", path=f"{workspace}/p")._replace(constraints=ToolConstraints(max_file_size_bytes=4000))
    assert error_of(await make_router().execute(asked))[0] == "FILE_TOO_LARGE"
