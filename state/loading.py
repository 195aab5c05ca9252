"""A session read from disk: the snapshot and the journal's whole records over it, and what is wrong with them; and the
verdicts on the calls that a crash left open."""

from __future__ import annotations

import base64
import binascii
import errno
import itertools
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson

from config.lean_typing import NamedTuple
from config.shapes import list_problems
from state import Damaged, NoSuchSession, TooLarge, Untrusted, WriteFailed, translate_errors
from state.blobs import UNAVAILABLE, StoredValues, restore
from state.checkpoint import ENDED
from state.disk import no_such
from state.journal import (
    ARCHIVED_JOURNAL,
    ARCHIVED_SNAPSHOT,
    BLOBS,
    DURABLE,
    FULL,
    KIND,
    MESSAGE,
    OPENED,
    REOPENED,
    SNAPSHOT,
    JournalContent,
    JournalLine,
    archived_names,
    parse,
)
from state.record_shapes import record_problems
from state.records import fold, record_of
from state.snapshot import decode_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state import SessionPaths
    from state.blobs import SessionStorage
    from state.checkpoint import Checkpoint, OpenCall
    from state.disk import Disk
    from state.records import JournalRecord

_NO_CONTENT = JournalContent([], 0)


@dataclass(slots=True, eq=False, repr=False)
class LoadedFiles:
    """The files of a session as they were read. `damage` says what is wrong where no crash can have done it; `state` is
    then what was whole before that, None when nothing was. `stored` are the large values, of the messages in the
    snapshot; `lost` are the blobs that are damaged. `suspect`: what was dropped from the journal's end had been whole
    once. `restored`: the snapshot or what the journal began with is damaged, and `state` is the same without it.
    `unusable`: no task is in what was whole, so it says only whose session it is."""

    state: Checkpoint | None
    damage: str | None = None
    journal: JournalContent = _NO_CONTENT
    stored: StoredValues = field(default_factory=StoredValues)
    lost: list[str] = field(default_factory=list)
    suspect: bool = False
    readable: bool = False
    restored: bool = False
    unusable: bool = False

    def require_state(self, *, salvaged_too: bool = True) -> Checkpoint:
        """Return what was whole. Raises Damaged where nothing was, and without `salvaged_too` where there is damage."""
        if self.state is None or (self.damage is not None and not salvaged_too):
            raise Damaged(self.damage or "the checkpoint is empty")
        return self.state


@translate_errors("reading the checkpoint")
def find(storage: SessionStorage) -> LoadedFiles:
    """Read a session without changing anything; a snapshot above the limit is not read. Raises NoSuchSession,
    UnknownVersion, TooLarge, Untrusted, WriteFailed."""
    disk, paths = storage.disk, storage.paths
    readable = _check_owner(disk, paths)
    _refuse_large(storage, paths.snapshot)
    data, snapshot_problem = _read(disk, paths.snapshot)
    journal_data, journal_problem = _read(disk, paths.journal)
    problem = snapshot_problem or journal_problem
    content = parse(journal_data or b"")
    last = fields_of_line(content.records[-1]) if content.records else {}
    has_ended = last.get(KIND) in ("session_status", OPENED) and last.get("status") == ENDED
    if data is None and problem is None and (journal_data is None or _never_begun(content) or has_ended):
        raise no_such(disk, paths)
    whole = mend(content, _older_records(storage), paths.session_id) if content.torn_bytes else None
    found = _fold_all(data, (whole or content).records, storage)
    found.journal, found.readable = whole or content, readable
    found.restored = found.restored or whole is not None
    found.damage = problem or found.damage
    if found.state is None:
        return found
    if found.damage is None:
        _judge_end(disk, found)
    if found.damage is not None:
        found.restored = False
        found.state.salvaged = found.damage
        found.suspect = True
        found.unusable = found.state.task is None  # nothing that could be gone on with
    if found.suspect:
        found.state.suspect_starts()
    return found


