"""What `doctor` says about machines other than the one that runs the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent_host.host import machine_checks as checks

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("by_descriptor", "ok"), [(True, True), (False, None)])
def test_it_says_whether_files_are_opened_free_of_races(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_descriptor: bool, ok: bool | None
) -> None:
    monkeypatch.setattr(checks, "BY_DESCRIPTOR", by_descriptor)
    (found,) = (check for check in checks.machine_checks({}, str(tmp_path)) if check.name == "files")
    assert found.ok is ok
    assert ("a link that is moved" in found.found) is not by_descriptor
