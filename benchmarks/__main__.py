"""The door of the benchmarks.

    python -m benchmarks                      their list
    python -m benchmarks loop                 one of them in full
    python -m benchmarks loop --quick         a short run of it
    python -m benchmarks loop --help          what it measures, and its options

A benchmark is a module with `add_options(parser)` and `rows(chosen)`, which yields what is printed: a
`benchmarks.report.Row` for a figure, a string for a heading. Only the chosen one is imported: what another one needs
neither costs memory here nor has to be installed.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCHMARKS = {
    "loop": "a run against a bare loop: start, steps, memory, bytes",
    "checkpoint": "the store: steps, growth, resume, memory; other stores",
    "tools": "the desktop and native tools: small calls, a search, long output, large files",
    "policy": "decisions: typical ones, long lists, hostile lines",
    "session": "`serve`: start, a piece of text, slow clients, memory",
    "batch": "`batch`: two cores, sessions that wait, memory",
    "clients": "new sessions of a client: by fork, by a spare process, by a fresh interpreter",
    "acp": "the agent for editors: a new session, a piece of text",
    "chat": "the conversation at the terminal: to the prompt, a piece of text, memory",
    "events": "an event: creating it, and each watcher on top",
    "changes": "a command in a repository, with and without the look at what it changed",
    "llm": "the price of requests under a provider's cache; reading an answer against the SDKs",
    "sandbox": "holding a command: its start, a connection, a job with many files",
    "service": "the Backend Tool Service: what it adds to a call, with one worker and with two",
    "pages": "pages of sessions: a file, a browser, a list, a live event",
    "redaction": "the search for secrets, in code and in hostile text",
}


def parser_for(named: str | None) -> argparse.ArgumentParser:
    """A parser that knows all names, and the options of the benchmark that is `named`."""
    lines = "\n".join(f"  {name:12}{line}" for name, line in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measures the product. A goal that is missed is told, and is no error.\n\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Each takes --quick for a short run, and --help for what it measures and its other options.",
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True, help="one of these")
    for name in BENCHMARKS:
        one = names.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == named:
            module = importlib.import_module(f"benchmarks.{name}")
            one.description = module.__doc__
            one.add_argument("--quick", action="store_true", help="a short run, whose figures are rough")
            one.set_defaults(rows=module.rows)
            module.add_options(one)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Print the rows of the benchmark that is named. Without a name: help, and 2 as for a wrong one."""
    parser = parser_for(arguments[0] if arguments else None)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    chosen = parser.parse_args(arguments)
    _compile()
    for row in chosen.rows(chosen):
        print(row, flush=True)
    return 0


def _compile() -> None:
    """Compile what is measured, as an installation is: else each start might do it again."""
    for package in ("agent_host", "tool_runtime", "policy", "state", "config", "benchmarks"):
        compileall.compile_dir(os.path.join(ROOT, package), quiet=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
