"""A process that was forked for a test is like one that `subprocess` starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import warm_starts
from tests.support.process import PATIENCE_S, eventually, process_exists

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.warm_starts import Started

pytestmark = pytest.mark.skipif(not warm_starts.can_start({}), reason="needs pidfds")


@contextlib.contextmanager
def started(folder: Path, *arguments: str, env: Mapping[str, str], piped: bool = False) -> Iterator[Started]:
    process = warm_starts.start("tests.support.what_it_has", arguments, piped=piped, env=env, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_it_has_what_it_is_given_and_nothing_else(tmp_path: Path) -> None:
    hashes = set()
    for number in (0, 3):
        with started(tmp_path, str(number), "ü", env={"A": "1"}, piped=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"typed")
            process.stdin.close()
            has = json.loads(process.stdout.read())
            assert process.wait(PATIENCE_S) == process.poll() == number
        hashes.add(has.pop("hash"))
        given = {"arguments": [str(number), "ü"], "env": {"A": "1"}, "cwd": str(tmp_path), "stdin": "typed"}
        assert has == {**given, "leads": True}
    assert len(hashes) == 2  # one that goes on with a session has other hashes


def test_it_is_in_the_process_table_until_its_end_is_seen(tmp_path: Path) -> None:
    with started(tmp_path, env={}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        stat = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "its end")
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        eventually(lambda: not process_exists(process.pid), "nothing of it")
