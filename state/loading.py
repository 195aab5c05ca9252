"""Load a session from disk: its snapshot with the journal's intact records applied, and the damage; and verdicts on the
calls that a crash left open."""

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
    """The files of a session as they were read. `damage` describes damage that no crash explains; `state` is then the
    state before the damage, None if nothing is intact. `stored` are the large values, with those of the messages in the
    snapshot; `lost` are the damaged blobs. `readable`: other users can read the files. `suspect`: the part dropped from
    the journal's end had been intact once. `restored`: the snapshot or the beginning of the journal is damaged, but
    `state` could be restored completely. `unusable`: the intact part contains no task, only the session's identity."""

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
        """Return the intact state. Raises Damaged if there is none, and without `salvaged_too` if there is damage."""
        if self.state is None or (self.damage is not None and not salvaged_too):
            raise Damaged(self.damage or "the checkpoint is empty")
        return self.state


@translate_errors("reading the checkpoint")
def find(storage: SessionStorage) -> LoadedFiles:
    """Read a session without changing anything; a snapshot over the limit is not read. Raises NoSuchSession,
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
    if data is None and problem is None and (journal_data is None or _never_started(content) or has_ended):
        raise no_such(disk, paths)
    mended = mend(content, _older_records(storage), paths.session_id) if content.torn_bytes else None
    found = _fold_all(data, (mended or content).records, storage)
    found.journal, found.readable = mended or content, readable
    found.restored = found.restored or mended is not None
    found.damage = problem or found.damage
    if found.state is None:
        return found
    if found.damage is None:
        _judge_end(disk, found)
    if found.damage is not None:
        found.restored = False
        found.state.salvaged = found.damage
        found.suspect = True
        found.unusable = found.state.task is None  # nothing that could be continued
    if found.suspect:
        found.state.suspect_starts()
    return found


def find_archived(storage: SessionStorage) -> LoadedFiles:
    """Read an ended session from its archive, without changing anything. Raises NoSuchSession if the archive is
    incomplete, Damaged, TooLarge, WriteFailed."""
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
        _fold(state, record, found.stored.inline)  # a record in two journals is folded once
    return found


# The older files of a session are read only if the newest pair is damaged.


def _older_records(storage: SessionStorage) -> list[JournalLine]:
    """Return the intact records of the previous journal."""
    return parse(_read(storage.disk, storage.paths.previous_journal)[0] or b"").records


def _fold_older(
    found: LoadedFiles, opening: dict[str, Any], records: list[JournalLine], storage: SessionStorage
) -> Checkpoint | None:
    """Rebuild the state that the journal with `records` continues from: a small snapshot is repeated in its `opening`;
    otherwise the previous snapshot and journal are used. None if those are damaged too, or end before the journal
    begins."""
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
                if record.seq < records[0].seq:  # later ones there were dropped, or are in this journal too
                    _fold(state, record, found.stored.inline)
    except Damaged:
        return None
    return state if state.seq + 1 >= records[0].seq else None


def _fold_all(data: bytes | None, records: list[JournalLine], storage: SessionStorage) -> LoadedFiles:
    """Apply the records to the snapshot's state, as far as they fit. If the snapshot is damaged, it is replaced: a
    small one is repeated in the journal's opening, and a large one is rebuilt from the previous pair."""
    found = LoadedFiles(None)
    opening = fields_of_line(records[0]) if records else {}
    session_id = storage.paths.session_id
    try:
        if data is None:
            raise Damaged("the journal is there and its checkpoint is missing")
        state = _decode(data, found, storage)
    except Damaged as error:
        # A flipped bit cannot remove a file, and whoever removed it may have intended to. So a missing file is damage,
        # and is reported before the session continues.
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
            except Damaged as error:  # the failed record may have changed the state in part
                found = _fold_all(data, records[:fitting], storage)
                found.damage = str(error)
                break
    return found


