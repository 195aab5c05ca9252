"""Everything that calls are judged by, and the tools that the model is offered under it (AH 6.1)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from config.lean_typing import NamedTuple
from policy import SANDBOX_GRANT, strictest
from policy.bundle import common_llm_limits, policy_hash
from policy.paths import is_absolute, join_nested, normalize, split_nested
from policy.rules import AS_THE_BUNDLE_SAYS, check_llm
from policy.rules.toolset import why_not_offered, withheld_by
from state.records import FileEffect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from agent_host.contracts import Maker, ToolSpec, ToolStatus
    from agent_host.judging.facts import Scripts
    from agent_host.judging.scoping import Scoping
    from agent_host.thread.messages import ToolCall
    from policy import Decision
    from policy.bundle import ApprovalRule, LlmPolicy, PolicyBundle
    from policy.facts import ActionFacts, OsFamily, PathFacts, ShellName
    from policy.rules import ApprovalMode, Limits, NativeExec, TaskOptions
    from policy.rules.skills import SkillTools
    from state.checkpoint import ApprovalAnswered


_READING = "File.Read"
NO_EFFECT = FileEffect()


class Approved(Protocol):
    """Tools of the workspace that a person has approved, by the hash of their parts (`state.tool_lists`)."""

    def is_approved(self, name: str, identity: str) -> bool:
        """True if this one is."""

    def approve(self, name: str, identity: str) -> None:
        """Have it approved from now on. Raises WriteFailed."""


class Mode(NamedTuple):
    """Options that a client has set for the session since its launch (interface section 2, `SetMode`). A call is
    decided under the launch bundle and under `bundle`, and the stricter decision counts, so that bundles need no order.
    `fields` are the options as they are on record: {policy?, model?, sandbox?, approvalMode?}."""

    bundle: PolicyBundle | None = None
    approval_mode: ApprovalMode | None = None
    fields: Mapping[str, str] = {}


AS_LAUNCHED = Mode()


@dataclass(slots=True, eq=False, repr=False)
class Judge:
    """All inputs of decisions about calls: the bundle, the limits of the configuration, the options of the task, the
    tools and their environment. `expired`: a decision found the bundle expired. `outputs` returns the call that stored
    a reference, None if it is no reference of the session; `approved` are the workspace's approved tools, None for
    none. `native` is the list of programs that start without a shell, None if there is none. `scripts` are the scripts
    of skills on this machine, and `script_runs` is their number of runs in the task. `tool_lists` has the SHA-256 of
    each remote source's tool list, by the source's name. `scoping` is the sandbox of commands, None if irrelevant.
    `mode` narrows the session."""

    bundle: PolicyBundle
    environment: Environment
    tools: Registry
    limits: Limits
    clock: Callable[[], datetime]
    options: TaskOptions = AS_THE_BUNDLE_SAYS
    expired: bool = False
    outputs: Callable[[str], Maker | None] = lambda _ref: None
    approved: Approved | None = None
    native: NativeExec | None = None
    scripts: Scripts | None = None
    script_runs: Callable[[], int] = lambda: 0
    tool_lists: Mapping[str, str] = field(default_factory=dict)
    scoping: Scoping | None = None
    mode: Mode = AS_LAUNCHED

    @property
    def bundles(self) -> tuple[PolicyBundle, ...]:
        """The bundles that a call is decided under: that of the launch, and the mode's."""
        return (self.bundle,) if self.mode.bundle is None else (self.bundle, self.mode.bundle)

    @property
    def llm_policy(self) -> LlmPolicy:
        """The limits of model calls."""
        limits, mode = self.bundle.llm_policy, self.mode.bundle
        return limits if mode is None else common_llm_limits(limits, mode.llm_policy)

    @property
    def approval_timeout_s(self) -> float | None:
        """The timeout of approvals; None if no bundle sets it."""
        return min((one.approval_timeout_s for one in self.bundles if one.approval_timeout_s is not None), default=None)

    @property
    def policy_identity(self) -> str:
        """The identity of the policy that approvals are bound to; another mode has another one."""
        hashes = [policy_hash(bundle) for bundle in self.bundles]
        if not self.mode.fields:
            return hashes[0]
        return sha256(repr((hashes, sorted(self.mode.fields.items()))).encode()).hexdigest()

    def check_llm(self, model: str) -> Decision:
        """The verdict on one request to `model` (`policy.rules.check_llm`)."""
        now = self.clock()
        return strictest([check_llm(bundle, model=model, now=now) for bundle in self.bundles])

    def approval_rule(self, rule_id: str | None) -> ApprovalRule | None:
        """The approval rule of this id; None if there is none."""
        found = () if rule_id is None else (bundle.approval_rule(rule_id) for bundle in self.bundles)
        return next((rule for rule in found if rule is not None), None)

    def sandbox(self) -> dict[str, Any]:
        """{sandbox} with the sandbox of commands (`Scoping.report`); empty if there is nothing to report."""
        report = None if self.scoping is None else self.scoping.report(self.bundle, self.environment)
        return {} if report is None else {"sandbox": report}

    def offered_tools(self) -> list[ToolSpec]:
        """The tools that the model is offered: those that some call could be allowed of."""
        offered = {spec.name for spec in self.tools if spec.subject.kind != "output" and self._is_offered(spec)}
        # Reading outputs requires the capabilities of the calls that produced them.
        return [
            spec
            for spec in self.tools
            if spec.name in offered
            or (spec.subject.kind == "output" and offered and withheld_by(self.limits, spec.name, _READING) is None)
        ]

    def _is_offered(self, spec: ToolSpec) -> bool:
        workspace, os = self.environment.workspace, self.environment.os_family
        return not any(
            why_not_offered(
                bundle,
                spec.name,
                capability,
                limits=self.limits,
                options=self.options,
                session_mode=self.mode.approval_mode,
                workspace=workspace,
                os=os,
                elsewhere=spec.elsewhere,
            )
            for capability in spec.capabilities
            for bundle in self.bundles
        )

    def skill_tools(self, skill: str, allowed: Iterable[str]) -> SkillTools:
        """The limit of a skill's `allowed-tools`, and its entries that name no tool here (SK 3.1)."""
        from policy.rules.skills import skill_tools  # imports the reader of command lines

        return skill_tools(skill, allowed, self.tools.names)

    def may_read(self, place: PathFacts) -> bool:
        """True if the policy lets anybody read the file, whatever its size."""
        granting = [bundle for bundle in self.bundles if bundle.capability(_READING) is not None]
        if not granting:
            return True
        from policy.decide import check_tool  # with it comes all that judges a call

        place = place._replace(size_bytes=None)  # one that is too large to show is kept all the same
        now, os = self.clock(), self.environment.os_family
        return all(check_tool(bundle, _READING, place, now=now, os=os).decision != "DENIED" for bundle in granting)


