"""What to do with each call of a step that a crash left open (invariant 3). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state.open_step import Call
    from state.records import Intent


class Verdict(Enum):
    """What a resume does with one call."""

    REUSE = "its result is on record"
    RUN = "it never started, or running it again changes nothing"
    COMPARE = "it may have happened: the disk can show it, its hashes before and after are on record"
    INTERRUPTED = "it may have happened and nothing can show it: the model reads that"


class Outcome(Enum):
    """What the disk says of a call with the verdict COMPARE."""

    DONE = "the file is as this call was to leave it, or as calls behind it have left it since"
    NOT_DONE = "the file is as it was before this call"
    REPEAT = "the file is as the call finds and leaves it: running it again changes nothing and gives its answer"
    UNKNOWN = "the file could be like this whether the call took effect or not"


def judge(call: Call, *, same_boot: bool) -> Verdict:
    """The verdict on `call`. `same_boot`: the machine has been up since the call's step was recorded.

    Start records are written and not synced, so a missing one proves that the call did not start only while the
    machine was up; that of a gated call is synced and always proves it.
    """
    if call.result is not None:
        return Verdict.REUSE
    if not call.side_effects or (not call.started and (same_boot or call.gated)):
        return Verdict.RUN
    return Verdict.INTERRUPTED if call.intent is None else Verdict.COMPARE


def compare(calls: Sequence[Call], found: Mapping[str, str | None], *, same_boot: bool) -> dict[str, Outcome]:
    """What became of each of an open step's `calls` that is to be compared, by its id.

    `found` has for each of their paths the hash of what is there: None for no file, anything that is no hash for what
    cannot be read. All calls on a path are looked at together, since the file at the end of one is what the next finds.
    """
    on_path: dict[str, list[Call]] = {}
    for call in calls:
        if call.intent is not None:
            on_path.setdefault(call.intent["path"], []).append(call)
    outcomes: dict[str, Outcome] = {}
    for path, there in on_path.items():
        asked = {call.call_id: call for call in there if judge(call, same_boot=same_boot) is Verdict.COMPARE}
        if asked:
            outcomes.update(zip(asked, _outcomes(_Path(there, asked), found[path]), strict=True))
    return outcomes


@dataclass(frozen=True, slots=True)
class _Path:
    """The calls on one path with what they were to do, in call order, and by their ids those that are `asked` about.

    Calls on one path run in call order, so of those asked about some first ones took effect and the others did not. One
    that failed without a result on record counts with those behind it: what it was to leave is gone either way.
    """

    calls: Sequence[Call]
    asked: Mapping[str, Call]

    def states(self, done: int, before: Call | None = None) -> set[str | None]:
        """What the file may hold at the end, or just before the call `before`, when `done` of those asked about took
        effect. A success on record says what it held; a failure does not, and what was denied changed nothing."""
        states: set[str | None] = {_intent(self.calls[0])["before"]}
        first, left = True, done
        for call in self.calls:
            asked = call.call_id in self.asked
            if asked and first and call.started:  # its start record names what it has really found
                states.add(_intent(call)["before"])
            if call is before:
                break
            if call.status == "succeeded" or (asked and left > 0):
                states = {_intent(call)["after"]}
            elif call.status == "failed":
                states.add(_intent(call)["after"])
            if asked:
                first, left = False, left - 1
        return states


def _outcomes(path: _Path, found: str | None) -> Iterator[Outcome]:
    fitting = [done for done in range(len(path.asked) + 1) if found in path.states(done)]
    for number, call in enumerate(path.asked.values()):
        after = _intent(call)["after"]
        finds = path.states(number, before=call)
        if not fitting:
            yield Outcome.UNKNOWN
        elif number >= fitting[-1]:
            yield Outcome.NOT_DONE
        elif after in finds:  # it may have had nothing to do, and a deletion of what was not there fails
            yield Outcome.REPEAT if finds == {after} and found == after else Outcome.UNKNOWN
        else:
            yield Outcome.DONE if number < fitting[0] else Outcome.UNKNOWN


def _intent(call: Call) -> Intent:
    if call.intent is None:
        raise KeyError("only calls with an intent are compared")
    return call.intent
