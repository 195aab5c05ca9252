"""What is imported beside the event loop must not be cut off by the end of the process: C code would crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_WITHOUT = (
    "import threading; found = [one for one in threading.enumerate() if one.daemon]; print(found); assert not found"
)


@pytest.mark.parametrize(
    "code",
    [
        "from agent_host.llm.deferred import Model; Model(print).warm_up()",
        "from agent_host.http import TlsContext; TlsContext('https://127.0.0.1')",
    ],
)
def test_no_thread_of_the_start_is_left_behind_by_the_end(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {_WITHOUT}"], cwd=_ROOT, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
