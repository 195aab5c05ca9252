"""The risk of an action, and the reasons for it, for the person who approves it (AH 8.5). It never changes a
verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.facts import ActionFacts, CommandFacts, OsFamily, PathFacts, UrlFacts
from policy.names import CapabilityName as Name
from policy.names import words
from policy.paths import is_under
from policy.rules.toolset import DEFAULT_RISK
from policy.shell.commands import parse_line, real_path_of
from policy.urls import UrlProblem, domain_rules, matching_rule, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.bundle.model import Capability
    from policy.decision import RiskLevel

KNOWN_PROGRAMS = words(
    "[ basename cat cd cmp column cut date diff dirname du echo env false file find git grep head id jq ls make "
    "node npm printf ps pwd pytest python python3 rg sed sleep sort stat tail test tr tree true uname uniq uv wc "
    "which whoami"
)
"""What counts as known where a bundle lists no commands."""
RECOGNIZED_DOMAINS = ("pypi.org", "*.pythonhosted.org", "github.com", "*.github.com", "registry.npmjs.org", "crates.io")
"""What counts as recognised where a bundle lists no domains."""


def assess(
    capability: Capability, facts: ActionFacts, *, workspace: str | None = None, os: OsFamily = "posix"
) -> tuple[RiskLevel, tuple[str, ...]]:
    """The level and the reasons for it. `workspace` is the project directory; without it the capability's allowed
    paths stand for it."""
    default = DEFAULT_RISK.get(capability.name, "high")
    reasons = tuple(_ELEVATIONS[type(facts)](capability, facts, workspace, os)) if type(facts) in _ELEVATIONS else ()
    return ("high", reasons) if reasons else (default, ())


def _path_reasons(entry: Capability, facts: ActionFacts, workspace: str | None, os: OsFamily) -> list[str]:
    assert isinstance(facts, PathFacts)  # noqa: S101  the table is keyed by this type
    project = (workspace,) if workspace is not None else entry.allowed_paths
    if entry.name != Name.FILE_WRITE or project is None:
        return []
    inside = any(is_under(facts.real_path, root, os) for root in project)
    return [] if inside else [f"writes outside the project directory: {facts.real_path}"]


def _command_reasons(entry: Capability, facts: ActionFacts, workspace: str | None, os: OsFamily) -> list[str]:
    assert isinstance(facts, CommandFacts)  # noqa: S101
    parsed = parse_line(facts)
    known = KNOWN_PROGRAMS if entry.allowed_commands is None else frozenset(entry.allowed_commands)
    unknown = dict.fromkeys(one.program for one in parsed.commands if one.program and one.program not in known)
    if facts.script is not None:  # a script of a skill has one risk, whatever program runs it (SK 2.3)
        unknown = {}
    reasons = [f"unknown command: {program}" for program in unknown]
    reasons += [f"cannot be decided: {reason}" for reason in parsed.dynamic]
    reasons += [f"runs {one}" for one in parsed.opaque if one.in_line]
    for target in parsed.files:
        for spelling in target.spellings(facts.cwd, facts.home) if target.mode != "read" and workspace else ():
            place = real_path_of(facts, spelling)
            if place is None or not is_under(place, workspace or "", os):
                reasons.append(f"writes outside the project directory: {spelling}")
    return reasons


def _url_reasons(entry: Capability, facts: ActionFacts, _workspace: str | None, _os: OsFamily) -> list[str]:
    assert isinstance(facts, UrlFacts)  # noqa: S101
    known = RECOGNIZED_DOMAINS if entry.allowed_domains is None else entry.allowed_domains
    try:
        host, port = target_of(facts.url)
    except UrlProblem as problem:
        return [str(problem)]
    return [] if matching_rule(host, domain_rules(known), port) else [f"domain is not a recognised one: {host}"]


_ELEVATIONS: dict[type, Callable[[Capability, ActionFacts, str | None, OsFamily], list[str]]] = {
    PathFacts: _path_reasons,
    CommandFacts: _command_reasons,
    UrlFacts: _url_reasons,
}
