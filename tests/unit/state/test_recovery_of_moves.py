"""What the disk says of moves that a crash left open, against a small world of three files in which calls run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from state.checkpoint import OpenCall
from state.loading import CallOutcome, compare, paths_of
from tests.support.rows import each_row

if TYPE_CHECKING:
    from state.checkpoint import Intent

PATHS = ("/a", "/b", "/c")
Files = dict[str, str | None]


class Planned(NamedTuple):
    """A write of `content` to `path` (None: a deletion), or a move from there to `target`."""

    path: str
    content: str | None = None
    target: str | None = None

    @property
    def paths(self) -> set[str]:
        return {self.path, self.target or self.path}

    def intent(self, files: Files) -> Intent:
        before = files[self.path]
        if self.target is None:
            return {"path": self.path, "before": before, "after": self.content}
        there = files[self.target]
        return {"path": self.path, "before": before, "after": None, "target": {"path": self.target, "before": there}}

    def fails(self, files: Files) -> bool:
        if self.target is None:
            return self.content is None and files[self.path] is None
        return files[self.path] is None or files[self.target] is not None

    def act(self, files: Files) -> None:
        if not self.fails(files):
            if self.target is not None:
                files[self.target] = files[self.path]
            files[self.path] = self.content


writes = st.builds(Planned, st.sampled_from(PATHS), st.sampled_from([None, "x", "y"]), st.none())
moves = st.permutations(PATHS).map(lambda names: Planned(names[0], target=names[1]))
plans = st.lists(st.one_of(writes, moves, moves), min_size=1, max_size=5)
worlds = st.fixed_dictionaries({path: st.sampled_from([None, "x", "y"]) for path in PATHS})


@settings(max_examples=400)
@given(worlds, plans, st.data())
def test_nothing_is_said_of_a_move_that_is_not_so(files: Files, plan: list[Planned], data: st.DataObject) -> None:
    """Calls on no common path run at once, so any of them may have run that those before it on its paths have."""
    expected, calls = dict(files), []
    for number, planned in enumerate(plan):
        calls.append(OpenCall(str(number), "T", {}, side_effects=True, intent=planned.intent(expected)))
        planned.act(expected)
    failed: set[int] = set()
    ran: set[int] = set()
    for number, planned in enumerate(plan):
        before = {other for other in range(number) if plan[other].paths & planned.paths}
        if before <= ran and data.draw(st.booleans(), f"{number} runs"):
            calls[number].started, calls[number].intent = True, planned.intent(files)
            if planned.fails(files):
                failed.add(number)
            if failed & before:
                return  # the call behind it has taken what the failed one would have left away
            planned.act(files)
            ran.add(number)
    outcomes = compare(calls, {path: files[path] for call in calls for path in paths_of(call)}, same_boot=False)
    for name, outcome in outcomes.items():
        happened = int(name) in ran
        if outcome is CallOutcome.DONE:
            assert happened
            assert int(name) not in failed
        elif outcome is CallOutcome.NOT_DONE:
            assert not happened or int(name) in failed
        elif outcome is CallOutcome.REPEAT:
            assert plan[int(name)].target is None or plan[int(name)].fails(files)


MOVE: Intent = {"path": "/a", "before": "x", "after": None, "target": {"path": "/b", "before": None}}


@each_row(
    ("source", "target", "said"),
    [
        (None, "x", "DONE"),
        ("x", None, "NOT_DONE"),
        (None, "changed since", "DONE"),
        ("made since", "x", "DONE"),
        ("x", "of somebody else", "NOT_DONE"),
        ("x", "x", "UNKNOWN"),
        (None, None, "UNKNOWN"),
        ("y", "z", "UNKNOWN"),
    ],
)
def test_both_ends_of_a_move_are_looked_at(source: str | None, target: str | None, said: str) -> None:
    call = OpenCall("1", "MoveFile", {}, side_effects=True, intent=MOVE, started=True)
    assert compare([call], {"/a": source, "/b": target}, same_boot=True)["1"] is CallOutcome[said]
