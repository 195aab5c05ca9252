"""Dry runs: a tool call is judged by stated facts, in place of those of this disk, and never made.

So a policy can be tried for another machine, another operating system or a missing file. Nothing is executed, no host
name is resolved.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agent_host.contracts import Subject, ToolError, ToolSpec
from agent_host.errors import ErrorCode
from agent_host.judging import Environment, Judge, Registry
from agent_host.judging.decisions import decide
from agent_host.judging.facts import World
from agent_host.thread.messages import ToolCall
from config import shapes
from policy import LEVELS, STRONGEST, CapabilityName
from policy.facts import PathFacts, ScriptFacts
from policy.paths import is_absolute, normalize
from policy.rules import NO_LIMITS, deny
from policy.rules.toolset import names_it
from policy.shell import NoInterpreter, interpreter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from agent_host.judging import Approved
    from agent_host.judging.facts import Scripts
    from agent_host.judging.scoping import Scoping
    from policy import Decision, SandboxLevel
    from policy.bundle import PolicyBundle
    from policy.facts import OsFamily, PathKind, ShellName
    from policy.rules import Limits, NativeExec

_RULE = "case"
_OS_NAMES: tuple[OsFamily, ...] = ("posix", "windows")
_SHELLS: tuple[ShellName, ...] = ("bash", "sh", "zsh", "cmd", "powershell")
_KINDS: tuple[PathKind, ...] = ("file", "directory", "link", "other", "missing")


def _may_be_left_out(**fields: shapes.Shape) -> dict[str, shapes.Shape]:
    return {name: shapes.Nullable(shape) for name, shape in fields.items()}


_STATED = shapes.Record(
    {},
    _may_be_left_out(
        realPath=shapes.Text(1, nul=True, halves=True),
        exists=shapes.FLAG,
        sizeBytes=shapes.COUNT,
        isSymlink=shapes.FLAG,
        kind=shapes.one_of(*_KINDS),
        resolvedAddresses=shapes.ListOf(shapes.TEXT),
    ),
    closed=True,
)
_CASE = shapes.Record(
    {"toolName": shapes.TEXT, "arguments": shapes.OBJECT},
    {
        "id": shapes.ANYTHING,
        **_may_be_left_out(
            capabilities=shapes.ListOf(shapes.ANYTHING),
            os=shapes.one_of(*_OS_NAMES),
            shell=shapes.one_of(*_SHELLS),
            cwd=shapes.TEXT,
            home=shapes.TEXT,
            facts=_STATED,
            env=shapes.MapOf(shapes.TEXT),
            sandbox=shapes.one_of(*LEVELS, STRONGEST),
        ),
    },
    closed=True,
)


class InvalidCase(ValueError):
    """A case without a call to judge."""


class StatedFacts(NamedTuple):
    """The facts stated by a case (interface section 1); None for unstated ones."""

    real_path: str | None = None
    exists: bool | None = None
    size_bytes: int | None = None
    is_symlink: bool = False
    kind: PathKind | None = None
    resolved_addresses: tuple[str, ...] = ()


class DryRunCase(NamedTuple):
    """One call to be judged. Without `facts`, and for this machine's `os`, they are gathered from the disk."""

    tool_name: str
    arguments: Mapping[str, Any]
    capabilities: list[Any] | None = None
    os: OsFamily | None = None
    shell: ShellName | None = None
    cwd: str | None = None
    home: str | None = None
    facts: StatedFacts | None = None
    env: Mapping[str, str] | None = None
    sandbox: SandboxLevel | Literal["auto"] | None = None


def case_from(raw: Mapping[str, Any]) -> DryRunCase:
    """A case from its JSON shape. Raises InvalidCase, which names the field."""
    problem = shapes.first_problem(_CASE, raw)
    if problem is not None:
        raise InvalidCase(problem.sentence)
    stated = raw.get("facts")
    return DryRunCase(
        raw["toolName"],
        raw["arguments"],
        facts=None if stated is None else _facts_of(stated),
        **{name: raw.get(name) for name in ("capabilities", "os", "shell", "cwd", "home", "env", "sandbox")},
    )


