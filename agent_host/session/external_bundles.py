"""External bundles, of the Session Service or in a file, and additions of the configuration to one (AH 3.2).

This module imports all the code that reads and validates them; a session under a built-in does not need it.
"""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import orjson

from agent_host.errors import PolicyBundleInvalid, PolicyExpired, UsageError
from agent_host.events.sinks import run_logs
from config.policies import BUILT_IN, place_groups, template_as_written
from config.shapes import hint_at_path
from policy import ANY_SESSION
from policy.bundle import BundleProblems, validate
from policy.bundle.validate import BuiltIns, check_usable, parse_bundle, parse_file_bundle, program_problem, suspicions
from state import InvalidSessionId, SessionPaths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from config.settings import Settings
    from policy.bundle import BundleProblem, CommandPolicy, PolicyBundle
    from policy.bundle.builtin import PlaceholderValues

_GRANTED = "policy of the session service"


def read_file_bundle(
    raw: bytes,
    places: PlaceholderValues,
    now: datetime,
    steering: tuple[str, ...],
    *,
    models: tuple[str, ...] = (),
    more_models: tuple[str, ...] = (),
    sandboxed: bool = False,
) -> PolicyBundle:
    """Parse the bundle in a file's content; its session and its expiry are not checked. `models` and `more_models` come
    from the configuration (see `BuiltIns`), `steering` are the files that configure this program for its user, which no
    tool may change; `sandboxed` is True if commands are sandboxed. Raises BundleProblems."""
    groups = place_groups()
    groups["steering"] = [*groups["steering"], *steering]
    built_ins = BuiltIns(BUILT_IN, template_as_written, models, more_models)
    return parse_file_bundle(
        raw, places=places._replace(groups=groups), built_ins=built_ins, now=now, sandboxed=sandboxed
    )


def named(settings: Settings) -> str:
    """Return the name, in messages, of the file in `host.policy`."""
    return f"{settings.name_of('host.policy')} {settings.host.policy}"


def read_named(
    settings: Settings,
    raw: bytes,
    places: PlaceholderValues,
    now: datetime,
    steering: tuple[str, ...],
    *,
    sandboxed: bool,
) -> PolicyBundle:
    """Parse `raw`, the content of the file that `host.policy` names. Raises PolicyBundleInvalid."""
    models, fallbacks = (settings.llm.model,) if settings.llm.model else (), settings.llm.fallback_models
    with problems_of(named(settings)):
        return read_file_bundle(raw, places, now, steering, models=models, more_models=fallbacks, sandboxed=sandboxed)


def suspicions_in(
    raw: bytes, places: PlaceholderValues, now: datetime, steering: tuple[str, ...], *, hints: bool = False
) -> list[BundleProblem]:
    """Return the entries of a valid bundle that have no effect (`policy.bundle.validate.suspicions`); none for an
    invalid bundle. With `hints` look for the path that may have been meant, which takes a while."""

    def find(path: str) -> str | None:
        if os.path.lexists(path):
            return None
        return hint_at_path(path).removeprefix("; ") if hints else ""

    try:
        read_file_bundle(raw, places, now, steering)
    except BundleProblems:
        return []
    shape, _ = validate.read_shape(raw)
    return list(suspicions(shape, places, find))


def read_grant(raw: bytes, now: datetime, *, session_id: str, sandboxed: bool = False) -> PolicyBundle:
    """Parse the JSON of the bundle that the Session Service granted. Raises PolicyBundleInvalid, PolicyExpired."""
    with problems_of(_GRANTED):
        bundle = parse_bundle(raw)
    refuse_unusable(bundle, _GRANTED, session_id, now)
    if bundle.session_id == ANY_SESSION:  # only a user can choose that
        raise PolicyBundleInvalid(
            f"{_GRANTED}: sessionId: only a bundle in a file is for any session, this one is for {session_id}"
        )
    return bundle.keep_known(bundle, sandboxed=sandboxed)


def refuse_invalid_programs(names: Sequence[str]) -> None:
    """Raise UsageError for an entry of `policy.allowed_commands` that is not the name of a program."""
    found = ((place, program_problem(name)) for place, name in enumerate(names))
    wrong = [(place, problem) for place, problem in found if problem is not None]
    if wrong:
        raise UsageError(
            *(f"configuration: policy.allowed_commands[{place}]: {one} ({hint})" for place, (one, hint) in wrong)
        )


def command_policies(tables: Sequence[Mapping[str, object]]) -> tuple[CommandPolicy, ...]:
    """Parse the rules for commands that the configuration adds. Raises UsageError with every problem of the entries."""
    try:
        return validate.command_policies([dict(table) for table in tables], "policy.command_policies")
    except BundleProblems as error:
        raise UsageError(*(f"configuration: {problem}" for problem in error.problems)) from error


@contextmanager
def problems_of(source: str) -> Iterator[None]:
    """Convert BundleProblems to PolicyBundleInvalid, with every problem, for a bundle from this source."""
    try:
        yield
    except BundleProblems as error:
        raise PolicyBundleInvalid(*(f"{source}: {problem}" for problem in error.problems)) from error


def refuse_unusable(bundle: PolicyBundle, source: str, session_id: str, now: datetime) -> None:
    """Raise PolicyExpired for an expired bundle, PolicyBundleInvalid for one that is neither for this session nor for
    any."""
    if bundle.expires_at <= now:
        raise PolicyExpired(f"{source} expired at {bundle.expires_at.isoformat()}; get a new one")
    problems = check_usable(bundle, session_id=session_id, now=now)
    if problems:
        raise PolicyBundleInvalid(*(f"{source}: {problem}" for problem in problems))


# Changes to a bundle file by earlier sessions, so that no model can write the bundle of the next run unnoticed.

_UNDER_WAY = b'"kind":"changes_seen"'
"""The record of changes by background commands, which no event contains."""


def last_change(state_dir: str, path: str) -> str | None:
    """Return the id of the newest session whose record shows that it changed the file, by its name or real path; else
    None."""
    names = {orjson.dumps(one) for one in (os.path.abspath(path), os.path.realpath(path))}
    newest_first = sorted(_sessions(state_dir), key=lambda one: _age(one.events), reverse=True)
    for paths in newest_first:
        if any(_has_changed(file, name) for file in _files(paths) for name in names):
            return paths.session_id
    return None


def _sessions(state_dir: str) -> Iterator[SessionPaths]:
    with suppress(OSError), os.scandir(os.path.join(state_dir, "sessions")) as entries:
        for entry in entries:
            with suppress(InvalidSessionId):
                yield SessionPaths(state_dir, entry.name)


def _age(path: str) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0


def _files(paths: SessionPaths) -> Iterator[str]:
    yield from run_logs(paths.events)
    yield from paths.checkpoint_files
    with suppress(OSError):
        yield from (os.path.join(paths.archive, name) for name in os.listdir(paths.archive))


def _has_changed(file: str, name: bytes) -> bool:
    try:
        with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(name)
            while at >= 0:
                end = content.find(b"\n", at)
                end = len(content) if end < 0 else end
                if _reports_change(content[content.rfind(b"\n", 0, at) + 1 : end], name):
                    return True
                at = content.find(name, end)
    except (OSError, ValueError):  # it does not exist, or is empty
        pass
    return False


def _reports_change(line: bytes, name: bytes) -> bool:
    if _UNDER_WAY in line:
        return name + b":" in line
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:  # a line of a journal
        return False
    payload = event.get("payload") if isinstance(event, dict) else None
    return isinstance(payload, dict) and orjson.loads(name) in payload.get("pathsChanged", ())