# The tools of a session, by name: a value that goes to all code that asks about a tool.


class Registry:
    """Tools in the order in which the model is shown them. Of two with one name the first counts."""

    def __init__(self, specs: Iterable[ToolSpec] = ()) -> None:
        self._by_name: dict[str, ToolSpec] = {}
        for spec in specs:
            self._by_name.setdefault(spec.name, spec)

    def get(self, name: str) -> ToolSpec | None:
        """The tool of this name; None if there is none, and a call of it never runs (invariant 1)."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> frozenset[str]:
        """The names of all."""
        return frozenset(self._by_name)

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that they need."""
        return frozenset(capability for spec in self for capability in spec.capabilities)


class Refusal(NamedTuple):
    """The reason why a call ends without running: `status` failed or denied, a documented code, and a message for the
    model. `approve` is the value for `--approve` if no approver was present. `name` is what the model reads in place of
    the code, if it differs from the family's name of it. `withheld` names the setting that withholds the tool from the
    session."""

    status: ToolStatus
    code: str
    message: str
    approve: str | None = None
    name: str | None = None
    withheld: str | None = None


class PreparedCall(NamedTuple):
    """One call of a step as it is to run, or refused. `call` has the arguments as run: with `edited`, those that the
    person who approved it wrote.

    `spec` is its tool, None for a name that no tool has; `facts` and `decision` are None for a call that policy did not
    see. `effect` is that of a call that changes one file and may start. `renewed`: its effect is newer than the turn's
    record, and is in the record of its start. `approval_id`: policy wants an approval for it, or wanted one when its
    turn was recorded, and so its start record is synced (`state.loading.judge`). `answer` is the answer on record
    from before a crash, or that of a replay."""

    call: ToolCall
    spec: ToolSpec | None = None
    facts: ActionFacts | None = None
    decision: Decision | None = None
    refusal: Refusal | None = None
    effect: FileEffect = NO_EFFECT
    renewed: bool = False
    approval_id: str | None = None
    answer: ApprovalAnswered | None = None
    edited: bool = False

    @property
    def needs_approval(self) -> bool:
        """True if an approval decides about it: policy requires one, or a person denied it before a crash. A missing
        approver or a timeout counts only as long as policy requires approval."""
        if self.refusal is not None or self.decision is None:
            return False
        answer = self.answer
        was_denied = answer is not None and not (answer.approved or answer.unattended or answer.timed_out)
        return was_denied or self.decision.decision == "APPROVAL_REQUIRED"

    @property
    def side_effects(self) -> bool:
        """True if it may change anything; an unknown tool might."""
        return self.spec is None or self.spec.side_effects

    @property
    def may_act(self) -> bool:
        """True when it may have an effect before anything else is put on record."""
        return self.refusal is None and not self.needs_approval and self.spec is not None and self.spec.side_effects

    @property
    def paths(self) -> tuple[str, ...]:
        """The real paths that it acts on, none for a call without files."""
        found = getattr(self.facts, "real_paths", ())  # a command's are a mapping, and not all that it acts on
        return found if isinstance(found, tuple) else ()

    @property
    def approve(self) -> str:
        """The value of `--approve` that approves calls of this kind."""
        name, decision = self.call.name, self.decision
        if decision is None or (decision.by_name and decision.rule != SANDBOX_GRANT):
            return name
        return decision.rule_id or name


