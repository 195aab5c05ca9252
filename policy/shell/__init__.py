"""Shell lines as values: the commands of a line, its files and redirections, and the reasons why it is undecidable (AH
8.4).

Policy judges a command line before a shell runs it, so it needs the programs that the line would start and the files
that it would open, without starting anything. tree-sitter parses the line; the modules of this package turn its nodes
into words, the words into commands, and the commands into effects.

- `syntax` walks the parsed line: simple commands, redirections, loops, functions.
- `words` and `shown` read one word: its certain value, or its possible values.
- `variables`, `arithmetic` and `assigned` follow values that the line itself sets.
- `effects` reads each command by its row in `policy.programs`: a program that starts another is unwrapped (`env`,
  `xargs`, `sudo`), one that runs text is read again as a line (`bash -c`), one that runs a file is noted as opaque.
- `file_effects` and `program_texts` find the files that a command reads, writes, deletes or makes.
- `undecidable` names constructs whose effect depends on the run: the whole line is then dynamic.
- `reader` combines the parts, for nested lines too, with the directories in which each may run.

Rules: the reading is conservative. Unknown effects are added to `dynamic` with the reason, and a rule that needs the
answer then denies. No part of a line is left unread after a limit: a line that is too large or too nested is dynamic as
a whole. The same line gives the same answer on every machine, because all limits are counts and none is a time. Reading
is pure; real paths are part of the facts.

Traps: bash, dash and zsh differ (`undecidable` has the differences), and a line is judged for the shell that runs it.
The grammar sometimes skips text or splits it where a shell does not: `undecidable` and `syntax` look for that. A
bundle's lists consent to whatever a listed program starts, so an opaque command is not a hole but a decision of the
bundle; the sandbox limits the process (design, invariant 11).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.facts import CommandFacts, OsFamily, ShellName
    from policy.shell.findings import ParsedCommand


Environment = tuple[tuple[str, str], ...]


@lru_cache(maxsize=32)
def parse(command: str, shell: ShellName = "bash", environment: Environment = ()) -> ParsedCommand:
    """Read a line: the commands that it would run. Raises for no text; caches the last few lines. `environment` has the
    known variables that it reads."""
    from policy.shell.reader import Reader  # with it comes all that reads lines

    reader = Reader(dict(environment))
    if shell in {"cmd", "powershell"}:
        reader.read_windows(command, shell)
        return reader.result()
    reader.read(command, "posix" if shell == "sh" else "zsh" if shell == "zsh" else "bash", 0)
    return reader.result()


def parse_line(facts: CommandFacts) -> ParsedCommand:
    """The line of a call, with its known environment."""
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


# A program that is started without a shell, as a line that a shell would take for the very same: so one set of rules
# judges both. Pure.


_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_PLAIN_ON_WINDOWS = re.compile(r"[A-Za-z0-9_@+=:,./\\ -]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadArgv(ValueError):
    """Arguments of a call that name no program with arguments; the message is the reason."""


def argv_of(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The program and its arguments, from `command` and `args`. Raises BadArgv."""
    args = arguments.get("args")
    if args is not None and not isinstance(args, list | tuple):
        raise BadArgv("argument 'args' must be a list")
    argv = (arguments.get("command"), *(args or ()))
    if not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise BadArgv("arguments 'command' and 'args' must be strings without null bytes")
    if not argv[0]:
        raise BadArgv("argument 'command' must be a non-empty string")
    return tuple(map(str, argv))


def variables_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The variables that the call adds to the program's environment. Raises BadArgv."""
    given = arguments.get("env") or {}
    if not isinstance(given, dict):
        raise BadArgv("argument 'env' must be an object")
    for name, value in given.items():
        if _VARIABLE.fullmatch(name) is None or not isinstance(value, str) or "\0" in value:
            raise BadArgv(f"argument 'env': {name[:100]!r} is not the name of a variable with a text")
    return dict(given)


def line_of(argv: Sequence[str], variables: Mapping[str, str], os: OsFamily) -> str:
    """The line. Raises BadArgv for arguments that a line of cmd cannot express."""
    if os == "windows":
        # What else cmd would read in a word, inside quotes as well, cannot be written so that it means itself.
        invalid = next((word for word in (*argv, *variables.values()) if not _PLAIN_ON_WINDOWS.fullmatch(word)), None)
        if invalid is not None:
            raise BadArgv(f"on Windows an argument holds letters, digits and _@+=:,./\\- only, not {invalid[:100]!r}")
        return " ".join(f'"{word}"' if not word or " " in word else word for word in argv)
    return " ".join([*(f"{name}={_quote(value)}" for name, value in variables.items()), *map(_quote, argv)])


