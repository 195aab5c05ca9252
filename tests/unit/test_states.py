"""Both machines, every state and every trigger."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.states import (
    SESSION_TABLE,
    TASK_TABLE,
    IllegalTransition,
    Machine,
    SessionStatus,
    TaskPhase,
    Transition,
    moves,
    session_machine,
    task_machine,
)
from tests.support.rows import each_row
from tests.support.states_page import PAGE, page

TABLES: list[tuple[tuple[Transition[Any], ...], Any, Any]] = [
    (SESSION_TABLE, SessionStatus, SessionStatus.CREATED),
    (TASK_TABLE, TaskPhase, TaskPhase.IDLE),
]
ALL = [
    (table, state, trigger)
    for table, states, _ in TABLES
    for state, trigger in product(states, sorted({row.trigger for row in table} | {"", "nonsense"}))
]


@each_row(("table", "state", "trigger"), ALL)
def test_a_trigger_leads_where_the_table_says_and_nowhere_else(table: Any, state: Any, trigger: str) -> None:
    machine = Machine(table, state)
    rows = [row for row in table if row.trigger == trigger and state in row.sources]
    assert machine.may(trigger) == bool(rows)
    if rows:
        machine.fire(trigger)
        assert machine.state is rows[0].target
        return
    with pytest.raises(IllegalTransition, match=str(state)):
        machine.fire(trigger)
    assert machine.state is state


@pytest.mark.parametrize(("table", "states", "first"), TABLES)
def test_every_state_can_be_reached_and_every_row_be_used(table: Any, states: Any, first: Any) -> None:
    known, reached = moves(table), {first}
    while new := {target for (source, _), target in known.items() if source in reached} - reached:
        reached |= new
    assert reached == set(states)


@pytest.mark.parametrize("end", [SessionStatus.COMPLETED, SessionStatus.FAILED, SessionStatus.CANCELLED])
def test_a_session_that_ended_stays_so(end: SessionStatus) -> None:
    assert not [source for source, _ in moves(SESSION_TABLE) if source is end]


def test_every_task_comes_back_to_idle() -> None:
    known = moves(TASK_TABLE)
    back = {TaskPhase.IDLE}
    while new := {source for (source, _), target in known.items() if target in back} - back:
        back |= new
    assert back == set(TaskPhase)


def test_a_row_that_stands_twice_is_refused() -> None:
    row = SESSION_TABLE[0]
    with pytest.raises(ValueError, match="stands twice"):
        moves([row, row])


@given(st.lists(st.sampled_from(sorted({row.trigger for row in SESSION_TABLE}))))
def test_a_session_never_leaves_its_states(triggers: list[str]) -> None:
    machine = session_machine()
    for trigger in triggers:
        if machine.may(trigger):
            machine.fire(trigger)
    assert machine.state in SessionStatus


def test_a_task_starts_idle() -> None:
    assert task_machine().state is TaskPhase.IDLE


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.support.states_page writes it"
