"""Which program runs a script: the one that its first line names, else the one for the ending of its name (SK 5.4.3).
Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy.facts import OsFamily

MAX_FIRST_LINE_BYTES: Final = 255
"""What Linux reads of a first line."""
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
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


class NoInterpreter(ValueError):
    """Nothing says what runs the script; the message says why."""


def interpreter_of(first_line: bytes, name: str, os: OsFamily) -> tuple[str, ...]:
    """The program and what stands between it and the script: an absolute path, or a name that is looked up. `name` is
    that of the script's file. Raises NoInterpreter."""
    if first_line.startswith(b"#!"):
        return _named(first_line)
    ending = name[name.rfind(".") :] if "." in name else ""
    found = (_ON_WINDOWS.get(ending) if os == "windows" else None) or _BY_ENDING.get(ending)
    if found is None:
        raise NoInterpreter(f"{name} has no first line #!… and no ending that says what runs it")
    return found


def _named(first_line: bytes) -> tuple[str, ...]:
    line = first_line[2:].partition(b"\n")[0].rstrip(b"\r").decode("utf-8", "replace").strip(" \t")
    if len(first_line.partition(b"\n")[0]) > MAX_FIRST_LINE_BYTES:
        raise NoInterpreter(f"its first line has more than {MAX_FIRST_LINE_BYTES} bytes")
    program, *rest = line.split(None, 1) or [""]
    if _ENV.fullmatch(program):
        return _of_env(rest[0] if rest else "")
    if not program.startswith("/"):
        raise NoInterpreter(f"its first line names no absolute path: {line!r}")
    return (program, *rest)  # the system takes all that follows for one argument


def _of_env(text: str) -> tuple[str, ...]:
    """What `env` starts: one word, with -S several."""
    split = re.fullmatch(r"(?:-S|--split-string[= ])\s*(.*)", text)
    words = split[1].split() if split is not None else [text]
    if not words or not all(map(_PLAIN.fullmatch, words)) or words[0].startswith("-") or "=" in words[0]:
        raise NoInterpreter(f"its first line gives env more than a program with plain arguments: {text!r}")
    return tuple(words)
