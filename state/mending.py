"""A journal in which something is broken that stands elsewhere, too: its opening, which changes nothing, and the
records that it took along from the journal before (`state.journal.Journal.mark`). Pure."""

from __future__ import annotations

import itertools

import orjson

from state.changes import durable_of
from state.journal import JournalContent, Line
from state.store import KIND, OPENED


def mended(content: JournalContent, older: list[Line], session_id: str) -> JournalContent | None:
    """The whole journal again; None where what is broken stands nowhere else. `older` are the records of the journal
    before. That the numbers fit to the snapshot is seen when they are folded over it."""
    behind = list(content.behind)
    if any(after.seq != before.seq + 1 for before, after in itertools.pairwise(behind)):
        return None
    lacking = _opening(behind, session_id) if not content.records else _taken_along(content, older)
    if not lacking:
        return None
    return JournalContent([*content.records, *lacking, *behind], content.valid_bytes + content.torn_bytes)


def _opening(behind: list[Line], session_id: str) -> list[Line]:
    """One in place of the broken first record. What is behind it proves that it is one record and no more."""
    if not behind:
        return []
    seq = behind[0].seq - 1
    return [Line(seq, seq - 1, orjson.dumps({KIND: OPENED, "sessionId": session_id}), None, 0)]


def _taken_along(content: JournalContent, older: list[Line]) -> list[Line]:
    last = content.records[-1].seq
    durable = durable_of(content.records[0])
    end = content.behind[0].seq - 1 if content.behind else durable
    if not last < end <= durable:
        return []
    starts = [0, *(record.end for record in older)]
    found = [(record, record.end - start) for start, record in zip(starts, older, strict=False)]
    lacking = [(record, size) for record, size in found if last < record.seq <= end]
    if [record.seq for record, _ in lacking] != list(range(last + 1, end + 1)):
        return []
    # Where nothing whole is behind the break, more than these records may be lost, unless they fill the place.
    if not content.behind and sum(size for _, size in lacking) != content.torn_bytes:
        return []
    return [record for record, _ in lacking]
