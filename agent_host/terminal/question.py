"""An approval in lines for a person, from the payload of `approval_requested`: `run` and `chat` show the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.display_text import escape
from agent_host.terminal.style import BOLD, DIFF_COLOURS
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Details that have a line of their own, in this order.
_PLAIN_FIELDS: Final = (
    ("command", "command"),
    ("cwd", "in"),
    ("path", "path"),
    ("requestedPath", "asked for as"),
    ("newPath", "moved to"),
    ("method", "method"),
    ("url", "url"),
    ("host", "host"),
    ("saveTo", "saved to"),
    ("bodyFile", "sends"),
    ("note", "note"),
    ("source", "asked by"),
    ("question", "question"),
    ("stdin", "stdin"),
    ("body", "body"),
    ("start", "begins with"),
    ("otherArguments", "arguments"),
)
_LISTS: Final = (
    ("writes", "writes"),
    ("deletes", "deletes"),
    ("reads", "reads"),
    ("hosts", "reaches"),
    ("doubts", "in doubt"),
    ("runs", "runs"),
)
_NOT_SHOWN: Final = (("segmentsNotShown", "programs"), ("headersNotShown", "headers"))
_UNKNOWN: Final = "(known when it runs)"
_CUT_MARK: Final = "[… "
_ENDS_CUT: Final = "…"


class QuestionLine(NamedTuple):
    """One line, escaped; `colour` is the style that it has where styles are wanted, `indent` where it begins again when
    it is wrapped."""

    text: str
    colour: str = ""
    indent: int = 0


def lines_of_question(payload: Mapping[str, Any]) -> Iterator[QuestionLine]:
    """The question. All text of the model is escaped in it."""
    details = dict(payload["details"])
    yield QuestionLine(escape(f"{payload['title']}: {payload['actionSummary']}", keep=""), BOLD)
    if payload["description"] and payload["description"] != details.get("question"):
        yield from _field("why", payload["description"])
    risks = "".join(f"; {risk}" for risk in payload["risks"])
    yield from _field("risk", f"{payload['riskLevel']}{risks}")
    grant = details.get("sandboxGrant") or {}
    for line in grant.get("opens", ()):
        yield from _field("opens", line)
    if grant:
        yield from _field("since", grant["reason"])
    for name, label in _PLAIN_FIELDS:
        if isinstance(details.get(name), str):
            yield from _field(label, details[name])
    yield from _lines_of_lists(details)
    for line in str(details.get("diff", "")).splitlines():
        yield QuestionLine(f"  {escape(line, keep='')}", DIFF_COLOURS.get(line[:1], ""), 3)


def _lines_of_lists(details: Mapping[str, Any]) -> Iterator[QuestionLine]:
    segments = details.get("segments") or []
    lines = [
        " ".join(_UNKNOWN if word is None else word for word in (one["program"], *one["arguments"])) for one in segments
    ]
    for line in lines if lines != [details.get("command")] else ():
        yield from _field("runs", line)
    for name, label in _LISTS:
        for one in details.get(name) or []:
            yield from _field(label, _UNKNOWN if one is None else one)
    for one in details.get("headers") or []:
        yield from _field("header", f"{one['name']}: {one.get('value', '(not shown)')}")
    for name, label in _NOT_SHOWN:
        if details.get(name):
            yield from _field(label, f"{_CUT_MARK}{details[name]} more are not shown]")


def _field(label: str, text: str) -> Iterator[QuestionLine]:
    first, *rest = escape(text).split("\n")
    yield QuestionLine(f"  {label + ':':<10} {first}", indent=13)
    for line in rest:
        yield QuestionLine(f"{'':<13}{line}", indent=13)


def hides_something(payload: Mapping[str, Any]) -> bool:
    """True if the question does not show all of the call, which it marks: something was cut, is binary or too large to
    compare."""
    details = payload["details"]
    has_hidden_header = any("value" not in one for one in details.get("headers", ()))
    return (
        has_hidden_header
        or any(details.get(name) for name, _ in _NOT_SHOWN)
        or "binary" in details
        or _has_cut(details)
    )


def _has_cut(value: Any) -> bool:
    if isinstance(value, str):
        return value.endswith(_ENDS_CUT) or _CUT_MARK in value
    if isinstance(value, dict):
        note = value.get("note")
        return isinstance(note, str) or any(map(_has_cut, value.values()))
    return isinstance(value, list) and any(map(_has_cut, value))
