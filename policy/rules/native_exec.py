"""Programs started without a shell (NT): a list of absolute paths, each with rules for its arguments. A session's list
is the one here with the additions of the user's configuration; Shell.Exec must admit the call as well. Pure.

Files named by the arguments must be in the roots of the family, with links followed; options that read, write or start
something not named in them are denied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from policy import words
from policy.bundle import ArgumentRule, CommandPolicy
from policy.facts import CommandFacts
from policy.paths import is_absolute, is_under, normalize
from policy.rules import deny
from policy.rules.commands import argument_problem
from policy.shell.findings import SimpleCommand
from policy.shell.tables import STEERING_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from policy import Decision
    from policy.facts import OsFamily
    from policy.rules import Case, NativeExec

LIST: Final = "native.exec"
ROOTS: Final = "native roots"
MAX_ARGUMENTS: Final = 12
_ARGUMENT: Final = r"[\w\-./@=+:,]*"
_WITHOUT_FILES: Final = words("echo pwd sleep")
_WINDOWS_ENDINGS: Final = (".exe", ".com")
"""Windows starts everything else through a shell or another program."""


_RULES: Final = tuple(ArgumentRule(index, _ARGUMENT, optional=True) for index in range(MAX_ARGUMENTS))
DEFAULT: Final = tuple(
    CommandPolicy(f"{place}/{name}", most, _RULES[:most], additional_arguments=False)
    for name in ["ls", "pwd", "cat", "grep", "find", "head", "tail", "echo", "stat", "wc", "sleep"]
    for most in [{"pwd": 0, "sleep": 1}.get(name, MAX_ARGUMENTS)]
    for place in ["/bin", "/usr/bin"]
)


class _Refused(NamedTuple):
    """Options by whole words, by the beginnings that GNU programs take for a long option, and by letters."""

    words: frozenset[str] = frozenset()
    long: tuple[str, ...] = ()
    letters: str = ""


_WORDS_OF_FIND = words("-delete -exec -execdir -ok -okdir -fprint -fprint0 -fprintf -fls -files0-from -follow -L -H")
_REFUSED: Final = {
    "find": _Refused(_WORDS_OF_FIND),
    "grep": _Refused(long=("--file", "--dereference-recursive"), letters="fR"),
    "wc": _Refused(long=("--files0-from",)),
    "ls": _Refused(long=("--dereference-command-line-symlink-to-dir",), letters="LH"),
    "stat": _Refused(long=("--dereference",), letters="L"),
}


def _started_without_shell(case: Case) -> tuple[CommandFacts, NativeExec] | None:
    """The program, and the list that it is judged by; None for any other call."""
    facts, native = case.facts, case.terms.programs
    if native is None or not isinstance(facts, CommandFacts) or not facts.argv or facts.script is not None:
        return None
    return facts, native


def apply_program_list(case: Case, decision: Decision) -> Decision:
    """The list admits the program and its arguments (NT). It comes before the lists of Shell.Exec, because no other
    path or grant would let the program run."""
    started = _started_without_shell(case)
    problem = started and (_program_problem(*started, case.os) or _variable_problem(started[0]))
    return deny(case.capability, LIST, problem) if problem else decision


def apply_program_roots(case: Case, decision: Decision) -> Decision:
    """Require that the paths in a program's arguments are in the roots of its tools (NT)."""
    started = _started_without_shell(case)
    outside = started and _outside(started[0], started[1].roots, case.os)
    return deny(case.capability, ROOTS, outside) if outside else decision


def places_of(argv: tuple[str, ...], cwd: str, os: OsFamily) -> tuple[str, ...]:
    """Every absolute spelling of a path that an argument may be, or hold; nothing for programs that open none."""
    if _name(argv[0], os) in _WITHOUT_FILES and argv[0] in {policy.command for policy in DEFAULT}:
        return ()
    found = (normalize(part, os, cwd) for word in argv[1:] for part in _parts(word))
    return tuple(dict.fromkeys(found))


