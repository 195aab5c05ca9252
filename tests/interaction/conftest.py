"""A machine for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.process import Host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """An empty home, an empty workspace, nothing in the state directory."""
    machine = Host(tmp_path)
    yield machine
    machine.close()
