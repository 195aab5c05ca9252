"""The start of a session: its ids and its policy bundle, checked (AH 3.2)."""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agent_host.errors import UsageError
from agent_host.import_isolation import places_in
from agent_host.judging.environment import resolve_places
from config import json_text
from config.lean_typing import NamedTuple
from config.load import read_regular_file, user_files
from config.policies import BUILT_IN, digest, is_built_in, names_file, template
from config.shapes import hint_at_path, meant_name
from policy import ANY_SESSION, SANDBOX_GRANT, CapabilityName
from policy.bundle import Narrowing, RedactionRule, narrow
from policy.bundle.builtin import PlaceholderValues, instantiate, kept_step_files, step_files
from state.temporary import session_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from agent_host.judging import Registry
    from agent_host.judging.environment import Environment
    from config.settings import Settings
    from policy.bundle import BundleProblem, CommandPolicy, PolicyBundle


_POLICY = "host.policy"


def load_bundle(
    settings: Settings,
    environment: Environment,
    *,
    session_id: str,
    state_dir: str,
    now: datetime,
    granted: bytes | None = None,
    temporary: str | None = None,
    installed: tuple[str, ...] = (),
    held: bool = False,
    to_try: bool = False,
) -> PolicyBundle:
    """The bundle that the Session Service `granted`, as JSON, else the one that `host.policy` names, a built-in or a
    file; narrowed by what the settings add. `temporary` is the session's temporary directory, where it is not the usual
    one; `installed` are the names of the Python tools that the configuration names. `held`: a sandbox holds commands.
    `to_try`: whose session it is and whether it has expired is for the decisions to say. Raises PolicyBundleInvalid
    with every problem in one message, PolicyExpired, UsageError when there is no such file."""
    places = _places(environment, state_dir, session_id, _tools_by_capability(settings, installed))
    places = places if temporary is None else places._replace(tmp=temporary)
    if granted is not None:
        from agent_host.session import external_bundles

        bundle = external_bundles.read_grant(granted, now, session_id=session_id, held=held)
    elif policy_name(settings) in BUILT_IN:
        bundle = _built_in(settings, places, ANY_SESSION if to_try else session_id, now, held=held)
    else:
        bundle = _in_file(settings, places, now, held=held, session_id=None if to_try else session_id)
    return resolve_places(narrow(bundle, _narrowing(settings, environment.workspace)), environment)


class PolicySource(NamedTuple):
    """The source of a session's policy: a built-in's name or a file, and the sha256, in hex, of its content; the name
    is None for a bundle of the Session Service."""

    name: str | None
    digest: str

    def is_same(self, other: PolicySource) -> bool:
        """True if both mean one policy: a built-in by its name, in any version, anything else by its content."""
        return self.digest == other.digest or (self.name == other.name and self.name in BUILT_IN)


def policy_name(settings: Settings) -> str:
    """Return `host.policy`: a built-in's name or a bundle file. Raises UsageError for a name that is neither."""
    name = settings.host.policy
    if name not in BUILT_IN and not names_file(name):
        meant, file = meant_name(name, BUILT_IN), os.path.join(os.curdir, name)
        raise UsageError(
            f"{settings.name_of(_POLICY)} {name!r} is no built-in: give a bundle file or one of {', '.join(BUILT_IN)}; "
            f"a file's name has a slash in it or ends in .json, as {file!r}"
            f"{'' if meant is None else f'; did you mean {meant}?'}"
        )
    return name


def policy_source(settings: Settings, granted: bytes | None = None) -> PolicySource:
    """The source of `load_bundle`'s bundle. Raises UsageError when there is no such file."""
    if granted is not None:
        return PolicySource(None, sha256(granted).hexdigest())
    name = policy_name(settings)
    if name in BUILT_IN:
        return PolicySource(name, digest(name))
    return PolicySource(name, sha256(_content(settings)).hexdigest())


def rules_on_record(version: str, started: Mapping[str, Any]) -> Sequence[RedactionRule] | None:
    """The redaction rules of a session on record, whose bundle has this `version`; None where the record does not lead
    to them. They are not on record themselves: a rule may be the secret that it takes out."""
    said = started.get("redaction", {})
    if is_built_in(version) or (said.get("bundleVersion"), said.get("hasRules")) == (version, False):
        return ()
    name = started.get("policy")
    if name is None or said.get("bundleVersion") != version:
        return None
    try:
        content = read_regular_file(name)
    except OSError:
        return None
    if sha256(content).hexdigest() != started.get("policyHash"):
        return None
    rules = json_text.loads(content.removeprefix(BOM_UTF8))["redactionRules"]  # it was validated when the session began
    return [RedactionRule(one["redactionRuleId"], one["pattern"], "", one.get("replacement")) for one in rules]


def unknown_approvals(bundle: PolicyBundle, tools: Registry, names: Iterable[str]) -> list[str]:
    """Those of `names`, given to approve in advance, that are no rule, no tool and no capability: misspelt."""
    rules = {rule.approval_rule_id for rule in bundle.approval_rules}
    known = rules | tools.names | tools.capabilities | {SANDBOX_GRANT}
    return sorted(set(names) - known)


def bundle_in_file(
    raw: bytes, environment: Environment, *, state_dir: str, now: datetime, held: bool = False
) -> PolicyBundle:
    """The bundle of a file's content, before any settings; `held`: a sandbox holds commands. Raises BundleProblems."""
    from agent_host.session import external_bundles

    places = _places(environment, state_dir, ANY_SESSION)
    return external_bundles.read_file_bundle(raw, places, now, steering=own_files(), held=held)


