"""Placeholders in scripts: `${name}` is filled in, `$${` stands for a plain `${`, anything else is left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

T = TypeVar("T")

BUILT_IN = frozenset({"turn"})
"""Names that the gateway knows by itself: `turn` is the number of assistant messages before this answer."""

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def names_in(value: object) -> Iterator[str]:
    """Every placeholder name in the strings of `value`, however deep."""
    if isinstance(value, str):
        yield from (match[1] for match in _PLACEHOLDER.finditer(value) if match[1])
    else:
        for part in _parts(value):
            yield from names_in(part)


def fill(value: T, variables: Mapping[str, str]) -> T:
    """`value` with its placeholders filled. Table keys and compiled patterns stay as they are.

    Raises:
        KeyError: a placeholder's name is not in `variables`.
    """
    return cast("T", _fill(value, variables))


def _fill(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        if "$" not in value:
            return value
        return _PLACEHOLDER.sub(lambda match: variables[match[1]] if match[1] else "${", value)
    if isinstance(value, Mapping):
        return {key: _fill(part, variables) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_fill(part, variables) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _fill(getattr(value, field.name), variables) for field in fields(value)})
    return value


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (tuple, list)):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name) for field in fields(value))
