"""One session in every format that was ever written: each loads for ever, and to the same state.

A new format gets a folder of its own under tests/golden, made by `python -m tests.golden.make`; the others stay as
they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from state.file_store import FileCheckpointStore
from state.journal import parse
from state.records import record_of
from tests.golden.make import SESSION, plain
from tests.unit.state.helpers import finish, message, unnumbered

if TYPE_CHECKING:
    from state.checkpoint import Checkpoint

GOLDEN = Path(__file__).parents[2] / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if path.name.isdigit())


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / str(request.param)


@pytest.fixture
def state_dir(version: Path, tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    for suffix in ("json", "journal"):
        shutil.copy(version / f"{SESSION}.{suffix}", tmp_path / "checkpoints")
        (tmp_path / "checkpoints" / f"{SESSION}.{suffix}").chmod(0o600)
    if (version / "blobs").exists():
        shutil.copytree(version / "blobs", tmp_path / "sessions" / SESSION / "blobs")
    return tmp_path


def expected(version: Path) -> dict[str, Any]:
    """The state that was written. Up to version 2 a session had one task, and so the task's first versions of files are
    the session's."""
    state: dict[str, Any] = orjson.loads((version / "expected.json").read_bytes())
    if int(version.name) <= 2:
        state["task"]["baselines"] = state["baselines"]
    return state


def agrees(found: object, wanted: object) -> bool:
    """Whether `found` says what `wanted` does; fields that came later say nothing."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        later = {key: value for key, value in found.items() if key not in wanted}
        return not any(later.values()) and all(agrees(found.get(key), value) for key, value in wanted.items())
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(agrees, found, wanted))
    return found == wanted


def shown(state: Checkpoint) -> object:
    return plain(unnumbered(state))


def test_the_versions_are_all_there() -> None:
    assert VERSIONS == ["1", "2", "3"]
    assert parse((GOLDEN / "1" / f"{SESSION}.journal").read_bytes()).records[0].message is None


def test_it_loads(version: Path, state_dir: Path) -> None:
    assert agrees(shown(FileCheckpointStore(str(state_dir)).load(SESSION)), expected(version))


def test_it_goes_on_and_is_written_anew(version: Path, state_dir: Path) -> None:
    session = FileCheckpointStore(str(state_dir)).open(SESSION)
    assert agrees(shown(session.state), expected(version))
    assert session.report.torn_bytes == 0
    assert session.state.open_step is not None
    if version.name != "1":  # it has no blobs
        assert all(session.kept(name) is not None for name in session.state.first_version_blobs())
    finished = session.state.task.finished_calls if session.state.task is not None else []
    answered = len(finished) + len(session.state.open_step.calls)
    for call in [call.call_id for call in session.state.open_step.calls if call.result is None]:
        finish(session, call)
    session.commit(record_of("step_committed", {"stepCount": 2}, message("system", "go on")))
    session.close()
    again = FileCheckpointStore(str(state_dir)).load(SESSION)
    assert unnumbered(again) == unnumbered(session.state)
    assert again.open_step is None
    assert again.task is not None
    assert len(again.task.finished_calls) == answered
