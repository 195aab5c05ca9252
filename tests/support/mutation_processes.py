"""Mutants in further Python processes of a test, which a change in this one does not reach: each begins with
`mutation_site/sitecustomize.py`, and that is told by the environment what to do."""

from __future__ import annotations

import os
from pathlib import Path

_SITE = Path(__file__).with_name("mutation_site")


def change(module: str, source: Path) -> None:
    """From here on the module `module` of every process that is started is what stands in the file `source`."""
    _begin({"MUTANT_OF": module, "MUTANT_SOURCE": str(source.resolve())})


def write_lines(folder: str, into: Path) -> None:
    """From here on every process that is started appends the lines that it runs below `folder` to the file `into`."""
    _begin({"MUTANT_FOLDER": folder, "MUTANT_LINES": str(into.resolve())})


def written_lines(into: Path) -> set[tuple[str, int]]:
    """The lines, by file, that were written since the last call."""
    if not into.exists():
        return set()
    rows = into.read_text("utf-8").splitlines()
    into.unlink()
    return {(path, int(line)) for path, _, line in (row.rpartition(":") for row in rows)}


def _begin(variables: dict[str, str]) -> None:
    others = os.environ.get("PYTHONPATH")
    os.environ.update(variables, PYTHONPATH=os.pathsep.join([str(_SITE), *([others] if others else [])]))
