"""Shell lines as values: every command in a line, what it redirects, and why a line can't be decided (AH 8.4).

The analysis answers for the whole line or says in `dynamic` why it can't; there is no limit behind which a part goes
unlooked at.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.facts import CommandFacts, ShellName
    from policy.shell.findings import ParsedCommand


Environment = tuple[tuple[str, str], ...]
"""Names of variables and what they hold, in order of the names."""


@lru_cache(maxsize=32)
def parse(command: str, shell: ShellName = "bash", environment: Environment = ()) -> ParsedCommand:
    """Read a line: the commands that it would run. Never raises for any text; the last few lines are remembered.
    `environment` has what is known of the variables that it reads."""
    from policy.shell.reader import Reader  # with it comes all that reads lines

    reader = Reader(dict(environment))
    if shell in {"cmd", "powershell"}:
        reader.read_windows(command, shell)
        return reader.result()
    reader.read(command, "posix" if shell == "sh" else "zsh" if shell == "zsh" else "bash", 0)
    return reader.result()


def parse_line(facts: CommandFacts) -> ParsedCommand:
    """The line of a call, with what is known of its environment."""
    return parse(facts.command, facts.shell, tuple(sorted(facts.environment.items())))


def paths_in_line(parsed: ParsedCommand, cwd: str, home: str | None) -> tuple[str, ...]:
    """Absolute spellings of every file that the line opens or hands to a program that changes files, and of the
    directory of each program that is a path. The caller resolves each with the file system (`..` after links, so not
    by spelling) and puts spelling → real path into `CommandFacts.real_paths`."""
    found: dict[str, None] = {}
    for one in parsed.files:
        found.update(dict.fromkeys(one.spellings(cwd, home)))
    for made in parsed.operands:
        for source in made.sources(cwd, home):
            found.update(dict.fromkeys((source, _parent(source))))
    for command in parsed.commands:
        found.update(dict.fromkeys(command.places(cwd, home)))
    return tuple(found)


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"


def is_link(facts: CommandFacts, path: str) -> bool:
    """True for a spelling whose last name may be a symbolic link."""
    real, above = facts.real_paths.get(path), facts.real_paths.get(_parent(path))
    name = path.rstrip("/").rpartition("/")[2]
    if name in {"", ".", ".."}:
        return False
    return real is None or above is None or real.rstrip("/") != f"{above.rstrip('/')}/{name}"


def real_path_of(facts: CommandFacts, spelling: str) -> str | None:
    """The real path of a spelling, None if nobody looked."""
    return facts.real_paths.get(spelling)
