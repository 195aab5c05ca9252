"""`agent-host cost-check`: what recorded sessions cost now, against a baseline; exit 1 where one costs more."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from typing import TYPE_CHECKING

import orjson

from agent_host.cli import exit_codes
from agent_host.cli.outputs import OutputFile, check_apart
from agent_host.cli.shared import settings_of_options, state_dir_of
from agent_host.cli.streams import answer
from agent_host.display_text import escape
from agent_host.errors import UsageError
from agent_host.host.cost_check import RecordedCost, baseline_of, compare, cost_of, name_of, read_baseline

if TYPE_CHECKING:
    import argparse

    from agent_host.host.cost_check import Growth

_SHORT = "/tmp"  # noqa: S108  each use makes a directory of its own there


def cost_check(namespace: argparse.Namespace) -> int:
    """Measure each recording and compare it, or write the baseline."""
    before = {} if namespace.write_baseline else read_baseline(namespace.baseline)
    names = [name_of(recording) for recording in namespace.recordings]
    if len(set(names)) < len(names):
        raise UsageError(f"two recordings have one name: {', '.join(sorted(names))}")
    missing = [name for name in names if not namespace.write_baseline and name not in before]
    if missing:
        raise UsageError(
            f"--baseline {namespace.baseline} has no {', '.join(missing)}: measure all with --write-baseline"
        )
    file = OutputFile("baseline", namespace.baseline) if namespace.write_baseline else None
    if file is not None:
        check_apart((file,), namespace)
    gc.enable()
    if os.path.isdir(_SHORT):  # prompts name directories: the same everywhere, or nearly
        os.environ["TMPDIR"] = _SHORT
        tempfile.tempdir = None
    flags, costs = settings_of_options(namespace), dict[str, RecordedCost]()
    for name, recording in zip(names, namespace.recordings, strict=True):
        measured = cost_of(recording, flags, workspace=namespace.workspace, state_dir=state_dir_of(namespace))
        costs[name] = asyncio.run(measured)
    rows = compare(costs, before, namespace.max_growth)
    if namespace.output == "json":
        answer(orjson.dumps([_wire(row) for row in rows], option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    else:
        answer("".join(map(_line, rows)))
    if file is not None and not file.write(baseline_of(costs)):
        return exit_codes.FAILED
    return exit_codes.FAILED if any(row.is_over for row in rows) else exit_codes.COMPLETED


def _wire(row: Growth) -> dict[str, object]:
    now = {"tokenEquivalents": row.cost.equivalents, "firstRequestTokens": row.cost.first_request}
    then = row.before and {"tokenEquivalents": row.before.equivalents, "firstRequestTokens": row.before.first_request}
    return {"name": row.name, **now, "baseline": then, "isOver": row.is_over}


def _line(row: Growth) -> str:
    mark = "over" if row.is_over else "ok  "
    figures = [("token equivalents", row.cost.equivalents, row.before and row.before.equivalents)]
    figures.append(("in the first request", row.cost.first_request, row.before and row.before.first_request))
    words = ", ".join(f"{now:,} {what}{_change(now, then)}" for what, now, then in figures)
    return f"{mark}  {escape(row.name, keep='')}: {words}\n"


def _change(now: int, then: int | None) -> str:
    if not then:
        return ""
    return f" ({(now - then) / then:+.1%} of {then:,})"
