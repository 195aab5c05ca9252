"""Mutants where only another platform or another process runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import mutation_processes
from tests.support.mutations import mutants

ROOT = Path(__file__).parents[2]
_SAY = "from state.checkpoint import ENDED; from state import check_session_id as c; print(ENDED, c('a'))"


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    for name in ("MUTANT_OF", "MUTANT_SOURCE", "MUTANT_FOLDER", "MUTANT_LINES"):
        monkeypatch.setenv(name, "")  # so that it is taken back
        monkeypatch.delenv(name)


def said() -> str:
    done = subprocess.run([sys.executable, "-c", _SAY], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_that_is_started_has_the_changed_module(tmp_path: Path) -> None:
    assert said() == "SESSION_COMPLETED a"
    source = tmp_path / "checkpoint.txt"
    source.write_text(
        (ROOT / "state" / "checkpoint.py").read_text("utf-8").replace("SESSION_COMPLETED", "OVER"), "utf-8"
    )
    mutation_processes.change("state.checkpoint", source)
    assert said() == "OVER a"


def test_a_process_that_is_started_tells_its_lines(tmp_path: Path) -> None:
    into = tmp_path / "lines"
    mutation_processes.write_lines(f"{ROOT / 'state'}/", into)
    assert mutation_processes.written_lines(into) == set()
    assert said() == "SESSION_COMPLETED a"
    found = mutation_processes.written_lines(into)
    source = (ROOT / "state" / "__init__.py").read_text("utf-8").splitlines()
    line = source.index("    if not is_session_id(session_id):") + 1
    path = str(ROOT / "state" / "__init__.py")
    assert (path, line) in found
    assert (path, line + 1) not in found, "the id is a good one"
    assert {Path(each).parent.name for each, _ in found} == {"state"}
    assert mutation_processes.written_lines(into) == set()


def test_what_another_platform_runs_is_left_alone() -> None:
    source = """
import sys
def where(remove):
    if sys.platform == "nowhere":
        return there(1)
    if remove and sys.platform == "nowhere":
        return there(2)
    if sys.platform != "nowhere":
        return here(3)
    return there(4)
"""
    changes = [one.change for one in mutants("m.py", source)]
    assert {change for change in changes if "platform" in change} == {
        "sys.platform == 'nowhere' → sys.platform != 'nowhere'",
        "sys.platform != 'nowhere' → sys.platform == 'nowhere'",
        "remove and sys.platform == 'nowhere' → remove or sys.platform == 'nowhere'",
    }
    assert [change for change in changes if "→" in change and change[0].isdigit()] == ["3 → 4", "4 → 5"]
    assert not any("nowhereXX" in change for change in changes)
