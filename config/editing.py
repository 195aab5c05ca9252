"""Changes to the text of a user's configuration, which keep every other line and comment as it was."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from config.settings import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DEFAULT = re.compile(r"\s*default\s*=")


class NotEditable(ValueError):
    """The text is written in a way that no line can be changed by itself; the message has what to write there."""


def put_provider(text: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a configuration with this entry of `[providers]`, as the default, in place of one of the same
    name. Raises NotEditable, and tomllib.TOMLDecodeError for a text that is no TOML."""
    import tomllib

    before = tomllib.loads(text)
    section = [f"[{PROVIDERS}.{_key(name)}]", *_pairs(entry)]
    default = f"default = {json.dumps(name)}"
    lines = list(_without(text.splitlines(), name))
    while lines and not lines[-1].strip():
        lines.pop()
    at = next((place for place, line in enumerate(lines) if _name_of(line) == (PROVIDERS,)), None)
    if at is None:
        lines += ["", f"[{PROVIDERS}]", default] if lines else [f"[{PROVIDERS}]", default]
    else:
        ends = next((place for place in range(at + 1, len(lines)) if _name_of(lines[place])), len(lines))
        old = next((place for place in range(at + 1, ends) if _DEFAULT.match(lines[place])), None)
        lines[at + 1 if old is None else old : at + 1 if old is None else old + 1] = [default]
    after = "\n".join([*lines, "", *section, ""])
    wanted = {**before, PROVIDERS: {**before.get(PROVIDERS, {}), "default": name, name: dict(entry)}}
    try:
        is_same = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise NotEditable("\n".join(["[providers]", default, "", *section]))
    return after


def _without(lines: Sequence[str], name: str) -> Iterator[str]:
    """The lines without the section of one provider and its own sections."""
    is_left_out = False
    for line in lines:
        header = _name_of(line)
        if header:
            is_left_out = header[:2] == (PROVIDERS, name)
        if not is_left_out:
            yield line


def _name_of(line: str) -> tuple[str, ...]:
    """The name of the section that a line begins, in parts, () for any other line."""
    found = _HEADER.fullmatch(line)
    if found is None:
        return ()
    return tuple(part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', found["name"]))


def _pairs(entry: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{json.dumps(one)} = {json.dumps(text)}" for one, text in value.items())
            yield f"{key} = {{ {inner} }}"
        else:
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)
