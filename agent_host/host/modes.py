"""Modes: options that a client sets for a session after its launch (interface section 2, `SetMode`).

A mode can only narrow. Its policy is decided beside that of the launch, and the stricter decision counts, so that
bundles need no order. Its level of the sandbox is at or above that of the launch, and its model one that the launch
bundle allows. `launch` in place of a value goes back to the option of the launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from agent_host.errors import UsageError
from agent_host.host.environment import machine_of
from agent_host.host.options import anchor
from agent_host.host.python_tools import names_of_packages
from agent_host.host.sandboxing import LEVEL, level_of, scoping_of
from agent_host.host.secrets import redaction_of
from agent_host.judging.judge import Mode
from agent_host.session.handshake import files_to_guard, load_bundle, own_files
from agent_host.session.lifecycle import SessionMode
from agent_host.session.opening import refuse_other_owner, temporary_of
from config.policies import names_file
from policy.scope import is_weaker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.host.parts import LaunchParts
    from agent_host.judging.scoping import Scoping
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.rules import ApprovalMode

LAUNCH: Final = "launch"
"""In place of an option of a mode: that of the launch."""
_POLICY = "host.policy"


def merge(launch: LaunchParts, fields: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The options of the mode with some `changes`, without those that are as at the launch."""
    if names_file(changes.get("policy", "")):
        changes = {**changes, "policy": anchor(changes["policy"])}
    was = launch.fields
    return {name: value for name, value in {**fields, **changes}.items() if value not in (LAUNCH, was.get(name))}


def make_mode(launch: LaunchParts, fields: Mapping[str, str]) -> SessionMode:
    """Make the parts of a mode with these options. Tries a level of the sandbox if need be, so it may take a while.
    Raises UsageError for a model or a level that it may not have, PolicyBundleInvalid, PolicyExpired."""
    parts, resolved = launch.parts, launch.resolved
    if not fields:
        return SessionMode(Mode(), parts.scoping, parts.model, redaction_of(resolved, parts.bundle))
    settings = _settings_of(resolved.settings, fields)
    scoping = _scoping(launch, settings)
    bundle = _bundle(launch, settings, is_held=scoping.holds) if "policy" in fields else None
    bundles = (parts.bundle,) if bundle is None else (parts.bundle, bundle)
    scoping.within = bundle
    model, allowed = fields.get("model", parts.model), parts.bundle.llm_policy.allowed_models
    if model not in allowed:
        raise UsageError(f"model {model!r} is not in llmPolicy.allowedModels of the launch: {', '.join(allowed)}")
    mode = Mode(bundle, cast("ApprovalMode | None", fields.get("approvalMode")), fields)
    return SessionMode(mode, scoping, model, redaction_of(resolved, *bundles))


def _settings_of(settings: Settings, fields: Mapping[str, str]) -> Settings:
    own = {_POLICY: fields.get("policy"), LEVEL: fields.get("sandbox")}
    return settings.over({key: value for key, value in own.items() if value is not None})


def _scoping(launch: LaunchParts, settings: Settings) -> Scoping:
    """The sandbox of commands in the mode, which guards the files of both policies."""
    resolved, parts = launch.resolved, launch.parts
    was = parts.scoping
    machine = machine_of(resolved, temporary_of(resolved.state_dir, launch.identity))
    is_raised = settings.sandbox.level != resolved.settings.sandbox.level
    level = level_of(settings, resolved.state_dir, machine.temporary)
    if is_raised and level.wanted not in (level.level, "auto"):
        raise UsageError(f"sandbox {level.wanted!r} does not work here: {level.why}")
    if was is not None and is_weaker(level.level, was.level):
        raise UsageError(
            f"sandbox {level.wanted!r} is weaker than {was.level}, the level of the launch: a mode can only narrow"
        )
    guarded = (files_to_guard(one, resolved.workspace) for one in (resolved.settings, settings))
    steering = tuple(dict.fromkeys((*own_files(), *(path for paths in guarded for path in paths))))
    scoping = scoping_of(resolved, machine, level, steering=steering, granted=parts.granted)
    scoping.is_of_mode = is_raised
    scoping.scripts = None if was is None else was.scripts
    return scoping


def _bundle(launch: LaunchParts, settings: Settings, *, is_held: bool) -> PolicyBundle:
    """The bundle of the mode. Which models there are is for the launch bundle to say."""
    resolved, identity = launch.resolved, launch.identity
    temporary = temporary_of(resolved.state_dir, identity)
    bundle = load_bundle(
        settings,
        machine_of(resolved, temporary).environment,
        session_id=identity.session_id,
        state_dir=resolved.state_dir,
        now=launch.now(),
        temporary=temporary,
        held=is_held,
        installed=names_of_packages(settings),
    )
    refuse_other_owner(identity, bundle)
    models = launch.parts.bundle.llm_policy.allowed_models
    return bundle._replace(llm_policy=bundle.llm_policy._replace(allowed_models=models)).keep_known(bundle)
