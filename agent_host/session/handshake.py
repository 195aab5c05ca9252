"""What a session starts from: its ids and its policy bundle, checked (AH 3.2)."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from agent_host.errors import PolicyBundleInvalid, PolicyExpired, UsageError
from agent_host.routing.facts import on_this_disk
from config.load import read_regular_file, user_files
from config.policies import BUILT_IN, digest, place_groups, template, template_as_written
from policy.bundle.builtin import instantiate
from policy.bundle.placeholders import Places, step_files
from policy.names import ANY_SESSION
from policy.rules.grants import Narrowing, narrow
from state.temporary import session_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from agent_host.routing.facts import Environment
    from agent_host.routing.registry import Registry
    from config.settings import Settings
    from policy.bundle.model import CommandPolicy, PolicyBundle


def load_bundle(
    settings: Settings,
    where: Environment,
    *,
    session_id: str,
    state_dir: str,
    now: datetime,
    granted: bytes | None = None,
    temporary: str | None = None,
) -> PolicyBundle:
    """The bundle that the Session Service `granted`, as JSON, else the one that `host.policy` names, a built-in or a
    file; narrowed by what the settings add. `temporary` is the session's temporary directory, where it is not
    the usual one.

    Raises PolicyBundleInvalid with every problem in one message, PolicyExpired, UsageError when there is no such file.
    """
    places = _places(where, state_dir, session_id)
    places = places if temporary is None else places._replace(tmp=temporary)
    if granted is not None:
        bundle = _usable(_read_granted(granted), _GRANTED, session_id, now, any_session=False)
    elif settings.text("host.policy") in BUILT_IN:
        bundle = _built_in(settings, places, session_id, now)
    else:
        bundle = _usable(
            _read_file(settings, places, now), settings.text("host.policy"), session_id, now, any_session=True
        )
    return on_this_disk(narrow(bundle, _narrowing(settings, where.workspace)), where)


class PolicySource(NamedTuple):
    """Where a session's policy comes from: a built-in's name or a file, and the sha256, in hex, of what stands there;
    the name is None for a bundle of the Session Service."""

    name: str | None
    digest: str

    def is_same(self, other: PolicySource) -> bool:
        """Whether both mean one policy: a built-in by its name, in whichever version of this program, anything else by
        its content."""
        return self.digest == other.digest or (self.name == other.name and self.name in BUILT_IN)


def policy_source(settings: Settings, granted: bytes | None = None) -> PolicySource:
    """Where the bundle of `load_bundle` comes from. Raises UsageError when there is no such file."""
    name = settings.text("host.policy")
    if granted is not None:
        return PolicySource(None, sha256(granted).hexdigest())
    if name in BUILT_IN:
        return PolicySource(name, digest(name))
    return PolicySource(name, sha256(_content(name)).hexdigest())


def unknown_approvals(bundle: PolicyBundle, tools: Registry, names: Iterable[str]) -> list[str]:
    """Those of `names`, given to approve in advance, that are no rule of the bundle, no tool and no capability: most
    likely misspelt."""
    rules = {rule.approval_rule_id for rule in bundle.approval_rules}
    known = rules | tools.names | tools.capabilities
    return sorted(set(names) - known)


def bundle_to_try(
    settings: Settings, where: Environment, *, state_dir: str, now: datetime, session_id: str = ANY_SESSION
) -> PolicyBundle:
    """The bundle that `host.policy` names, for trying: whose session it is and whether it has expired is for the
    decisions to say. Raises PolicyBundleInvalid, UsageError."""
    places = _places(where, state_dir, session_id)
    if settings.text("host.policy") in BUILT_IN:
        bundle = _built_in(settings, places, ANY_SESSION, now)
    else:
        bundle = _parsed(_read_file(settings, places, now), settings.text("host.policy"))
    return on_this_disk(narrow(bundle, _narrowing(settings, where.workspace)), where)


def bundle_in_file(raw: bytes, where: Environment, *, state_dir: str, now: datetime) -> PolicyBundle:
    """The bundle of a file's content, before any settings. Raises BundleProblems."""
    return _file_bundle(raw, (), _places(where, state_dir, ANY_SESSION), now)


