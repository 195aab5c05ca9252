"""`typing.NamedTuple` for modules that every start imports.

The one in `typing` compiles each annotation of each field, although they are text and nothing here reads them, and it
compiles a constructor for each class. For the two hundred classes of a start that takes longer than starting a bare
interpreter. Here classes with the same number of fields share the code of one constructor, with the names of their own
fields.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter
    from types import CodeType, FunctionType

    _GLOBALS = {"_new": tuple.__new__, "__builtins__": {}, "__name__": __name__}
    _codes: dict[int, CodeType] = {}

    def _constructor(name: str, fields: tuple[str, ...], defaults: tuple[object, ...]) -> FunctionType:
        """Return `__new__` of the class `name` with these fields; `defaults` belong to the last fields."""
        code = _codes.get(len(fields))
        if code is None:
            names = ", ".join(f"_{place}" for place in range(len(fields)))
            made = eval(f"lambda _cls, {names}: _new(_cls, ({names}{',' if names else ''}))")  # noqa: S307  our text
            code = _codes[len(fields)] = made.__code__
        code = code.replace(co_varnames=("_cls", *fields), co_name="__new__", co_qualname=f"{name}.__new__")
        return FunctionType(code, _GLOBALS, "__new__", defaults)

    class _MakesNamedTuples(type):
        """Turn a class body of fields, defaults and methods into the named tuple that it describes."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            given = {field: body[field] for field in fields if field in body}
            body |= {field: _tuplegetter(place, "") for place, field in enumerate(fields)}
            body |= {"__slots__": (), "_fields": fields, "_field_defaults": given, "__match_args__": fields}
            body["__new__"] = _constructor(name, fields, tuple(given.values()))
            return type(name, (_NamedValues,), body)

    class _NamedValues(tuple):
        """Methods of every named tuple, the same as those of `collections.namedtuple`."""

        __slots__ = ()

        @classmethod
        def _make(cls, values: object) -> _NamedValues:
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **values: object) -> _NamedValues:
            made = self._make(map(values.pop, self._fields, self))
            if values:
                raise ValueError(f"Got unexpected field names: {list(values)!r}")
            return made

        __replace__ = _replace

        def _asdict(self) -> dict[str, object]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            values = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{self.__class__.__name__}({values})"

        def __getnewargs__(self) -> tuple[object, ...]:
            return tuple(self)

    class NamedTuple(metaclass=_MakesNamedTuples):
        """See `typing.NamedTuple`; Generic is not supported, and annotations stay text."""