def suspicions_in_file(
    raw: bytes, environment: Environment, *, state_dir: str, now: datetime, hints: bool = False
) -> list[BundleProblem]:
    """Entries of the good bundle of a file's content that have no effect; none of one that is not good. `hints`: look
    for the path that may have been meant, which takes a while."""
    from agent_host.session import external_bundles

    places = _places(environment, state_dir, ANY_SESSION)
    return external_bundles.suspicions_in(raw, places, now, steering=own_files(), hints=hints)


SESSION_TO_TRY = "SESSION"
"""In place of an id in the name of a directory, where there is no session."""


def _tools_by_capability(settings: Settings, installed: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """The tools that the user's configuration names, by capability: those of its MCP servers and of its packages."""
    servers = [one["name"] for one in settings.mcp.servers if isinstance(one.get("name"), str)]
    return {CapabilityName.MCP_INVOKE: [f"{name}/*" for name in servers], CapabilityName.TOOL_INVOKE: installed}


def _places(
    environment: Environment, state_dir: str, session_id: str, tools: Mapping[str, Sequence[str]] = {}
) -> PlaceholderValues:
    name = SESSION_TO_TRY if session_id == ANY_SESSION else session_id
    files = step_files(os.environ, environment.os_family)
    return PlaceholderValues(
        workspace=environment.workspace,
        home=environment.home,
        state_dir=os.path.realpath(state_dir),
        os=environment.os_family,
        tmp=session_directory(state_dir, name, os.environ),
        step_files=None if files is None else os.path.realpath(files),
        tools=tools,
    )


def own_files() -> tuple[str, ...]:
    """The files that configure this program for its user."""
    return tuple(map(os.path.realpath, user_files(os.environ)))


def files_to_guard(settings: Settings, workspace: str) -> tuple[str, ...]:
    """Return what no tool and no command of a session may change, whatever its bundle says: the bundle file, as it is
    named and where it leads, what this program runs from in the workspace (design, invariant 12), and the files of a
    step of GitHub Actions that are the host's alone."""
    name = settings.host.policy
    bundle = () if not names_file(name) else (os.path.abspath(name), os.path.realpath(name))
    kept = kept_step_files(os.environ, "windows" if os.name == "nt" else "posix")
    return tuple(dict.fromkeys((*bundle, *places_in(workspace), *kept, *map(os.path.realpath, kept))))


def _built_in(
    settings: Settings, places: PlaceholderValues, session_id: str, now: datetime, *, held: bool
) -> PolicyBundle:
    programs = settings.policy.allowed_commands
    if programs:
        from agent_host.session import external_bundles

        external_bundles.refuse_odd_programs(programs)
    return instantiate(
        template(settings.host.policy),
        workspace=places.workspace,
        home=places.home,
        state_dir=places.state_dir,
        tmp=places.tmp,
        step_files=places.step_files,
        tools=places.tools,
        session_id=session_id,
        now=now,
        os=places.os,
        models=(settings.llm.model,) if settings.llm.model else (),
        more_models=settings.llm.fallback_models,
        unchanged=own_files(),
        programs=programs,
        held=held,
    )


def _in_file(
    settings: Settings, places: PlaceholderValues, now: datetime, *, held: bool, session_id: str | None
) -> PolicyBundle:
    """The bundle of the file that `host.policy` names, whosever session it is for and until when; with a `session_id`
    one for this session. Raises UsageError when there is no file, PolicyBundleInvalid, PolicyExpired."""
    from agent_host.session import external_bundles

    source, raw = f"{settings.name_of(_POLICY)} {settings.host.policy}", _content(settings)
    models = (settings.llm.model,) if settings.llm.model else ()
    with external_bundles.problems_of(source):
        more = {"models": models, "more_models": settings.llm.fallback_models}
        bundle = external_bundles.read_file_bundle(raw, places, now, steering=own_files(), held=held, **more)
    if session_id is not None:
        external_bundles.refuse_unusable(bundle, source, session_id, now)
    return bundle


def _content(settings: Settings) -> bytes:
    path = settings.host.policy
    try:
        return read_regular_file(path)
    except OSError as error:
        raise UsageError(
            f"{settings.name_of(_POLICY)} {path!r}: {error.strerror}; give a bundle file or one of "
            f"{', '.join(BUILT_IN)}{hint_at_path(path)}"
        ) from error


def _narrowing(settings: Settings, workspace: str) -> Narrowing:
    """Raises UsageError with every problem of the entries for commands."""
    command_policies: tuple[CommandPolicy, ...] = ()
    if settings.policy.command_policies:
        from agent_host.session import external_bundles

        command_policies = external_bundles.command_policies(settings.policy.command_policies)
    return Narrowing(
        blocked_paths=tuple(os.path.join(workspace, path) for path in settings.policy.blocked_paths),
        unchanged_paths=files_to_guard(settings, workspace),
        blocked_commands=settings.policy.blocked_commands,
        blocked_domains=settings.policy.blocked_domains,
        command_policies=command_policies,
        max_file_size_bytes=settings.limits.max_file_size_bytes or None,
        max_output_bytes=settings.tools.max_output_bytes,
        max_session_tokens=settings.limits.max_session_tokens or None,
        approval_timeout_s=settings.ceiling("approvals.timeout_s"),
    )