def find_archived(storage: SessionStorage) -> LoadedFiles:
    """Read an ended session from its archive, without changing anything. Raises NoSuchSession where none is whole
    there, Damaged, TooLarge, WriteFailed."""
    disk, paths = storage.disk, storage.paths
    with translate_errors("reading the archive"):
        names = archived_names(disk, paths)
        bases = [name for name in names if name.endswith(ARCHIVED_SNAPSHOT)]
        if len(bases) != 1 or FULL in names:
            raise NoSuchSession(f"the records of session {paths.session_id} were not kept, so it cannot continue")
        base = os.path.join(paths.archive, bases[0])
        _refuse_large(storage, base)
        kept = [os.path.join(paths.archive, name) for name in names if name.endswith(ARCHIVED_JOURNAL)]
        journals = [parse(disk.read(path)) for path in kept]
        found = LoadedFiles(None)
        found.state = state = _decode(disk.read(base), found, storage)
    if state.identity.session_id != paths.session_id or found.lost or any(one.damaged for one in journals):
        raise Damaged(f"the archive of session {paths.session_id} is damaged, so it cannot continue")
    for record in itertools.chain.from_iterable(one.records for one in journals):
        _fold(state, record, found.stored.inline)  # what stands in two journals is folded once
    return found


# The older files of a session are read only if the newest pair is damaged.


def _older_records(storage: SessionStorage) -> list[JournalLine]:
    """The whole records of the journal before."""
    return parse(_read(storage.disk, storage.paths.previous_journal)[0] or b"").records


def _fold_older(
    found: LoadedFiles, opening: dict[str, Any], records: list[JournalLine], storage: SessionStorage
) -> Checkpoint | None:
    """The state that the journal with `records` goes on from: a small one stands in its `opening`, a large one comes
    from the snapshot before the newest. None where that is damaged as well, or ends before the journal."""
    small = opening.get(SNAPSHOT)
    try:
        if isinstance(small, str):
            return _decode(small.encode(), found, storage)
        _refuse_large(storage, storage.paths.previous_snapshot)
        data, _ = _read(storage.disk, storage.paths.previous_snapshot)
        if data is None or not records:
            return None
        older = _older_records(storage)
        state = _decode(data, found, storage)
        if older and fields_of_line(older[0]).get("sessionId") == storage.paths.session_id:
            for record in older:
                if record.seq < records[0].seq:  # what is behind it there was dropped, or stands here too
                    _fold(state, record, found.stored.inline)
    except Damaged:
        return None
    return state if state.seq + 1 >= records[0].seq else None


def _fold_all(data: bytes | None, records: list[JournalLine], storage: SessionStorage) -> LoadedFiles:
    """The snapshot's state with the records over it, as far as they fit. Where the snapshot is damaged, what the
    journal began with takes its place: a small one stands there too, and a large one can be folded again."""
    found = LoadedFiles(None)
    opening = fields_of_line(records[0]) if records else {}
    session_id = storage.paths.session_id
    try:
        if data is None:
            raise Damaged("the journal is there and its checkpoint is missing")
        state = _decode(data, found, storage)
    except Damaged as error:
        # No flipped bit takes a file away. Who did may have meant it, so that is damage, and reported before the
        # session goes on.
        found.restored = data is not None
        instead = _fold_older(found, opening, records, storage)
        if instead is None or not found.restored:
            found.damage = str(error)
        if instead is None:
            return found
        state = instead
    if state.identity.session_id != session_id:
        return LoadedFiles(None, f"the checkpoint belongs to session {state.identity.session_id!r}")
    found.state = state
    if not records:
        found.damage = "the checkpoint is there and its journal is missing or empty"
    elif opening.get("sessionId") != session_id:
        found.damage = f"the journal belongs to session {opening.get('sessionId')!r}"
    else:
        for fitting, record in enumerate(records):
            try:
                _fold(state, record, found.stored.inline)
            except Damaged as error:  # what does not fit may have changed a part of the state already
                found = _fold_all(data, records[:fitting], storage)
                found.damage = str(error)
                break
    return found


def _decode(data: bytes, found: LoadedFiles, storage: SessionStorage) -> Checkpoint:
    found.stored.short, found.lost = {}, []

    def restore_message(place: int, message: bytes) -> bytes:
        whole, lost = restore(message, storage.blobs.get)
        if whole is not message:
            found.stored.short[place] = message
            found.lost += lost
        return whole

    state = decode_snapshot(data, restore_message)
    found.stored.examined = len(state.thread)
    return state


