"""Rules of policy, a module for each kind of call. Shared by all, and here: one question to policy as a value, and the
words of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from config.lean_typing import NamedTuple
from policy import CapabilityName as Name
from policy import Decision

if TYPE_CHECKING:
    from datetime import datetime

    from policy import RiskLevel
    from policy.bundle import Capability, CommandPolicy, PolicyBundle
    from policy.facts import ActionFacts, OsFamily

PROCESS_RULE = "builtin.processPlaces"
REPOSITORY_RULE = "builtin.repositoryPlaces"
SESSION_RULE = "builtin.sessionPlaces"


# Restrictions of a task below its bundle (interface section 2, `taskOptions`).

ApprovalMode = Literal["always", "on_risky_actions", "never"]


class TaskOptions(NamedTuple):
    """Restrictions of one task; None leaves a question to the bundle.

    `approval_mode`: `always` requires approval for every call with side effects, `on_risky_actions` for high risks and
    whatever the bundle names; `never` denies calls that need approval. `allow_network` False denies requests and known
    network programs; True grants nothing.
    """

    approval_mode: ApprovalMode | None = None
    allow_network: bool | None = None


AS_THE_BUNDLE_SAYS = TaskOptions()


class ToolLimit(NamedTuple):
    """The limit set by one `source`, named for people. `allowed` are the only tools that remain, None for all;
    `withheld` the removed tools; `risk_ceiling` the highest risk of a call; `commands` are patterns of the only
    commands that remain (`policy.rules.skills`), None for all."""

    source: str
    allowed: frozenset[str] | None = None
    withheld: frozenset[str] = frozenset()
    risk_ceiling: RiskLevel | None = None
    commands: tuple[str, ...] | None = None


Limits = frozenset[ToolLimit]
NO_LIMITS: Limits = frozenset()


class NativeExec(NamedTuple):
    """The list of a session: `policies` are its entries, any of which admits, `roots` real paths."""

    policies: tuple[CommandPolicy, ...]
    roots: tuple[str, ...]


class CallTerms(NamedTuple):
    """Everything that decides about a call apart from capability and facts: the tool, the task's options, the limits of
    the configuration and of active skills. `session_mode` is the approval mode of the session, which applies in
    addition to the task's. `programs` is the list of programs that start without a shell, None if there is none."""

    tool_name: str = ""
    has_side_effects: bool = False
    runs_here: bool = False
    options: TaskOptions | None = None
    limits: Limits = NO_LIMITS
    programs: NativeExec | None = None
    script_runs: int = 0
    max_script_runs: int | None = None
    session_mode: ApprovalMode | None = None


NO_TERMS = CallTerms()


class Case(NamedTuple):
    """One question: may a call use `capability` for `facts`? `granted` is the bundle's grant of it. `judge` decides
    about another capability and other facts, under the same bundle at the same time."""

    bundle: PolicyBundle
    capability: str
    granted: Capability | None
    facts: ActionFacts
    os: OsFamily
    now: datetime
    workspace: str | None
    terms: CallTerms
    judge: Callable[[str, ActionFacts], Decision]

    @property
    def entry(self) -> Capability:
        """The grant, which every rule after `granted` may take as there."""
        assert self.granted is not None  # noqa: S101  the rule `granted` denies otherwise
        return self.granted


Rule = Callable[[Case, Any], Decision | str | None]
"""A rule for one kind of facts, which it is given too. Returns a denial, a decision of another capability that requires
approval, the entry that admits the call, or None."""


def deny(capability: str, rule: str, reason: str) -> Decision:
    """A denial by the entry `rule`."""
    return Decision("DENIED", reason, capability, rule)


def where(entry: Capability, list_name: str | None = None, value: object = None) -> str:
    """The JSON path of a capability, of one of its fields, or of one value in that."""
    path = f"capabilities[{entry.name}]" + (f".{list_name}" if list_name else "")
    return path if value is None else f"{path}: {value}"


def approval_needed(entry: Capability, level: str, risks: tuple[str, ...]) -> Decision:
    """The question that an entry wants asked."""
    return Decision(
        "APPROVAL_REQUIRED",
        "the capability requires approval",
        entry.name,
        where(entry, "requiresApproval", "true"),
        entry.approval_rule_id,
        level,  # type: ignore[arg-type]
        risks,
    )


def expiry_denial(bundle: PolicyBundle, name: str, now: datetime) -> Decision | None:
    """The denial by a bundle that has expired at `now`, None if it has not."""
    if now < bundle.expires_at:
        return None
    rule = f"expiresAt: {bundle.expires_at.isoformat()}"
    return deny(name, rule, "the policy bundle has expired")._replace(expired=True)


def not_granted(name: str) -> Decision:
    """The denial by a bundle that does not grant the capability `name`."""
    return deny(name, "capabilities", f"capability not granted: {name}")


# The one function that every LLM request passes first (AH 8.7).


def check_llm(bundle: PolicyBundle, *, model: str, now: datetime) -> Decision:
    """The verdict on one LLM request: expiry, the LLM.Call grant, the model (AH 8.7)."""
    expired, entry = expiry_denial(bundle, Name.LLM_CALL.value, now), bundle.capability(Name.LLM_CALL)
    if expired is not None or entry is None:
        return expired or not_granted(Name.LLM_CALL.value)
    if model not in bundle.llm_policy.allowed_models:
        return deny(entry.name, "llmPolicy.allowedModels", f"model not allowed: {model}")
    if entry.requires_approval:
        return approval_needed(entry, "low", ())
    return Decision("ALLOWED", "granted", entry.name, f"llmPolicy.allowedModels: {model}")
