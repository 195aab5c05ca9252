"""Warnings about what a run takes as it is, and its user can hardly have meant: a line each. Nothing is refused."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from agent_host.host.environment import families_of, this_environment
from agent_host.host.local_tools import built_in
from agent_host.host.skills import skill_index
from agent_host.ids import MACHINE
from agent_host.session.handshake import suspicions_in_file
from config.load import read_regular_file
from config.policies import names_file
from config.settings import ALL_TOOLS
from config.shapes import meant_name
from policy.bundle.meaning import VARIABLE_NAME
from policy.urls import UrlProblem, canonical_domain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.settings import Settings

NAMES: Final = ("tools.disabled", "tools.allowed", "mcp.enabled")
"""The settings whose entries are names of what a session may have or not: one that is misspelt says nothing."""


def warnings_of(settings: Settings, workspace: str, state_dir: str) -> Iterator[str]:
    """The warnings about a session in `workspace`, a real path, but for `width_of`. Blocking."""
    if os.path.isdir(os.path.join(workspace, ".agent", "tools")):
        from agent_host.host.workspace_tools import unusable_manifests  # with it comes what reads them

        yield from unusable_manifests(workspace)
    index = skill_index(workspace)
    if index is not None:
        from agent_host.host.workspace_tools import unusable_skills

        yield from unusable_skills(index)
    if names_file(settings.host.policy):
        yield from _bundle(settings, workspace, state_dir)
    yield from _misspelt(settings)
    yield from _servers(settings)
    for domain in settings.policy.blocked_domains:
        try:
            canonical_domain(domain)
        except UrlProblem as error:
            yield f"policy.blocked_domains: {error}, so that every request is refused; give a host such as example.com"


def _bundle(settings: Settings, workspace: str, state_dir: str) -> Iterator[str]:
    name = settings.host.policy
    try:
        raw = read_regular_file(name)
    except OSError:  # which is an error, when it is read in earnest
        return
    here = this_environment(workspace)
    for problem in suspicions_in_file(raw, here, state_dir=state_dir, now=MACHINE.now()):
        if "blockedPaths" not in problem.path:  # what is to be protected need not be there
            yield f"{settings.name_of('host.policy')} {name}: {problem}"


def _misspelt(settings: Settings) -> Iterator[str]:
    """Names that are none, and nearly one: those of tools from elsewhere are not known here."""
    tools = [spec.name for spec in built_in(families_of(settings))]
    servers = [one["name"] for one in settings.mcp.servers if isinstance(one.get("name"), str)]
    for key, known in zip(NAMES, (tools, tools, servers), strict=True):
        for name in settings[key] if key in settings.chosen else ():
            meant = None if name in (*known, ALL_TOOLS) else meant_name(name, known)
            if meant is not None:
                yield f"{settings.name_of(key)}: {name!r} is nothing that a session has; did you mean {meant}?"


def _servers(settings: Settings) -> Iterator[str]:
    for place, entry in enumerate(settings.mcp.servers):
        if "command" in entry and "url" in entry:
            yield f"mcp.servers[{place}] has command and url: its command is started, and its url is not used"
        names = entry.get("environment_names")
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and not re.fullmatch(VARIABLE_NAME, name):
                yield f"mcp.servers[{place}].environment_names: {name!r} is not the name of a variable, such as TOKEN"


def width_of(workspace: str, named_by: str) -> Iterator[str]:
    """The warning about a workspace, a real path, that is no project: the root of a disk or a home directory."""
    home = os.path.realpath(os.path.expanduser("~"))
    if os.path.dirname(workspace) == workspace:
        yield f"{named_by} {workspace}: the whole disk is the workspace; name the directory of your project"
    elif workspace == home:
        yield f"{named_by} {workspace}: your whole home directory is the workspace; name the directory of your project"
    elif home.startswith(workspace.rstrip(os.sep) + os.sep):
        yield f"{named_by} {workspace}: your home directory lies in the workspace; name the directory of your project"
