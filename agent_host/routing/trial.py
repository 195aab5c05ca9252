"""A tool call that is only judged, and never made: facts that somebody states, in place of those of this disk.

So a policy can be tried for another machine, another operating system or a file that is not there. Nothing is executed,
no name is looked up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.routing.capabilities import TOOLS, UPLOAD_ARTIFACT
from agent_host.routing.facts import Surroundings, UnusableArguments, gather, read_from
from policy.case import denied
from policy.check import check_tool
from policy.facts import CommandFacts, NamedToolFacts, PathFacts, UrlFacts
from policy.paths import is_absolute, normalize
from policy.toolset import NO_LIMITS, under_ceiling, withheld_by

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from agent_host.routing.capabilities import ToolRow
    from policy.bundle import PolicyBundle
    from policy.decision import Decision
    from policy.facts import ActionFacts, OsFamily, PathKind, ShellName
    from policy.toolset import Limits

_RULE = "case"
_OS_NAMES: tuple[OsFamily, ...] = ("posix", "windows")
_SHELLS: tuple[ShellName, ...] = ("bash", "sh", "zsh", "cmd", "powershell")
_KINDS: tuple[PathKind, ...] = ("file", "directory", "other", "missing")


class InvalidCase(ValueError):
    """A case that does not say what is to be judged."""


class StatedFacts(NamedTuple):
    """What a case says of the world (interface section 1); None where it says nothing."""

    real_path: str | None = None
    exists: bool | None = None
    size_bytes: int | None = None
    is_symlink: bool = False
    kind: PathKind | None = None
    resolved_addresses: tuple[str, ...] = ()


class TrialCase(NamedTuple):
    """One call to be judged. Without `facts`, and for this machine's `os`, they are gathered from the disk."""

    tool_name: str
    arguments: Mapping[str, Any]
    capabilities: list[Any] | None = None
    os: OsFamily | None = None
    shell: ShellName | None = None
    cwd: str | None = None
    home: str | None = None
    facts: StatedFacts | None = None
    env: Mapping[str, str] | None = None


def case_from(raw: Mapping[str, Any]) -> TrialCase:
    """A case from its JSON shape. Raises InvalidCase, which names the field."""
    known = {"id", "toolName", "arguments", "capabilities", "os", "shell", "cwd", "home", "facts", "env"}
    unknown = sorted(raw.keys() - known)
    if unknown:
        raise InvalidCase(f"{unknown[0]} is no field of a case")
    return TrialCase(
        _typed(raw, "toolName", str, required=True),
        _typed(raw, "arguments", dict, required=True),
        _typed(raw, "capabilities", list),
        _one_of(raw, "os", _OS_NAMES),
        _one_of(raw, "shell", _SHELLS),
        _typed(raw, "cwd", str),
        _typed(raw, "home", str),
        None if raw.get("facts") is None else _stated(_typed(raw, "facts", dict)),
        _environment(raw),
    )


def judge_case(
    bundle: PolicyBundle, case: TrialCase, here: Surroundings, *, now: datetime, limits: Limits = NO_LIMITS
) -> Decision:
    """Policy's word on the case, as the host would ask for it; what it would refuse before that is denied by the rule
    `case`. `here` is this machine, and stands in for what the case leaves out; `limits` are those of the
    configuration."""
    row = TOOLS.get(case.tool_name)
    if row is None:
        return denied("", _RULE, f"there is no tool {case.tool_name!r}")
    try:
        facts = _facts(row, case, here)
    except UnusableArguments as error:
        return denied(row.capability, _RULE, str(error))
    withheld = withheld_by(limits, case.tool_name, row.capability)
    if withheld is not None:
        return denied(row.capability, withheld, f"{case.tool_name} is switched off")
    system, workspace = case.os or here.os_family, _place(case, here).workspace
    decision = check_tool(bundle, row.capability, facts, now=now, os=system, workspace=workspace)
    return under_ceiling(decision, limits, bundle, facts, workspace=workspace, os=system)


def _facts(row: ToolRow, case: TrialCase, here: Surroundings) -> ActionFacts:
    there = _place(case, here)
    if case.facts is None and there.os_family == here.os_family:
        return gather(row, case.arguments, there)
    if row.subject == "upload" and row.content_argument in case.arguments:
        return NamedToolFacts(UPLOAD_ARTIFACT)
    subject = case.arguments.get(row.argument)
    if not isinstance(subject, str) or not subject:
        raise UnusableArguments(f"argument {row.argument!r} must be a non-empty string")
    stated = case.facts or StatedFacts()
    if row.subject == "command":
        return _command_facts(case, subject, stated, there)
    if row.subject == "url":
        return UrlFacts(subject, str(case.arguments.get("method") or "GET").upper(), stated.resolved_addresses)
    return _path_facts(row, case, subject, stated, there)