def _fold(state: Checkpoint, record: JournalLine, inline: dict[str, bytes]) -> None:
    """One record over the state, unless the snapshot already holds it. Raises Damaged."""
    if record.seq <= state.seq:
        return
    if record.seq != state.seq + 1:
        raise Damaged(f"records {state.seq + 1} to {record.seq - 1} are missing between checkpoint and journal")
    change, blobs = change_of(record)
    if change is not None:
        inline |= blobs
        fold(state, change)
    state.seq = record.seq


def _judge_end(disk: Disk, found: LoadedFiles) -> None:
    """Classify the rest of the journal after its whole records: nothing, what a crash can have left, or damage."""
    content, state = found.journal, found.state
    if state is None:
        return
    # What a journal took along from the one before was durable when it began, whatever is behind the break.
    lost = state.seq < durable_of(content.records[0])
    if lost or (content.damaged and not _lost_with_power(disk, state, content)):
        found.damage = f"the journal is damaged {content.valid_bytes} bytes in, before its end"
    # A dying process leaves the beginning of a record. What was whole once may have said that a call of the open step
    # started.
    found.suspect = content.torn_bytes > 0 and not content.cut_off


def _lost_with_power(disk: Disk, state: Checkpoint, content: JournalContent) -> bool:
    """True when the break can be what a machine's sudden end made of records that were not synced yet. They may reach
    the disk in any order. It takes another boot than that of the process that began the journal, and no record behind
    the break that was written when what is broken had been synced already."""
    boot = fields_of_line(content.records[0]).get("boot")
    if boot is not None and boot == disk.boot_id():
        return False
    return bool(content.behind) and all(record.synced <= state.seq for record in content.behind)


def _never_begun(content: JournalContent) -> bool:
    """True when the process died between the first journal and the first checkpoint; of a session that had ended, the
    archive is still there."""
    if len(content.records) != 1 or content.torn_bytes:
        return False
    return content.records[0].seq == 1 or fields_of_line(content.records[0]).get(REOPENED) is True


def _check_owner(disk: Disk, paths: SessionPaths) -> bool:
    """Refuse what others can have written; True when others can read it."""
    readable = False
    for path in paths.checkpoint_files:
        status = disk.status(path)
        if status is None or status.kind != "file":
            continue
        if status.foreign:
            raise Untrusted(f"{path} belongs to another user: look at who put it there, then make it yours (chown)")
        if status.exposed:
            raise Untrusted(f"others can write to {path}: look at what is in it, then close it to them (chmod 600)")
        readable = readable or status.readable
    return readable


def _refuse_large(storage: SessionStorage, path: str) -> None:
    """Raise TooLarge for a file that would fill the memory: its writer had a higher limit, or was no host."""
    status, limit_bytes = storage.disk.status(path), storage.snapshot_limit_bytes
    if status is not None and status.kind == "file" and status.size > limit_bytes:
        name = os.path.basename(path)
        raise TooLarge(f"{name} has {status.size} bytes, and host.max_snapshot_bytes is {limit_bytes}")


def _read(disk: Disk, path: str) -> tuple[bytes | None, str | None]:
    """The file's content, None when there is none, and what is wrong with what lies there. Raises WriteFailed."""
    status = disk.status(path)
    if status is None:
        return None, None
    name = os.path.basename(path)
    if status.kind != "file":
        return None, f"{name} is no regular file"
    try:
        return disk.read(path), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        # What was put in its place meanwhile is not ours. Anything else is a trouble of the machine.
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EMLINK):
            return None, f"{name} cannot be read: {error.strerror}"
        raise WriteFailed(f"{name} cannot be read: {error.strerror}") from error


# A line of the journal, taken apart and checked: what a fold over the state may rely on.