_GRANTED = "of the session service"
SESSION_TO_TRY = "SESSION"
"""In place of an id in the name of a directory, where there is no session."""


def _places(where: Environment, state_dir: str, session_id: str) -> Places:
    """What stands for the placeholders of a bundle in this session."""
    name = SESSION_TO_TRY if session_id == ANY_SESSION else session_id
    return Places(
        workspace=where.workspace,
        home=where.home,
        state_dir=os.path.realpath(state_dir),
        os=where.os_family,
        tmp=session_directory(state_dir, name, os.environ),
        step_files=_real(step_files(os.environ, where.os_family)),
    )


def _real(path: str | None) -> str | None:
    return None if path is None else os.path.realpath(path)


def _own_files() -> tuple[str, ...]:
    """What steers this program for its user."""
    return tuple(map(os.path.realpath, user_files(os.environ)))


def _models(settings: Settings) -> tuple[str, ...]:
    return (settings.text("llm.model"),) if settings.text("llm.model") else ()


def _built_in(settings: Settings, places: Places, session_id: str, now: datetime) -> PolicyBundle:
    """Raises UsageError for programs of the configuration that are none."""
    return instantiate(
        template(settings.text("host.policy")),
        workspace=places.workspace,
        home=places.home,
        state_dir=places.state_dir,
        tmp=places.tmp,
        step_files=places.step_files,
        session_id=session_id,
        now=now,
        os=places.os,
        models=_models(settings),
        unchanged=_own_files(),
        programs=_programs(settings),
    )


def _programs(settings: Settings) -> tuple[str, ...]:
    """What the user's configuration adds to a built-in's list of commands. Raises UsageError."""
    names = settings.names("policy.allowed_commands")
    if names:
        from policy.bundle.file_forms import program_problem

        for place, name in enumerate(names):
            problem = program_problem(name)
            if problem is not None:
                raise UsageError(f"configuration: policy.allowed_commands[{place}]: {problem[0]} ({problem[1]})")
    return names


def _read_granted(raw: bytes) -> Callable[[], PolicyBundle]:
    from policy.bundle.validate import parse_bundle

    return lambda: parse_bundle(raw)


def _read_file(settings: Settings, places: Places, now: datetime) -> Callable[[], PolicyBundle]:
    """What reads the file that `host.policy` names. Raises UsageError when there is none."""
    raw = _content(settings.text("host.policy"))
    return lambda: _file_bundle(raw, _models(settings), places, now)


def _content(path: str) -> bytes:
    """The content of a bundle file. Raises UsageError when there is none."""
    try:
        return read_regular_file(path)
    except OSError as error:
        raise UsageError(
            f"policy {path!r}: {error.strerror}; give a bundle file or one of {', '.join(BUILT_IN)}"
        ) from error


def _file_bundle(raw: bytes, models: tuple[str, ...], places: Places, now: datetime) -> PolicyBundle:
    from policy.bundle.file_bundle import BuiltIns, parse_file_bundle

    groups = place_groups()
    groups["steering"] = [*groups["steering"], *_own_files()]
    built_ins = BuiltIns(BUILT_IN, template_as_written, models)
    return parse_file_bundle(raw, places=places._replace(groups=groups), built_ins=built_ins, now=now)


def _parsed(read: Callable[[], PolicyBundle], source: str) -> PolicyBundle:
    # pydantic is what validates a bundle from outside; the shipped ones need none of it.
    from policy.bundle.problems import BundleProblems

    try:
        return read()
    except BundleProblems as error:
        raise PolicyBundleInvalid(f"policy {source}: {error}") from error


def _usable(
    read: Callable[[], PolicyBundle], source: str, session_id: str, now: datetime, *, any_session: bool
) -> PolicyBundle:
    """`any_session`: the bundle may be for all of them, which only a user can say."""
    from policy.bundle.validate import check_usable

    bundle = _parsed(read, source)
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
    from policy.bundle.configured import command_policies
    from policy.bundle.problems import BundleProblems

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
