"""The options of every command, in argparse (interface section 1)."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from agent_host.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Options of `run` and `resume` that are settings: option, setting, arguments for argparse.
_SETTING_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--policy",
        "host.policy",
        {"metavar": "NAME_OR_FILE", "help": "read-only, workspace, ci, full, or a bundle file"},
    ),
    ("--gateway", "llm.gateway", {"metavar": "URL", "help": "LLM gateway, or mock:FILE for a scripted one"}),
    ("--dialect", "llm.dialect", {"metavar": "NAME", "help": "wire format of the gateway: anthropic"}),
    ("--model", "llm.model", {"metavar": "NAME", "help": "a model that the policy allows (default: its first)"}),
    ("--max-steps", "host.max_steps", {"metavar": "N", "type": int, "help": "1 to 10,000 (40)"}),
    (
        "--toolset",
        "host.toolset",
        {"metavar": "FAMILY", "action": "append", "help": "tool family the model sees: desktop; repeatable"},
    ),
    ("--output", "host.output", {"metavar": "FORM", "help": "text, json or jsonl"}),
)


class _OneLineParser(argparse.ArgumentParser):
    """Errors are one line that says what to do, exit code 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"agent-host: error: {message} (see `{self.prog} --help`)\n")
        sys.exit(2)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line; `command` is the function to call with it. Exits with 2 on a usage error."""
    parser = _OneLineParser(
        prog="agent-host",
        description="A local agent host: tasks that survive kill -9, tools that pass a policy first.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agent-host {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", parser_class=_OneLineParser)
    run = _add(commands, "run", _run, "run one task, headless")
    run.add_argument("prompt", metavar="PROMPT", help="what to do; - reads it from standard input")
    run.add_argument("--session-id", metavar="ID", help="choose the id (default: generated)")
    _session_options(run)
    resume = _add(commands, "resume", _resume, "go on with a crashed or paused session, headless")
    resume.add_argument("session_id", metavar="SESSION_ID", nargs="?", help="default: the newest resumable one")
    _session_options(resume)
    sessions = _add(commands, "sessions", _sessions, "list resumable and finished sessions")
    sessions.add_argument("--output", choices=("text", "json"), default="text", help="form of the list")
    _state_dir(sessions)
    gateway = _add(commands, "mock-gateway", _mock_gateway, "a scripted LLM gateway on loopback")
    gateway.add_argument("--script", metavar="FILE", required=True, help="TOML or JSON lines")
    gateway.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    gateway.add_argument("--port", type=int, default=0, help="port (any free one)")
    gateway.add_argument("--workspace", metavar="DIR", default=".", help="what ${workspace} in the script stands for")
    doctor = _add(commands, "doctor", _doctor, "what this machine has; exit 0 or 1")
    _gateway_option(doctor)
    _state_dir(doctor)
    return parser.parse_args(arguments)


def given_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line sets, by key."""
    return {
        key: value
        for option, key, _ in _SETTING_OPTIONS
        if (value := getattr(namespace, _destination(option), None)) is not None
    }


def _session_options(parser: argparse.ArgumentParser) -> None:
    for option, _, arguments in _SETTING_OPTIONS:
        parser.add_argument(option, **arguments)
    parser.add_argument("--workspace", metavar="DIR", help="project directory (current directory)")
    parser.add_argument(
        "--approve", metavar="RULE_OR_TOOL", action="append", default=[], help="approve in advance; repeatable"
    )
    parser.add_argument("--approve-all", action="store_true", help="approve everything: for a throw-away sandbox")
    _state_dir(parser)


def _gateway_option(parser: argparse.ArgumentParser) -> None:
    option, _, arguments = next(row for row in _SETTING_OPTIONS if row[1] == "llm.gateway")
    parser.add_argument(option, **arguments)


def _state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir", metavar="DIR", help="default: $AGENT_HOST_STATE_DIR, else the user data directory"
    )


def _destination(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _add(commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(command=command)
    return parser


def _run(namespace: argparse.Namespace) -> int:
    from agent_host.cli.headless import run

    return run(namespace)


def _resume(namespace: argparse.Namespace) -> int:
    from agent_host.cli.headless import resume

    return resume(namespace)


def _sessions(namespace: argparse.Namespace) -> int:
    from agent_host.cli.sessions import sessions

    return sessions(namespace)


def _mock_gateway(namespace: argparse.Namespace) -> int:
    from agent_host.cli.mock_gateway import mock_gateway

    return mock_gateway(namespace)


def _doctor(namespace: argparse.Namespace) -> int:
    from agent_host.cli.doctor import doctor

    return doctor(namespace)
