"""The runtime's settings and its tools besides those of the families, from the configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent_host.app.machine import allowed_variables, secret_variables
from agent_host.app.native import families_of, has_native, native_roots
from agent_host.app.skills import has_skills, hidden_files
from state.locations import SessionPaths
from tool_runtime.settings import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.app.parts import Parts
    from agent_host.events.live_output import LiveOutput
    from config.settings import Settings
    from tool_runtime.core.skills import SkillIndex
    from tool_runtime.tool import Provider


def runtime_settings(
    settings: Settings,
    workspace: str,
    shell: str,
    live_output: LiveOutput,
    temporary: str,
    *,
    guard_processes: bool,
) -> RuntimeSettings:
    """The settings of the runtime. `temporary` is the session's own temporary directory."""
    return RuntimeSettings(
        workspace=workspace,
        shell=shell,
        file_timeout_s=settings.number("tools.file_timeout_s"),
        command_timeout_s=settings.number("tools.command_timeout_s"),
        command_timeout_max_s=settings.integer("tools.command_timeout_max_s"),
        http_timeout_s=settings.number("tools.http_timeout_s"),
        http_timeout_max_s=settings.integer("tools.http_timeout_max_s"),
        http_max_body_bytes=settings.integer("tools.max_response_bytes"),
        http_max_download_bytes=settings.integer("tools.max_download_bytes"),
        http_proxy=settings.text("tools.http_proxy") or None,
        https_proxy=settings.text("tools.https_proxy") or None,
        max_output_bytes=settings.integer("tools.max_output_bytes"),
        artifact_max_bytes=settings.integer("tools.max_artifact_bytes"),
        output_buffer_bytes=settings.integer("tools.output_buffer_bytes"),
        max_file_size_bytes=settings.integer("limits.max_file_size_bytes") or None,
        secret_env=secret_variables(settings),
        env_passthrough=frozenset(settings.names("tools.env_passthrough")),
        env_allowed=allowed_variables(settings),
        temporary=temporary,
        on_output=live_output.take,
        guard_processes=guard_processes,
        families=families_of(settings),
        native_roots=native_roots(settings, workspace) if has_native(settings) else (),
        native_tls_checks=settings.flag("native.tls_checks"),
        script_timeout_s=settings.number("skills.script_timeout_s"),
        hidden_files=hidden_files(settings) if has_skills(settings) else (),
        max_background=settings.integer("tools.max_background_commands"),
        background_lifetime_s=settings.number("tools.background_lifetime_s") or None,
    )


def sandbox_settings(parts: Parts, state_dir: str, session_id: str) -> SandboxSettings | None:
    """How the runtime holds commands, which has been found to work; None for not at all."""
    if parts.scoping is None or not parts.scoping.holds:
        return None
    return SandboxSettings(
        parts.scoping.level,
        required=True,
        directory=os.path.join(SessionPaths(state_dir, session_id).records, "guarded"),
        caches=os.path.join(parts.machine.temporary, "caches"),
    )


def providers_of(parts: Parts, settings: RuntimeSettings, index: SkillIndex | None) -> Sequence[Provider]:
    """Skills and Python tools, where the session has such."""
    providers: list[Provider] = []
    if index is not None:
        from tool_runtime.families.skills.loading import SkillLoading

        providers.append(SkillLoading(index, settings))
    if parts.tools:
        from tool_runtime.families.python_tools import PythonTools

        providers.append(PythonTools(parts.tools, settings))
    return providers