def _command_facts(case: TrialCase, subject: str, stated: StatedFacts, there: Surroundings) -> CommandFacts:
    """A file that the line redirects to or from leads where the case says, else where its spelling says."""
    from policy.commands import parsed_line, referenced_paths

    asked = case.arguments.get("cwd") or there.workspace
    if not isinstance(asked, str):
        raise UnusableArguments("argument 'cwd' must be a string")
    cwd = normalize(asked, there.os_family, there.workspace, there.home)
    facts = CommandFacts(subject, cwd, there.shell, there.home, environment=read_from(there.environment, subject))
    spellings = referenced_paths(parsed_line(facts), cwd, there.home)
    return facts._replace(real_paths={path: stated.real_path or normalize(path, there.os_family) for path in spellings})


def _path_facts(row: ToolRow, case: TrialCase, subject: str, stated: StatedFacts, there: Surroundings) -> PathFacts:
    absolute = normalize(subject, there.os_family, home=there.home)
    if not is_absolute(absolute, there.os_family):
        raise UnusableArguments(f"argument {row.argument!r} must be an absolute path, not {subject!r}")
    content = case.arguments.get(row.content_argument) if row.content_argument else None
    there_already = stated.exists if stated.exists is not None else stated.size_bytes is not None
    return PathFacts(
        subject,
        absolute,
        stated.real_path or absolute,
        stated.kind or ("file" if there_already else "missing"),
        is_symlink=stated.is_symlink,
        size_bytes=stated.size_bytes,
        new_size_bytes=len(content.encode("utf-8", "replace")) if isinstance(content, str) else None,
        tool_name=UPLOAD_ARTIFACT if row.subject == "upload" else None,
    )


def _place(case: TrialCase, here: Surroundings) -> Surroundings:
    """Where the case says it happens."""
    system = case.os or here.os_family
    native = system == here.os_family
    shell = case.shell or (here.shell if native else "cmd" if system == "windows" else "bash")
    workspace = case.cwd or (here.workspace if native else "C:\\" if system == "windows" else "/")
    if native and case.facts is None:
        workspace = os.path.realpath(workspace)
    environment = case.env if case.env is not None else here.environment if native and case.facts is None else None
    return Surroundings(workspace, case.home or (here.home if native else None), system, shell, environment)


def _environment(raw: Mapping[str, Any]) -> dict[str, str] | None:
    given: dict[str, str] | None = _typed(raw, "env", dict)
    if given is not None and not all(isinstance(value, str) for value in given.values()):
        raise InvalidCase("env must have strings for values")
    return given


def _stated(raw: Mapping[str, Any]) -> StatedFacts:
    known = {"realPath", "exists", "sizeBytes", "isSymlink", "kind", "resolvedAddresses"}
    unknown = sorted(raw.keys() - known)
    if unknown:
        raise InvalidCase(f"facts.{unknown[0]} is no fact")
    addresses = _typed(raw, "resolvedAddresses", list) or []
    if not all(isinstance(address, str) for address in addresses):
        raise InvalidCase("facts.resolvedAddresses must be strings")
    if raw.get("realPath") == "":
        raise InvalidCase("facts.realPath must not be empty")
    size = _typed(raw, "sizeBytes", int)
    if size is not None and size < 0:
        raise InvalidCase("facts.sizeBytes must be at least 0")
    return StatedFacts(
        _typed(raw, "realPath", str),
        _typed(raw, "exists", bool),
        size,
        bool(_typed(raw, "isSymlink", bool)),
        _one_of(raw, "kind", _KINDS),
        tuple(addresses),
    )


_WORDS = {str: "a string", dict: "an object", list: "a list", bool: "true or false", int: "a whole number"}


def _typed(raw: Mapping[str, Any], name: str, kind: type, *, required: bool = False) -> Any:
    value = raw.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidCase(f"{name} must be {_WORDS[kind]}")
    return value


def _one_of(raw: Mapping[str, Any], name: str, choices: tuple[Any, ...]) -> Any:
    value = raw.get(name)
    if value is not None and value not in choices:
        raise InvalidCase(f"{name} must be one of {', '.join(choices)}")
    return value
