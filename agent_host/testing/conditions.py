"""Conditions on a request: what `when` matches on and `expect` insists on, one table for both.

Each row knows how to read its value from the script and how to say what a request lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_host.testing.values import boolean, natural, pattern, positions, string, strings, table_of
from config.shapes import FLAG, TEXT, AnyOf

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

    from agent_host.testing.dialect import RequestView

_EXCERPT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a `when` or `expect` table with its value as read by the row of `CONDITIONS`."""

    key: str
    value: Any

    def miss(self, view: RequestView) -> str | None:
        """None when `view` meets the condition, else the difference in words."""
        return CONDITIONS[self.key].miss(self.value, view)

    def met(self, view: RequestView) -> bool:
        """True if `view` meets the condition."""
        return self.miss(view) is None


@dataclass(frozen=True, slots=True)
class ConditionKind:
    """How one condition is read (raises `values.BadValue`) and judged (None means met)."""

    read: Callable[[Any], Any]
    miss: Callable[[Any, RequestView], str | None]


def _equals(field: str) -> Callable[[Any, RequestView], str | None]:
    def miss(wanted: Any, view: RequestView) -> str | None:
        found = getattr(view, field)
        return None if found == wanted else f"is {found!r}, wanted {wanted!r}"

    return miss


def _contains(field: str) -> Callable[[tuple[str, ...], RequestView], str | None]:
    def miss(wanted: tuple[str, ...], view: RequestView) -> str | None:
        found: str = getattr(view, field)
        lacking = [part for part in wanted if part not in found]
        return f"lacks {_listed(lacking)} in {_excerpt(found)}" if lacking else None

    return miss


def _last_matches(wanted: re.Pattern[str], view: RequestView) -> str | None:
    return None if wanted.search(view.last_text) else f"{wanted.pattern!r} finds nothing in {_excerpt(view.last_text)}"


def _last_images(wanted: tuple[str, ...], view: RequestView) -> str | None:
    found = view.last_images
    return None if found == wanted else f"is {_listed(found) or 'none'}, wanted {_listed(wanted) or 'none'}"


def _offered(wanted: tuple[str, ...], view: RequestView) -> str | None:
    lacking = [name for name in wanted if name not in view.tools]
    return f"lacks {_listed(lacking)}; offered: {_listed(view.tools) or 'none'}" if lacking else None


def _not_offered(unwanted: tuple[str, ...], view: RequestView) -> str | None:
    found = [name for name in unwanted if name in view.tools]
    return f"offered all the same: {_listed(found)}" if found else None


def _position(wanted: tuple[int, ...], view: RequestView) -> str | None:
    return None if view.position + 1 in wanted else f"is {view.position + 1}, wanted {' or '.join(map(str, wanted))}"


def _headers(wanted: Mapping[str, str | bool], view: RequestView) -> str | None:
    problems = []
    for name, value in wanted.items():
        found = view.headers.get(name.lower())
        met = (found is not None) is value if isinstance(value, bool) else found == value
        if not met:
            # A header may hold a secret: its value is shown only beside the value that the script spells out.
            shown = "absent" if found is None else "present" if isinstance(value, bool) else repr(found)
            problems.append(f"{name} is {shown}, wanted {_wanted_header(value)}")
    return "; ".join(problems) or None


def _wanted_header(value: str | bool) -> str:
    return repr(value) if isinstance(value, str) else "present" if value else "absent"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)


def _excerpt(text: str) -> str:
    """`text` as a literal, its end kept when it is long: test runners and compilers sum up at the end."""
    if len(text) <= _EXCERPT_CHARS:
        return repr(text)
    return f"...{text[-_EXCERPT_CHARS:]!r} ({len(text)} characters)"


CONDITIONS: Mapping[str, ConditionKind] = {
    "session": ConditionKind(string, _equals("session")),
    "model": ConditionKind(string, _equals("model")),
    "max_tokens": ConditionKind(natural, _equals("max_tokens")),
    "stream": ConditionKind(boolean, _equals("stream")),
    "position": ConditionKind(positions, _position),
    "message_count": ConditionKind(natural, _equals("message_count")),
    "system_contains": ConditionKind(strings, _contains("system")),
    "last_role": ConditionKind(string, _equals("last_role")),
    "last_contains": ConditionKind(strings, _contains("last_text")),
    "last_matches": ConditionKind(pattern, _last_matches),
    "last_tool_error": ConditionKind(boolean, _equals("last_tool_error")),
    "last_images": ConditionKind(strings, _last_images),
    "image_count": ConditionKind(natural, _equals("image_count")),
    "tools": ConditionKind(strings, _offered),
    "tools_absent": ConditionKind(strings, _not_offered),
    "headers": ConditionKind(table_of(AnyOf(TEXT, FLAG)), _headers),
}
