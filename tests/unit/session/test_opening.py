"""How a session comes to its store, and what is kept of how it was started (AH 3.2, 9.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.errors import (
    AgentHostError,
    CheckpointUnreadable,
    CheckpointWriteFailed,
    SessionHeld,
    SessionNotFound,
    UsageError,
)
from agent_host.ids import MACHINE
from agent_host.judging import Environment
from agent_host.redaction import Scrubber
from agent_host.services.session import NewSession, SessionGrant
from agent_host.session.opening import (
    Beginning,
    ResolvedOptions,
    claim_store,
    create_store,
    read_options,
    sessions_of,
    state_errors_translated,
)
from agent_host.session.tasks import NewTask, record_of_task
from agent_host.thread.messages import Message, decode, encode, estimate
from config.load import load
from policy.rules import TaskOptions
from state import (
    Damaged,
    InvalidSessionId,
    NoSuchSession,
    SessionExists,
    SessionLocked,
    UnknownVersion,
    Untrusted,
    WriteFailed,
)
from state.disk import LOCAL_DISK, ThreadJob
from state.records import record_of
from tests.support.loop_parts import SESSION, bundle
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.session.tasks import TaskRecord
    from state.file_session import FileSession
    from state.file_store import FileCheckpointStore

NEW = NewSession("jo", "acme", "ci")


def resolved(folder: Path, *, state: str = "state", **flags: Any) -> ResolvedOptions:
    config = folder / "config.toml"
    config.touch()
    settings = load({"host.max_stored_bytes": 12_345}, workspace=None, environ={"AGENT_HOST_CONFIG": str(config)})
    return ResolvedOptions(settings, flags, "/ws", str(folder / state), None, frozenset({"b", "a"}), approve_all=True)


def created(folder: Path, session_id: str = SESSION, first: TaskRecord | None = None, **more: Any) -> FileSession:
    where = Environment("/ws", None, "posix", "bash")
    options = resolved(folder, **more)
    beginning = Beginning(bundle(folder), where, estimate, "/tmp/own", {"model": "m"}, first)
    return create_store(sessions(options), options, MACHINE, beginning, SessionGrant(session_id, "w1"), NEW)


def sessions(options: ResolvedOptions) -> FileCheckpointStore:
    return sessions_of(options, LOCAL_DISK, MACHINE.now, ThreadJob)


def claimed(folder: Path) -> FileSession:
    options = resolved(folder)
    return claim_store(sessions(options), options, SESSION)


def with_task(store: FileSession) -> FileSession:
    prompt = encode(Message("user", "Do it.", 2), MACHINE, session_id=SESSION)
    store.commit(record_of("task_started", {"taskId": "t", "prompt": "Do it.", "maxSteps": 5}, prompt))
    return store


def test_a_new_session_knows_who_it_is_and_what_it_was_started_with(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"llm.model": "m", "host.output": "json"}
    with_task(created(tmp_path, **flags)).close()
    store = claimed(tmp_path)
    who = store.state.identity
    assert (who.session_id, who.workspace_id, who.tenant_id, who.user_id) == (SESSION, "w1", "acme", "jo")
    assert who.options == {
        "flags": {"llm.model": "m"}, "workspace": "/ws", "temporary": "/tmp/own", "started": {"model": "m"},
    }  # fmt: skip
    assert store.state.policy_bundle_version == "v1"
    first = decode(store.state.thread[0])
    assert first.role == "system"
    assert "/ws" in first.content
    assert first.tokens > estimate(first.content)
    store.close()
    assert read_options(str(tmp_path / "state"), SESSION, snapshot_limit_bytes=1 << 28) == who.options


def test_headers_of_the_gateway_are_not_kept(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"llm.headers": {"x-key": "secret-value"}, "llm.model": "m"}
    store = created(tmp_path, **flags)
    assert store.state.identity.options["flags"] == {"llm.model": "m"}
    store.close()


@pytest.mark.parametrize(
    ("url", "is_kept"),
    [
        ("http://127.0.0.1:1/", True),
        ("http://gateway.test/a@b", True),
        ("http://me:hunter2@gateway.test/", False),
        ("mock:/a@b/script.toml", True),
        ("mock://me:hunter2@b/script.toml", True),
    ],
)
def test_a_url_with_a_password_is_not_kept(tmp_path: Path, url: str, *, is_kept: bool) -> None:
    flags: dict[str, Any] = {"llm.gateway": url}
    store = created(tmp_path, **flags)
    options = store.state.identity.options
    assert options["flags"] == ({"llm.gateway": url} if is_kept else {})
    assert options.get("gateway") == (None if is_kept else "http://gateway.test/")
    store.close()


def test_a_session_that_never_began_gives_its_id_back(tmp_path: Path) -> None:
    created(tmp_path).close()
    with_task(created(tmp_path)).close()
    with pytest.raises(UsageError, match="exists already"):
        created(tmp_path)
    store = claimed(tmp_path)
    assert store.state.task is not None
    store.close()


def test_a_session_is_on_record_with_its_first_task(tmp_path: Path) -> None:
    task = NewTask("t1", "Use sk-hunter-2222222.", 7, TaskOptions(allow_network=False))
    record = record_of_task(task, MACHINE, session_id=SESSION, scrubber=Scrubber(["sk-hunter-2222222"]), count=estimate)
    created(tmp_path, first=record).close()
    store = claimed(tmp_path)
    assert store.state.task is not None
    assert (store.state.task.task_id, store.state.task.max_steps) == ("t1", 7)
    assert store.state.task.options == TaskOptions(allow_network=False)._asdict()
    assert [decode(message).role for message in store.state.thread] == ["system", "user"]
    assert "hunter" not in store.state.task.prompt + decode(store.state.thread[1]).content
    store.close()


def test_a_session_has_one_holder(tmp_path: Path) -> None:
    store = with_task(created(tmp_path))
    with pytest.raises(SessionHeld, match="wait for it or end it"):
        claimed(tmp_path)
    store.close()


def test_a_session_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound, match="agent-host sessions"):
        claimed(tmp_path)
    with pytest.raises(SessionNotFound):
        read_options(str(tmp_path / "state"), SESSION, snapshot_limit_bytes=1 << 28)


def test_a_state_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(UsageError, match="state directory"):
        created(tmp_path)


def test_what_a_session_may_store_is_in_the_settings(tmp_path: Path) -> None:
    store = created(tmp_path)
    assert store.blobs.limit_bytes == 12_345
    store.close()


def test_damage_is_moved_aside_and_what_was_whole_can_be_had(tmp_path: Path) -> None:
    with_task(created(tmp_path)).close()
    journal = tmp_path / "state/checkpoints/s.journal"
    snapshot = tmp_path / "state/checkpoints/s.json"
    snapshot.write_bytes(snapshot.read_bytes()[:-9] + b"00000000\n")
    journal.unlink()
    with pytest.raises(CheckpointUnreadable):
        read_options(str(tmp_path / "state"), SESSION, snapshot_limit_bytes=1 << 28)
    assert list((tmp_path / "state/checkpoints").glob("*.corrupt-*"))


def damaged(*, salvaged: bool, moved_to: str | None) -> Damaged:
    error = Damaged("it is torn")
    error.salvaged, error.quarantined = salvaged, moved_to
    return error


@each_row(
    ("error", "kind", "said"),
    [
        (SessionLocked("s", 7), SessionHeld, "process 7: wait for it or end it"),
        (NoSuchSession("none"), SessionNotFound, "lists what there is"),
        (SessionExists("there"), UsageError, "^there$"),
        (InvalidSessionId("bad id"), UsageError, "^bad id$"),
        (Untrusted("of others"), CheckpointUnreadable, "^of others$"),
        (UnknownVersion("newer"), CheckpointUnreadable, "use the program that wrote it"),
        (WriteFailed("full"), CheckpointWriteFailed, "^full$"),
        (damaged(salvaged=True, moved_to="x.corrupt-1"), CheckpointUnreadable, "kept as x.corrupt-1; .*same command"),
        (damaged(salvaged=False, moved_to="x.corrupt-1"), CheckpointUnreadable, "recovered: .*moved to x.corrupt-1$"),
        (damaged(salvaged=False, moved_to=None), CheckpointUnreadable, "cannot be recovered: it is torn$"),
    ],
)
def test_errors_of_the_state_are_told_in_the_hosts_words(
    error: Exception, kind: type[AgentHostError], said: str
) -> None:
    with pytest.raises(kind, match=said) as raised, state_errors_translated():
        raise error
    if isinstance(raised.value, SessionHeld):
        assert raised.value.details == {"pid": 7}


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), state_errors_translated():
        raise ZeroDivisionError
