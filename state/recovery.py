"""Verdicts on the calls of a step that a crash left open (invariant 3). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from state.blobs import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state.checkpoint import OpenCall


class ResumeVerdict(Enum):
    """The way in which a resume treats one call."""

    REUSE = "its result is on record"
    RUN = "it never started, or running it again changes nothing"
    COMPARE = "it may have happened: the disk can show it, its hashes before and after are on record"
    INTERRUPTED = "it may have happened and nothing can show it: the model reads that"


class CallOutcome(Enum):
    """The state of the disk for a call with the verdict COMPARE."""

    DONE = "the file is as this call was to leave it, or as calls behind it have left it since"
    NOT_DONE = "the file is as it was before this call"
    REPEAT = "the file is as the call finds and leaves it: running it again changes nothing and gives its answer"
    UNKNOWN = "the file could be like this whether the call took effect or not"


def judge(call: OpenCall, *, same_boot: bool) -> ResumeVerdict:
    """The verdict on `call`. `same_boot`: the machine has been up since the call's step was recorded.

    Start records are written and not synced, so a missing one proves that the call did not start only while the
    machine was up; that of a gated call is synced and always proves it.
    """
    if call.result is not None:
        return ResumeVerdict.REUSE
    if not call.side_effects or (not call.started and (same_boot or call.gated)):
        return ResumeVerdict.RUN
    known = call.intent is not None and UNAVAILABLE not in (call.intent["before"], call.intent["after"])
    return ResumeVerdict.COMPARE if known else ResumeVerdict.INTERRUPTED


def compare(calls: Sequence[OpenCall], found: Mapping[str, str | None], *, same_boot: bool) -> dict[str, CallOutcome]:
    """Find the outcome of each of an open step's `calls` that is to be compared, by its id.

    `found` has for each of their paths the hash of what is there: None for no file, anything that is no hash for what
    cannot be read. All calls on a path are looked at together, since the file at the end of one is what the next finds.
    """
    on_path: dict[str, list[_FileChange]] = {}
    for call in calls:
        for path, change in _changes(call):
            on_path.setdefault(path, []).append(change)
    outcomes: dict[str, CallOutcome] = {}
    for path, there in on_path.items():
        compared = (one for one in there if judge(one.call, same_boot=same_boot) is ResumeVerdict.COMPARE)
        asked = {one.call.call_id: one for one in compared}
        if asked:
            for call_id, outcome in zip(asked, _outcomes(_Path(there, asked), found[path]), strict=True):
                outcomes[call_id] = _both(outcomes.get(call_id, outcome), outcome)
    return outcomes


def paths_of(call: OpenCall) -> tuple[str, ...]:
    """The paths on which the call's intent is: what `compare` is to be given of it."""
    return tuple(path for path, _ in _changes(call))


class _FileChange(NamedTuple):
    """The change that a call was to make at one path: the hashes before and after."""

    call: OpenCall
    before: str | None
    after: str | None


def _changes(call: OpenCall) -> Iterator[tuple[str, _FileChange]]:
    intent = call.intent
    if intent is None:
        return
    yield intent["path"], _FileChange(call, intent["before"], intent["after"])
    if "target" in intent:
        target = intent["target"]
        yield target["path"], _FileChange(call, target["before"], intent["before"])


def _both(one: CallOutcome, other: CallOutcome) -> CallOutcome:
    """Combine the outcomes at the two paths of one move, which happens at both at once or not at all."""
    if one is other:
        return one
    certain = {one, other} - {CallOutcome.UNKNOWN}
    return certain.pop() if len(certain) == 1 and CallOutcome.REPEAT not in certain else CallOutcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Path:
    """Calls on one path, in call order, and by their ids those that are `asked` about.

    Calls on one path run in call order, so of those asked about some first ones took effect and the others did not. One
    that failed without a result on record counts with those behind it: what it was to leave is gone either way.
    """

    changes: Sequence[_FileChange]
    asked: Mapping[str, _FileChange]

    def states(self, done: int, before: _FileChange | None = None) -> set[str | None]:
        """The states that the file may have at the end, or just before the change `before`, when `done` of those asked
        about took effect. A success on record says what it held; a failure does not, and what was denied changed
        nothing."""
        states: set[str | None] = {self.changes[0].before}
        first, left = True, done
        for change in self.changes:
            call = change.call
            asked = call.call_id in self.asked
            if asked and first and call.started:  # its start record names what it has really found
                states.add(change.before)
            if change is before:
                break
            if call.status == "succeeded" or (asked and left > 0):
                states = {change.after}
            elif call.status == "failed":
                states.add(change.after)
            if asked:
                first, left = False, left - 1
        return states


def _outcomes(path: _Path, found: str | None) -> Iterator[CallOutcome]:
    fitting = [done for done in range(len(path.asked) + 1) if found in path.states(done)]
    for number, change in enumerate(path.asked.values()):
        after = change.after
        finds = path.states(number, before=change)
        if not fitting:
            yield CallOutcome.UNKNOWN
        elif number >= fitting[-1]:
            yield CallOutcome.NOT_DONE
        elif after in finds:  # it may have had nothing to do, and a deletion of what was not there fails
            yield CallOutcome.REPEAT if finds == {after} and found == after else CallOutcome.UNKNOWN
        else:
            yield CallOutcome.DONE if number < fitting[0] else CallOutcome.UNKNOWN
