"""Shell lines as values: the commands of a line, its files and redirections, and why it cannot be decided (AH 8.4).

Policy judges a command line before a shell runs it, so it has to know what the line would start and which files it
would open, without starting anything. tree-sitter parses the line; the modules of this package turn its nodes into
words, the words into commands, and the commands into effects.

- `syntax` walks the parsed line: simple commands, redirections, loops, functions.
- `words` and `shown` read one word: what is certain of it, and the texts that it may be.
- `variables`, `arithmetic` and `assigned` follow values that the line itself sets.
- `effects` reads each command by its row in `policy.programs`: a program that starts another is unwrapped (`env`,
  `xargs`, `sudo`), one that runs text is read again as a line (`bash -c`), one that runs a file is noted as opaque.
- `file_effects` and `program_texts` find the files that a command reads, writes, deletes or makes.
- `undecidable` names constructs whose effect depends on the moment: the whole line is then dynamic.
- `reader` puts the parts together, for nested lines too, with the directories in which each may run.

Rules: the reading is conservative. What cannot be said is put into `dynamic` with the reason, and a rule that needs the
answer then denies. There is no limit after which a part of a line is left unread: a line that is too large or too
nested is dynamic as a whole. The same line gives the same answer on every machine, because all limits are counts and
none is a time. Reading is pure; real paths come in with the facts.

Traps: bash, dash and zsh differ (`undecidable` has the differences), and a line is judged for the shell that runs it.
The grammar sometimes skips text or splits it where a shell does not: `undecidable` and `syntax` look for that. A
bundle's lists consent to what a listed program starts, so an opaque command is not a hole but a decision of the bundle;
what holds the process is the sandbox (design, invariant 11).
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
