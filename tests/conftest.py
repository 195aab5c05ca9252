"""What holds for every test."""

from __future__ import annotations

import gc
import os
import zlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import warm_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

# How fast examples are made says something about the machine and nothing about the code.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

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


_FAULTS = Path(__file__).parent / "faults"
_UNIT = Path(__file__).parent / "unit"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: a third of the time of most tests is waiting for a disk or for another process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fifth SEED`: of tests/unit a fifth of the files. `--third SEED`: a third of the slow tests."""
    parser.addoption("--fifth", metavar="SEED", help="of tests/unit run a fifth of the files, chosen by SEED")
    parser.addoption("--third", metavar="SEED", help="of the slow tests run a third, chosen by SEED")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The seeds, so that the same tests can be run again."""
    fifth, third = config.option.fifth, config.option.third
    return [
        *([] if fifth is None else [f"a fifth of tests/unit: --fifth {fifth}"]),
        *([] if third is None else [f"a third of the slow tests: --third {third}"]),
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files are not imported for nothing: a file with slow tests says `slow` or `many_rows`, or is of the fault
    suite."""
    wanted = config.option.markexpr
    if config.option.fifth is not None and collection_path.is_relative_to(_UNIT) and collection_path.suffix == ".py":
        name = collection_path.relative_to(_UNIT).as_posix()
        return True if zlib.crc32(f"{config.option.fifth} {name}".encode()) % 5 else None
    if collection_path.is_relative_to(_FAULTS):
        return True if wanted == "not slow" else None
    if wanted != "slow" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_bytes()
    return None if b"slow" in text or b"many_rows" in text else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every run of the fault suite starts, kills and resumes whole processes, so all of them are slow. Of a test with
    `many_rows(N)` all rows but N are slow: always the same ones, spread over the table."""
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.is_relative_to(_FAULTS):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("many_rows") is not None:
            tables[item.nodeid.partition("[")[0]].append(item)
    for rows in tables.values():
        marker = rows[0].get_closest_marker("many_rows")
        quick = sorted(rows, key=lambda one: zlib.crc32(one.nodeid.encode()))[: marker.args[0] if marker else None]
        for row in rows:
            if row not in quick:
                row.add_marker(pytest.mark.slow)
    third = config.option.third
    if third is not None:
        others = [one for one in items if "slow" in one.keywords and zlib.crc32(f"{third} {one.nodeid}".encode()) % 3]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [one for one in items if one not in left_out]


def pytest_collection_finish() -> None:
    """From here on, cycles are collected again: those that the tests make."""
    gc.freeze()
    gc.enable()
