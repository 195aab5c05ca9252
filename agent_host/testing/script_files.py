"""Script files: TOML with `count_tokens`, `[vars]` and `[[turn]]`, or JSON lines with one turn a line."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.testing.script import ScriptError
from agent_host.testing.values import unknown_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FILE_KEYS = ("count_tokens", "turn", "vars")


class ScriptFile(NamedTuple):
    """A script file; variables and turns are not yet checked."""

    variables: Mapping[str, Any]
    turns: Sequence[Mapping[str, Any]]
    count_tokens: bool = False


def read_file(path: str) -> ScriptFile:
    """The content of a script file.

    Raises:
        ScriptError: the file cannot be read or is not well-formed.
    """
    readers = {".toml": _read_toml, ".jsonl": _read_json_lines}
    suffix = next((suffix for suffix in readers if path.endswith(suffix)), None)
    if suffix is None:
        raise ScriptError(f"{path}: a script's name must end in {' or '.join(readers)}")
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScriptError(f"{path}: is not UTF-8 at byte {error.start}") from None
    return readers[suffix](path, text)


def _read_toml(path: str, text: str) -> ScriptFile:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScriptError(f"{path}: is not TOML: {error}") from None
    for key in document:
        if key not in _FILE_KEYS:
            raise ScriptError(f"{path}: key {key!r} {unknown_key(key, _FILE_KEYS)}")
    variables, turns = document.get("vars", {}), document.get("turn", [])
    if not isinstance(variables, dict):
        raise ScriptError(f"{path}: key 'vars' must be a table: write [vars]")
    if not isinstance(turns, list):
        raise ScriptError(f"{path}: key 'turn' must be an array of tables: write [[turn]]")
    count_tokens = document.get("count_tokens", False)
    if not isinstance(count_tokens, bool):
        raise ScriptError(f"{path}: key 'count_tokens' must be true or false")
    return ScriptFile(variables, turns, count_tokens)


def _read_json_lines(path: str, text: str) -> ScriptFile:
    variables: dict[str, Any] = {}
    turns: list[Mapping[str, Any]] = []
    # Not str.splitlines: that splits at U+2028 too, which JSON allows inside a string.
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ScriptError(f"{path}: line {line_number} is not JSON: {error}") from None
        if not turns and not variables and isinstance(value, dict) and value.keys() == {"vars"}:
            if not isinstance(value["vars"], dict):
                raise ScriptError(f"{path}: line {line_number}: key 'vars' must be a table")
            variables = value["vars"]
        else:
            turns.append(value)
    return ScriptFile(variables, turns)
