"""What a session starts from: its ids and its policy bundle, checked (AH 3.2)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent_host.errors import PolicyBundleInvalid, PolicyExpired, UsageError
from agent_host.routing.capabilities import TOOLS
from agent_host.routing.facts import on_this_disk
from config.load import read_regular_file, user_files
from config.policies import BUILT_IN, template
from policy.builtin import instantiate
from policy.grants import Narrowing, narrow
from policy.names import ANY_SESSION

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from agent_host.routing.facts import Surroundings
    from config.settings import Settings
    from policy.bundle import CommandPolicy, PolicyBundle


def load_bundle(
    settings: Settings,
    where: Surroundings,
    *,
    session_id: str,
    state_dir: str,
    now: datetime,
    granted: bytes | None = None,
) -> PolicyBundle:
    """The bundle that the Session Service `granted`, as JSON, else the one that `host.policy` names, a built-in or a
    file; narrowed by what the settings add.

    Raises PolicyBundleInvalid with every problem in one message, PolicyExpired, UsageError when there is no such file.
    """
    if granted is not None:
        bundle = _usable(granted, "of the session service", session_id, now, any_session=False)
    else:
        bundle = _named(settings, where, session_id, state_dir, now) or _usable(
            *_file(settings.text("host.policy")), session_id, now, any_session=True
        )
    return on_this_disk(narrow(bundle, _narrowing(settings, where.workspace)), where)


def unknown_approvals(bundle: PolicyBundle, names: Iterable[str]) -> list[str]:
    """Those of `names`, given to approve in advance, that are no rule of the bundle, no tool and no capability: most
    likely misspelt."""
    rules = {rule.approval_rule_id for rule in bundle.approval_rules}
    known = rules | TOOLS.keys() | {row.capability for row in TOOLS.values()}
    return sorted(set(names) - known)


def bundle_to_try(settings: Settings, where: Surroundings, *, state_dir: str, now: datetime) -> PolicyBundle:
    """The bundle that `host.policy` names, for trying: whose session it is and whether it has expired is for the
    decisions to say. Raises PolicyBundleInvalid, UsageError."""
    bundle = _named(settings, where, ANY_SESSION, state_dir, now) or _parsed(*_file(settings.text("host.policy")))
    return on_this_disk(narrow(bundle, _narrowing(settings, where.workspace)), where)


def _named(
    settings: Settings, where: Surroundings, session_id: str, state_dir: str, now: datetime
) -> PolicyBundle | None:
    """The built-in of that name, None when it is none."""
    name = settings.text("host.policy")
    if name not in BUILT_IN:
        return None
    return instantiate(
        template(name),
        workspace=where.workspace,
        home=where.home,
        state_dir=os.path.realpath(state_dir),
        session_id=session_id,
        now=now,
        os=where.os_family,
        models=(settings.text("llm.model"),) if settings.text("llm.model") else (),
        unchanged=tuple(map(os.path.realpath, user_files(os.environ))),
    )


def _file(path: str) -> tuple[bytes, str]:
    """(content, path)."""
    try:
        return read_regular_file(path), path
    except OSError as error:
        raise UsageError(
            f"policy {path!r}: {error.strerror}; give a bundle file or one of {', '.join(BUILT_IN)}"
        ) from error


def _parsed(raw: bytes, source: str) -> PolicyBundle:
    # pydantic is what validates a bundle from outside; the shipped ones need none of it.
    from policy.problems import BundleProblems
    from policy.validate import parse_bundle

    try:
        return parse_bundle(raw)
    except BundleProblems as error:
        raise PolicyBundleInvalid(f"policy {source}: {error}") from error


def _usable(raw: bytes, source: str, session_id: str, now: datetime, *, any_session: bool) -> PolicyBundle:
    """`any_session`: the bundle may be for all of them, which only a user can say."""
    from policy.validate import check_usable

    bundle = _parsed(raw, source)
    if bundle.expires_at <= now:
        raise PolicyExpired(f"policy {source} expired at {bundle.expires_at.isoformat()}; get a new one")
    problems = [str(problem) for problem in check_usable(bundle, session_id=session_id, now=now)]
    if bundle.session_id == ANY_SESSION and not any_session:
        problems.append(f"sessionId: only a bundle in a file is for any session, this one is for {session_id}")
    if problems:
        raise PolicyBundleInvalid(f"policy {source}: " + "; ".join(problems))
    return bundle


def _command_policies(settings: Settings) -> tuple[CommandPolicy, ...]:
    """Raises UsageError with every problem of the entries."""
    tables = settings.tables("policy.command_policies")
    if not tables:
        return ()
    from policy.configured import command_policies
    from policy.problems import BundleProblems

    try:
        return command_policies(tables, "policy.command_policies")
    except BundleProblems as error:
        raise UsageError(f"configuration: {error}") from error


def _narrowing(settings: Settings, workspace: str) -> Narrowing:
    return Narrowing(
        blocked_paths=tuple(os.path.join(workspace, path) for path in settings.names("policy.blocked_paths")),
        blocked_commands=settings.names("policy.blocked_commands"),
        blocked_domains=settings.names("policy.blocked_domains"),
        command_policies=_command_policies(settings),
        max_file_size_bytes=settings.integer("limits.max_file_size_bytes") or None,
        max_output_bytes=settings.integer("tools.max_output_bytes"),
        max_session_tokens=settings.integer("limits.max_session_tokens") or None,
    )
