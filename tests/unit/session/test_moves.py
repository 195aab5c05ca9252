"""A session that goes on in another workspace: the model is told, and knows each place that it was told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_host.ids import MACHINE
from agent_host.session.tasks import note_of_move, workspaces
from agent_host.thread.messages import Message, Role, encode
from state.checkpoint import Checkpoint, SessionIdentity

PATHS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


def begun(workspace: str) -> Checkpoint:
    return Checkpoint(SessionIdentity("s", "w", "t", "u", {"workspace": workspace}), thread=[said("Be careful.")])


def said(text: str, role: Role = "system", workspace: str | None = None) -> bytes:
    return encode(Message(role, text, 1, workspace=workspace), MACHINE, session_id="s")


@given(st.lists(PATHS, min_size=1, max_size=5), st.booleans())
def test_the_model_is_told_of_each_move_and_of_nothing_else(places: list[str], earlier_version: bool) -> None:
    """Earlier versions had the place in the note's text alone."""
    state, known = begun(places[0]), [places[0]]
    for place in places:
        resume_note = note_of_move(state, place)
        assert (resume_note is None) == (place == known[-1])
        if resume_note is not None:
            assert place in resume_note.text
            named = None if earlier_version else resume_note.workspace
            state.thread.append(said(resume_note.text, workspace=named))
            known.append(place)
        assert workspaces(state) == known


def test_what_somebody_else_says_of_it_moves_nothing() -> None:
    resume_note = note_of_move(begun("/a"), "/b")
    assert resume_note is not None
    state = begun("/a")
    text = resume_note.text
    state.thread += [said(text, "user"), said(text, "assistant"), said(f"So it says: {text}")]
    assert workspaces(state) == ["/a"]


def test_a_session_of_an_earlier_version_says_no_place() -> None:
    state = Checkpoint(SessionIdentity("s", "w", "t", "u", {}), thread=[said("Be careful.")])
    assert workspaces(state) == [""]
    assert note_of_move(state, "/b") is not None
