"""Dry runs of a policy: its decision about a call, the tools that it would offer, and the problems of a bundle.

Nothing is executed.
"""

from __future__ import annotations

import functools
import json
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.errors import ErrorCode
from agent_host.host import environment
from agent_host.host.options import bundle_changes, existing_directory, portable, settings_from
from agent_host.host.workspace_tools import WorkspaceTools, workspace_tools
from agent_host.ids import MACHINE
from agent_host.judging import Registry, resolve_places
from agent_host.judging.dry_run import DryRunCase, case_from, judge_case
from agent_host.judging.dry_run import InvalidCase as InvalidCase
from agent_host.judging.scoping import Scoping, nothing_withheld, stated_machine, this_machine
from agent_host.services import TOOLS_URL_VARIABLE
from agent_host.session import start as session_start
from agent_host.session.external_bundles import read_file_bundle, suspicions_in
from agent_host.thread.messages import estimate
from agent_host.thread.prompt import system_prompt
from config import json_text
from policy import ANY_SESSION, LEVELS, RISK_LEVELS, SANDBOX_GRANT, STRONGEST, CapabilityName, Widening
from policy.bundle import BundleProblems
from policy.bundle.builtin import DEFAULT_LIFETIME_S
from policy.bundle.validate import check_usable, parse_bundle
from policy.decide import check_tool
from policy.facts import NamedToolFacts
from policy.rules import NO_LIMITS, deny
from policy.rules.bundle_summary import ends_commits, summarize
from policy.rules.sandbox import NO_WIDENING
from policy.rules.skills import skill_tools
from policy.rules.toolset import DEFAULT_RISK, entry_for_tool, order, risk_of_guarded, why_not_offered, withheld_by
from state import SessionPaths
from state.temporary import session_directory
from tool_runtime.families.schemas import definition_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from agent_host.contracts import ToolSpec
    from agent_host.judging import Environment
    from agent_host.judging.facts import Scripts
    from agent_host.llm.dialects import Dialect
    from config.settings import Settings
    from policy import Decision, SandboxLevel
    from policy.bundle import BundleProblem, PolicyBundle
    from policy.rules import Limits, NativeExec
    from policy.rules.skills import SkillTools
    from tool_runtime.files.skills import SkillIndex

# Sandboxing of commands in a dry run: at the level of a case, on this machine or on one that the user describes.


class CommandAccess(NamedTuple):
    """Access of commands in addition to the bundle: the hosts that the user opens, those that the configuration blocks,
    and the host's own paths: its records, temporary directory and steering files."""

    opened: Widening = NO_WIDENING
    blocked_domains: tuple[str, ...] = ()
    records: str = ""
    temporary: str | None = None
    steering: tuple[str, ...] = ()

    def scoping(self, level: environment.Level, machine: Environment, is_here: bool) -> Scoping:
        """The sandbox of commands at a level; `is_here`: `machine` is the local one."""
        gather = stated_machine(machine)
        if is_here:
            gather = this_machine(machine, temporary=self.temporary, records=self.records, steering=self.steering)
        return Scoping(
            level.level,
            level.wanted,
            gather,
            level.why,
            self.opened,
            self.blocked_domains,
            unheld=level.unheld,
            withheld=environment.withheld if is_here and level.level != "none" else nothing_withheld,
            is_untried=level.is_untried,
            always=True,
            is_here=is_here,
        )


