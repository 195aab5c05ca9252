"""What happens in the forked children of a mutation test: code is exchanged, or imported anew, and tests are run."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections import defaultdict
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    Functions = dict[tuple[str, str], list[FunctionType]]

SURVIVED, KILLED, BROKEN, LATE = 0, 1, 5, 9
"""Answers of a child: no test failed, one failed, the mutant could not be made, it took too long."""
_EXAMPLES = 25
_HISTORIES = 8  # of a state machine, whose example is many steps
_SETTINGS = "_hypothesis_internal_use_settings"
OURS = ("agent_host", "config", "policy", "state", "tests", "tool_runtime")
"""The packages whose modules are changed, or imported anew."""


def run(items: Sequence[pytest.Item], say: int) -> int:
    """Runs tests up to the first that fails, whose name goes to the descriptor `say`."""
    from _pytest.runner import runtestprotocol

    for place, item in enumerate(items):
        following = items[place + 1] if place + 1 < len(items) else None
        reports = runtestprotocol(item, log=False, nextitem=following)
        if any(report.failed for report in reports):
            os.write(say, item.nodeid.encode()[:4096])
            return KILLED
    return SURVIVED


def steady(items: Sequence[pytest.Item]) -> None:
    """Gives hypothesis few examples, always the same ones, and lets none be remembered."""
    from hypothesis import Phase, settings  # pytest wants to see it first

    def few(old: Any, most: int = _EXAMPLES) -> Any:
        return settings(
            old, max_examples=min(old.max_examples, most), derandomize=True, database=None,
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
            owner.settings = few(owner.settings, _HISTORIES)


# Changing code


def functions_of(files: set[str]) -> Functions:
    """The living functions of some files, by file and qualified name."""
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in files:
            found[one.__code__.co_filename, one.__code__.co_qualname].append(one)
    return found


def exchange(changed: CodeType, function: str, functions: Functions) -> None:
    """Gives every living copy of a function the changed code. Raises LookupError when there is none."""
    new = next((code for code in _codes(changed) if code.co_qualname == function), None)
    living = functions.get((changed.co_filename, function))
    if new is None or not living:
        raise LookupError(function)
    for one in living:
        one.__code__ = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def caches() -> list[Any]:
    """Every cache of results."""
    return [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]


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


def import_anew(path: str, changed: CodeType, items: Sequence[pytest.Item], say: int) -> int:
    """Imports a module with the changed code, and whatever may have seen it before, and runs these tests anew."""
    files = list(dict.fromkeys(str(item.path) for item in items))
    anew = _Anew(say, {item.nodeid: place for place, item in enumerate(items)})
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS and name != __name__]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Changed(path.removesuffix(".py").replace("/", "."), changed))
    outcome = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files], plugins=[anew])
    if outcome != 0 and not anew.failed:
        os.write(say, b"import")
    return SURVIVED if outcome == 0 else KILLED


class _Anew:
    def __init__(self, say: int, wanted: dict[str, int]) -> None:
        self._say = say
        self._wanted = wanted
        self.failed = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # A test that has gone, because it was made of what is changed, is none that passes: pytest finds no tests.
        items[:] = [item for item in items if item.nodeid in self._wanted]
        items.sort(key=lambda item: self._wanted[item.nodeid])
        steady(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = True
            os.write(self._say, report.nodeid.encode()[:4096])


def forked(inside: Callable[[int], int], limit_s: float) -> tuple[int, str]:
    """Runs `inside` in a child of its own group, with the descriptor to say something on: its answer, and what it said.
    `inside` answers BROKEN for what it could not begin; whatever it raises after that is the mutant's doing."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(heard)
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        code = KILLED
        try:
            code = inside(said)
        except BaseException as error:  # noqa: BLE001 # the child must end here
            os.write(said, repr(error).encode()[:500])
        os._exit(code)
    os.close(said)
    deadline = time.monotonic() + limit_s
    code, pause = LATE, 0.001
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code == LATE:
        os.waitpid(child, 0)
    os.set_blocking(heard, False)  # a process that has left the group may hold the other end
    try:
        text = os.read(heard, 4096).decode(errors="replace")
    except BlockingIOError:
        text = ""
    os.close(heard)
    return code, text