def _decode(data: bytes, found: LoadedFiles, storage: SessionStorage) -> Checkpoint:
    found.stored.short, found.lost = {}, []

    def restore_message(place: int, message: bytes) -> bytes:
        complete, lost = restore(message, storage.blobs.get)
        if complete is not message:
            found.stored.short[place] = message
            found.lost += lost
        return complete

    state = decode_snapshot(data, restore_message)
    found.stored.examined = len(state.thread)
    return state


def _fold(state: Checkpoint, record: JournalLine, inline: dict[str, bytes]) -> None:
    """Apply one record to the state, unless the snapshot already contains it. Raises Damaged."""
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
    """Classify the rest of the journal after its intact records: nothing, the trace of a crash, or damage."""
    content, state = found.journal, found.state
    if state is None:
        return
    # Records copied from the previous journal were durable when this one began, so losing them is damage, no matter
    # what follows the break.
    lost = state.seq < durable_of(content.records[0])
    if lost or (content.damaged and not _lost_with_power(disk, state, content)):
        found.damage = f"the journal is damaged {content.valid_bytes} bytes in, before its end"
    # A crash of the process leaves only the beginning of a record. A record that was complete once may have reported
    # the start of a call of the open step.
    found.suspect = content.torn_bytes > 0 and not content.cut_off


def _lost_with_power(disk: Disk, state: Checkpoint, content: JournalContent) -> bool:
    """True if the break can be explained by unsynced records in a crash of the machine, which may reach the disk in any
    order. The machine must have been rebooted since the journal began, and no record after the break may have been
    written when the broken part was synced already."""
    boot = fields_of_line(content.records[0]).get("boot")
    if boot is not None and boot == disk.boot_id():
        return False
    return bool(content.after_break) and all(record.synced <= state.seq for record in content.after_break)


def _never_started(content: JournalContent) -> bool:
    """True if the process died between the first journal and the first checkpoint. For a session that had ended and was
    reopened, the archive still exists."""
    if len(content.records) != 1 or content.torn_bytes:
        return False
    return content.records[0].seq == 1 or fields_of_line(content.records[0]).get(REOPENED) is True


def _check_owner(disk: Disk, paths: SessionPaths) -> bool:
    """Raise Untrusted if other users can have written the files; return True if others can read them."""
    readable = False
    for path in paths.checkpoint_files:
        status = disk.status(path)
        if status is None or status.kind != "file":
            continue
        if status.foreign:
            raise Untrusted(f"{path} belongs to another user: look at who put it there, then make it yours (chown)")
        if status.exposed:
            raise Untrusted(f"others can write to {path}: inspect its content, then close it to them (chmod 600)")
        readable = readable or status.readable
    return readable


def _refuse_large(storage: SessionStorage, path: str) -> None:
    """Raise TooLarge for a file that would fill the memory: its writer had a higher limit, or was not agent-host."""
    status, limit_bytes = storage.disk.status(path), storage.snapshot_limit_bytes
    if status is not None and status.kind == "file" and status.size > limit_bytes:
        name = os.path.basename(path)
        raise TooLarge(f"{name} has {status.size} bytes, and host.max_snapshot_bytes is {limit_bytes}")


def _read(disk: Disk, path: str) -> tuple[bytes | None, str | None]:
    """Return the file's content, None if there is none, and the problem with it. Raises WriteFailed."""
    status = disk.status(path)
    if status is None:
        return None, None
    name = os.path.basename(path)
    if status.kind != "file":
        return None, f"{name} is not a regular file"
    try:
        return disk.read(path), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        # These mean that it was replaced meanwhile by something that is not ours. Any other error is a fault of the
        # machine.
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EMLINK):
            return None, f"{name} cannot be read: {error.strerror}"
        raise WriteFailed(f"{name} cannot be read: {error.strerror}") from error


# Decoding and checking of a journal's lines, before they are folded over the state.


