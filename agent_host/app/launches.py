"""From settings and paths to what a session is started with: for the command line, `serve` and the public API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent_host.errors import UsageError
from agent_host.session.opening import MOCK_PREFIX, Launch
from config.load import ConfigError, load
from state.errors import NoHomeDirectory
from state.locations import default_state_dir, with_home

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from config.settings import Settings


def anchored(path: str, resolve: Callable[[str], str] = os.path.abspath) -> str:
    """`path` made absolute by `resolve`, `~` included. Raises UsageError where that needs a current directory and there
    is none any more, or a home and there is none."""
    try:
        return resolve(with_home(path))
    except NoHomeDirectory as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{path!r} is relative to the current directory, which is no longer there ({error.strerror}): "
            "go to another one, or give the absolute path"
        ) from error


def settings_from(flags: Mapping[str, Any], *, workspace: str | None, given_by: str = "the command line") -> Settings:
    """The settings with `flags`, by key, over the user's; `given_by` says where they come from. Raises UsageError."""
    try:
        return load(flags, workspace=workspace, given_by=given_by)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def state_dir_from(chosen: str | None) -> str:
    """The chosen state directory, absolute, else that of the environment or the platform. Raises UsageError."""
    try:
        return anchored(chosen) if chosen else default_state_dir()
    except NoHomeDirectory as error:
        raise UsageError(str(error)) from error


def portable(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that mean the same from another directory, so that a resume can take them over. Raises UsageError."""
    gateway = flags.get("llm.gateway", "")
    if isinstance(gateway, str) and gateway.startswith(MOCK_PREFIX):
        flags["llm.gateway"] = MOCK_PREFIX + anchored(gateway.removeprefix(MOCK_PREFIX))
    policy = flags.get("host.policy", "")
    if isinstance(policy, str) and os.path.exists(policy):
        flags["host.policy"] = anchored(policy)
    return flags


def launch_of(
    flags: Mapping[str, Any],
    *,
    workspace: str,
    state_dir: str,
    session_id: str | None,
    approvals: Collection[str] = (),
    approve_all: bool = False,
    replays: frozenset[str] = frozenset(),
    named_by: str = "the workspace",
    given_by: str = "the command line",
) -> Launch:
    """A launch in the directory `workspace`, which `named_by` has given, as `given_by` has the flags. Raises UsageError
    for what cannot be used."""
    root = anchored(workspace, os.path.realpath)
    if not is_text(root):
        raise UsageError(f"{named_by} {root!r}: its name is not UTF-8, which no model could read")
    if not os.path.isdir(root):
        raise UsageError(f"{named_by} {workspace}: there is no such directory")
    return Launch(
        settings=settings_from(flags, workspace=root, given_by=given_by),
        flags=flags,
        workspace=root,
        state_dir=state_dir,
        session_id=session_id,
        approvals=frozenset(approvals),
        approve_all=approve_all,
        replays=replays,
    )


def is_text(value: str) -> bool:
    """Whether `value` can stand in a record: it holds no half of a surrogate pair, as bytes that are no UTF-8 do."""
    return value == value.encode("utf-8", "replace").decode()
