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


class Empty(NamedTuple):
    """Nothing."""


@pytest.mark.parametrize("wrong", [lambda of: of("a", (), 1), lambda of: of(title="a"), lambda of: of._make("abc")])
def test_what_does_not_fit_is_refused_in_the_same_words(wrong: typing.Callable[[type], object]) -> None:
    said = []
    for kind in (Lean, Usual):
        with pytest.raises(TypeError) as refused:
            wrong(kind)
        said.append(str(refused.value).replace("Usual", "Lean"))
    assert said[0] == said[1]
    with pytest.raises(ValueError, match="title"):
        Lean("a")._replace(title="b")  # type: ignore[call-arg]  # to be refused


def test_values_are_matched_by_their_places_and_none_is_needed() -> None:
    match Lean("a", (1, 2)):
        case Lean(name, (1, second)):
            assert (name, second) == ("a", 2)
    assert (repr(Empty()), tuple(Empty()), Empty._fields) == ("Empty()", (), ())


def test_a_value_can_be_copied_and_sent() -> None:
    lean = Lean("a", (1,))
    assert type(copy.deepcopy(lean)) is type(pickle.loads(pickle.dumps(lean))) is Lean


def test_what_a_class_says_of_itself() -> None:
    for name in ("_fields", "_field_defaults", "__doc__", "__module__"):
        assert getattr(Lean, name) == getattr(Usual, name)
    assert (Lean.__qualname__, Lean.__name__) == ("Lean", "Lean")
    assert typing.get_type_hints(Lean) == typing.get_type_hints(Usual)