# This machine as a source of facts, and the targets of a bundle's paths on it (AH 8.2).


class Environment(NamedTuple):
    """The places that relative names are relative to. All paths are real, absolute strings."""

    workspace: str
    home: str | None
    os_family: OsFamily
    shell: ShellName
    environment: Mapping[str, str] | None = None
    """The environment of commands; None if not specified."""

    def absolute(self, path: str) -> str:
        """Make a call's path absolute: `~` is the home, and a relative path is in the workspace. Links are not
        followed, and dots in an absolute path stay."""
        if is_absolute(path, self.os_family):
            return path
        return normalize(path, self.os_family, self.workspace, self.home)


def resolve_places(bundle: PolicyBundle, environment: Environment) -> PolicyBundle:
    """The bundle with the real targets of its path lists' entries. For an allowed path no link inside the workspace is
    followed, because a change there would change the permission."""
    allowed = {path for entry in bundle.capabilities for path in entry.allowed_paths or ()}
    blocked = {path for entry in bundle.capabilities for path in entry.blocked_paths or ()}
    outside = {path: _real_outside_of(path, environment.workspace) for path in filter(_is_followed, allowed)}
    anywhere: dict[str, str] = {}
    for path in filter(_is_followed, blocked):
        nested = split_nested(normalize(path, environment.os_family), environment.os_family)
        if nested is None:
            anywhere[path] = os.path.realpath(path)
            continue
        # Never as it is spelled: something might be called `**`.
        root, name = nested
        anywhere[path] = join_nested(os.path.realpath(root), name, environment.os_family)
        direct = os.path.join(root, name)
        anywhere[direct] = os.path.realpath(direct)
    found = {"allowed": _links_of(outside), "blocked": _links_of(anywhere)}
    return bundle.set_real_places(found) if any(found.values()) else bundle


def _is_followed(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path


def _links_of(places: Mapping[str, str]) -> dict[str, str]:
    return {path: real for path, real in places.items() if real != os.path.normpath(path)}


def _real_outside_of(path: str, workspace: str) -> str:
    """The real path of `path`, with no link followed inside of the real `workspace`."""
    parts = os.path.normpath(path).split(os.sep)
    for count in range(2, len(parts) + 1):
        real = os.path.realpath(os.sep.join(parts[:count]))
        if real == workspace or real.startswith(workspace.rstrip(os.sep) + os.sep):
            return os.path.join(real, *parts[count:])
    return os.path.realpath(path)
