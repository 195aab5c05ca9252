"""Mutation testing: `python -m tests.support.mutants policy` says which small errors no test would notice.

One process collects the tests and finds out which of them run which lines. For each mutant it forks: the child gets
the changed code (a function's code object is exchanged in place; what runs at import is run anew in place, and for
classes and defaults imported anew, tests and all) and runs the tests that touch its line, those that have found most
first, up to the first failure. hypothesis is given a fixed seed, few examples, no database. Python processes that a
test starts get the changed code as well.

Results are JSON lines in `.mutants/`; a mutant that was killed is not tried again while its function or table stays as
it is. `mutants_equivalent.toml` lists changes that no test can notice, each with its reason; they count apart. Entries
of it that name no change that can be made are printed as stale: their function or table has changed since.
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.mutation_loop import FOLDER, Loop
from tests.support.mutations import Mutant, mutants

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TESTS = {
    "policy": ["tests/unit/policy"],
    "state": ["tests/unit/state", "tests/contract/test_checkpoint_store.py"],
}
"""The tests that a package is held by."""
_DEAD = frozenset({"killed", "late"})


def _package(paths: Sequence[str]) -> str:
    names = {path.split("/", maxsplit=1)[0] for path in paths}
    if len(names) != 1 or not names <= TESTS.keys():
        raise SystemExit(f"give one of {sorted(TESTS)}, or files of one of them")
    return names.pop()


def _chosen(paths: Sequence[str]) -> list[Mutant]:
    files = [
        file for path in paths for file in (sorted(Path(path).rglob("*.py")) if Path(path).is_dir() else [Path(path)])
    ]
    return [one for file in files for one in mutants(file.as_posix(), file.read_text("utf-8"))]


def _known(out: Path) -> dict[str, dict[str, Any]]:
    if not out.exists():
        return {}
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {row["key"]: row for row in rows}


def equivalent() -> dict[tuple[str, str, str], str]:
    """Why a change changes nothing, by file, function or table, and change."""
    listed = tomllib.loads(Path(__file__).with_name("mutants_equivalent.toml").read_text("utf-8"))
    return {(one["file"], one["place"], change): one["why"] for one in listed["same"] for change in one["changes"]}


def stale(listed: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Those of the listed changes (file, function or table, change) that cannot be made, in order."""
    named = set(listed)
    files = [Path(path) for path in sorted({path for path, _, _ in named}) if Path(path).is_file()]
    made = {_named(one) for file in files for one in mutants(file.as_posix(), file.read_text("utf-8"))}
    return sorted(named - made)


def report(wanted: list[Mutant], known: dict[str, dict[str, Any]], *, survivors: bool) -> str:
    """The share that was killed, by module, without what is equivalent; and what survived."""
    same = equivalent()
    alive = [(one, known[one.key]["status"]) for one in wanted if one.key in known]
    rows = [(one, status) for one, status in alive if status in _DEAD or _named(one) not in same]
    lines = []
    for path in [*dict.fromkeys(one.path for one, _ in rows), ""]:
        of_path = [status for one, status in rows if path in ("", one.path)]
        killed = sum(status in _DEAD for status in of_path)
        share = 100 * killed / max(len(of_path), 1)
        apart = sum(path in ("", one.path) for one, _ in alive) - len(of_path)
        lines.append(f"{path or 'all':32} {killed:5} of {len(of_path):5}  {share:5.1f} %  and {apart} equivalent")
    if survivors:
        lines += [
            f"{one.path}:{one.line}  {one.place}: {one.change}" + ("" if status == "survived" else f"  [{status}]")
            for one, status in rows
            if status not in _DEAD
        ]
        lines += [
            f"equivalent: {one.path}:{one.line}  {one.place}: {one.change}  ({same[_named(one)]})"
            for one, status in alive
            if status not in _DEAD and _named(one) in same
        ]
    return "\n".join(lines)


def _named(one: Mutant) -> tuple[str, str, str]:
    return one.path, one.place, one.change


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="policy or state, or some of its files")
    parser.add_argument("--sample", type=int, help="try this many at most, chosen at random with --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--within",
        type=float,
        help="tests of so many seconds (of a slow run) a mutant; what survives is tried again next time",
    )
    parser.add_argument("--report", action="store_true", help="only say what is known")
    asked = parser.parse_args()
    package = _package(asked.paths)
    FOLDER.mkdir(exist_ok=True)
    out = FOLDER / f"{package}.jsonl"
    wanted = _chosen(asked.paths)
    if not asked.report:
        known = _known(out)
        work = [one for one in wanted if known.get(one.key, {}).get("status") not in _DEAD]
        if asked.sample is not None and asked.sample < len(work):
            order = {one.key: place for place, one in enumerate(work)}
            work = sorted(random.Random(asked.seed).sample(work, asked.sample), key=lambda one: order[one.key])
        pytest.main(
            ["-q", "-p", "no:cacheprovider", "--no-header", *TESTS[package]], plugins=[Loop(work, out, asked.within)]
        )
    print(report(wanted, _known(out), survivors=True))
    for path, place, change in stale(one for one in equivalent() if one[0].startswith(f"{package}/")):
        print(f"stale: {path}  {place}: {change}")


if __name__ == "__main__":
    # Under its own name, so that what is imported anew in a child does not get a second copy of this module.
    from tests.support.mutants import main as run

    run()
