"""Mutation testing: `python -m tests.support.mutants policy` says which small errors no test would notice.

One process collects the tests and finds out which of them run which lines. For each mutant it forks: the child gets
the changed code (a function's code object is exchanged in place; what runs at import is imported anew, tests and all)
and runs the tests that touch its line, those that have found most first, up to the first failure. hypothesis is given
a fixed seed, few examples and no database. Code that runs in further processes of a test is not changed.

Results are JSON lines in `.mutants/`; a mutant that was killed is not tried again while its function stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.mutations import Mutant, mutants, mutated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType, ModuleType

TESTS = {
    "policy": ["tests/unit/policy"],
    "state": ["tests/unit/state", "tests/contract/test_checkpoint_store.py"],
}
"""The tests that a package is held by."""
_FOLDER = Path(".mutants")
_EXAMPLES = 25
_SETTINGS = "_hypothesis_internal_use_settings"
_KILLED, _SURVIVED, _LATE = 1, 0, 9
_SLACK_S = 10.0
_TIMES_SLOWER = 6


class Result(NamedTuple):
    """What became of one mutant: killed, survived, late (killed by the clock) or not run by any test."""

    mutant: Mutant
    status: str
    by: str
    seconds: float


# In the process that has collected


class Loop:
    """A pytest plugin that tries mutants in the place of running the tests."""

    def __init__(self, work: list[Mutant], out: Path) -> None:
        self._work = work
        self._out = out
        self._lines: dict[tuple[str, int], list[int]] = {}
        self._seconds: list[float] = []
        self._wins: Counter[str] = Counter()
        self.results: list[Result] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measures, then tries each mutant."""
        _steady(session.items)
        files = {str(Path(one.path).resolve()): one.path for one in self._work}
        self._lines, self._seconds = _coverage(session, set(files))
        functions = _functions(set(files))
        _forget()
        gc.freeze()
        with self._out.open("a") as out:
            for place, one in enumerate(self._work):
                result = self._try(session, one, functions)
                self._wins[result.by] += 1
                self.results.append(result)
                out.write(json.dumps({**one._asdict(), **result._replace(mutant=None)._asdict()}) + "\n")  # type: ignore[arg-type] # left out of the line
                out.flush()
                _say(place, len(self._work), self.results)
        return True

    def _try(
        self, session: pytest.Session, mutant: Mutant, functions: dict[tuple[str, str], list[FunctionType]]
    ) -> Result:
        source = Path(mutant.path).read_text("utf-8")
        items = session.items
        places: Sequence[int]
        if mutant.function:
            covering = {
                place
                for line in range(mutant.line, mutant.end_line + 1)
                for place in self._lines.get((mutant.path, line), ())
            }
            places = sorted(covering, key=lambda one: (-self._wins[_test_of(items[one])], self._seconds[one]))
        else:
            order = sorted({str(item.path) for item in items}, key=lambda one: -self._file_wins(one))
            places = [place for path in order for place, item in enumerate(items) if str(item.path) == path]
        if not places:
            return Result(mutant, "not run", "", 0.0)
        limit = _SLACK_S + _TIMES_SLOWER * sum(self._seconds[place] for place in places)
        started = time.monotonic()

        def inside(say: int) -> int:
            changed = compile(mutated(source, mutant.number), str(Path(mutant.path).resolve()), "exec")
            chosen = [items[place] for place in places]
            if not mutant.function:
                return _import_anew(mutant.path, changed, list(dict.fromkeys(str(item.path) for item in chosen)), say)
            _exchange(changed, mutant, functions)
            return _run(chosen, say)

        code, by = _forked(inside, limit)
        status = {_SURVIVED: "survived", _LATE: "late"}.get(code, "killed")
        return Result(mutant, status, by.split("[", maxsplit=1)[0], round(time.monotonic() - started, 2))

    def _file_wins(self, path: str) -> int:
        return sum(
            count
            for test, count in self._wins.items()
            if test.partition("::")[0] and path.endswith(test.partition("::")[0])
        )


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.split("[", maxsplit=1)[0]


