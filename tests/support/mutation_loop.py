"""The loop of a mutation test: a pytest plugin that forks for each mutant and runs the tests that touch it."""

from __future__ import annotations

import ast
import bisect
import gc
import importlib
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.support import mutation_children as children
from tests.support import mutation_processes as processes
from tests.support.mutation_scope import Scope
from tests.support.mutation_tables import Tables
from tests.support.mutations import Mutant, mutated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from tests.support.mutation_children import Functions

FOLDER = Path(".mutants")
"""Where results are kept."""
_SLACK_S = 10.0
_TIMES_SLOWER = 6
_STATUS = {
    children.SURVIVED: "survived",
    children.KILLED: "killed",
    children.BROKEN: "broken",
    children.LATE: "late",
}


class Result(NamedTuple):
    """What became of one mutant: killed, survived, late (killed by the clock) or not run by any test."""

    status: str
    by: str
    seconds: float


class Loop:
    """A pytest plugin that tries mutants in the place of running the tests."""

    def __init__(self, work: list[Mutant], out: Path, within_s: float | None = None) -> None:
        self._work = work
        self._within_s = within_s
        self._out = out
        self._text = FOLDER / f"mutant.{os.getpid()}.txt"
        package = Path(work[0].path.split("/", maxsplit=1)[0])
        self._package = [path.as_posix() for path in sorted(package.rglob("*.py")) if path.name != "__init__.py"]
        self._scope = Scope(self._package)
        self._tables = Tables(self._package)
        self._at_import: set[tuple[str, str]] = set()
        self._items: list[pytest.Item] = []
        self._lines: dict[tuple[str, int], list[int]] = {}
        self._seconds: list[float] = []
        self._breadth: Counter[int] = Counter()
        self._hopeless: set[int] = set()
        self._wins: Counter[str] = Counter(_winners(out))
        self._latest: dict[tuple[str, str], str] = {}
        self._caches: list[Any] = []
        self._functions: Functions = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measures, then tries each mutant."""
        self._items = session.items
        children.steady(self._items)
        files = {_absolute(path) for path in self._package}
        for path in self._package:  # what is imported when it is first needed
            importlib.import_module(_module_of(path))
        self._caches = children.caches()
        self._lines, self._seconds, self._hopeless = _coverage(self._items, files, self._caches)
        self._breadth = Counter(place for places in self._lines.values() for place in places)
        self._functions = children.functions_of(files)
        self._at_import = self._tables.run_at_import()
        self._forget()
        gc.freeze()
        self._check_that_nothing_fails_without_a_mutant()
        counts: Counter[str] = Counter()
        with self._out.open("a") as out:
            for place, one in enumerate(self._work, 1):
                result = self._try(one)
                self._wins[result.by] += 1
                counts[result.status] += 1
                out.write(json.dumps({**one._asdict(), **result._asdict()}) + "\n")
                out.flush()
                if place % 50 == 0 or place == len(self._work):
                    print(f"{place}/{len(self._work)} {dict(counts)}", file=sys.stderr, flush=True)
        self._text.unlink(missing_ok=True)
        return True

    def _check_that_nothing_fails_without_a_mutant(self) -> None:
        path = self._work[0].path
        code = compile(Path(path).read_text("utf-8"), _absolute(path), "exec")
        answer, by = children.forked(lambda say: children.import_anew(path, code, self._items, say), 3600)
        if answer != children.SURVIVED:
            pytest.exit(f"a test fails as it is: {by}", returncode=1)

    def _forget(self) -> None:
        for cache in self._caches:
            cache.cache_clear()

    def _try(self, mutant: Mutant) -> Result:
        places = self._tests_of(mutant)
        if not places:
            return Result("not run", "", 0.0)
        started = time.monotonic()
        limit = _SLACK_S + _TIMES_SLOWER * sum(self._seconds[place] for place in places)
        code, by = children.forked(lambda say: self._inside(mutant, [self._items[one] for one in places], say), limit)
        self._latest[mutant.path, mutant.place] = by or self._latest.get((mutant.path, mutant.place), "")
        return Result(_STATUS.get(code, "killed"), by.split("[", maxsplit=1)[0], round(time.monotonic() - started, 2))

    def _inside(self, mutant: Mutant, chosen: Sequence[pytest.Item], say: int) -> int:
        tree = mutated(Path(mutant.path).read_text("utf-8"), mutant.number)
        self._text.write_text(ast.unparse(tree), "utf-8")
        processes.change(_module_of(mutant.path), self._text)
        changed = compile(tree, _absolute(mutant.path), "exec")
        if not mutant.function and not self._tables.is_table(mutant.path, mutant.line):
            return children.import_anew(mutant.path, changed, chosen, say)
        if not mutant.function:
            self._tables.remake(mutant.path, tree)
        else:
            try:
                children.exchange(changed, mutant.function, self._functions)
            except LookupError:
                return children.BROKEN
            except ValueError:  # it names other things of what is around it, which a living function does not have
                return children.import_anew(mutant.path, changed, chosen, say)
            if self._runs_at_import(mutant):
                self._tables.remake(mutant.path)
        self._forget()
        return children.run(chosen, say)

    def _runs_at_import(self, mutant: Mutant) -> bool:
        return (_absolute(mutant.path), mutant.function) in self._at_import

    def _tests_of(self, mutant: Mutant) -> list[int]:
        """Those that run the mutant's lines, or, for what runs at import, a function that sees what it makes; all for a
        function that makes tables, or a table that only others see. First the one that killed there last, then those
        that have killed most, then those that run most lines, then the fastest."""
        lines = {(mutant.path, line) for line in range(mutant.line, mutant.end_line + 1)}
        if not mutant.function:
            lines = self._scope.lines(mutant.path, mutant.line)
        covering = {place for line in lines for place in self._lines.get(line, ())}
        if self._runs_at_import(mutant) or not (mutant.function or covering):
            covering = set(range(len(self._items))) - self._hopeless
        latest = self._latest.get((mutant.path, mutant.place))

        def order(one: int) -> tuple[bool, int, int, float]:
            item = self._items[one]
            return item.nodeid != latest, -self._wins[_test_of(item)], -self._breadth[one], self._seconds[one]

        ordered = sorted(covering, key=order)
        if self._within_s is None:
            return ordered
        best = self._up_to(self._within_s / 2, ordered)
        # What nothing broad notices is what a test of its own is for, and that is quick.
        return best + self._up_to(self._within_s / 2, sorted(covering - set(best), key=self._seconds.__getitem__))

    def _up_to(self, seconds: float, tests: list[int]) -> list[int]:
        sums = list(itertools.accumulate(self._seconds[one] for one in tests))
        return tests[: max(1, bisect.bisect_right(sums, seconds))]


def _winners(out: Path) -> list[str]:
    """The tests that killed a mutant before, one for each that they did."""
    rows = out.read_text().splitlines() if out.exists() else []
    return [by for row in rows if (by := json.loads(row)["by"])]


def _absolute(path: str) -> str:
    return str(Path(path).resolve())


def _module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.split("[", maxsplit=1)[0]


def _coverage(
    items: Sequence[pytest.Item], files: set[str], caches: list[Any]
) -> tuple[dict[tuple[str, int], list[int]], list[float], set[int]]:
    """Which tests run which lines, how long each takes, and which fail meanwhile; found out in a child, which leaves no
    trace here."""
    place = FOLDER / f"coverage.{os.getpid()}.json"
    answer, said = children.forked(lambda _: _measure(items, files, caches, place), 3600)
    if answer != children.SURVIVED:
        pytest.exit(f"the tests cannot be measured: {said}", returncode=1)
    rows = json.loads(place.read_text())
    place.unlink()
    lines: dict[tuple[str, int], list[int]] = defaultdict(list)
    root = str(Path.cwd()) + os.sep
    for number, (_, failed, touched) in enumerate(rows):
        # What fails without a mutant (a bound on time, under the trace) can tell nothing.
        for path, line in [] if failed else touched:
            lines[path.removeprefix(root), line].append(number)
    hopeless = {number for number, (_, failed, _) in enumerate(rows) if failed}
    if hopeless:
        names = [items[number].nodeid for number in sorted(hopeless)]
        print(f"left out, because they fail while they are measured: {names}", file=sys.stderr)
    return lines, [seconds for seconds, _, _ in rows], hopeless


def _measure(items: Sequence[pytest.Item], files: set[str], caches: list[Any], place: Path) -> int:
    touched: set[tuple[str, int]] = set()
    elsewhere = place.with_suffix(".txt")
    processes.write_lines(os.path.dirname(min(files)) + os.sep, elsewhere)

    def local(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            touched.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def outer(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        touched.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    rows: list[tuple[float, bool, list[tuple[str, int]]]] = []
    for number, item in enumerate(items):
        touched.clear()
        for cache in caches:  # what is remembered is run by the first test alone
            cache.cache_clear()
        following = items[number + 1] if number + 1 < len(items) else None
        started = time.monotonic()
        threading.settrace(outer)
        sys.settrace(outer)
        reports = runtestprotocol(item, log=False, nextitem=following)
        sys.settrace(None)
        threading.settrace(None)
        failed = any(report.failed for report in reports)
        rows.append((time.monotonic() - started, failed, sorted(touched | processes.written_lines(elsewhere))))
    place.write_text(json.dumps(rows))
    return children.SURVIVED
