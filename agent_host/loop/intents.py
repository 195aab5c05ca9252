"""Intents of file calls, written down before the call runs: after a crash the disk can tell whether it did, and the
session's patch has a first version to compare with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent_host.judging.prepared import NO_EFFECT
from agent_host.safe_open import link_at, read_real
from config.lean_typing import NamedTuple
from policy.facts import PathFacts, UrlFacts
from policy.names import CapabilityName
from state.blobs import LINK, PLAIN_FILE, UNAVAILABLE, add_mode, git_mode, mode_and_blob, sha256_hex
from state.records import FileEffect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import ToolSpec
    from policy.facts import ActionFacts
    from state.checkpoint import Intent

Held = tuple[str | None, bytes | str | None]
"""SHA-256 and content of what a path will hold: both None for no file, UNAVAILABLE for what cannot be said."""

# Larger files are written all the same; a crash in the middle is then answered with "unknown", and the patch says that
# the first version was not kept.
_MAX_BASELINE_BYTES = 16 * 1024 * 1024


class Versions(NamedTuple):
    """Versions that are kept of the files that calls change. `keep` stores a version of a file and returns its name.
    `known` are the paths whose first version the task has on record. `all`: each version that a call writes over is
    kept, and not only the first one."""

    keep: Callable[[PathFacts, bytes], str]
    known: Mapping[str, str | None]
    all: bool


def capture_intent(
    spec: ToolSpec,
    facts: ActionFacts | None,
    arguments: Mapping[str, Any],
    versions: Versions,
    will_hold: dict[str, Held],
) -> FileEffect:
    """Return the effect that a call will have on its one file; NO_EFFECT for any other call. What a request will save
    is not known before. `will_hold` is what earlier calls of the same turn will leave at a path, with its SHA-256,
    updated here."""
    facts = file_to_write(spec, facts)
    if facts is None:
        return NO_EFFECT
    baselines: dict[str, str | None] = {}
    mode = mode_at(facts.real_path) if _changes_mode(spec, arguments) else None
    if spec.effect != "replace" and mode == PLAIN_FILE:  # what is gone is taken for one
        mode = None
    before, data, kept = _found(facts, versions, will_hold, baselines, mode)
    content = _content_after(spec, arguments, data)
    after = None if content is None else sha256_hex(content) if isinstance(content, bytes) else content
    intent: Intent = {"path": facts.real_path, "before": before, "after": after}
    if kept is not None:
        intent["kept"] = kept
    target = _target(spec, facts)
    if target is not None:
        there, _, _ = _found(target, versions, will_hold, baselines)
        intent["target"] = {"path": target.real_path, "before": there}
        will_hold[target.real_path] = (before, data)
    will_hold[facts.real_path] = (after, content)
    return FileEffect(intent, baselines)


def file_to_write(spec: ToolSpec, facts: ActionFacts | None) -> PathFacts | None:
    """The file that a call changes, or saves what it gets to; None where it has none."""
    if isinstance(facts, UrlFacts):
        return next((other for needed, other in facts.also if needed == CapabilityName.FILE_WRITE), None)
    # What is in a directory goes one by one: no file of it shows whether all of it did.
    return facts if spec.changes_file and isinstance(facts, PathFacts) and not facts.tree else None


def _changes_mode(spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    return spec.effect in ("delete", "move") or (spec.effect == "replace" and isinstance(arguments.get("mode"), str))


def _found(
    facts: PathFacts,
    versions: Versions,
    will_hold: dict[str, Held],
    baselines: dict[str, str | None],
    mode: str | None = None,
) -> tuple[str | None, bytes | str | None, str | None]:
    """Return what a call finds at a path: its hash, its content, and the name under which it is kept, None if there is
    nothing to keep. A first version goes into `baselines`, with the mode that is to be on record."""
    path = facts.real_path
    if path in will_hold:
        before, data = will_hold[path]
    else:
        data = _content(facts)
        before = None if data is None else sha256_hex(data) if isinstance(data, bytes) else data
        if before is not None and facts.kind == "link":
            before = add_mode(LINK, before)
    is_first = path not in versions.known and path not in will_hold
    if not (is_first or versions.all):
        return before, data, None
    kept = versions.keep(facts, data) if isinstance(data, bytes) else data
    mode = mode_and_blob(before or "")[0] or mode
    if kept is not None and mode is not None:
        kept = add_mode(mode, kept)
    if is_first:
        baselines[path] = kept
    return before, data, kept if versions.all else None


def _target(spec: ToolSpec, facts: PathFacts) -> PathFacts | None:
    """The path that the call moves its file to, None if it does not."""
    if spec.effect != "move":
        return None
    return next(other for needed, other in facts.also if needed == CapabilityName.FILE_WRITE)


def _content_after(spec: ToolSpec, arguments: Mapping[str, Any], before: bytes | str | None) -> bytes | str | None:
    """Return the content that the call leaves, as the tool itself computes it: None for no file, UNAVAILABLE if it
    cannot be said."""
    if spec.effect in ("delete", "move"):
        return None
    if spec.after is None or (spec.effect == "edit" and not isinstance(before, bytes)):
        return UNAVAILABLE
    content = spec.after(arguments, before if isinstance(before, bytes) else None)
    return UNAVAILABLE if content is None else content


def hash_on_disk(path: str, clean: Callable[[bytes], bytes] = bytes) -> str | None:
    """Return the hash of the file at `path` now, as intents have it: None for no file, UNAVAILABLE for what cannot be
    read or is larger than what intents hash. Of a link it is that of the path that it leads to, with its mode. With
    `clean` as it is kept as a first version."""
    try:
        return sha256_hex(clean(read_real(path, _MAX_BASELINE_BYTES)))
    except FileNotFoundError:
        return None
    except OSError:
        target = link_at(path)
        return UNAVAILABLE if target is None else add_mode(LINK, sha256_hex(clean(target)))


def mode_at(path: str) -> str | None:
    """The mode of the file or the link at `path`; None where there is none to be seen."""
    try:
        return git_mode(os.lstat(path).st_mode)
    except OSError:
        return None


def _content(facts: PathFacts) -> bytes | str | None:
    """The content of a file or a link; None where there is none, UNAVAILABLE for all else and what is too large."""
    if facts.kind == "missing":
        return None
    if facts.kind == "link":
        target = link_at(facts.real_path)
        return UNAVAILABLE if target is None else target
    if facts.kind != "file" or (facts.size_bytes or 0) > _MAX_BASELINE_BYTES:
        return UNAVAILABLE
    try:
        return read_real(facts.real_path, _MAX_BASELINE_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        return UNAVAILABLE