def fields_of_line(line: JournalLine) -> dict[str, Any]:
    """The line's fields; none where they are no JSON object."""
    try:
        fields = orjson.loads(line.fields)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def durable_of(opening: JournalLine) -> int:
    """The last record that a journal took along from the one before and that was durable when it began, as its first
    record says; 0 where it took none."""
    durable = fields_of_line(opening).get(DURABLE, 0)
    return durable if type(durable) is int else 0


def change_of(line: JournalLine) -> tuple[JournalRecord | None, dict[str, bytes]]:
    """Decode `line`: its record, None for one that changes nothing, and the blobs that it brings along, by name. Raises
    Damaged with every problem of one that is whole and of another shape, UnknownVersion for a kind that this program
    does not have."""
    fields = fields_of_line(line)
    kind, encoded = fields.pop(KIND, None), fields.pop(BLOBS, {})
    message = orjson.dumps(fields.pop(MESSAGE)) if MESSAGE in fields else line.message  # format J1 has it in there
    if not isinstance(kind, str):
        raise Damaged(f"record {line.seq} says no kind")
    problems = record_problems(kind, fields, message)
    blobs = _decode_line(encoded)
    if blobs is None:
        problems.append(f"{BLOBS}: must be base64 by name")
    if problems or blobs is None:
        raise Damaged(f"record {line.seq} ({kind}) is whole and of another shape: {list_problems(problems)}")
    return None if kind == OPENED else record_of(kind, fields, message), blobs


def _decode_line(encoded: object) -> dict[str, bytes] | None:
    """The content of each blob of a record; None where one has none."""
    if not isinstance(encoded, dict):
        return None
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in encoded.items()}
    except (binascii.Error, TypeError, ValueError):
        return None


# A journal in which something is broken that stands elsewhere, too: its opening, which changes nothing, and the
# records that it took along from the journal before (`state.journal.Journal.mark`). Pure.


def mend(content: JournalContent, older: list[JournalLine], session_id: str) -> JournalContent | None:
    """The whole journal again; None where what is broken stands nowhere else. `older` are the records of the journal
    before. That the numbers fit to the snapshot is seen when they are folded over it."""
    behind = list(content.behind)
    if any(after.seq != before.seq + 1 for before, after in itertools.pairwise(behind)):
        return None
    lacking = _opening(behind, session_id) if not content.records else _lines_to_keep(content, older)
    if not lacking:
        return None
    return JournalContent([*content.records, *lacking, *behind], content.valid_bytes + content.torn_bytes)


def _opening(behind: list[JournalLine], session_id: str) -> list[JournalLine]:
    """One in place of the broken first record. What is behind it proves that it is one record and no more."""
    if not behind:
        return []
    seq = behind[0].seq - 1
    return [JournalLine(seq, seq - 1, orjson.dumps({KIND: OPENED, "sessionId": session_id}), None, 0)]


def _lines_to_keep(content: JournalContent, older: list[JournalLine]) -> list[JournalLine]:
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


# Verdicts on the calls of a step that a crash left open (invariant 3). Pure.


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
    """The verdict on `call`. `same_boot`: the machine has been up since the call's step was recorded. Start records are
    written and not synced, so a missing one proves that the call did not start only while the machine was up; that of a
    gated call is synced and always proves it."""
    if call.result is not None:
        return ResumeVerdict.REUSE
    if not call.side_effects or (not call.started and (same_boot or call.gated)):
        return ResumeVerdict.RUN
    known = call.intent is not None and UNAVAILABLE not in (call.intent["before"], call.intent["after"])
    return ResumeVerdict.COMPARE if known else ResumeVerdict.INTERRUPTED


def compare(calls: Sequence[OpenCall], found: Mapping[str, str | None], *, same_boot: bool) -> dict[str, CallOutcome]:
    """Find the outcome of each of an open step's `calls` that is to be compared, by its id. `found` has for each of
    their paths the hash of what is there: None for no file, anything that is no hash for what cannot be read. All calls
    on a path are looked at together, since the file at the end of one is what the next finds."""
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
    """Calls on one path, in call order, and by their ids those that are `asked` about. Calls on one path run in call
    order, so of those asked about some first ones took effect and the others did not. One that failed without a result
    on record counts with those behind it: what it was to leave is gone either way."""

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
