"""Runs `agent-host` and has it fail at one chosen point: killed with SIGKILL and no warning, or by a disk that fails.

    python -m agent_host.faults.crash --after-record 7 run "Do it." --gateway http://127.0.0.1:8080
    python -m agent_host.faults.crash --before-call 31 run "Do it." --gateway http://127.0.0.1:8080
    python -m agent_host.faults.crash --fail-call 31 --errno ENOSPC --persistently run "Do it." --gateway ...

For tests of what a crash leaves behind, of this project and of those who build on it. Every durable change of a session
is a record, so the numbers from 1 upwards visit every state that a crash can leave between two of them. Calls are what
the store asks of its disk (`state.disk.Disk`) to change something, so their numbers visit the states within a record.
"""

from __future__ import annotations

import argparse
import sys
from types import FunctionType
from typing import Any

from agent_host.cli.main import main
from agent_host.faults.disk_faults import CODES, FailingDisk, Faults, kill_this_process
from state.disk import Disk
from state.journal import JournalFile


def kill_after_record(number: int) -> None:
    """From now on this process dies once it has appended `number` records, 1 being the next."""
    append = JournalFile.append
    left = number

    def count(journal: JournalFile, *record: Any) -> Any:
        nonlocal left
        appended = append(journal, *record)
        left -= 1
        if left <= 0:
            kill_this_process()
        return appended

    setattr(JournalFile, "append", count)  # noqa: B010  the one seam that every record passes


def spoil_local_disk(faults: Faults) -> FailingDisk:
    """From now on every Disk of this process follows the plan; returns the one that counts for all of them."""
    own = {name: value for name, value in vars(Disk).items() if isinstance(value, FunctionType)}
    # With the methods as they are now, so that what one of them asks of another is no call of the store's.
    untouched: Disk = type("UntouchedDisk", (Disk,), own)()
    failing = FailingDisk(untouched, faults)
    for name in own:
        # On the class and not on an object: the store may have been given the shared disk before anybody could swap it.
        setattr(Disk, name, _pass_on(getattr(failing, name)))
    return failing


def _pass_on(method: Any) -> Any:
    return lambda _disk, *arguments: method(*arguments)


def run(argv: list[str]) -> int:
    """The exit code of `agent-host`, if it lives to have one. Raises SystemExit(2) where the arguments are wrong."""
    given = _parser().parse_args(argv)
    if given.after_record is not None:
        kill_after_record(given.after_record)
    elif given.before_call is not None:
        spoil_local_disk(Faults(kill_before=given.before_call))
    else:
        spoil_local_disk(Faults(fail_call=given.fail_call, code=CODES[given.errno], persistently=given.persistently))
    return main(given.arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m agent_host.faults.crash", allow_abbrev=False)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--after-record", type=_number, metavar="N", help="die after the N-th record")
    where.add_argument("--before-call", type=_number, metavar="N", help="die before the N-th call to the disk")
    where.add_argument("--fail-call", type=_number, metavar="N", help="the N-th call to the disk fails")
    parser.add_argument("--errno", choices=sorted(CODES), default="EIO", help="with which error (EIO)")
    parser.add_argument("--persistently", action="store_true", help="and every call after it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS OF agent-host")
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
