"""Run by each Python process that a test starts while mutants are tried, since this folder is on its PYTHONPATH: gives
one module the source of the mutant, or writes down the lines of a package that run. See `mutation_processes`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType, ModuleType


class _Mutant:
    """Finds and loads the one module that is changed."""

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        if name != self._name:
            return None
        from importlib.util import spec_from_loader

        return spec_from_loader(name, self)  # type: ignore[arg-type]  # what a loader needs it has

    def create_module(self, _spec: object) -> None:
        """The usual one."""

    def exec_module(self, module: ModuleType) -> None:
        with open(self._source, encoding="utf-8") as handle:
            exec(compile(handle.read(), self._source, "exec"), module.__dict__)


def _write_lines(folder: str, into: str) -> None:
    """Each line is written as it is run for the first time: the process may be killed on the next."""
    out = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    seen: set[tuple[str, int]] = set()

    def local(frame: FrameType, event: str, _argument: object) -> Any:
        here = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and here not in seen:
            seen.add(here)
            os.write(out, f"{here[0]}:{here[1]}\n".encode())
        return local

    sys.settrace(lambda frame, *_: local if frame.f_code.co_filename.startswith(folder) else None)


if "MUTANT_OF" in os.environ:
    sys.meta_path.insert(0, _Mutant(os.environ["MUTANT_OF"], os.environ["MUTANT_SOURCE"]))
elif "MUTANT_LINES" in os.environ:
    _write_lines(os.environ["MUTANT_FOLDER"], os.environ["MUTANT_LINES"])
