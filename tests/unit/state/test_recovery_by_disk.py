"""What the disk says of file calls that a crash left open, against a small world in which they really run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.checkpoint import OpenCall
from state.loading import CallOutcome, ResumeVerdict, compare, judge
from tests.support.rows import each_row

if TYPE_CHECKING:
    from state.checkpoint import CallStatus, Intent

PATH = "/f"
RUNS, DENIED, FAILS, FAILS_LATE = "runs", "denied", "fails", "fails after its effect"


@dataclass(frozen=True, slots=True)
class Planned:
    """A call that is to leave `after` at the path, and how it will fare."""

    after: str | None
    gated: bool = False
    fate: str = RUNS


@dataclass(slots=True)
class World:
    """The calls of one step at work on one file, an event at a time. `records` is what was said of which call, in
    order; `synced` how many of them a power loss leaves."""

    file: str | None
    plan: tuple[Planned, ...]
    records: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    synced: int = 0
    happened: dict[int, str] = field(default_factory=dict)
    prepared: list[Intent | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        will_hold = self.file
        for call in self.plan:
            if call.gated or call.fate == DENIED:
                self.prepared.append(None)
            else:
                self.prepared.append({"path": PATH, "before": will_hold, "after": call.after})
                will_hold = call.after

    def run(self, events: int) -> None:
        """The first `events` events; the calls on a path run in call order."""
        steps = [(number, call, step) for number, call in enumerate(self.plan) for step in ("start", "act", "end")]
        for number, call, step in steps[:events]:
            if step == "act":
                self._act(number, call)
            elif step == "end":
                self.records.append((number, "end", {"status": self.happened[number]}))
            elif call.fate != DENIED:
                renewed = {"intent": {"path": PATH, "before": self.file, "after": call.after}}
                self.records.append((number, "start", renewed if number or call.gated else {}))
                self.synced = len(self.records) if call.gated else self.synced

    def _act(self, number: int, call: Planned) -> None:
        missing = call.after is None and self.file is None
        self.happened[number] = "failed" if missing or call.fate in (FAILS, FAILS_LATE) else "succeeded"
        if call.fate == DENIED:
            self.happened[number] = "denied"
        elif call.fate != FAILS:
            self.file = call.after

    def calls(self, lost: int) -> list[OpenCall]:
        """The open step as the records have it, without the last `lost` of them."""
        found = [
            OpenCall(str(number), "WriteFile", {}, side_effects=True, intent=intent, gated=call.gated)
            for (number, call), intent in zip(enumerate(self.plan), self.prepared, strict=True)
        ]
        for number, step, fields in self.records[: len(self.records) - lost]:
            if step == "start":
                found[number].started = True
                found[number].intent = fields.get("intent", found[number].intent)
            else:
                found[number].result, found[number].status = b"{}", fields["status"]
        return found


contents = st.sampled_from([None, "a", "b", "c"])
fates = st.sampled_from([RUNS, RUNS, RUNS, DENIED, FAILS, FAILS_LATE])
plans = st.lists(st.builds(Planned, contents, st.booleans(), fates), min_size=1, max_size=5).map(tuple)


@pytest.mark.slow
@settings(max_examples=600)
@given(contents, plans, st.data())
def test_nothing_is_said_that_is_not_so(initial: str | None, plan: tuple[Planned, ...], data: st.DataObject) -> None:
    world = World(initial, plan)
    world.run(data.draw(st.integers(0, 3 * len(plan)), "events"))
    rebooted = data.draw(st.booleans(), "rebooted")
    lost = data.draw(st.integers(0, len(world.records) - world.synced), "lost") if rebooted else 0
    calls = world.calls(lost)
    last = max(world.happened, default=0)
    if any(calls[n].result is None and plan[n].fate in (FAILS, FAILS_LATE) and n < last for n in world.happened):
        return  # the next call has taken what it would have left away
    outcomes = compare(calls, {PATH: world.file}, same_boot=not rebooted)
    asked = [call.call_id for call in calls if judge(call, same_boot=not rebooted) is ResumeVerdict.COMPARE]
    assert list(outcomes) == asked
    for name, outcome in outcomes.items():
        number = int(name)
        happened, fate, after = world.happened.get(number), plan[number].fate, plan[number].after
        if outcome is CallOutcome.DONE:
            assert happened == "succeeded" or fate == FAILS_LATE
        elif outcome is CallOutcome.NOT_DONE:
            assert happened is None or (happened == "failed" and fate != FAILS_LATE)
        elif outcome is CallOutcome.REPEAT:
            assert world.file == after
            would = "failed" if after is None else "succeeded"
            assert happened in (None, would) or fate in (FAILS, FAILS_LATE)
        else:
            # Within one boot only what a failed call has left may be in doubt.
            assert rebooted or any(call.status == "failed" for call in calls[:number])


@given(contents, st.lists(contents, min_size=1, max_size=5))
def test_what_can_be_told_is_told(initial: str | None, afters: list[str | None]) -> None:
    """Of calls of which nothing is on record: each is in doubt only where two of the worlds with this disk disagree
    about it, or where it may have found what it leaves."""
    plan = tuple(map(Planned, afters))
    worlds = []
    for done in range(len(plan) + 1):
        world = World(initial, plan)
        world.run(3 * done)
        worlds.append(world)
    for world in worlds:
        alike = [other for other in worlds if other.file == world.file]
        outcomes = compare(World(initial, plan).calls(0), {PATH: world.file}, same_boot=False)
        for number, after in enumerate(afters):
            agreed = {number in other.happened for other in alike}
            idle = ([initial, *afters])[number] == after
            outcome = outcomes[str(number)]
            if agreed == {False}:
                assert outcome is CallOutcome.NOT_DONE
            elif idle:
                assert outcome is (CallOutcome.REPEAT if world.file == after else CallOutcome.UNKNOWN)
            else:
                assert outcome is (CallOutcome.DONE if agreed == {True} else CallOutcome.UNKNOWN)


@given(contents, plans, st.booleans())
def test_a_file_of_somebody_else_tells_nothing(initial: str | None, plan: tuple[Planned, ...], same_boot: bool) -> None:
    world = World(initial, plan)
    world.run(1)
    for found in ("another", "unavailable"):
        assert set(compare(world.calls(0), {PATH: found}, same_boot=same_boot).values()) <= {CallOutcome.UNKNOWN}


def calls(*changes: tuple[str | None, str | None], path: str = PATH) -> list[OpenCall]:
    return [
        OpenCall(
            f"{path}{number}", "WriteFile", {}, side_effects=True, intent={"path": path, "before": old, "after": new}
        )
        for number, (old, new) in enumerate(changes)
    ]


DRAFT = ((None, "x"), ("x", None))


@each_row(
    ("changes", "found", "said"),
    [
        (DRAFT, None, "UNKNOWN UNKNOWN"),
        (DRAFT, "x", "DONE NOT_DONE"),
        (DRAFT, "y", "UNKNOWN UNKNOWN"),
        (((None, None),), None, "REPEAT"),
        ((("x", "x"),), "x", "REPEAT"),
        ((("x", "x"),), "y", "UNKNOWN"),
        (((None, None), (None, "x")), "x", "UNKNOWN DONE"),
        ((("x", "y"), ("y", "y")), "y", "DONE REPEAT"),
        ((("x", "y"), ("y", "y")), "x", "NOT_DONE NOT_DONE"),
        ((("x", "y"), ("y", "z"), ("z", "y"), ("y", "w")), "y", "DONE UNKNOWN UNKNOWN NOT_DONE"),
    ],
)
def test_some_cases(changes: tuple[tuple[str | None, str | None], ...], found: str | None, said: str) -> None:
    outcomes = compare(calls(*changes), {PATH: found}, same_boot=False)
    assert [outcome.name for outcome in outcomes.values()] == said.split()


SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"


@each_row(
    ("status", "changes", "found", "said"),
    [
        # What the second call was prepared for is not what the first has left.
        (SUCCEEDED, ((None, "x"), (None, None)), "x", "NOT_DONE"),
        (SUCCEEDED, ((None, "x"), (None, None)), None, "DONE"),
        (FAILED, (("x", "y"), ("y", "z")), "x", "NOT_DONE"),
        (FAILED, (("x", "y"), ("y", "z")), "y", "NOT_DONE"),
        (FAILED, (("x", "y"), ("y", "z")), "z", "DONE"),
        (FAILED, ((None, "x"), ("x", None)), None, "UNKNOWN"),
        (FAILED, ((None, "x"), ("x", None), (None, "w")), "w", "UNKNOWN DONE"),
        ("denied", (("x", "y"), ("y", "z")), "x", "NOT_DONE"),
        ("denied", (("x", "y"), ("y", "z")), "y", "UNKNOWN"),
    ],
)
def test_a_result_on_record_pins_the_file(
    status: CallStatus, changes: tuple[tuple[str | None, str | None], ...], found: str | None, said: str
) -> None:
    first, *others = calls(*changes)
    first.result, first.status = b"{}", status
    outcomes = compare([first, *others], {PATH: found}, same_boot=False)
    assert list(outcomes) == [call.call_id for call in others]
    assert [outcome.name for outcome in outcomes.values()] == said.split()


def test_what_a_call_has_found_at_its_start_counts() -> None:
    """Somebody else changed the file after the first call."""
    both = calls((None, "x"), ("y", "z"))
    both[0].result, both[0].status, both[1].started = b"{}", SUCCEEDED, True
    outcomes = compare(both, {PATH: "y"}, same_boot=True)
    assert list(outcomes.values()) == [CallOutcome.NOT_DONE]


def test_what_calls_behind_it_did_is_not_what_a_call_found() -> None:
    first, second = calls(("x", "y"), ("y", "y"))
    second.result, second.status = b"{}", SUCCEEDED
    assert list(compare([first, second], {PATH: "y"}, same_boot=False).values()) == [CallOutcome.UNKNOWN]


def test_only_the_first_call_in_doubt_is_believed_what_it_found() -> None:
    both = calls(("x", "y"), ("q", "z"))
    for call in both:
        call.started = True
    assert list(compare(both, {PATH: "q"}, same_boot=True).values()) == [CallOutcome.UNKNOWN] * 2


def test_paths_do_not_mix() -> None:
    both = [*calls((None, "x"), path="/a"), *calls(("x", None), path="/b")]
    outcomes = compare(both, {"/a": "x", "/b": "x"}, same_boot=False)
    assert outcomes == {"/a0": CallOutcome.DONE, "/b0": CallOutcome.NOT_DONE}