def judge_case(
    bundle: PolicyBundle,
    case: DryRunCase,
    machine: Environment,
    tools: Registry,
    *,
    now: datetime,
    limits: Limits = NO_LIMITS,
    native: NativeExec | None = None,
    scripts: Scripts | None = None,
    approved: Approved | None = None,
    scoping: Callable[[Environment, bool], Scoping] | None = None,
) -> Decision:
    """Policy's decision on the case, as in the host; calls that the host refuses earlier are denied by the rule `case`.
    `machine` is this machine, which supplies unstated facts; `limits` and `native`, the list of programs that start
    without a shell, come from the configuration; `scripts` from the skills here, and `approved` are the approved tools
    of the project. A name without a tool that BackendTool.Invoke lists is judged by the name. `scoping` returns the
    sandbox of commands for an environment, which may be this machine's."""
    environment = _place(case, machine)
    is_here = case.facts is None and environment.os_family == machine.os_family
    world = None if is_here else _Stated(case.facts or StatedFacts())
    scripts = scripts if is_here else None
    if tools.get(case.tool_name) is None:
        tools = Registry((*tools, *_spec_by_name(bundle, case.tool_name)))
    sandbox = None if scoping is None else scoping(environment, is_here)
    judge = Judge(
        bundle,
        environment,
        tools,
        limits,
        lambda: now,
        approved=approved,
        native=native,
        scripts=scripts,
        scoping=sandbox,
    )
    prepared = decide(judge, ToolCall("", case.tool_name, dict(case.arguments)), world)
    spec, refusal = prepared.spec, prepared.refusal
    if spec is None:
        meant = shapes.meant_name(case.tool_name, [one.name for one in tools])
        hint = "" if meant is None else f"; did you mean {meant}?"
        return deny("", _RULE, f"there is no tool {case.tool_name!r}{hint}")
    if prepared.decision is not None:
        return prepared.decision
    if refusal is not None and refusal.withheld is not None:
        return deny(spec.capability, refusal.withheld, f"{case.tool_name} is switched off")
    return deny(spec.capability, _RULE, "" if refusal is None else refusal.message)


def _spec_by_name(bundle: PolicyBundle, name: str) -> Iterator[ToolSpec]:
    """A backend tool known only from the bundle's list."""
    needed = CapabilityName.BACKEND_TOOL_INVOKE
    entry = bundle.capability(needed)
    if entry is not None and names_it(entry, name):
        yield ToolSpec(name, "", {}, needed, Subject("name"), "other", "requests", foreign_schema=True, elsewhere=True)


class _Stated(World):
    """The world of a case. The real path of a path is the stated one, else its spelling."""

    def __init__(self, facts: StatedFacts) -> None:
        self.facts = facts

    def path(
        self,
        spelled: str,
        environment: Environment,
        new_size_bytes: int | None,
        *,
        is_subject: bool = True,
        follow: bool = True,
        looks: bool = False,
    ) -> PathFacts | None:
        del looks  # nothing is looked at
        stated = self.facts if is_subject else StatedFacts()  # the stated facts are about the call's first path
        absolute = normalize(environment.absolute(spelled), environment.os_family)
        if not is_absolute(absolute, environment.os_family):
            return None
        exists = stated.exists if stated.exists is not None else stated.size_bytes is not None
        return PathFacts(
            spelled,
            absolute,
            absolute if stated.is_symlink and not follow else stated.real_path or absolute,
            stated.kind or ("file" if exists else "missing"),
            is_symlink=stated.is_symlink,
            size_bytes=stated.size_bytes,
            new_size_bytes=new_size_bytes,
        )

    def directory(self, spelled: str, environment: Environment) -> str:
        return normalize(spelled, environment.os_family, environment.workspace, environment.home)

    def real(self, path: str, environment: Environment) -> str:
        return self.facts.real_path or normalize(path, environment.os_family)

    def bare_name(self, program: str, environment: Environment) -> str | None:
        # A case states no PATH, so only the system's own programs are found.
        place, _, name = program.rpartition("/")
        return name if environment.os_family == "posix" and place in ("/bin", "/usr/bin") else None

    def addresses(self) -> tuple[str, ...]:
        return self.facts.resolved_addresses

    def script(
        self, skill: str, relative_path: str, environment: Environment, scripts: Scripts | None
    ) -> ScriptFacts | ToolError:
        del scripts  # from this disk: the skill is in the workspace, and its script's name determines the interpreter
        system = environment.os_family
        folder = normalize(f".agent/skills/{skill}", system, environment.workspace)
        spelled = normalize(relative_path, system, folder)
        try:
            argv = interpreter_of(b"", spelled.replace("\\", "/").rpartition("/")[2], system)
        except NoInterpreter as error:
            return ToolError(ErrorCode.INVALID_REQUEST, str(error))
        return ScriptFacts(skill, relative_path, folder, self.facts.real_path or spelled, argv)


def _place(case: DryRunCase, machine: Environment) -> Environment:
    system = case.os or machine.os_family
    native = system == machine.os_family
    shell = case.shell or (machine.shell if native else "cmd" if system == "windows" else "bash")
    workspace = case.cwd or (machine.workspace if native else "C:\\" if system == "windows" else "/")
    if native and case.facts is None:
        workspace = os.path.realpath(workspace)
    variables = case.env if case.env is not None else machine.environment if native and case.facts is None else None
    return Environment(workspace, case.home or (machine.home if native else None), system, shell, variables)


def _facts_of(raw: Mapping[str, Any]) -> StatedFacts:
    known = (raw.get("realPath"), raw.get("exists"), raw.get("sizeBytes"), bool(raw.get("isSymlink")))
    return StatedFacts(*known, raw.get("kind"), tuple(raw.get("resolvedAddresses") or ()))
