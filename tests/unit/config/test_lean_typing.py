"""Named tuples of `config.lean_typing` are those of `typing`, but for annotations."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from config.lean_typing import NamedTuple


class Lean(NamedTuple):
    """A value."""

    name: str
    sizes: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Of the sizes."""
        return sum(self.sizes)

    @classmethod
    def of(cls, *sizes: int) -> Lean:
        """Without a name."""
        return cls("", sizes)


class Usual(typing.NamedTuple):
    """A value."""

    name: str
    sizes: tuple[int, ...] = ()


def test_values_are_made_changed_and_compared_as_usual() -> None:
    lean, usual = Lean("a", (1, 2)), Usual("a", (1, 2))
    assert tuple(lean) == tuple(usual) == ("a", (1, 2))
    assert hash(lean) == hash(usual)
    assert tuple(lean._replace(name="b")) == tuple(usual._replace(name="b"))
    assert lean._asdict() == usual._asdict()
    assert repr(lean) == repr(usual).replace("Usual", "Lean")
    assert (Lean("a").sizes, Lean(sizes=(3,), name="x").total) == ((), 3)
    assert Lean.of(1, 2).total == 3
    assert isinstance(lean, tuple)
    with pytest.raises(AttributeError):
        Lean("a").name = "b"  # type: ignore[misc]  # to be refused
    with pytest.raises(TypeError, match="name"):
        Lean()  # type: ignore[call-arg]  # to be refused


def test_a_value_can_be_copied_and_sent() -> None:
    lean = Lean("a", (1,))
    assert type(copy.deepcopy(lean)) is type(pickle.loads(pickle.dumps(lean))) is Lean


def test_what_a_class_says_of_itself() -> None:
    for name in ("_fields", "_field_defaults", "__doc__", "__module__"):
        assert getattr(Lean, name) == getattr(Usual, name)
    assert (Lean.__qualname__, Lean.__name__) == ("Lean", "Lean")
    assert typing.get_type_hints(Lean) == typing.get_type_hints(Usual)
