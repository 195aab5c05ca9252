"""A machine for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.process import Host
from tests.support.serve_process import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """An empty home, an empty workspace, nothing in the state directory."""
    machine = Host(tmp_path)
    yield machine
    machine.close()


@pytest.fixture
def servers(host: Host) -> Iterator[Servers]:
    """Starts `agent-host serve` on that machine."""
    machines = Servers(host)
    yield machines
    machines.close()
