"""The set-up's question to npm's registry."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.support import node_packages

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_registry_that_does_not_answer_costs_ten_seconds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_packages, "FOLDER", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        began = time.monotonic()
        problem = node_packages.install()
        took = time.monotonic() - began
    assert problem is not None
    assert problem.startswith("npm did not find packages")
    assert took < 10
