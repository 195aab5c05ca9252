"""Limits of a skill in use (SK 3.1): its `allowed-tools`, as public skills write them, in each family.

`Read, Grep, Bash(git log:*)` admits the family's tools for reading and searching, and of commands those that begin with
`git log`. A name that no tool has admits nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from policy import words
from policy.facts import CommandFacts
from policy.rules import ToolLimit
from policy.shell import parse_line
from policy.shell.findings import SimpleCommand

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from policy import Decision
    from policy.facts import ScriptFacts
    from policy.rules import Case

ALWAYS: Final = words("load_skill ReadOutput")
"""Tools that a skill never takes away: reading another skill, and stored outputs of calls."""
_PUBLIC: Final = {
    "Read": words("ReadFile read_file cp__read_file"),
    "Write": words("WriteFile write_file cp__write_file"),
    "Edit": words("EditFile"),
    "MultiEdit": words("EditFile"),
    "Grep": words("Grep grep cp__grep"),
    "Glob": words("FindFiles ListDirectory list_dir cp__list_files cp__list_dir"),
    "LS": words("ListDirectory list_dir cp__list_dir"),
    "Bash": words("RunCommand CommandOutput StopCommand run_script cp__exec"),
    "WebFetch": words("HttpRequest network_request cp__fetch"),
}
"""The names of public skills, and the tools that they mean in each family."""
_COMMANDS: Final = _PUBLIC["Bash"]
_SCRIPT_TOOLS: Final = words("run_script")
_ANY: Final = ("*", ":*")
_BETWEEN: Final = "\0"
_ENTRY: Final = re.compile(r"([^()]+)(?:\((.*)\))?")


class SkillTools(NamedTuple):
    """The meaning of a skill's list: the limit, and the names in it that no tool has."""

    limit: ToolLimit
    unknown: tuple[str, ...]


def skill_tools(skill: str, allowed: Iterable[str], known: Collection[str]) -> SkillTools:
    """The limit of a skill's `allowed-tools`; tools called `known` exist in addition to those of the families."""
    tools: set[str] = set(ALWAYS)
    unknown: list[str] = []
    patterns: list[str] = []
    for entry in allowed:
        match = _ENTRY.fullmatch(entry)
        name, pattern = (entry, None) if match is None else (match[1], match[2])
        if pattern is not None and pattern.strip() in _ANY:
            pattern = None
        meant = _PUBLIC.get(name) or (frozenset({name}) if name in known else frozenset())
        if not meant or (pattern is not None and (name != "Bash" or "*" in pattern[:-1])):
            unknown.append(entry)
            continue
        tools |= meant
        if meant & _COMMANDS:
            patterns.append(pattern or "*")
    limit = ToolLimit(_source(skill), allowed=frozenset(tools), commands=tuple(patterns))
    return SkillTools(limit, tuple(unknown))


def _source(skill: str) -> str:
    return f"the skill {skill}"


def apply_skill_limits(case: Case, decision: Decision) -> Decision:
    """Deny a command that a skill in use does not name. A skill whose script is run is in use."""
    facts, limits = case.facts, case.terms.limits
    if not isinstance(facts, CommandFacts):
        return decision
    script = facts.script
    if script is not None and script.allowed_tools is not None:
        limits |= {skill_tools(script.skill, script.allowed_tools, _SCRIPT_TOOLS).limit}
    limited = sorted((limit for limit in limits if limit.commands is not None), key=lambda limit: limit.source)
    if not limited:
        return decision
    line = parse_line(facts)
    for limit in limited:
        why = None
        if line.dynamic:
            why = f"{limit.source} limits commands, and this line cannot be decided: {'; '.join(line.dynamic[:5])}"
        else:
            own = facts.script if facts.script is not None and limit.source == _source(facts.script.skill) else None
            beyond = next((one for one in line.commands if not _fits(one, limit.commands or (), own)), None)
            if beyond is not None:
                why = f"{limit.source} does not name {beyond.program or 'this command'} with these arguments"
        if why is not None:
            return decision._replace(decision="DENIED", reason=why, rule=limit.source, rule_id=None)
    return decision


def _fits(command: SimpleCommand, patterns: Sequence[str], own: ScriptFacts | None) -> bool:
    """True if a command is named; the `own` script from its folder, with its interpreter in front or without."""
    return _is_named(command, patterns) or (
        own is not None and any(_is_named(one, patterns) for one in _spell_as_instructed(command, own))
    )


def _spell_as_instructed(command: SimpleCommand, script: ScriptFacts) -> Iterator[SimpleCommand]:
    words = command.arguments
    if command.program is None or script.path not in words:
        return
    at = words.index(script.path)
    before, after = words[:at], words[at + 1 :]
    names = dict.fromkeys((command.program, (command.name or "").rstrip("0123456789.")))
    path = script.relative_path.removeprefix("./")
    for spelled in (path, f"./{path}", script.path):
        yield SimpleCommand(spelled, after)
        for name in names:
            yield SimpleCommand(name, (*before, spelled, *after))


def _is_named(command: SimpleCommand, patterns: Iterable[str]) -> bool:
    """True if a command matches one of the patterns: `git log:*` and anything after it, `npm run test*` and longer
    words, `*`, or the whole command. Words are compared as words: a quoted space does not separate them."""
    if command.program is None:
        return False
    given = _BETWEEN.join(("" if word is None else word) for word in (command.program, *command.arguments))
    has_unknown = any(word is None for word in command.arguments)
    for pattern in patterns:
        text = pattern.strip()
        if text == "" or text in _ANY:
            return True
        base = _BETWEEN.join(text.removesuffix("*").removesuffix(":").split())
        if not text.endswith("*"):
            if given == base and not has_unknown:
                return True
        elif text.endswith((":*", " *")):
            if given == base or given.startswith(base + _BETWEEN):
                return True
        elif given.startswith(base):
            return True
    return False
