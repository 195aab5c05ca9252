"""What a file call is about to do, written down before it does it: so that after a crash the disk can tell whether it
did, and so that the session's patch has a first version to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policy.facts import PathFacts
from state.blobs import UNAVAILABLE, sha256_hex
from state.disk import LOCAL_DISK
from state.records import FileEffect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import ToolSpec
    from policy.facts import ActionFacts
    from state.records import Intent

NO_EFFECT = FileEffect()
Held = tuple[str | None, bytes | str | None]
"""SHA-256 and content of what a path will hold: both None for no file, UNAVAILABLE for what cannot be said."""

# Larger files are written all the same; a crash in the middle is then answered with "unknown", and the patch says that
# the first version was not kept.
_MAX_BASELINE_BYTES = 16 * 1024 * 1024


def capture_intent(
    spec: ToolSpec,
    facts: ActionFacts | None,
    arguments: Mapping[str, Any],
    *,
    keep: Callable[[bytes], str],
    known: Mapping[str, str | None],
    will_hold: dict[str, Held],
    versions: dict[str, str | None] | None = None,
) -> FileEffect:
    """What a call that changes one file will do to it; NO_EFFECT for any other call.

    `keep` stores a first version and returns its name. `known` are the paths whose first version the task has on
    record; `will_hold` is what earlier calls of the same turn will leave at a path, with its SHA-256, updated here.

    `versions` are what calls of this process left at a path, kept up to date here, None where only first versions are
    kept. What something else left there is kept too, and the intent has its name under `kept`.
    """
    if not (spec.changes_file and isinstance(facts, PathFacts)):
        return NO_EFFECT
    path = facts.real_path
    baselines: dict[str, str | None] = {}
    kept: str | None = None
    if path in will_hold:
        before, data = will_hold[path]
    else:
        data = _content(facts)
        before = None if data is None else sha256_hex(data) if isinstance(data, bytes) else data
        if path not in known:
            baselines[path] = keep(data) if isinstance(data, bytes) else data
        elif versions is not None and isinstance(data, bytes) and versions.get(path) != before:
            kept = keep(data)
    content = _content_after(spec, arguments, data)
    after = None if content is None else sha256_hex(content) if isinstance(content, bytes) else content
    will_hold[path] = (after, content)
    if versions is not None:
        versions[path] = after
    if UNAVAILABLE in (before, after):
        return FileEffect(None, baselines)
    intent: Intent = {"path": path, "before": before, "after": after}
    if kept is not None:
        intent["kept"] = kept
    return FileEffect(intent, baselines)


def _content_after(spec: ToolSpec, arguments: Mapping[str, Any], before: bytes | str | None) -> bytes | str | None:
    """What the call leaves, as the tool itself computes it: None for no file, UNAVAILABLE where it cannot be said."""
    if spec.effect == "delete":
        return None
    if spec.after is None or (spec.effect == "edit" and not isinstance(before, bytes)):
        return UNAVAILABLE
    content = spec.after(arguments, before if isinstance(before, bytes) else None)
    return UNAVAILABLE if content is None else content


def hash_on_disk(path: str) -> str | None:
    """What is at `path` now, as intents have it: None for no file, UNAVAILABLE for what cannot be read."""
    try:
        return sha256_hex(LOCAL_DISK.read(path))
    except FileNotFoundError:
        return None
    except OSError:
        return UNAVAILABLE


def _content(facts: PathFacts) -> bytes | str | None:
    """The file's content; None when there is no file, UNAVAILABLE when it is no regular file or too large."""
    if facts.kind == "missing":
        return None
    if facts.kind != "file" or (facts.size_bytes or 0) > _MAX_BASELINE_BYTES:
        return UNAVAILABLE
    try:
        return LOCAL_DISK.read(facts.real_path)
    except FileNotFoundError:
        return None
    except OSError:
        return UNAVAILABLE