def _parts(word: str) -> Iterator[str]:
    if word.strip("-"):
        if not word.startswith("-"):
            yield word
        else:
            yield from filter(None, (word[2:], *(word[word.find(mark) :] for mark in "./" if mark in word)))
        _, equals, value = word.partition("=")
        if equals and value:
            yield value


def _program_problem(facts: CommandFacts, native: NativeExec, os: OsFamily) -> str | None:
    program, *arguments = facts.argv
    problem = path_problem(program, os)
    if problem is not None:
        return problem
    entries = [policy for policy in native.policies if _same(policy.command, program, os)]
    if not entries:
        known = ", ".join(dict.fromkeys(_name(policy.command, os) for policy in native.policies))
        return f"no list admits {program}; there are: {known}"
    command = SimpleCommand(program, tuple(arguments))
    problems = [argument_problem(policy, command) for policy in entries]
    if None not in problems:
        return f"{program}: {problems[0]}"
    refused = next((word for word in arguments if _is_refused(_name(program, os), word)), None)
    return None if refused is None else f"{program}: {refused} is not permitted"


def path_problem(program: str, os: OsFamily) -> str | None:
    """The reason why an entry of the list with this program admits nothing; None if it may admit the call."""
    if not is_absolute(program, os) or normalize(program, os) != program.replace("/", "\\" if os == "windows" else "/"):
        return f"{program} is not an absolute path without dots"
    if os == "windows" and not program.lower().endswith(_WINDOWS_ENDINGS):
        return f"{program} does not end in {' or '.join(_WINDOWS_ENDINGS)}"
    return None


def _variable_problem(facts: CommandFacts) -> str | None:
    steering = next((name for name in facts.variables if STEERING_VARIABLE.fullmatch(name)), None)
    return None if steering is None else f"the variable {steering} steers what programs start or load"


def _outside(facts: CommandFacts, roots: Iterable[str], os: OsFamily) -> str | None:
    for place in (facts.cwd, *places_of(facts.argv, facts.cwd, os)):
        real = facts.cwd if place == facts.cwd else facts.real_paths.get(place)
        if real is None or not any(is_under(normalize(real, os), root, os) for root in roots):
            return f"{place} is outside of the directories for tools: {', '.join(roots)}"
    return None


def _is_refused(name: str, word: str) -> bool:
    refused = _REFUSED.get(name)
    if refused is None or not word.startswith("-"):
        return False
    if word in refused.words:
        return True
    if word.startswith("--"):
        given = word.partition("=")[0]
        return given != "--" and any(option.startswith(given) for option in refused.long)
    return any(letter in word for letter in refused.letters)


def _same(one: str, other: str, os: OsFamily) -> bool:
    return one.replace("/", "\\").casefold() == other.replace("/", "\\").casefold() if os == "windows" else one == other


def _name(program: str, os: OsFamily) -> str:
    return program.replace("\\", "/").rpartition("/")[2].lower() if os == "windows" else program.rpartition("/")[2]


SCRIPTS: Final = "scripts"
_PLACE_RULE: Final = "builtin.scriptPlaces"
_RUNS_RULE: Final = "skills.max_script_runs"


def apply_script_rules(case: Case, decision: Decision) -> Decision:
    """Require that a skill's script really is in a directory for scripts, and that the number of runs is below the
    limit (SK 5.4)."""
    script = case.facts.script if isinstance(case.facts, CommandFacts) else None
    if script is None:
        return decision
    runs, most = case.terms.script_runs, case.terms.max_script_runs
    folder, path = normalize(f"{script.folder}/{SCRIPTS}", case.os), normalize(script.path, case.os)
    if path == folder or not is_under(path, folder, case.os):
        leads = f"{script.relative_path} leads to {script.path}"
        reason = f"{leads}, and the skill {script.skill} has its scripts in {folder}"
        return deny(case.capability, _PLACE_RULE, reason)
    if most is not None and runs >= most:
        reason = f"{runs} scripts have run in this task, and {_RUNS_RULE} is {most}"
        return deny(case.capability, _RUNS_RULE, reason)
    return decision