class Tried(NamedTuple):
    """A policy to try: the bundle as a session would have it, this machine, the configuration's restrictions, the
    families of tools that it chooses, the list of native programs, None for that of a session without any
    configuration, the skills, None for none, and their scripts; the tools that the workspace brings; and in `elsewhere`
    the tools of MCP servers and of the Backend Tool Service, as far as sessions have stored their lists.
    `sandboxed_bundle` is the bundle if a sandbox restricts commands, and `hosts` their additional access. `level` is
    the default level of the answers, and `notices` are for the reader of the answers."""

    bundle: PolicyBundle
    machine: Environment
    limits: Limits
    families: tuple[str, ...]
    native: NativeExec | None = None
    skills: SkillIndex | None = None
    scripts: Scripts | None = None
    of_workspace: WorkspaceTools = WorkspaceTools()
    elsewhere: tuple[ToolSpec, ...] = ()
    sandboxed_bundle: PolicyBundle | None = None
    hosts: CommandAccess = CommandAccess()
    level: environment.Level = environment.Level("none", "none")
    notices: tuple[str, ...] = ()

    @property
    def session_tools(self) -> Registry:
        """The tools of the chosen families, those that the workspace brings, and remote ones; a remote tool that
        replaces a tool of this machine comes before it."""
        stand_ins = [spec for spec in self.elsewhere if spec.also]
        return Registry((*stand_ins, *environment.built_in(self.families), *self.of_workspace.specs, *self.elsewhere))

    @property
    def all_tools(self) -> Registry:
        """The tools of a session, then those of all families, and those that a server may have."""
        return environment.AlsoElsewhere((*self.session_tools, *environment.built_in()))

    def tools(self, in_use: Limits = NO_LIMITS) -> list[dict[str, Any]]:
        """Every tool with whether the model would be shown it, and who keeps it from that (SK 3.1): rows of {toolName,
        capability, offered, requiresApproval, riskLevel, reason, keptBy, commands?}. `in_use` are the limits of skills
        in use. `keptBy` are all that keep it: `bundle`, `configuration`, `skill`; `commands` the only ones that skills
        leave of a tool that runs such."""
        specs = self.session_tools
        rows = {spec.name: self._tool(spec, in_use) for spec in specs}
        readers = [spec.name for spec in specs if spec.subject.kind == "output"]
        if any(row["offered"] for name, row in rows.items() if name not in readers):
            # Reading stored outputs needs the capabilities of the calls that left them.
            limited = (("configuration", self.limits), ("skill", in_use))
            for name in readers:
                rows[name] |= _withholder(
                    {who: withheld_by(limits, name, CapabilityName.FILE_READ) for who, limits in limited}
                )
        return list(rows.values())

    def skill_limits(self, names: Sequence[str]) -> list[SkillTools]:
        """The limits that each of these skills sets on the tools. Raises UsageError for one that cannot be used."""
        known = self.session_tools.names
        found = []
        for name in names:
            allowed = environment.skill_called(self.skills, name).allowed_tools
            if allowed is not None:
                found.append(skill_tools(name, allowed, known))
        return found

    @property
    def bundle_in_use(self) -> PolicyBundle:
        """The bundle at the level for which this answers."""
        return self.bundle_at(self.level.level)

    def bundle_at(self, level: SandboxLevel) -> PolicyBundle:
        """The bundle if commands run at this sandbox level."""
        return self.bundle if level == "none" or self.sandboxed_bundle is None else self.sandboxed_bundle

    def judge(
        self, tool_name: str, arguments: Mapping[str, Any], now: datetime, level: SandboxLevel = "none"
    ) -> Decision:
        """The decision about one call, with commands at this sandbox level; facts are those of this disk."""
        sandbox, case = environment.Level(level, level), DryRunCase(tool_name, arguments)
        return self.judge_case(case, self.bundle_at(level), self.all_tools, now, sandbox)

    def judge_case(
        self, case: DryRunCase, bundle: PolicyBundle, tools: Registry, now: datetime, level: environment.Level
    ) -> Decision:
        """The decision about one case under this bundle, with commands at this sandbox level."""
        return judge_case(
            bundle,
            case,
            self.machine,
            tools,
            now=now,
            limits=self.limits,
            native=self.native,
            scripts=self.scripts,
            scoping=functools.partial(self.hosts.scoping, level),
            approved=self.of_workspace.approved,
        )

    def _tool(self, spec: ToolSpec, in_use: Limits) -> dict[str, Any]:
        keepers = (("bundle", None), ("configuration", self.limits), ("skill", in_use))
        entries = map(self.bundle_in_use.capability, spec.capabilities)
        guarded = risk_of_guarded(spec.name, spec.capability)
        risks = [DEFAULT_RISK[one] for one in spec.capabilities] + ([] if guarded is None else [guarded])
        row = {
            "toolName": spec.name,
            "capability": spec.capability,
            "offered": True,
            "sandboxLevel": self.level.level,
            "requiresApproval": guarded is not None
            or any(entry is not None and entry_for_tool(entry, spec.name).requires_approval for entry in entries)
            or self._is_new(spec),
            "riskLevel": max(risks, key=RISK_LEVELS.index),
            **_withholder({who: self._keeps(spec, limits) for who, limits in keepers}),
        }
        patterns = [limit.commands for limit in sorted(in_use, key=order) if limit.commands is not None]
        if patterns and row["offered"] and spec.subject.kind in ("command", "program", "script"):
            row["commands"] = [one for commands in patterns for one in commands]
        return row

    def _is_new(self, spec: ToolSpec) -> bool:
        """True if it is a tool of the project that is not approved in its present form, by hand or by its hash."""
        if spec.identity is None:
            return False
        approved = self.of_workspace.approved
        is_approved = approved is not None and approved.is_approved(spec.name, spec.identity)
        facts = NamedToolFacts(spec.name, spec.identity, is_approved)
        return check_tool(self.bundle_in_use, spec.capability, facts, now=MACHINE.now()).decision == "APPROVAL_REQUIRED"

    def _keeps(self, spec: ToolSpec, limits: Limits | None) -> str | None:
        """Why these limits keep the tool from being shown; without any, why the bundle does."""
        os, workspace = self.machine.os_family, self.machine.workspace
        reason = functools.partial(
            why_not_offered, self.bundle_in_use, spec.name, workspace=workspace, os=os, elsewhere=spec.elsewhere
        )
        for capability in spec.capabilities:
            why = reason(capability)
            if limits is not None and why is None:
                why = reason(capability, limits=limits)
            elif limits is not None:  # the bundle keeps it as well
                why = withheld_by(limits, spec.name, capability)
            if why is not None:
                return why
        return None