def _run(items: Sequence[pytest.Item], say: int) -> int:
    """Runs tests up to the first that fails, whose name goes to the descriptor `say`."""
    from _pytest.runner import runtestprotocol

    for place, item in enumerate(items):
        following = items[place + 1] if place + 1 < len(items) else None
        reports = runtestprotocol(item, log=False, nextitem=following)
        if any(report.failed for report in reports):
            os.write(say, item.nodeid.encode()[:4096])
            return _KILLED
    return _SURVIVED


def _steady(items: Sequence[pytest.Item]) -> None:
    """Few examples, always the same ones, and none remembered."""
    from hypothesis import Phase, settings

    def few(old: Any) -> Any:
        return settings(
            old, max_examples=min(old.max_examples, _EXAMPLES), derandomize=True, database=None,
            phases=(Phase.explicit, Phase.generate),
        )  # fmt: skip

    for item in items:
        function = getattr(item, "function", None)
        function = getattr(function, "__func__", function)
        old = getattr(function, _SETTINGS, None)
        if old is not None:
            setattr(function, _SETTINGS, few(old))
        owner = getattr(item, "cls", None)
        if owner is not None and isinstance(getattr(owner, "settings", None), settings):
            owner.settings = few(owner.settings)


def _coverage(session: pytest.Session, files: set[str]) -> tuple[dict[tuple[str, int], list[int]], list[float]]:
    """Which tests run which lines, and how long each takes; found out in a child, which leaves no trace here."""
    place = _FOLDER / f"coverage.{os.getpid()}.json"

    def inside(_say: int) -> int:
        touched: set[tuple[str, int]] = set()

        def local(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                touched.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        def outer(frame: FrameType, _event: str, _argument: object) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            touched.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        rows: list[tuple[float, list[tuple[str, int]]]] = []
        failed: list[str] = []
        from _pytest.runner import runtestprotocol

        for number, item in enumerate(session.items):
            touched.clear()
            following = session.items[number + 1] if number + 1 < len(session.items) else None
            started = time.monotonic()
            threading.settrace(outer)
            sys.settrace(outer)
            reports = runtestprotocol(item, log=False, nextitem=following)
            sys.settrace(None)
            rows.append((time.monotonic() - started, sorted(touched)))
            if any(report.failed for report in reports):
                failed.append(item.nodeid)
        place.write_text(json.dumps({"rows": rows, "failed": failed}))
        return 0

    _forked(inside, 3600)
    found = json.loads(place.read_text())
    place.unlink()
    # What fails without a mutant (a bound on time, under the trace) can tell nothing.
    hopeless = set(found["failed"])
    lines: dict[tuple[str, int], list[int]] = defaultdict(list)
    root = str(Path.cwd()) + os.sep
    for number, (_, touched) in enumerate(found["rows"]):
        if session.items[number].nodeid in hopeless:
            continue
        for path, line in touched:
            lines[path.removeprefix(root), line].append(number)
    if hopeless:
        print(f"left out, because they fail as it is: {sorted(hopeless)}", file=sys.stderr)
    return lines, [seconds for seconds, _ in found["rows"]]


# Changing code


def _functions(files: set[str]) -> dict[tuple[str, str], list[FunctionType]]:
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in files:
            found[one.__code__.co_filename, one.__code__.co_qualname].append(one)
    return found


def _exchange(changed: CodeType, mutant: Mutant, functions: dict[tuple[str, str], list[FunctionType]]) -> None:
    """Gives every living copy of the function the changed code."""
    new = next(code for code in _codes(changed) if code.co_qualname == mutant.function)
    living = functions[str(Path(mutant.path).resolve()), mutant.function]
    if not living:
        raise LookupError(mutant.function)
    for one in living:
        one.__code__ = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _forget() -> None:
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper):
            one.cache_clear()


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module the changed code when it is imported."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name, self._code = name, code

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> Any:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._code.co_filename, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _import_anew(path: str, changed: CodeType, files: list[str], say: int) -> int:
    ours = ("agent_host", "config", "policy", "state", "tests", "tool_runtime")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours and name != __name__]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Changed(path.removesuffix(".py").replace("/", "."), changed))
    anew = _Anew(say)
    outcome = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files], plugins=[anew])
    if outcome != 0 and not anew.failed:
        os.write(say, b"import")
    return _SURVIVED if outcome == 0 else _KILLED


