"""Which versions of a file a preview compares, for one task of several and for the session."""

from __future__ import annotations

import pytest

from agent_host.session.tasks import ON_DISK, FirstVersions, Span, first_versions, spans
from state.checkpoint import EarlierTask, Task
from tests.unit.state.helpers import fresh_state

VERSIONS = FirstVersions(
    {"a": None, "b": "b0"},
    (("one", {"a": None}), ("two", {"b": "b0"}), ("three", {"a": "a1", "b": "b2"})),
)


def test_a_task_reaches_to_what_the_next_one_found() -> None:
    assert spans(VERSIONS, "one", {}) == {"a": Span(None, "a1")}
    assert spans(VERSIONS, "two", {}) == {"b": Span("b0", "b2")}
    assert spans(VERSIONS, "three", {}) == {"a": Span("a1", ON_DISK), "b": Span("b2", ON_DISK)}


def test_a_session_reaches_from_the_first_version_to_the_disk() -> None:
    assert spans(VERSIONS, None, {}) == {"a": Span(None, ON_DISK), "b": Span("b0", ON_DISK)}


def test_a_file_that_was_not_there_is_a_version_too() -> None:
    versions = FirstVersions({}, (("one", {"a": "a0"}), ("two", {"a": None})))
    assert spans(versions, "one", {}) == {"a": Span("a0", None)}


def test_paths_that_have_moved_are_one_file() -> None:
    versions = FirstVersions({"/old/a": None, "/new/a": "x"}, (("one", {"/old/a": None}), ("two", {"/new/a": "x"})))
    places = {"/old/a": "/new/a"}
    assert spans(versions, "one", places) == {"/new/a": Span(None, "x")}
    assert spans(versions, None, places) == {"/new/a": Span(None, ON_DISK)}, "the version recorded first counts"


@pytest.mark.parametrize("task_id", ["other", ""])
def test_a_task_that_is_not_known(task_id: str) -> None:
    with pytest.raises(LookupError, match="has no task"):
        spans(VERSIONS, task_id, {})


def test_what_a_session_knows_is_a_copy() -> None:
    state = fresh_state()
    assert first_versions(state) == FirstVersions({})
    state.baselines["a"] = None
    state.earlier_tasks.append(EarlierTask("one", "p", "completed", None, 1, {"a": None}))
    state.task = Task("two", "p", 5, baselines={"a": "a1"})
    known = first_versions(state)
    assert known == FirstVersions({"a": None}, (("one", {"a": None}), ("two", {"a": "a1"})))
    state.baselines["b"] = state.task.baselines["b"] = state.earlier_tasks[0].baselines["b"] = None
    assert known == FirstVersions({"a": None}, (("one", {"a": None}), ("two", {"a": "a1"})))
