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
_STRING = r"""\s*=\s*(?:"[^"]*"|'[^']*')(?P<comment>\s*(?:#.*)?)"""
_CONTROLS = dict.fromkeys((127,), "\\u007f")


class NotEditable(ValueError):
    """The text is written in a way that no line can be changed by itself; the message has what to write there."""


def put_provider(text: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a configuration with this entry of `[providers]`, as the default, in place of one of the same
    name. Raises NotEditable, and tomllib.TOMLDecodeError for a text that is no TOML."""
    import tomllib

    before = tomllib.loads(text)
    header, *pairs = [f"[{PROVIDERS}.{_key(name)}]", *_pairs(entry)]
    default = f"default = {_value(name)}"
    lines = list(_put_entry(text.replace("\r\n", "\n").split("\n"), name, pairs))
    end = "\r\n" if "\r\n" in text else "\n"
    lines = _put_pair(lines, PROVIDERS, "default", default)
    while lines and not lines[-1].strip():
        lines.pop()
    if not any(_name_of(line) == (PROVIDERS, name) for line in lines):
        lines += ["", header, *pairs]
    after = end.join([*lines, ""])
    wanted = {**before, PROVIDERS: {**before.get(PROVIDERS, {}), "default": name, name: dict(entry)}}
    try:
        is_same = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise NotEditable("\n".join([f"[{PROVIDERS}]", default, "", header, *pairs]))
    return after


def put_setting(text: str, section: str, name: str, value: str) -> str:
    """Return the text of a configuration with this setting. Raises NotEditable, and tomllib.TOMLDecodeError."""
    import tomllib

    before = tomllib.loads(text)
    end = "\r\n" if "\r\n" in text else "\n"
    pair = f"{name} = {_value(value)}"
    lines = _put_pair(text.replace("\r\n", "\n").split("\n"), section, name, pair)
    while lines and not lines[-1].strip():
        lines.pop()
    after = end.join([*lines, ""])
    try:
        is_same = tomllib.loads(after) == {**before, section: {**before.get(section, {}), name: value}}
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise NotEditable("\n".join([f"[{section}]", pair]))
    return after


def _put_entry(lines: Sequence[str], name: str, pairs: Sequence[str]) -> Iterator[str]:
    """The lines with these ones in the section of one provider, whose comments stay, and without its own sections."""
    is_replaced = False
    for line in lines:
        header = _name_of(line)
        if header:
            is_replaced = header[:2] == (PROVIDERS, name)
        if header == (PROVIDERS, name):
            yield line
            yield from pairs
        elif not is_replaced or (not header and line.strip()[:1] in ("", "#")):
            yield line


def _put_pair(lines: list[str], section: str, name: str, pair: str) -> list[str]:
    """The lines with this pair in its section, in place of one of the same name, whose comment stays."""
    at = next((place for place, line in enumerate(lines) if _name_of(line) == (section,)), None)
    if at is None:
        while lines and not lines[-1].strip():
            lines.pop()
        return [*lines, *([""] if lines else []), f"[{section}]", pair]
    ends = next((place for place in range(at + 1, len(lines)) if _name_of(lines[place])), len(lines))
    for place in range(at + 1, ends):
        old = re.fullmatch(rf"\s*{re.escape(name)}{_STRING}", lines[place])
        if old is not None:
            return [*lines[:place], pair + old["comment"], *lines[place + 1 :]]
    return [*lines[: at + 1], pair, *lines[at + 1 :]]


def _name_of(line: str) -> tuple[str, ...]:
    """The name of the section that a line begins, in parts, () for any other line."""
    found = _HEADER.fullmatch(line)
    if found is None:
        return ()
    return tuple(part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', found["name"]))


def _pairs(entry: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{_value(one)} = {_value(text)}" for one, text in value.items())
            yield f"{key} = {{ {inner} }}"
        else:
            yield f"{key} = {_value(value)}"


def _value(value: str | float | bool) -> str:
    """A string or number as TOML writes it: JSON, but for one control character."""
    return json.dumps(value, ensure_ascii=False).translate(_CONTROLS)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)
