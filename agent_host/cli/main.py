"""The command line `agent-host`: parses, hands over to the command's module, turns exceptions into one line and a code.

Imports here are paid by every call, `--version` included, so each command is imported when it is chosen.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from agent_host.cli import flush, is_for_a_runner, patient_stream, put
from agent_host.version import __version__

TYPE_CHECKING = False  # type checkers take the name for true; importing it from typing is a third of `--version`
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_INTERRUPTED = 130
_ENDED = 143
_INTERNAL = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    if is_for_a_runner():
        from agent_host.cli import runner_log

        runner_log.install()
    if arguments == ["--version"]:
        return 0 if put(sys.stdout, f"agent-host {__version__}\n") is None else _INTERNAL
    import signal

    # An exception in the middle of an extension module's initialisation can crash the interpreter, and nothing that is
    # on disk needs an orderly end. A command that runs for longer puts its own handler in place.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: os._exit(_ENDED))
    # What is imported lives as long as the process: collecting among it is a tenth of the start for nothing. The
    # commands that stay for longer switch the collector on again once they are set up.
    gc.disable()
    from agent_host.cli.options import parse

    try:
        return _call(parse(arguments))
    finally:
        for stream in (sys.stdout, sys.stderr):
            flush(stream)


def _prepare_streams() -> None:
    """A standard stream that the caller closed (`>&-`) is there and goes nowhere, instead of being None; the others
    write all that they are given (see `patient_stream`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  for the life of the process
        elif stream is not getattr(sys, f"__{name}__"):
            continue
        elif mode == "w":
            setattr(sys, name, patient_stream(stream))
        else:  # what is typed in another encoding is no `y`, and no error
            stream.reconfigure(errors="replace")


def _call(chosen: argparse.Namespace) -> int:
    try:
        module, _, function = chosen.command.partition(":")
        command = getattr(importlib.import_module(f"agent_host.cli.{module}"), function)
        return int(command(chosen))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # one of the two places that turn exceptions into what users see
        if os.environ.get("AGENT_HOST_DEBUG") == "1":
            raise
        from agent_host.cli.exit_codes import report

        return report(error)


if __name__ == "__main__":
    sys.exit(main())
