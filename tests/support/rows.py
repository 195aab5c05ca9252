"""A table of small rows as one test: `@each_row("line, verdict", TABLE)`, as `pytest.mark.parametrize` is written.

A test of its own costs a row three milliseconds before it does anything: it is collected by each worker, and its report
goes through the one process that leads them. All rows run, and those that fail are told with their row. A test whose
rows share a fixture that they change, or take long, is for `parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Test = Callable[..., Any]

_SHOWN: Final = 5
_ENDS: Final = (Exception, pytest.fail.Exception, pytest.skip.Exception)  # a row that is skipped would not be missed


class _Failures:
    """The rows that have failed so far."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._failed: list[BaseException] = []

    def add(self, row: Sequence[object], error: BaseException) -> None:
        """Tell an error with its row. Raises all of them once they are enough."""
        error.add_note("with " + ", ".join(f"{name} = {value!r}" for name, value in zip(self._names, row, strict=True)))
        self._failed.append(error)
        if len(self._failed) == _SHOWN:
            self.tell(f"at least {_SHOWN} rows failed")

    def tell(self, message: str = "some rows failed") -> None:
        """Raises what has failed, if anything has."""
        if self._failed:
            raise BaseExceptionGroup(message, self._failed) if len(self._failed) > 1 else self._failed[0]


def each_row(names: str | Sequence[str], table: Iterable[Any], *, ids: object = None) -> Callable[[Test], Test]:
    """Run the test with each row of the table; `names` and rows are written as for `parametrize`, `ids` tells nothing
    here that a row does not."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    whole = [_values(row, alone=isinstance(names, str) and len(wanted) == 1) for row in table]
    assert whole, "a table without a row"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures = _Failures(wanted)
            for row in whole:
                try:
                    test(**dict(zip(wanted, row, strict=True)), **fixtures)
                except _ENDS as error:
                    failures.add(row, error)
            failures.tell()

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            failures = _Failures(wanted)
            for row in whole:
                try:
                    await test(**dict(zip(wanted, row, strict=True)), **fixtures)
                except _ENDS as error:
                    failures.add(row, error)
            failures.tell()

        made = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in wanted]
        made.__signature__ = signature.replace(parameters=others)  # type: ignore[union-attr]  # pytest asks it for fixtures
        return made

    return decorate


def _values(row: Any, *, alone: bool) -> tuple[Any, ...]:
    """The values of a row. Raises AssertionError for one that has marks, which are a test's."""
    if isinstance(row, type(pytest.param())):
        assert not row.marks
        return tuple(row.values)
    return (row,) if alone else tuple(row)
