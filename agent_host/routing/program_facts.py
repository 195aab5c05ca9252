"""The facts of programs that start without a shell: native programs and scripts of skills (NT, SK 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from agent_host.contracts import ToolError
from agent_host.routing.facts import UnusableArguments
from policy.facts import CommandFacts
from policy.paths import normalize
from policy.rules.native_exec import places_of
from policy.shell.argv import BadArgv, argv_of, line_of, variables_of, words_of
from policy.shell.commands import parsed_line, referenced_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.routing.environment import Environment
    from agent_host.routing.facts import World
    from policy.facts import ScriptFacts, ShellName

_RUN = "run"
"""Stands for the directory of a run, whose name is made when it starts."""


class Scripts(Protocol):
    """The scripts of the skills on this machine."""

    @property
    def sandbox(self) -> str:
        """The real path of the directory in which each run of a script has one of its own."""
        ...

    @property
    def max_runs(self) -> int:
        """How many run in a task."""
        ...

    def look_up(self, skill: str, relative_path: str) -> ScriptFacts | ToolError:
        """A script, or why there is none that could run."""
        ...


def program_facts(arguments: Mapping[str, Any], environment: Environment, world: World) -> CommandFacts:
    """A program that is started without a shell: as the line that would start the same, with the program's bare name
    where the shell would find this very file by it."""
    os_family = environment.os_family
    asked = arguments.get("working_dir") or environment.workspace
    if not isinstance(asked, str) or "\0" in asked:
        raise UnusableArguments("argument 'working_dir' must be a string without a null byte")
    try:
        argv, variables = argv_of(arguments), variables_of(arguments)
        line = line_of((world.bare_name(argv[0], environment) or argv[0], *argv[1:]), variables, os_family)
    except BadArgv as error:
        raise UnusableArguments(str(error)) from error
    cwd = world.directory(asked, environment)
    shell: ShellName = "cmd" if os_family == "windows" else "sh"
    facts = CommandFacts(line, cwd, shell, environment.home, argv=argv, variables=tuple(variables))
    paths = {*referenced_paths(parsed_line(facts), cwd, environment.home), *places_of(argv, cwd, os_family)}
    return facts._replace(real_paths={path: world.real(path, environment) for path in sorted(paths)})


def script_facts(
    skill: str,
    relative_path: str,
    arguments: Mapping[str, Any],
    environment: Environment,
    world: World,
    scripts: Scripts | None,
) -> CommandFacts:
    """A script of a skill: the program that runs it, as the line that would start it so. Each run has a directory of
    its own, whose name is made when it starts: `_RUN` stands for it."""
    found = world.script(skill, relative_path, environment, scripts)
    if isinstance(found, ToolError):
        raise UnusableArguments(found.message, found.code)
    os_family = environment.os_family
    try:
        args = words_of(arguments.get("args"), "args")
        argv = (*found.argv, found.path, *args)
        program = world.bare_name(argv[0], environment) or argv[0]
        line = line_of((program, *argv[1:]), {}, os_family)
    except BadArgv as error:
        raise UnusableArguments(str(error)) from error
    in_skill = arguments.get("cwd") == "skill"
    sandbox = environment.workspace if scripts is None else scripts.sandbox
    cwd = found.folder if in_skill else normalize(_RUN, os_family, sandbox)
    shell: ShellName = "cmd" if os_family == "windows" else "sh"
    facts = CommandFacts(line, cwd, shell, environment.home, argv=argv, script=found)
    paths = sorted(referenced_paths(parsed_line(facts), cwd, environment.home))
    return facts._replace(real_paths={path: world.real(path, environment) for path in paths})
