"""What is wrong with a bundle, in words for the one who wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Problem(NamedTuple):
    """One thing that is wrong: where (`capabilities[2].allowedPaths`, empty for the whole), what, and what may help."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.path or 'the bundle'}: {self.message}{hint}"


class BundleProblems(ValueError):
    """A bundle that is refused; `problems` lists everything that is wrong with it, in the order of the document."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def together(of_types: Iterable[Problem], of_values: Iterable[Problem]) -> tuple[Problem, ...]:
    """Both in one list, each once. Where a value is found to be wrong, that its type is wrong adds nothing."""
    first = tuple(of_values)
    places = {problem.path for problem in first}
    return tuple(dict.fromkeys((*(one for one in of_types if one.path not in places), *first)))


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """A hint at the name that was meant."""
    from difflib import get_close_matches

    folded = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), list(folded))
    return f"did you mean {folded[close[0]]}?" if close else f"known are {', '.join(known)}"