def _withholder(reasons: Mapping[str, str | None]) -> dict[str, Any]:
    found = {who: why for who, why in reasons.items() if why is not None}
    return {"offered": not found, "reason": next(iter(found.values()), None), "keptBy": list(found)}


def policy_to_try(
    flags: Mapping[str, Any],
    *,
    workspace: str,
    state_dir: str,
    session_id: str = ANY_SESSION,
    level: environment.Level | None = None,
) -> Tried:
    """The bundle that the setting `host.policy` names, as a session in `workspace` would have it, and at the `level`
    that it would have unless one is given. Raises UsageError, PolicyBundleInvalid."""
    existing_directory(workspace)
    settings, now = settings_from(portable(flags), workspace=workspace), MACHINE.now()
    paths = SessionPaths(state_dir, session_start.SESSION_TO_TRY if session_id == ANY_SESSION else session_id)
    temporary = session_directory(state_dir, paths.session_id, os.environ)
    machine = environment.this_environment(workspace, environment.command_environment(settings, temporary), temporary)
    installed = environment.names_of_packages(settings) if settings.tools.installed else ()
    load = functools.partial(
        session_start.load_bundle, settings, machine, state_dir=state_dir, now=now, installed=installed
    )
    bundle, sandboxed_bundle = (
        load(session_id=session_id, sandboxed=is_sandboxed, to_try=True) for is_sandboxed in (False, True)
    )
    families, index = environment.families_of(settings), environment.skill_index(machine.workspace)
    return Tried(
        bundle,
        machine,
        environment.limits_of(settings),
        families,
        environment.native_list(settings, machine.workspace),
        index,
        environment.skill_scripts(settings, index, paths.sandbox, machine.workspace, temporary),
        workspace_tools(machine.workspace, state_dir, index, environment.built_in(families).names),
        _remote_tools(settings, bundle, machine, state_dir, now),
        sandboxed_bundle,
        CommandAccess(
            Widening(domains=environment.domains_to_open(settings)),
            settings.policy.blocked_domains,
            state_dir,
            temporary,
            (*session_start.own_files(), *session_start.files_to_guard(settings, machine.workspace)),
        ),
        level or environment.level_to_try(settings, state_dir, flags.get(environment.LEVEL)),
        (*settings.ignored, *bundle_changes(settings, state_dir)),
    )


def _remote_tools(
    settings: Settings, bundle: PolicyBundle, machine: Environment, state_dir: str, now: datetime
) -> tuple[ToolSpec, ...]:
    """The tools of the servers and the service that a session would have, as far as they are known. No connection is
    made."""
    found: tuple[ToolSpec, ...] = ()
    if bundle.mcp_servers or settings.mcp.servers:
        from agent_host.host import mcp_servers

        found = mcp_servers.tools_on_record(settings, bundle, machine, state_dir, now)
    if os.environ.get(TOOLS_URL_VARIABLE):
        from agent_host.host import remote_tools

        found += remote_tools.tools_on_record(os.environ, settings, bundle, state_dir)
    return found