def fields_of_line(line: JournalLine) -> dict[str, Any]:
    """Return the line's fields; empty if they are not a JSON object."""
    try:
        fields = orjson.loads(line.fields)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def durable_of(opening: JournalLine) -> int:
    """Return the number of the last record that a journal copied from the previous one, and that was durable when it
    began, according to its first record; 0 if there is none."""
    durable = fields_of_line(opening).get(DURABLE, 0)
    return durable if type(durable) is int else 0


def change_of(line: JournalLine) -> tuple[JournalRecord | None, dict[str, bytes]]:
    """Decode `line`: return its record, None if it changes nothing, and its blobs by name. Raises Damaged with every
    problem if the line is intact but has the wrong shape, UnknownVersion for an unknown kind."""
    fields = fields_of_line(line)
    kind, encoded = fields.pop(KIND, None), fields.pop(BLOBS, {})
    message = orjson.dumps(fields.pop(MESSAGE)) if MESSAGE in fields else line.message  # format J1 has it in the fields
    if not isinstance(kind, str):
        raise Damaged(f"record {line.seq} has no kind")
    problems = record_problems(kind, fields, message)
    blobs = _decode_line(encoded)
    if blobs is None:
        problems.append(f"{BLOBS}: must be base64 by name")
    if problems or blobs is None:
        raise Damaged(f"record {line.seq} ({kind}) is whole and of another shape: {list_problems(problems)}")
    return None if kind == OPENED else record_of(kind, fields, message), blobs


def _decode_line(encoded: object) -> dict[str, bytes] | None:
    """Decode the blobs of a record; None if one is invalid."""
    if not isinstance(encoded, dict):
        return None
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in encoded.items()}
    except (binascii.Error, TypeError, ValueError):
        return None


# Repair of a journal whose broken part can be replaced: its opening, which changes nothing, or the records that it
# copied from the previous journal (`state.journal.JournalFile.mark`). Pure.


def mend(content: JournalContent, older: list[JournalLine], session_id: str) -> JournalContent | None:
    """Return the repaired journal; None if the broken part has no copy. `older` are the records of the previous
    journal. The numbers are checked against the snapshot when the records are folded."""
    after_break = list(content.after_break)
    if any(after.seq != before.seq + 1 for before, after in itertools.pairwise(after_break)):
        return None
    lacking = _opening(after_break, session_id) if not content.records else _lines_to_keep(content, older)
    if not lacking:
        return None
    return JournalContent([*content.records, *lacking, *after_break], content.valid_bytes + content.torn_bytes)


def _opening(after_break: list[JournalLine], session_id: str) -> list[JournalLine]:
    """Make a record in place of the broken first one; the records after it prove that exactly one is missing."""
    if not after_break:
        return []
    seq = after_break[0].seq - 1
    return [JournalLine(seq, seq - 1, orjson.dumps({KIND: OPENED, "sessionId": session_id}), None, 0)]


def _lines_to_keep(content: JournalContent, older: list[JournalLine]) -> list[JournalLine]:
    last = content.records[-1].seq
    durable = durable_of(content.records[0])
    end = content.after_break[0].seq - 1 if content.after_break else durable
    if not last < end <= durable:
        return []
    starts = [0, *(record.end for record in older)]
    found = [(record, record.end - start) for start, record in zip(starts, older, strict=False)]
    lacking = [(record, size) for record, size in found if last < record.seq <= end]
    if [record.seq for record, _ in lacking] != list(range(last + 1, end + 1)):
        return []
    # If no intact record follows the break, more than these records may be lost, unless their size is exactly that of
    # the broken part.
    if not content.after_break and sum(size for _, size in lacking) != content.torn_bytes:
        return []
    return [record for record, _ in lacking]


# Verdicts on the calls of a step that a crash left open (invariant 3). Pure.


class ResumeVerdict(Enum):
    """The treatment of a call by a resume."""

    REUSE = "its result is on record"
    RUN = "it never started, or running it again changes nothing"
    COMPARE = "it may have happened: the disk can show it, its hashes before and after are on record"
    INTERRUPTED = "it may have happened and nothing can show it: the model reads that"


