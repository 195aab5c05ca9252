"""Pictures of a prompt: what is one, and where it is put."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.errors import UsageError
from agent_host.ids import MACHINE
from agent_host.session.tasks import KINDS, PromptPicture, keep_pictures, picture_in
from tests.support.pictures import gif, jpeg, png

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("kind", "data"), [("image/png", png()), ("image/jpeg", jpeg()), ("image/gif", gif())])
def test_a_picture_is_what_it_is_called(kind: str, data: bytes) -> None:
    assert picture_in({"mediaType": kind, "data": b64encode(data).decode()}, "p") == PromptPicture(kind, data)
    for other in KINDS.keys() - {kind}:
        with pytest.raises(UsageError, match="is not of the type"):
            picture_in({"mediaType": other, "data": b64encode(data).decode()}, "p")


@given(st.text())
def test_what_is_no_base64_is_refused_by_its_place(text: str) -> None:
    with pytest.raises(UsageError, match=r"^pictures\[3\]"):
        picture_in({"mediaType": "image/png", "data": text}, "pictures[3]")


def test_pictures_are_private_files_of_new_names(tmp_path: Path) -> None:
    said = keep_pictures(
        [PromptPicture("image/png", png()), PromptPicture("image/gif", gif())], str(tmp_path), MACHINE.new_id
    )
    first, second = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert (first.read_bytes(), second.read_bytes()) == (png(), gif())
    if os.name == "posix":
        assert first.stat().st_mode & 0o777 == 0o600
    assert said.splitlines()[1:] == [
        f"- {first} (image/png, {len(png())} bytes)",
        f"- {second} (image/gif, {len(gif())} bytes)",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="a symbolic link")
def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"link|directory"):
        keep_pictures([PromptPicture("image/png", png())], str(tmp_path / "link"), MACHINE.new_id)
    assert list((tmp_path / "elsewhere").iterdir()) == []