def summary_of(arguments: Mapping[str, Any]) -> str:
    """The call in one line; empty if its arguments name no program."""
    try:
        return line_of(argv_of(arguments), {}, "posix")
    except BadArgv:
        return ""


def words_of(value: Any, name: str) -> tuple[str, ...]:
    """The strings in the list argument `name`; none if it is omitted. Raises BadArgv."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise BadArgv(f"argument {name!r} must be a list of strings without null bytes")
    return tuple(value)


def summary_of_script(arguments: Mapping[str, Any]) -> str:
    """A call that runs a script of a skill in one line; empty if its arguments name none."""
    skill, path = arguments.get("skill"), arguments.get("relative_path")
    try:
        words = words_of(arguments.get("args"), "args")
    except BadArgv:
        return ""
    if not isinstance(skill, str) or not isinstance(path, str):
        return ""
    return " ".join(map(_quote, (f"{skill}/{path}", *words)))


def _quote(word: str) -> str:
    if _PLAIN.fullmatch(word) and not word.startswith("=") and "=" not in word.partition("/")[0]:
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


# Which program runs a script: the one that its first line names, else the one for the ending of its name (SK 5.4.3).
# Pure.

MAX_FIRST_LINE_BYTES: Final = 255
_BY_ENDING: Final[Mapping[str, tuple[str, ...]]] = {
    ".py": ("python3",),
    ".sh": ("sh",),
    ".bash": ("bash",),
    ".zsh": ("zsh",),
    **dict.fromkeys((".js", ".mjs", ".cjs"), ("node",)),
    ".ts": ("deno", "run"),
    ".rb": ("ruby",),
    ".pl": ("perl",),
    ".php": ("php",),
    ".lua": ("lua",),
    **dict.fromkeys((".r", ".R"), ("Rscript",)),
    ".jl": ("julia",),
    ".ps1": ("pwsh", "-NoProfile", "-File"),
}
_ON_WINDOWS: Final[Mapping[str, tuple[str, ...]]] = {".py": ("python",), ".ps1": ("powershell", "-NoProfile", "-File")}
_ENV: Final = re.compile(r"(?:/usr)?/bin/env")


class NoInterpreter(ValueError):
    """The script's interpreter is unknown; the message is the reason."""


def interpreter_of(first_line: bytes, name: str, os: OsFamily) -> tuple[str, ...]:
    """The program and its arguments before the script `name`, which is a path or a name. Raises NoInterpreter."""
    if first_line.startswith(b"#!"):
        return _words_of_line(first_line)
    ending = name[name.rfind(".") :] if "." in name else ""
    found = (_ON_WINDOWS.get(ending) if os == "windows" else None) or _BY_ENDING.get(ending)
    if found is None:
        raise NoInterpreter(f"{name} has no first line #!… and no known ending")
    return found


def _words_of_line(first_line: bytes) -> tuple[str, ...]:
    line = first_line[2:].partition(b"\n")[0].rstrip(b"\r").decode("utf-8", "replace").strip(" \t")
    if len(first_line.partition(b"\n")[0]) > MAX_FIRST_LINE_BYTES:
        raise NoInterpreter(f"its first line has more than {MAX_FIRST_LINE_BYTES} bytes")
    program, *rest = line.split(None, 1) or [""]
    if _ENV.fullmatch(program):
        return _words_of_env(rest[0] if rest else "")
    if not program.startswith("/"):
        raise NoInterpreter(f"its first line names no absolute path: {line!r}")
    return (program, *rest)  # the system takes all that follows for one argument


def _words_of_env(text: str) -> tuple[str, ...]:
    """The words that `env` starts: one word, with -S several."""
    split = re.fullmatch(r"(?:-S|--split-string[= ])\s*(.*)", text)
    words = split[1].split() if split is not None else [text]
    if not words or not all(map(_PLAIN.fullmatch, words)) or words[0].startswith("-") or "=" in words[0]:
        raise NoInterpreter(f"its first line gives env more than a program with plain arguments: {text!r}")
    return tuple(words)
