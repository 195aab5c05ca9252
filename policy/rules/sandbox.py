"""Rules for calls that start a program, if commands run in a sandbox or must."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from policy.names import SANDBOX_GRANT
from policy.names import CapabilityName as Name
from policy.paths import NOWHERE, Places, covering, normalize, roots
from policy.rules.case import deny, where
from policy.scope import STRONGEST, Widening, is_weaker
from policy.urls import UrlProblem, canonical_domain, covers, domain_rules

if TYPE_CHECKING:
    from policy.bundle.model import PolicyBundle
    from policy.decision import Decision
    from policy.facts import OsFamily
    from policy.scope import CommandScope, SandboxLevel

RULE = "sandbox.level"
_MAX_REASON = 2_000


def sandbox_denial(
    bundle: PolicyBundle, capability: str, level: SandboxLevel, wanted: str, why: str, *, is_untried: bool = False
) -> Decision | None:
    """The denial of a command that nothing holds as it has to be held, None where it may run. `level` is the one that
    works, `wanted` the one that was asked for, `auto` included; `why` says what keeps a stronger one from working.
    `is_untried`: that is no lack of a sandbox, but a trial that failed for a reason of its own."""
    said = bundle.sandbox
    because = f": {why}" if why else ""
    if is_untried:
        reason = f"the sandbox could not be tried{because}; --sandbox none runs commands without one"
        return deny(capability, f"{RULE}: {wanted}", reason)
    if wanted != STRONGEST and wanted != level:
        reason = f"the sandbox level {wanted} was asked for and does not work here{because}"
        return deny(capability, f"{RULE}: {wanted}", reason)
    least = None if said is None else said.minimum_level
    if least is not None and is_weaker(level, least):
        reason = f"the policy requires at least the sandbox level {least}; here it is {level}{because}"
        return deny(capability, f"sandbox.minimumLevel: {least}", reason)
    if said is not None and said.required and level == "none":
        return deny(capability, "sandbox.required: true", f"the policy requires a sandbox for commands{because}")
    return None


def apply_widening(
    decision: Decision, widening: Widening, scope: CommandScope, bundle: PolicyBundle, os: OsFamily
) -> Decision:
    """The decision on a call that asks for more than its scope: a person has to approve it and is shown what it opens.
    What is blocked is never opened, and no sandbox at all only where the bundle says `allowOff`. `scope` is that of the
    call with what it asks for."""
    if decision.decision == "DENIED":
        return decision
    problem = _never_opened(widening, scope, bundle, os)
    if problem is not None:
        rule, reason = problem
        return deny(decision.capability, rule, reason)
    return decision._replace(
        decision="APPROVAL_REQUIRED",
        reason="the call asks for more than its sandbox gives",
        rule=SANDBOX_GRANT,
        rule_id=SANDBOX_GRANT,
        risk_level="high",
        risks=(*widening.lines, *decision.risks),
    )


def _never_opened(
    widening: Widening, scope: CommandScope, bundle: PolicyBundle, os: OsFamily
) -> tuple[str, str] | None:
    """The rule against what is asked for, and why; None where a person may approve it."""
    if widening.off and (bundle.sandbox is None or not bundle.sandbox.allow_off):
        return "sandbox.allowOff", "the policy lets no command run without a sandbox"
    for name in (Name.FILE_READ, Name.FILE_WRITE, Name.FILE_DELETE):
        entry = bundle.capability(name)
        if entry is None or not entry.blocked_paths:
            continue
        table = roots(entry.blocked_paths, os, "wide", bundle.real_places.get("blocked"))
        for place in widening.write:
            blocked = covering(normalize(place, os), table, os, "wide")
            if blocked is not None:
                return where(entry, "blockedPaths", blocked), f"path is blocked: {place}"
    for place in widening.write:
        if not may_write(scope, place, os):
            return SANDBOX_GRANT, f"path is blocked: {place}"
    for domain in widening.domains:
        hit = next((rule for rule in scope.blocked_domains if covers(domain, domain_rules((rule,)))), None)
        if hit is not None:
            return f"blockedDomains: {hit}", f"domain is blocked: {domain}"
    return None


def widening_of(asked: object) -> Widening | str | None:
    """Parse the argument `sandboxGrant`, with paths as they are spelled: None for nothing, or what is wrong with it, in
    words for the model."""
    if asked is None:
        return None
    if not isinstance(asked, dict):
        return "sandboxGrant must be an object: {write, domains, reason}"
    write, domains, off = asked.get("write") or (), asked.get("domains") or (), asked.get("off", False)
    reason = asked.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        return "sandboxGrant.reason must say why the call needs more than its sandbox gives"
    for name, several in (("write", write), ("domains", domains)):
        if not isinstance(several, list | tuple) or not all(isinstance(one, str) and one for one in several):
            return f"sandboxGrant.{name} must be a list of text"
    if not (write or domains or off is True):
        return "sandboxGrant asks for nothing: name paths in write, or hosts in domains"
    try:
        named = tuple(map(canonical_domain, domains))
    except UrlProblem as error:
        return f"sandboxGrant.domains: {error}"
    if any("\0" in one for one in write):
        return "sandboxGrant.write must not contain a null byte"
    return Widening(tuple(dict.fromkeys(write)), tuple(dict.fromkeys(named)), off is True, reason[:_MAX_REASON])


# What a CommandScope says of a path: the answer that the operating system is to give as well (design, invariant 11).
# Pure; for policy, which makes scopes, and for the runtime, which explains refusals.

ScopePart = Literal["reads", "writes", "hidden", "guarded"]


def refusal(scope: CommandScope, path: str, os: OsFamily, *, write: bool) -> ScopePart | None:
    """The part of `scope` that refuses to read `path`, which is absolute and real, or with `write` to write, make, move
    and remove it; None where it may be done. Of places that contain each other the innermost decides."""
    writes = Places(scope.writes, os).inmost(path)
    reads = 0 if scope.reads is None else Places(scope.reads, os).inmost(path)
    granted = writes if write else max(reads, writes)
    if Places(scope.hidden, os).inmost(path) >= max(granted, 0):
        return "hidden"
    if granted == NOWHERE:
        return "writes" if write else "reads"
    return "guarded" if write and Places(scope.guarded, os).inmost(path) >= granted else None


def may_read(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if the scope lets a process read the file at a real path."""
    return refusal(scope, path, os, write=False) is None


def may_write(scope: CommandScope, path: str, os: OsFamily) -> bool:
    """True if the scope lets a process write, make, move and remove the file at a real path."""
    return refusal(scope, path, os, write=True) is None