class CallOutcome(Enum):
    """The effect of a call with the verdict COMPARE, according to the disk."""

    DONE = "the file is as this call was to leave it, or as later calls have left it since"
    NOT_DONE = "the file is as it was before this call"
    REPEAT = "the file is as the call finds and leaves it: running it again changes nothing and gives its answer"
    UNKNOWN = "the file could be like this whether the call took effect or not"


def judge(call: OpenCall, *, same_boot: bool) -> ResumeVerdict:
    """Return the verdict on `call`. `same_boot`: the machine has been up since the call's step was recorded. Start
    records are written but not synced, so a missing one proves only within the same boot that the call did not start. A
    gated call's is synced, so its absence always proves that."""
    if call.result is not None:
        return ResumeVerdict.REUSE
    if not call.side_effects or (not call.started and (same_boot or call.gated)):
        return ResumeVerdict.RUN
    known = call.intent is not None and UNAVAILABLE not in (call.intent["before"], call.intent["after"])
    return ResumeVerdict.COMPARE if known else ResumeVerdict.INTERRUPTED


def compare(calls: Sequence[OpenCall], found: Mapping[str, str | None], *, same_boot: bool) -> dict[str, CallOutcome]:
    """Return the outcome of each of an open step's `calls` with the verdict COMPARE, by id. `found` has the hash of the
    current file for each path: None for no file, any non-hash for a file that cannot be read. All calls on a path are
    considered together, because each call finds the file that the previous one left."""
    on_path: dict[str, list[_FileChange]] = {}
    for call in calls:
        for path, change in _changes(call):
            on_path.setdefault(path, []).append(change)
    outcomes: dict[str, CallOutcome] = {}
    for path, changes in on_path.items():
        compared = (one for one in changes if judge(one.call, same_boot=same_boot) is ResumeVerdict.COMPARE)
        asked = {one.call.call_id: one for one in compared}
        if asked:
            for call_id, outcome in zip(asked, _outcomes(_Path(changes, asked), found[path]), strict=True):
                outcomes[call_id] = _both(outcomes.get(call_id, outcome), outcome)
    return outcomes


def paths_of(call: OpenCall) -> tuple[str, ...]:
    """Return the paths of the call's intent, which `compare` needs the hashes of."""
    return tuple(path for path, _ in _changes(call))


class _FileChange(NamedTuple):
    """The intended change of a call at one path: the hashes before and after."""

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
    """Combine the outcomes at the two paths of one move, which takes effect at both or at neither."""
    if one is other:
        return one
    certain = {one, other} - {CallOutcome.UNKNOWN}
    return certain.pop() if len(certain) == 1 and CallOutcome.REPEAT not in certain else CallOutcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Path:
    """Calls on one path, in call order, and those to be compared (`asked`) by id. Calls on one path run in call order,
    so the calls to be compared took effect up to some point, and the later ones did not. A call that failed without a
    recorded result counts as one that did not take effect: its intended content is missing in both cases."""

    changes: Sequence[_FileChange]
    asked: Mapping[str, _FileChange]

    def states(self, done: int, before: _FileChange | None = None) -> set[str | None]:
        """Return the possible states of the file at the end, or just before the change `before`, if `done` of the calls
        to be compared took effect. A recorded success determines the state, a failure does not, and a denied call
        changed nothing."""
        states: set[str | None] = {self.changes[0].before}
        first, left = True, done
        for change in self.changes:
            call = change.call
            asked = call.call_id in self.asked
            if asked and first and call.started:  # its start record has the state that it really found
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
        elif after in finds:  # it may have had nothing to do, and deleting a missing file fails
            yield CallOutcome.REPEAT if finds == {after} and found == after else CallOutcome.UNKNOWN
        else:
            yield CallOutcome.DONE if number < fitting[0] else CallOutcome.UNKNOWN
