"""What the configuration says of the families of tools, and of the native one."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from agent_host.errors import UsageError
from tool_runtime.families.catalogue import NATIVE
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from config.settings import Settings
    from policy.rules.native_exec import NativeExec

_EXEC = "native.exec"


def families_of(settings: Settings) -> tuple[str, ...]:
    """The families whose tools the model sees, each once."""
    return tuple(dict.fromkeys(settings.names("host.toolset")))


def has_native(settings: Settings) -> bool:
    """True if the native family is chosen."""
    return NATIVE in settings.names("host.toolset")


def native_roots(settings: Settings, workspace: str) -> tuple[str, ...]:
    """The real paths that native tools keep to: the root directory, by default the workspace, and the additional ones.
    Raises UsageError for one that is not absolute or no directory."""
    named = (settings.text("native.root_dir"), *settings.names("native.additional_roots"))
    for path in filter(None, named):
        if not os.path.isabs(path) or not os.path.isdir(path):
            raise UsageError(f"configuration: native: {path!r} is no absolute path of a directory")
    first, *others = named
    return tuple(dict.fromkeys(os.path.realpath(path) for path in (first or workspace, *others)))


def native_list(settings: Settings, workspace: str) -> NativeExec:
    """The programs that native tools start. Raises UsageError with every problem of the entries."""
    from policy.bundle.configured import command_policies
    from policy.bundle.problems import BundleProblems
    from policy.rules.native_exec import DEFAULT, NativeExec, entry_problem

    try:
        shape = json.loads(json.dumps(settings.tables(_EXEC)))
        added = command_policies(shape, _EXEC)
    except (BundleProblems, TypeError) as error:
        raise UsageError(f"configuration: {error}") from error
    problems = [problem for policy in added if (problem := entry_problem(policy, OS_FAMILY)) is not None]
    if problems:
        raise UsageError(f"configuration: {_EXEC}: {'; '.join(problems)}")
    return NativeExec((*DEFAULT, *added), native_roots(settings, workspace))
