"""The command line `agent-host`: parse the arguments, call the command's module, turn exceptions into one line and an
exit code.

Every call, even `--version`, pays for the imports here, so a command is imported when it is chosen.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from agent_host.cli import flush, is_for_a_runner, patient_stream, put
from agent_host.version import __version__

TYPE_CHECKING = False  # true for type checkers; importing it from typing is a third of `--version`
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

    # An exception during the initialisation of an extension module can crash the interpreter, and the files on disk
    # need no orderly end. Commands that run longer install their own handler.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: os._exit(_ENDED))
    # Imported objects live as long as the process, and collecting them would waste a tenth of the start. Commands that
    # run longer enable the collector again after their set-up.
    gc.disable()
    from agent_host.cli.options import parse

    try:
        return _call(parse(arguments))
    finally:
        for stream in (sys.stdout, sys.stderr):
            flush(stream)


def _prepare_streams() -> None:
    """Replace a standard stream that the caller closed (`>&-`), which would be None, by one that discards; make the
    others write everything (see `patient_stream`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  for the life of the process
        elif stream is not getattr(sys, f"__{name}__"):
            continue
        elif mode == "w":
            setattr(sys, name, patient_stream(stream))
        else:  # input in another encoding is neither a `y` nor an error
            stream.reconfigure(errors="replace")


def _call(chosen: argparse.Namespace) -> int:
    try:
        module, _, function = chosen.command.partition(":")
        command = getattr(importlib.import_module(f"agent_host.cli.{module}"), function)
        return int(command(chosen))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # one of the two places that turn exceptions into messages
        if os.environ.get("AGENT_HOST_DEBUG") == "1":
            raise
        from agent_host.cli.exit_codes import report

        return report(error)


if __name__ == "__main__":
    sys.exit(main())
