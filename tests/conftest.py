"""What holds for every test."""

from __future__ import annotations

import gc
import os
import re
import sys
import zlib
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.support import warm_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

# How fast examples are made says something about the machine and nothing about the code.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("steady"), max_examples=30)
settings.load_profile("steady")
_EXAMPLES = "_hypothesis_internal_use_settings"  # the one place where a test that says how many has that

# What collecting makes stays until the end, so to look through it for cycles again and again is half of its time.
gc.disable()


@pytest.fixture(scope="session", autouse=True)
def _temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sessions that run in this process and are left resumable leave nothing in the system's temporary directory."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("tmp"))


@pytest.fixture(scope="session", autouse=True)
def _warm_starts() -> Iterator[None]:
    """What was there to be forked ends with the tests."""
    yield
    warm_starts.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """An empty home, an empty workspace, nothing in the state directory."""
    from tests.support.process import Host  # collecting tests that need none is cheap

    machine = Host(tmp_path)
    yield machine
    machine.close()


def _locks() -> set[int]:
    """Descriptors of this process that hold a session."""
    found = set()
    for name in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        with suppress(OSError):  # the one of the listing itself
            if re.search(r"/checkpoints/[\w-]+\.lock", os.readlink(f"/proc/self/fd/{name}")):
                found.add(int(name))
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A session that a test has left, as a dead process would, is nobody's afterwards: with its lock, this process and
    all that it starts would count as a session's, whose commands answer no question."""
    before = _locks()
    try:
        return (yield)
    finally:
        for left in _locks() - before:
            os.close(left)


_FAULTS = Path(__file__).parent / "faults"
_UNIT = Path(__file__).parent / "unit"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: a third of the time of most tests is waiting for a disk or for another process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fifth SEED`: of tests/unit a fifth of the files. `--sample SEED`: a fifteenth of the slow tests."""
    parser.addoption("--fifth", metavar="SEED", help="of tests/unit run a fifth of the files, chosen by SEED")
    parser.addoption("--sample", metavar="SEED", help="of the slow tests run a fifteenth, chosen by SEED")


def pytest_configure(config: pytest.Config) -> None:
    """The quick tests make few examples; the slow ones take the same tests again with all."""
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The seeds, so that the same tests can be run again."""
    fifth, sample = config.option.fifth, config.option.sample
    return [
        *([] if fifth is None else [f"a fifth of tests/unit: --fifth {fifth}"]),
        *([] if sample is None else [f"a fifteenth of the slow tests: --sample {sample}"]),
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files are not imported for nothing: a file with slow tests says `slow`, `many_rows` or `hypothesis`, or is of the
    fault suite, and one without quick tests says so in a line."""
    wanted = config.option.markexpr
    if config.option.fifth is not None and collection_path.is_relative_to(_UNIT) and collection_path.suffix == ".py":
        name = collection_path.relative_to(_UNIT).as_posix()
        return True if zlib.crc32(f"{config.option.fifth} {name}".encode()) % 5 else None
    if collection_path.is_relative_to(_FAULTS):
        return True if wanted == "not slow" else None
    if wanted not in ("slow", "not slow") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_bytes()
    if wanted == "not slow":
        return True if b"\npytestmark = pytest.mark.slow" in text else None
    return None if any(word in text for word in (b"slow", b"many_rows", b"hypothesis")) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every run of the fault suite starts, kills and resumes whole processes, so all of them are slow. Of a test with
    `many_rows(N)` all rows but N are slow: always the same ones, spread over the table. Examples that are made are run
    in both: few of them, and with the slow tests all."""
    if config.option.markexpr == "not slow":
        _take_few_examples(items)
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        made = config.option.markexpr == "slow" and is_hypothesis_test(getattr(item, "obj", None))
        if made or item.path.is_relative_to(_FAULTS):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("many_rows") is not None:
            tables[item.nodeid.partition("[")[0]].append(item)
    for rows in tables.values():
        marker = rows[0].get_closest_marker("many_rows")
        quick = sorted(rows, key=lambda one: zlib.crc32(one.nodeid.encode()))[: marker.args[0] if marker else None]
        for row in rows:
            if row not in quick:
                row.add_marker(pytest.mark.slow)
    sample = config.option.sample
    if sample is not None:
        others = [one for one in items if "slow" in one.keywords and zlib.crc32(f"{sample} {one.nodeid}".encode()) % 15]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [one for one in items if one not in left_out]
    items.sort(key=lambda one: one.get_closest_marker("longest") is None)  # the others run beside them


def _take_few_examples(items: list[pytest.Item]) -> None:
    """Three in ten of what a test says, and 30 at least."""
    for test in {getattr(item, "function", None) for item in items}:
        said = getattr(test, _EXAMPLES, None)
        if said is not None and said.max_examples > 30:
            setattr(test, _EXAMPLES, settings(said, max_examples=max(30, said.max_examples * 3 // 10)))


def pytest_collection_finish() -> None:
    """From here on, cycles are collected again: those that the tests make, and rarely."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
