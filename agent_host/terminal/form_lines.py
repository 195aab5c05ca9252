"""A server's question at a terminal: one line for each thing that is asked for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent_host.display_text import escape

if TYPE_CHECKING:
    from collections.abc import Sequence


class Field(Protocol):
    """One thing that is asked for; `agent_host.FormField` is one."""

    @property
    def name(self) -> str:
        """Its name in the answer."""
        ...

    @property
    def kind(self) -> str:
        """`string`, `integer`, `number`, `boolean`, `choice` or `choices`."""
        ...

    @property
    def title(self) -> str:
        """Its title, which may be empty."""
        ...

    @property
    def description(self) -> str:
        """Its description, which may be empty."""
        ...

    @property
    def required(self) -> bool:
        """True if it cannot be left out."""
        ...

    @property
    def choices(self) -> Sequence[tuple[str, str]]:
        """The values to choose from, each with its words."""
        ...

    @property
    def default(self) -> Any:
        """The answer of an empty line, None for none."""
        ...

    def problem(self, value: Any) -> str | None:
        """The problem with a value; None if it fits."""
        ...


class Question(Protocol):
    """A question of a server; `agent_host.Form` is one."""

    @property
    def source(self) -> str:
        """The server."""
        ...

    @property
    def url(self) -> str | None:
        """A page to open."""
        ...


_FLAGS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
DECLINES: Final = "!"
"""A line that takes the whole form back in the middle of it."""


def question_of(form: Question) -> str:
    """Lines before the fields, or instead of them if there is a page to open."""
    if form.url is not None:
        return "Open the page yourself, then y; n declines: "
    return f"Answer {form.source}? y answer, n decline ({DECLINES} declines later): "


def prompt_of(field: Field, problem: str) -> str:
    """The text before the answer; `problem` is what was wrong with the one before."""
    lines = [f"  {problem}\n"] if problem else []
    name = field.name if field.title in ("", field.name) else f"{field.title} ({field.name})"
    lines.append(f"  {name}{f': {field.description}' if field.description else ''}\n")
    lines += [f"    {number} {words}\n" for number, (_, words) in enumerate(field.choices, 1)]
    return escape(f"{''.join(lines)}  {_hint(field)}: ")


def _hint(field: Field) -> str:
    how = {"boolean": "y or n", "choice": "a number of the list", "choices": "numbers of the list, with blanks"}
    said = how.get(field.kind, {"integer": "a whole number", "number": "a number"}.get(field.kind, "a text"))
    if field.default is not None:
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        return f"{said}; nothing for {default}"
    return said if field.required else f"{said}; nothing to leave it out"


def take(field: Field, line: str, content: dict[str, Any]) -> str | None:
    """Take a line as the answer to `field` into `content`; what is wrong with it, None where it is taken."""
    text = line.strip()
    if not text:
        if field.default is not None:
            content[field.name] = field.default
            return None
        if not field.required:
            return None
    try:
        value = _value(field, text)
    except (ValueError, KeyError, IndexError):
        return f"{field.name} needs {_hint(field)}"
    problem = field.problem(value)
    if problem is None:
        content[field.name] = value
    return problem


def _value(field: Field, text: str) -> Any:
    if field.kind == "boolean":
        return _FLAGS[text.lower()]
    if field.kind == "integer":
        return int(text)
    if field.kind == "number":
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(text)
        return number
    if field.kind == "choice":
        return _chosen(field, text)
    if field.kind == "choices":
        return [_chosen(field, one) for one in text.split()]
    return text


def _chosen(field: Field, number: str) -> str:
    place = int(number) - 1
    if place < 0:
        raise IndexError(number)
    return field.choices[place][0]
