"""Which levels of the sandbox were found to work, kept for the starts that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state import keys
from state.keys import SANDBOX_LEVELS_FILE, SandboxLevels

if TYPE_CHECKING:
    from pathlib import Path

FOUND: dict[str, dict[str, Any]] = {
    "landlock": {"works": True, "problem": "", "unheld": ["modes"]},
    "namespace": {"works": False, "problem": "no namespaces", "unheld": []},
}


@pytest.fixture(autouse=True)
def _boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "boot_id", lambda: "boot")


def test_what_was_found_is_known_under_the_same_circumstances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SandboxLevels(str(tmp_path), "1").findings() == {}
    SandboxLevels(str(tmp_path), "1").keep(FOUND)
    assert SandboxLevels(str(tmp_path), "1").findings() == FOUND
    assert SandboxLevels(str(tmp_path), "2").findings() == {}
    monkeypatch.setattr(keys, "boot_id", lambda: "another boot")
    assert SandboxLevels(str(tmp_path), "1").findings() == {}


def test_where_no_boot_can_be_told_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "boot_id", lambda: None)
    SandboxLevels(str(tmp_path), "1").keep(FOUND)
    assert SandboxLevels(str(tmp_path), "1").findings() == {}
    assert not (tmp_path / SANDBOX_LEVELS_FILE).exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"machines": 1}', b'{"machines": {"x": 1}}', b'\xff{"machines": {}}']
)
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SANDBOX_LEVELS_FILE).write_bytes(content)
    assert SandboxLevels(str(tmp_path), "1").findings() == {}
    SandboxLevels(str(tmp_path), "1").keep(FOUND)
    assert SandboxLevels(str(tmp_path), "1").findings() == FOUND


@pytest.mark.parametrize(
    "row", [{}, {"works": 1, "problem": "", "unheld": []}, {"works": True, "problem": "", "unheld": [1]}, "x"]
)
def test_a_row_of_another_shape_is_passed_over(tmp_path: Path, row: Any) -> None:
    levels = SandboxLevels(str(tmp_path), "1")
    levels.keep({"landlock": row, "namespace": FOUND["namespace"]})
    assert levels.findings() == {"namespace": FOUND["namespace"]}
