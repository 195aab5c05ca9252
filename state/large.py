"""Large parts of messages: in a snapshot they stand in a blob of their own, so that it stays small and equal texts are
kept once. Journal and memory hold messages whole.

    {"role": "tool", "content": "", ..., "contentBlob": {"sha256": "...", "bytes": 81920}}

The same goes for a call's `arguments`, beside which `argumentsBlob` stands, for a block's `raw` and its `rawBlob`, and
for a picture's `data`, which is base64: its `dataBlob` names the picture itself.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import orjson

from state.blobs import UNAVAILABLE, sha256_hex
from state.errors import StorageLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state.blobs import BlobFolder

# Parts of this size are worth a file of their own.
LARGE_BYTES = 16 * 1024
_MARK = b'Blob":{"sha256":"'


def shorten(message: bytes) -> tuple[bytes, list[bytes]]:
    """The message with its large parts named, and these parts."""
    if len(message) <= LARGE_BYTES:
        return message, []
    wire = orjson.loads(message)
    parts: list[bytes] = []
    content = wire["content"].encode()
    if len(content) > LARGE_BYTES:
        wire |= {"content": "", "contentBlob": _reference(content)}
        parts.append(content)
    for call in wire.get("toolCalls", ()):
        arguments = orjson.dumps(call["arguments"])
        if len(arguments) > LARGE_BYTES:
            call |= {"arguments": {}, "argumentsBlob": _reference(arguments)}
            parts.append(arguments)
    for block in wire.get("blocks", ()):
        raw = block["raw"].encode()
        if len(raw) > LARGE_BYTES:
            block |= {"raw": "", "rawBlob": _reference(raw)}
            parts.append(raw)
    for image in wire.get("images", ()):
        data = b64decode(image["data"])
        if len(data) > LARGE_BYTES and b64encode(data).decode() == image["data"]:  # else it would come back changed
            image |= {"data": "", "dataBlob": _reference(data)}
            parts.append(data)
    return (orjson.dumps(wire), parts) if parts else (message, [])


def restore(message: bytes, get: Callable[[str], bytes | None]) -> tuple[bytes, list[str]]:
    """The whole message again, and the names of the parts that `get` no longer has: in their place stands a word about
    it, so that the thread can still be sent; a lost block or picture stays empty. A blob that is put back is found
    again."""
    if _MARK not in message:
        return message, []
    wire = orjson.loads(message)
    lost: list[str] = []
    for holder, key in _holders(wire):
        reference = holder.pop(f"{key}Blob")
        part = _part(key, get(reference["sha256"]))
        if part is None:
            lost.append(reference["sha256"])
            said = f"{reference['bytes']} bytes that stood here were damaged on disk and are lost"
            if key == "content":
                holder[key] = f"[{said}]"
            elif key == "arguments":  # a call that cannot be made any more
                holder["problem"] = said
            elif key == "data":
                wire["content"] += f"\n[A picture of {said}]"
        else:
            holder[key] = part
    # In a buffer of its own size: orjson's can be ten times as large, and the message is kept for the session's life.
    return bytes(memoryview(orjson.dumps(wire))), lost


def _part(key: str, data: bytes | None) -> str | dict[str, Any] | None:
    """The stored part for `key`; None when it is gone, or is the blob of something else."""
    try:
        if data is None:
            return None
        if key == "data":
            return b64encode(data).decode()
        if key != "arguments":
            return data.decode()
        arguments = orjson.loads(data)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def blobs_in(message: bytes) -> list[str]:
    """The blobs that a shortened message names."""
    if _MARK not in message:
        return []
    return [holder[f"{key}Blob"]["sha256"] for holder, key in _holders(orjson.loads(message))]


def _reference(data: bytes) -> dict[str, Any]:
    return {"sha256": sha256_hex(data), "bytes": len(data)}


def _holders(wire: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    if "contentBlob" in wire:
        yield wire, "content"
    for call in wire.get("toolCalls", ()):
        if "argumentsBlob" in call:
            yield call, "arguments"
    for block in wire.get("blocks", ()):
        if "rawBlob" in block:
            yield block, "raw"
    for image in wire.get("images", ()):
        if "dataBlob" in image:
            yield image, "data"


# Large values of a session: first versions of files, and the large parts of its messages. What is new waits in the
# journal, whose syncs it shares, and gets a file of its own with the next snapshot.

# Larger ones cost a file and its syncs at once; smaller ones wait in the journal for the next snapshot.
_MAX_INLINE_BYTES = 64 * 1024


class SnapshotThread:
    """The messages of one snapshot and what they name; another thread may write it while the session goes on.

    `thread` are the whole messages, `inline` what stands in the journal alone, `short` the messages that stand
    shortened in the snapshot, by their place; those before `examined` are known.
    """

    def __init__(
        self,
        blobs: BlobFolder,
        thread: list[bytes],
        inline: dict[str, bytes],
        short: dict[int, bytes],
        examined: int,
    ) -> None:
        self._blobs = blobs
        self._examined = examined
        self.thread = thread
        self.inline = inline
        self.short = short

    def write(self) -> list[bytes]:
        """The messages as they are to stand in the snapshot; what they name has a file, durable on return. Raises
        OSError."""
        self._blobs.put(*self.inline.values(), limited=False)  # there was room when they were taken
        new = {place: shorten(self.thread[place]) for place in range(self._examined, len(self.thread))}
        large = {place: (short, parts) for place, (short, parts) in new.items() if parts}
        with contextlib.suppress(StorageLimit):  # then they stay where they are
            self._blobs.put(*(part for _, parts in large.values() for part in parts))
            self.short |= {place: short for place, (short, _) in large.items()}
        if not self.short:
            return self.thread
        return [self.short.get(place, message) for place, message in enumerate(self.thread)]


class LargeValues:
    """The large things of one session, in `blobs` or on their way there."""

    def __init__(self, blobs: BlobFolder) -> None:
        self.blobs = blobs
        # What stands in the journal alone, and what the next record takes there.
        self._inline: dict[str, bytes] = {}
        self._to_record: dict[str, str] = {}
        # Messages as they stand in snapshots, by their place in the thread, where that is not as they are.
        self._short: dict[int, bytes] = {}
        self._examined = 0
        self._full = False

    @property
    def full(self) -> bool:
        """True if something could not be kept for want of room."""
        return self._full or self.blobs.refused

    def put(self, data: bytes) -> str:
        """See `OpenSession.keep`."""
        name = sha256_hex(data)
        if name in self._inline or self.blobs.holds(name):
            return name
        try:
            if len(data) > _MAX_INLINE_BYTES:
                self.blobs.put(data)
                return name
            if not self.blobs.has_room(len(data) + sum(map(len, self._inline.values()))):
                raise StorageLimit(self.blobs.limit_bytes)
        except StorageLimit:
            self._full = True
            return UNAVAILABLE
        except OSError:
            return UNAVAILABLE
        self._inline[name] = data
        self._to_record[name] = b64encode(data).decode()
        return name

    def get(self, name: str) -> bytes | None:
        """See `OpenSession.kept`."""
        inline = self._inline.get(name)
        return self.blobs.get(name) if inline is None else inline

    def to_record(self) -> dict[str, str]:
        """The values that the next record is to carry: base64 by name. `recorded` says that it does."""
        return self._to_record

    def mark_recorded(self) -> None:
        """The record has what `to_record` gave."""
        self._to_record = {}

    def take_over(
        self,
        inline: dict[str, bytes],
        short: dict[int, bytes],
        examined: int,
        lost: Iterable[str],
        first_versions: Iterable[str],
    ) -> None:
        """Continue with what is on disk: blobs that are `inline` in the journal, messages that are `short` because they
        name blobs, how many messages were `examined`, and blobs that are `lost`. Whatever a checkpoint names was
        durable before it did."""
        self._inline, self._short, self._examined = inline, short, examined
        self.blobs.trust(self.blobs_to_keep(first_versions) - frozenset(lost) - inline.keys())

    def blobs_to_keep(self, first_versions: Iterable[str]) -> frozenset[str]:
        """The blobs that the session needs: those of its messages and its `first_versions` of files."""
        in_thread = {name for message in self._short.values() for name in blobs_in(message)}
        return frozenset(in_thread.union(first_versions))

    def collect_for_snapshot(self, thread: Sequence[bytes]) -> SnapshotThread:
        """Collect the messages and blobs that a snapshot of now needs, for `SnapshotThread.write`; `moved` takes over
        what that did."""
        return SnapshotThread(self.blobs, list(thread), dict(self._inline), dict(self._short), self._examined)

    def mark_moved(self, written: SnapshotThread) -> None:
        """The snapshot that was made with `written` is in place: go on from it."""
        for name in written.inline:
            self._inline.pop(name, None)
            self._to_record.pop(name, None)
        self._short, self._examined = written.short, len(written.thread)
