"""The desktop family: ReadFile, WriteFile, DeleteFile, RunCommand, HttpRequest (TR 4).

A command that ends with a non-zero exit code has `succeeded` as a call: the tool did its work, and the model reads the
exit code in the text (TR 4.4). Likewise an HTTP error status.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers
from policy.paths import normalize
from tool_runtime.core import files
from tool_runtime.core.guard import ProcessGuard
from tool_runtime.core.paths import Scope, home_directory, resolve
from tool_runtime.core.process import CommandParams, end_leftovers, run_command
from tool_runtime.families.desktop_definitions import (
    DELETE_FILE,
    HTTP_REQUEST,
    READ_FILE,
    RUN_COMMAND,
    WRITE_FILE,
)
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.rendering import command_output, http_output
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.output import artifacts
from tool_runtime.output.diff import size_note, unified
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.platform.environment import child_environment
from tool_runtime.tool import Abandoned, CallContext, Handler, Tool, ToolOutput
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolRequest, ToolSpec
    from tool_runtime.core.http import HttpClient
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool


class DesktopRunner:
    """What runs the family's tools, under one set of settings."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._http: HttpClient | None = None
        self._http_lock = asyncio.Lock()
        self._guard = ProcessGuard() if settings.guard_processes else None

    @functools.cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The five tools, by name."""
        within = functools.partial(timed, timeout_s=self._settings.file_timeout_s)
        tools = (
            self._tool(READ_FILE, within(self._read_file)),
            self._tool(WRITE_FILE, within(self._write_file)),
            self._tool(DELETE_FILE, within(self._delete_file)),
            self._tool(RUN_COMMAND, self._run_command),
            self._tool(HTTP_REQUEST, self._http_request),
        )
        return {tool.spec.name: tool for tool in tools}

    async def read_bytes(self, call: CallContext, path: str, max_bytes: int) -> bytes:
        """See DesktopFamily. Raises ToolFault."""
        limit = max_bytes if call.max_file_size_bytes is None else min(max_bytes, call.max_file_size_bytes)
        timeout_s = self._settings.file_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._pool.run(lambda: files.read_bytes(path, _scope(call.request), limit, call.abandoned))
        except TimeoutError as error:
            raise ToolFault(FaultKind.TIMED_OUT, f"reading timed out after {timeout_s:g} seconds: {path}") from error
        finally:
            call.abandoned.flag = True

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. Commands leave processes behind, writes their temporary file."""
        if request.tool_name == RUN_COMMAND.name:
            return await end_leftovers(mark_of(request), self._pool)
        path = request.arguments.get("path")
        if request.tool_name != WRITE_FILE.name or not isinstance(path, str):
            return Leftovers()
        try:
            removed = await self._pool.run(lambda: files.remove_leftover(path, _scope(request), mark_of(request)))
        except ToolFault:  # where the call may not write by now, nothing is touched
            return Leftovers()
        return Leftovers(removed)

    async def aclose(self) -> None:
        """Close pooled connections, and end what commands have left running."""
        if self._http is not None:
            await self._http.aclose()
        if self._guard is not None:
            await self._pool.run(self._guard.close)

    @functools.cached_property
    def _shell(self) -> str:
        return self._settings.shell or current.default_shell(os.environ)

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        """As it is at the first command; reading it costs more than starting the process does."""
        settings = self._settings
        return child_environment(
            os.environ,
            secret=settings.secret_env,
            passthrough=settings.env_passthrough,
            temporary=settings.temporary,
        )

    def _tool(self, spec: ToolSpec, handler: Handler) -> Tool:
        return Tool(spec, capped(handler), DESKTOP)

    async def _read_file(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = files.ReadParams(
            arguments["path"],
            _scope(call.request),
            call.max_output_bytes,
            call.max_file_size_bytes,
            arguments.get("offset", 1),
            arguments.get("limit"),
            arguments.get("encoding"),
        )
        outcome = await self._pool.run(lambda: files.read_file(params, call.abandoned))
        if outcome.text is None:
            return ToolOutput(f"Binary file, {outcome.size_bytes} bytes")
        if outcome.past_end:
            return ToolOutput(f"[The file ends before line {params.offset}]")
        return ToolOutput(outcome.text, capped=True)

    async def _write_file(self, call: CallContext) -> ToolOutput:
        path: str = call.request.arguments["path"]
        params = files.WriteParams(
            path,
            _scope(call.request),
            _encoded(call.request.arguments["content"], "content"),
            mark_of(call.request),
            call.max_file_size_bytes,
            call.request.arguments.get("createDirectories", True),
        )
        diff = await self._pool.run(lambda: _write_and_diff(params, call.abandoned))
        made = (artifacts.file_diff(call.request, diff),) if diff else ()
        return ToolOutput(f"Wrote {len(params.data)} bytes to {path}", made)

    async def _delete_file(self, call: CallContext) -> ToolOutput:
        path: str = call.request.arguments["path"]
        await self._pool.run(lambda: files.delete_file(path, _scope(call.request), call.abandoned))
        return ToolOutput(f"Deleted {path}")

    async def _run_command(self, call: CallContext) -> ToolOutput:
        outcome = await run_command(self._command(call), self._pool, self._guard)
        output = command_output(call, outcome)
        if outcome.timed_out:
            timeout_s = call.request.arguments.get("timeout", self._settings.command_timeout_s)
            said = "; ".join(filter(None, (f"Command timed out after {timeout_s:g} seconds", outcome.left.note())))
            raise ToolFault(FaultKind.TIMED_OUT, said, partial=output)
        return output

    def _command(self, call: CallContext) -> CommandParams:
        settings, arguments = self._settings, call.request.arguments
        command: str = arguments["command"]
        if not command.strip() or "\0" in command:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.command: must not be empty or hold a NUL character")
        _encoded(command, "command")
        timeout_s = arguments.get("timeout", settings.command_timeout_s)
        if timeout_s > settings.command_timeout_max_s:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.timeout: at most {settings.command_timeout_max_s}")
        asked = normalize(arguments.get("cwd") or settings.workspace, OS_FAMILY, settings.workspace, home_directory())
        cwd = resolve(asked, _scope(call.request))
        on_output = settings.on_output
        return CommandParams(
            argv=current.shell_argv(self._shell, command),
            cwd=cwd,
            environment={**self._environment, "PWD": cwd},
            mark=mark_of(call.request),
            timeout_s=timeout_s,
            max_output_bytes=call.max_output_bytes,
            artifact_max_bytes=settings.artifact_max_bytes,
            buffer_bytes=settings.output_buffer_bytes,
            spool_directory=settings.temporary,
            stdin=_encoded(arguments["stdin"], "stdin") if "stdin" in arguments else None,
            kill_grace_s=settings.kill_grace_s,
            drain_s=settings.drain_s,
            on_output=functools.partial(on_output, call.request) if on_output is not None else None,
        )

    async def _http_request(self, call: CallContext) -> ToolOutput:
        arguments, settings = call.request.arguments, self._settings
        client = await self._http_client()
        from tool_runtime.core.http import DomainScope, HttpParams

        limits = call.request.constraints
        params = HttpParams(
            url=arguments["url"],
            method=arguments.get("method", "GET"),
            headers=arguments.get("headers", {}),
            body=_encoded(arguments.get("body", ""), "body"),
            timeout_s=min(arguments.get("timeout", settings.http_timeout_s), settings.http_timeout_max_s),
            domains=DomainScope(limits.allowed_domains, limits.blocked_domains),
        )
        return http_output(call, await client.fetch(params))

    async def _http_client(self) -> HttpClient:
        """Made when the first request comes, and in a thread: httpx and a TLS context cost some 80 ms."""
        async with self._http_lock:
            if self._http is None:
                self._http = await self._pool.run(self._make_http_client)
        return self._http

    def _make_http_client(self) -> HttpClient:
        from tool_runtime.core.http import HttpClient, HttpLimits

        settings, allowed = self._settings, self._settings.address_allowed
        if allowed is None:
            from policy.urls import address_is_public

            allowed = address_is_public
        limits = HttpLimits(settings.http_max_body_bytes, settings.http_max_redirects, allowed)
        return HttpClient(self._pool, limits)


def mark_of(request: ToolRequest) -> str:
    """Unique to the call, since step ids are random; the same in the process that resumes its session. A digest, since
    clients and gateways choose ids that no variable of a process can hold."""
    named = f"{request.task_id}/{request.step_id}/{request.tool_call_id}"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def _scope(request: ToolRequest) -> Scope:
    return Scope(request.constraints.allowed_paths, request.constraints.blocked_paths)


def _encoded(text: str, argument: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.{argument}: holds a lone surrogate") from error


def _write_and_diff(params: files.WriteParams, abandoned: Abandoned) -> bytes:
    outcome = files.write_file(params, abandoned)
    if outcome.existed and outcome.before is None:
        return size_note(outcome.before_bytes, len(params.data), params.path)
    return unified(outcome.before, params.data, params.path)
