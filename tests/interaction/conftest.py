"""Servers on the machine of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.serve_process import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host


@pytest.fixture
def servers(host: Host) -> Iterator[Servers]:
    """Starts `agent-host serve` on that machine."""
    machines = Servers(host)
    yield machines
    machines.close()