class _Anew:
    def __init__(self, say: int) -> None:
        self._say = say
        self.failed = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        _steady(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = True
            os.write(self._say, report.nodeid.encode()[:4096])


def _forked(inside: Any, limit_s: float) -> tuple[int, str]:
    """Runs `inside` in a child of its own group: its answer, and what it said."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(heard)
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        code = _KILLED
        try:
            code = inside(said)
        except BaseException as error:  # noqa: BLE001 # whatever a mutant raises has killed it, and the child must end here
            os.write(said, repr(error).encode()[:500])
        os._exit(code)
    os.close(said)
    deadline = time.monotonic() + limit_s
    code, pause = _LATE, 0.001
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code == _LATE:
        os.waitpid(child, 0)
    text = os.read(heard, 4096).decode(errors="replace")
    os.close(heard)
    return code, text


# The command


def _say(place: int, total: int, results: list[Result]) -> None:
    if place % 50 == 49 or place + 1 == total:
        counts = Counter(one.status for one in results)
        print(f"{place + 1}/{total} {dict(counts)}", file=sys.stderr, flush=True)


def _package(paths: Sequence[str]) -> str:
    names = {path.split("/", maxsplit=1)[0] for path in paths}
    if len(names) != 1 or not names <= TESTS.keys():
        raise SystemExit(f"give one of {sorted(TESTS)}, or files of one of them")
    return names.pop()


def _chosen(paths: Sequence[str]) -> list[Mutant]:
    files = [
        file for path in paths for file in (sorted(Path(path).glob("*.py")) if Path(path).is_dir() else [Path(path)])
    ]
    return [one for file in files for one in mutants(file.as_posix(), file.read_text("utf-8"))]


def _known(out: Path) -> dict[str, dict[str, Any]]:
    if not out.exists():
        return {}
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {row["key"]: row for row in rows}


def report(wanted: list[Mutant], known: dict[str, dict[str, Any]], *, survivors: bool) -> str:
    """The share that was killed, by module; and what survived."""
    rows = [(one, known[one.key]["status"]) for one in wanted if one.key in known]
    lines = []
    for path in [*dict.fromkeys(one.path for one, _ in rows), ""]:
        of_path = [status for one, status in rows if path in ("", one.path)]
        killed = sum(status in {"killed", "late"} for status in of_path)
        lines.append(f"{path or 'all':32} {killed:5} of {len(of_path):5}  {100 * killed / max(len(of_path), 1):5.1f} %")
    if survivors:
        lines += [
            f"{one.path}:{one.line}  {one.change}" + ("" if status == "survived" else f"  [{status}]")
            for one, status in rows
            if status in {"survived", "not run"}
        ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="policy or state, or some of its files")
    parser.add_argument("--sample", type=int, help="try this many at most, chosen at random with --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="only say what is known")
    asked = parser.parse_args()
    package = _package(asked.paths)
    _FOLDER.mkdir(exist_ok=True)
    out = _FOLDER / f"{package}.jsonl"
    wanted = _chosen(asked.paths)
    if not asked.report:
        known = _known(out)
        work = [one for one in wanted if known.get(one.key, {}).get("status") not in {"killed", "late"}]
        if asked.sample is not None and asked.sample < len(work):
            order = {one.key: place for place, one in enumerate(work)}
            work = sorted(random.Random(asked.seed).sample(work, asked.sample), key=lambda one: order[one.key])
        pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", *TESTS[package]], plugins=[Loop(work, out)])
    print(report(wanted, _known(out), survivors=True))


if __name__ == "__main__":
    # Under its own name, so that what is imported anew in a child does not get a second copy of this module.
    from tests.support.mutants import main as run

    run()
