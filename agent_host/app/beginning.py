"""What a session begins with, and what keeps it from beginning."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from agent_host.app.assembly import utc_now
from agent_host.app.machine import project_tool_names
from agent_host.app.native import families_of
from agent_host.app.python_tools import installed_names
from agent_host.app.sandboxing import scoping_of
from agent_host.errors import Incompatible, UsageError
from agent_host.session.begun import start_record
from agent_host.session.handshake import guarded_files, load_bundle, own_files, policy_source, unknown_approvals
from agent_host.session.new_task import record_of_task
from agent_host.session.opening import Beginning, refuse_other_owner
from agent_host.version import __version__
from policy.names import CapabilityName
from policy.rules.named_tools import names_it
from state import session_keys, temporary
from state.locations import SessionPaths
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.app.machine import LocalMachine
    from agent_host.app.parts import Parts
    from agent_host.app.sandboxing import Level
    from agent_host.app.secrets import Secrets
    from agent_host.routing.registry import Registry
    from agent_host.routing.scoping import Scoping
    from agent_host.services.session import NewSession, SessionGrant
    from agent_host.session.new_task import NewTask
    from agent_host.session.opening import ResolvedOptions
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import SessionIdentity


_swept: set[str] = set()


def introduced(new: NewSession, resolved: ResolvedOptions) -> NewSession:
    """The request with what this host knows of itself, and what its client did not say."""
    known = {"localAgentHostVersion": __version__, "osFamily": OS_FAMILY}
    return new._replace(session_id=resolved.session_id, client_info={**known, **new.client_info})


def refuse_incompatible(grant: SessionGrant) -> None:
    """Raises Incompatible."""
    if grant.compatibility_status == "incompatible":
        raise Incompatible(
            f"the session service does not serve this host: {grant.incompatibility_reason or 'no reason'}"
        )


def refuse_used_key(state_dir: str, key: str) -> None:
    """Raises UsageError where a session was begun under `key`, StateError where that cannot be read."""
    paths = SessionPaths(state_dir, session_keys.session_of(state_dir, key))
    if any(os.path.lexists(path) for path in (paths.snapshot, paths.journal, paths.result)):
        raise UsageError(f"a session was begun under {key} already: --or-resume goes on with it, or choose another id")


def refuse_unknown_approvals(resolved: ResolvedOptions, bundle: PolicyBundle, tools: Registry) -> None:
    """Raises UsageError. Not for a resume, whose approvals may be on record from another policy."""
    servers = {one.name for one in bundle.mcp_servers}
    servers |= {str(one.get("name")) for one in resolved.settings.tables("mcp.servers")}
    of_servers = {name for name in resolved.approvals if name.partition("/")[0] in servers and "/" in name}
    backend = bundle.capability(CapabilityName.BACKEND_TOOL_INVOKE)
    of_backend = {name for name in resolved.approvals if backend is not None and names_it(backend, name)}
    approvals = resolved.approvals - project_tool_names(resolved.workspace) - of_servers - of_backend
    unknown = unknown_approvals(bundle, tools, approvals)
    if unknown:
        rules = ", ".join(rule.approval_rule_id for rule in bundle.approval_rules) or "none"
        raise UsageError(
            f"--approve {unknown[0]}: this policy knows no such rule, tool or capability; its rules: {rules}"
        )


def bundle_of(resolved: ResolvedOptions, machine: LocalMachine, grant: SessionGrant, level: Level) -> PolicyBundle:
    """The bundle of a session on this machine. Raises PolicyError, UsageError."""
    return load_bundle(
        resolved.settings,
        machine.environment,
        session_id=grant.session_id,
        state_dir=resolved.state_dir,
        now=utc_now(),
        granted=grant.policy_bundle,
        temporary=machine.temporary,
        held=level.level != "none",
        installed=installed_names(resolved.settings),
    )


def bundle_again(
    resolved: ResolvedOptions, machine: LocalMachine, grant: SessionGrant, identity: SessionIdentity, level: Level
) -> PolicyBundle:
    """The bundle under which a session that there is goes on."""
    bundle = bundle_of(resolved, machine, grant, level)
    refuse_other_owner(identity, bundle)
    return bundle


def scoping_under(resolved: ResolvedOptions, machine: LocalMachine, level: Level, grant: SessionGrant) -> Scoping:
    """How commands of a session are held under what was granted. Raises UsageError."""
    granted = grant.policy_bundle is not None
    steering = (*own_files(), *guarded_files(resolved.settings, resolved.workspace))
    return scoping_of(resolved, machine, level, steering=steering, granted=granted)


def beginning_of(
    resolved: ResolvedOptions,
    parts: Parts,
    grant: SessionGrant,
    secrets: Secrets,
    task: NewTask | None,
    *,
    learned: Mapping[str, Any],
) -> Beginning:
    """What the first record of a new session holds. `learned` is what its gateway said (`server_settings.Informed`)."""
    policy = policy_source(resolved.settings, grant.policy_bundle)
    started: dict[str, Any] = {
        "model": parts.model,
        "policy": policy.name,
        "policyHash": policy.digest,
        "toolset": list(families_of(resolved.settings)),
        "servers": dict(learned),
        "redaction": {
            "bundleVersion": parts.bundle.policy_bundle_version,
            "hasRules": bool(parts.bundle.redaction_rules),
        },
    }
    if parts.scoping is not None:
        started["sandbox"] = parts.scoping.level
    first = None
    if task is not None and resolved.session_id is not None:
        started |= start_record(resolved.state_dir, resolved.session_id, task.prompt)
    if task is not None:
        first = record_of_task(task, session_id=grant.session_id, scrubber=secrets.scrubber, count=parts.count)
    machine = parts.machine
    return Beginning(parts.bundle, machine.environment, parts.count, machine.temporary, started, first)


def make_temporary(path: str, state_dir: str) -> None:
    """Make the session's own temporary directory, or find it as it should be, and have removed what crashes have left
    beside it. Raises UsageError."""
    try:
        temporary.make(path)
    except OSError as error:
        raise UsageError(f"the session's temporary directory {path}: {error.strerror}") from error
    if state_dir not in _swept:
        _swept.add(state_dir)  # beside the start, which does not wait for it
        threading.Thread(target=temporary.sweep, args=(state_dir, os.environ), name="temporary-sweep").start()
