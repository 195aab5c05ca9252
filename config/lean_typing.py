"""`typing.NamedTuple` for modules that every start imports.

That of `typing` compiles each annotation of each field, though they are text by then and nothing here reads them. For
the hundred values of a start that is as much as a bare interpreter takes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple

    class _MakesNamedTuples(type):
        """Turns a class body of fields, defaults and methods into the named tuple that it describes."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body.pop("__module__"))
            made.__annotations__ = fields
            for key, value in body.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_MakesNamedTuples):
        """See `typing.NamedTuple`; no Generic, and annotations stay the text that they are."""
