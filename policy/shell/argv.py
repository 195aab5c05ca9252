"""A program that is started without a shell, as a line that a shell would take for the very same: so one set of rules
judges both. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policy.facts import OsFamily

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_PLAIN_ON_WINDOWS = re.compile(r"[A-Za-z0-9_@+=:,./\\ -]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadArgv(ValueError):
    """Arguments of a call that name no program with arguments; the message says why."""


def argv_of(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The program and its arguments, from `command` and `args`. Raises BadArgv."""
    argv = (arguments.get("command"), *_check_list(arguments.get("args")))
    for word in argv:
        if not isinstance(word, str) or "\0" in word:
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
            raise BadArgv(f"argument 'env': {name[:100]!r} is no name of a variable with a text")
    return dict(given)


def line_of(argv: Sequence[str], variables: Mapping[str, str], os: OsFamily) -> str:
    """The line. Raises BadArgv for what no line of cmd says."""
    if os == "windows":
        # What else cmd would read in a word, inside quotes as well, cannot be written so that it means itself.
        odd = next((word for word in (*argv, *variables.values()) if not _PLAIN_ON_WINDOWS.fullmatch(word)), None)
        if odd is not None:
            raise BadArgv(f"on Windows an argument holds letters, digits and _@+=:,./\\- only, not {odd[:100]!r}")
        return " ".join(f'"{word}"' if not word or " " in word else word for word in argv)
    return " ".join([*(f"{name}={_quote(value)}" for name, value in variables.items()), *map(_quote, argv)])


def summary_of(arguments: Mapping[str, Any]) -> str:
    """The call in one line; empty where its arguments name no program."""
    try:
        return line_of(argv_of(arguments), {}, "posix")
    except BadArgv:
        return ""


def words_of(value: Any, name: str) -> tuple[str, ...]:
    """The strings in a list of the argument `name`; none where it is left out. Raises BadArgv."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise BadArgv(f"argument {name!r} must be a list of strings without null bytes")
    return tuple(value)


def summary_of_script(arguments: Mapping[str, Any]) -> str:
    """A call that runs a script of a skill in one line; empty where its arguments name none."""
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


def _check_list(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise BadArgv("argument 'args' must be a list")
    return value


# Which program runs a script: the one that its first line names, else the one for the ending of its name (SK 5.4.3).
# Pure.

MAX_FIRST_LINE_BYTES: Final = 255
"""Maximum length of the `#!` line that Linux reads."""
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
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


class NoInterpreter(ValueError):
    """Nothing says what runs the script; the message says why."""


def interpreter_of(first_line: bytes, name: str, os: OsFamily) -> tuple[str, ...]:
    """The program and what stands between it and the script: an absolute path, or a name that is looked up. `name` is
    that of the script's file. Raises NoInterpreter."""
    if first_line.startswith(b"#!"):
        return _words_of_line(first_line)
    ending = name[name.rfind(".") :] if "." in name else ""
    found = (_ON_WINDOWS.get(ending) if os == "windows" else None) or _BY_ENDING.get(ending)
    if found is None:
        raise NoInterpreter(f"{name} has no first line #!… and no ending that says what runs it")
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
    if not words or not all(map(_PLAIN_PATH.fullmatch, words)) or words[0].startswith("-") or "=" in words[0]:
        raise NoInterpreter(f"its first line gives env more than a program with plain arguments: {text!r}")
    return tuple(words)