class DryRuns:
    """Cases against one bundle, or against the capabilities of a case itself. Commands run at the sandbox level of
    `tried` if a case names none."""

    def __init__(self, tried: Tried, now: datetime) -> None:
        self._tried = tried
        self._tools = tried.all_tools
        self._now = now
        self._with = lru_cache(maxsize=64)(self._bundle_with)

    def judge_call(self, tool_name: str, arguments: Mapping[str, Any]) -> tuple[Decision, SandboxLevel]:
        """The decision about one call, and the level that it is for; facts are those of this disk."""
        return self._judge(DryRunCase(tool_name, arguments))

    def judge_case(self, raw: dict[str, Any]) -> tuple[Decision, SandboxLevel]:
        """The decision about a case of interface section 3, and the level that it is for. Raises InvalidCase."""
        return self._judge(case_from(raw))

    def level_of(self, case: DryRunCase) -> environment.Level:
        """The level of a case: the one that it names, none on another system than this machine's, else as a run has
        it."""
        is_other = case.os is not None and case.os != self._tried.machine.os_family
        if case.sandbox == STRONGEST or (case.sandbox is None and not is_other):
            return self._tried.level
        level = case.sandbox or LEVELS[0]
        return environment.Level(level, level)

    def _judge(self, case: DryRunCase) -> tuple[Decision, SandboxLevel]:
        """The decision. Raises InvalidCase for capabilities that are none. What policy lets pass is refused for the
        arguments that its tool refuses: the call would not run."""
        sandbox = self.level_of(case)
        level = sandbox.level
        case = case._replace(arguments=environment.usable(self._tools.get(case.tool_name), case.arguments))
        bundle = self._tried.bundle_at(level)
        if case.capabilities is not None:
            bundle = self._with(json_text.dumps(case.capabilities))
            bundle = bundle.keep_known(bundle, sandboxed=level != "none")
        if case.facts is not None:  # which determine where paths lead, whatever is on this disk
            bundle = bundle.set_real_places({})
        decision = self._tried.judge_case(case, bundle, self._tools, self._now, sandbox)
        spec = self._tools.get(case.tool_name)
        # Apart from the call's request beyond its sandbox, which policy has read.
        arguments = {key: one for key, one in case.arguments.items() if level == "none" or key != SANDBOX_GRANT}
        problem = None if decision.decision == "DENIED" else environment.argument_problem(spec, arguments)
        if problem is not None:
            return deny(decision.capability, "case", f"{ErrorCode.INVALID_REQUEST}: {problem}"), level
        return decision, level

    def _bundle_with(self, capabilities: bytes) -> PolicyBundle:
        try:
            bundle = parse_bundle({**self._tried.bundle.to_json(), "capabilities": orjson.loads(capabilities)})
        except BundleProblems as error:
            raise InvalidCase(str(error)) from error
        return resolve_places(bundle, self._tried.machine)


def case_refused(problem: str) -> Decision:
    """The decision about a case that cannot be read."""
    return deny("", "case", f"the case cannot be read: {problem}")


class BundleReport(NamedTuple):
    """A report on a bundle file. If there are no `problems`, `summary` is its version, size and lifetime in one line,
    and `admits` what its lists allow beyond the programs that they name, if commands run at `level`; `suspicions` are
    entries that have no effect here."""

    problems: list[BundleProblem]
    summary: str
    admits: list[str]
    level: SandboxLevel = "none"
    suspicions: Sequence[BundleProblem] = ()


def report_of_bundle(raw: bytes, flags: Mapping[str, Any], *, workspace: str, state_dir: str) -> BundleReport:
    """Every problem of a bundle file with the content `raw`, at the level that a run with `flags` would have. Raises
    UsageError for a workspace that is none."""
    existing_directory(workspace)
    now = MACHINE.now()
    level = environment.level_to_try(
        settings_from(flags, workspace=workspace), state_dir, flags.get(environment.LEVEL)
    ).level
    places = session_start.places_of(environment.this_environment(workspace), state_dir)
    try:
        bundle = read_file_bundle(raw, places, now, session_start.own_files(), sandboxed=level != LEVELS[0])
    except BundleProblems as error:
        return BundleReport(list(error.problems), "", [], level)
    found = check_usable(bundle, session_id=bundle.session_id, now=now)
    admits = [*summarize(bundle), *ends_commits(bundle)]
    suspicions = suspicions_in(raw, places, now, session_start.own_files(), hints=True)
    lifetime = f"holds for {DEFAULT_LIFETIME_S // 3600} hours from each start on"
    if "expiresAt" in json.loads(raw):
        lifetime = f"expires {bundle.expires_at.isoformat()}"
    summary = f"valid: version {bundle.policy_bundle_version}, {len(bundle.capabilities)} capabilities, {lifetime}"
    return BundleReport(list(found), summary, admits, level, suspicions)


def first_request_tokens(tried: Tried, dialect: Dialect, model: str) -> int:
    """Estimated tokens at the start of a session's requests: definitions of tools and the system prompt, without the
    project's instructions to agents."""
    machine, offered = tried.machine, {row["toolName"] for row in tried.tools() if row["offered"]}
    head = dialect.head(
        model=model,
        max_output_tokens=1,
        system=system_prompt(
            workspace=machine.workspace, os_family=machine.os_family, shell=machine.shell, bundle=tried.bundle_in_use
        ),
        tools=[definition_of(spec) for spec in tried.session_tools if spec.name in offered],
    )
    return estimate(head.decode())
