"""The options of every command, in argparse (interface section 1)."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from agent_host.cli import notice
from agent_host.host.options import OPTION_OF
from agent_host.version import __version__
from config.lean_typing import NamedTuple
from config.shapes import hint_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    AddOption = Callable[[Any], object]
    """Adds an option to a parser or to a group of one."""


class _Formatter(argparse.HelpFormatter):
    """Help as wide as the terminal; examples keep their lines. By default argparse gets the width from shutil, which
    imports every compression module."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, width=max(columns, 40) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES_TITLE) else super()._fill_text(text, width, indent)


class _OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line with advice, exit code 2; the usage lists required arguments, and no
    options."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, formatter_class=_Formatter)

    def format_help(self) -> str:
        needed = []
        for action in self._get_positional_actions():
            name = str(action.metavar or action.dest)
            needed.append(f"[{name}]" if action.nargs == "?" else name)
        self.usage = " ".join(["%(prog)s", "[options]", *needed])
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse.ArgumentParser; unknown arguments are an error of this command, not of the program."""
        words = [] if args is None else list(args)
        self._has_p = words[:1] == ["-p"]  # a prompt follows it in other programs
        unknown = [word for word in words if self._is_unknown_option(word, words)]
        if unknown:
            names = [word.partition("=")[0] for word in unknown]
            known = self._option_string_actions
            self.error("; ".join(f"unknown option {name}{_near(name, known)}" for name in names))
        found, extra = super().parse_known_args(words, namespace)
        if extra:
            self.error(f"there is one argument too many: {extra[0]}")
        return found, extra

    def _is_unknown_option(self, word: str, words: Sequence[str]) -> bool:
        """True for a word that can only be an option, and is not a known one. Words after `--` and, for the program
        itself, after the name of a command are not judged here."""
        if not word.startswith("--") or word == "--" or " " in word:
            return False
        before = words[: words.index(word)]
        known = self._option_string_actions
        if "--" in before:
            return False
        if self._subparsers is not None and any(not one.startswith("-") for one in before):
            return False
        return word.partition("=")[0] not in known

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(name) for name in action.choices]
        if isinstance(action.choices, dict):  # of commands
            is_prompt = action.metavar == "COMMAND" and (" " in value or self._has_p)
            hint = "; for a task: agent-host run PROMPT" if is_prompt else _near(str(value), names)
            self.error(f"unknown {str(action.metavar).lower()} {value}{hint}")
        *most, last = names
        listed = f"{', '.join(most)} or {last}" if most else last
        raise argparse.ArgumentError(action, f"choose {listed}, not {value}{_near(str(value), names)}")

    def error(self, message: str) -> NoReturn:
        if message.endswith(("required: COMMAND", "required: VERB")):
            sys.stderr.write(self.format_help() + "\n")
            notice("error: choose a command of this list")
            sys.exit(2)
        message = message.removeprefix("argument ")
        message = message.replace("the following arguments are required: ", "missing: ")
        message = message.replace(": expected one argument", " needs a value")
        notice(f"error: {message} (see `{self.prog} --help`)")
        sys.exit(2)


def _near(name: str, known: Iterable[str]) -> str:
    """A question with the most similar name, "" if none is similar."""
    hint = hint_at(name, list(known))
    return hint if "did you mean" in hint else ""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `command` names the function to call with it, `module:function` in this package. Exits
    with 2 on a usage error."""
    # A parser costs a good part of a millisecond: if the command comes first, only its parser is made.
    arguments = arguments or _without_arguments()
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    parser = make_parser([name for name in arguments[:1] if name in COMMANDS] or COMMANDS)
    if "completion" not in arguments[:1] or "--words" not in arguments:
        return parser.parse_args(arguments)
    at = arguments.index("--words") + 1  # another command line follows, and argparse gives no `--` to an option
    found = parser.parse_args(arguments[:at])
    found.words = list(arguments[at:])
    return found


def _without_arguments() -> Sequence[str]:
    """`chat` at a terminal. Without its extra, list the commands and the extra to install."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ()
    if importlib.util.find_spec("prompt_toolkit") is not None:
        return ("chat",)
    sys.stdout.write(make_parser(COMMANDS).format_help() + "\n")
    notice("for a conversation here install agent-host[tui]")
    sys.exit(0)


def make_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """Return the program's parser, with the commands of these names."""
    parser = _OneLineParser(
        prog="agent-host",
        description="A local agent host: tasks that survive kill -9, tools that pass a policy first.",
        epilog=_examples(("init", 'run "Fix the failing test."')),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agent-host {__version__}", help="show the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", parser_class=_OneLineParser)
    for name in names:
        COMMANDS[name].add_to(commands)
    return parser


_EXAMPLES_TITLE = "examples:"


def _examples(lines: Iterable[str]) -> str:
    return "\n".join([_EXAMPLES_TITLE, *(f"  agent-host {line}" for line in lines)])


class _Command(NamedTuple):
    """A command or a verb: its function, `module:function` in this package, and the function that adds its options."""

    name: str
    function: str
    about: str
    examples: tuple[str, ...]
    options: tuple[AddOption, ...]

    def add_to(self, commands: Any) -> None:
        parser: argparse.ArgumentParser = commands.add_parser(
            self.name, help=self.about, description=self.about, epilog=_examples(self.examples), allow_abbrev=False
        )
        parser.set_defaults(command=self.function)
        for add in self.options:
            add(parser)


# Values of options.


def _whole_number(least: int, most: float, asks: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{asks}, not {text}")
        return number

    return read


def _number(is_fit: Callable[[float], bool], asks: str, *, unit: str = "", scale: float = 1) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text.removesuffix(unit))
        except ValueError:
            number = math.nan  # NaN is in no bounds
        if not is_fit(number):
            raise argparse.ArgumentTypeError(f"{asks}, not {text}")
        return number / scale

    return read


def _steps(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"give a whole number, not {text!r}") from None


_count = _whole_number(0, math.inf, "give a whole number from 0")
_jobs = _whole_number(1, 10_000, "give a whole number from 1 to 10,000")
_port = _whole_number(0, 65_535, "a port is a number from 0 to 65535")
_workers = _whole_number(1, 128, "give 1 to 128 workers")
_time_limit = _number(lambda number: 0 < number <= 604_800, "give seconds above 0, up to 604,800")
_seconds = _number(lambda number: 0 <= number <= 86_400, "give seconds from 0 to 86,400")
_percent = _number(
    lambda number: 0 <= number <= 1000, "give a percentage from 0 to 1000, such as 2%", unit="%", scale=100
)
_cost = _number(lambda number: number > 0, "give an amount above 0")  # 0 would mean no limit


# Options; each function adds one.


def _value(option: str, metavar: str | None, about: str | None, **extra: Any) -> AddOption:
    return lambda parser: parser.add_argument(option, metavar=metavar, help=about, **extra)


def _flag(option: str, about: str, **extra: Any) -> AddOption:
    return lambda parser: parser.add_argument(option, action="store_true", help=about, **extra)


def _text_or_json(of: str) -> AddOption:
    return _value("--output", None, f"form of {of}", choices=("text", "json"), default="text")


def _in_group(title: str, *options: AddOption) -> AddOption:
    """Add options to a group of the help; without a title they exclude each other."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group(title) if title else parser.add_mutually_exclusive_group()
        for one in options:
            one(group)

    return add


def _defaults(**values: Any) -> AddOption:
    return lambda parser: parser.set_defaults(**values)


_STATE_DIR = _value(
    "--state-dir", "DIR", "where sessions are kept ($AGENT_HOST_STATE_DIR, else the user's data directory)"
)
_SESSION = _value("session_id", "SESSION_ID", "an id, the start of one, or `latest`")


def _setting(key: str, metavar: str, about: str, **extra: Any) -> tuple[str, AddOption]:
    return key, _value(OPTION_OF[key], metavar, about, **extra)


SETTING_ARGUMENTS: Final[Mapping[str, AddOption]] = dict((
    _setting("host.policy", "NAME_OR_FILE", "read-only, workspace, ci, full, or a bundle file (workspace)"),
    _setting("llm.gateway", "URL", "LLM gateway, or mock:FILE for a scripted one ($LLM_GATEWAY_ENDPOINT)"),
    _setting("llm.provider", "NAME", "a provider of the configuration, or a known one (the one that is found)"),
    _setting("llm.dialect", "NAME", "wire format of the gateway: anthropic, openai, responses or auto (anthropic)"),
    _setting("llm.model", "NAME", "a model that the policy allows (its first)"),
    _setting("host.max_steps", "N", "the most steps of a task, 1 to 10,000 (40)", type=_steps),
    _setting("llm.max_cost", "N", "end before it costs more: docs/costs.md (no limit)", type=_cost),
    _setting("host.toolset", "FAMILY", "tools the model sees: desktop, native, skills or slim; repeatable (desktop)",
             action="append"),
    _setting("sandbox.level", "LEVEL", "sandbox of commands: none, landlock, namespace or auto (auto)"),
    _setting("sandbox.allowed_domains", "HOST", "a host that commands may reach; repeatable (none)", action="append"),
    _setting("host.output", "FORM", "text, json or jsonl (text)"),
    ("host.verbose", _flag(OPTION_OF["host.verbose"], "show commands' output and the model's thinking, on standard "
                           "error", default=None)),
))  # fmt: skip
"""Functions that add the options that are settings (`OPTION_OF`), by their keys."""


def _settings(*keys: str) -> tuple[AddOption, ...]:
    return (*(SETTING_ARGUMENTS[key] for key in keys), _STATE_DIR)


def _group_of(key: str) -> str:
    if key.startswith("llm."):
        return "model"
    if key in ("host.output", "host.verbose"):
        return "output"
    return "session" if key == "host.max_steps" else "what it may do"


_OF_SESSIONS: Final = (
    *((OPTION_OF[key], _group_of(key), add) for key, add in SETTING_ARGUMENTS.items()),
    ("--approve", "what it may do",
     _value("--approve", "RULE_OR_TOOL", "approve in advance; repeatable", action="append", default=[])),
    ("--approve-all", "what it may do",
     _flag("--approve-all", "approve everything but guarded tools: for a throw-away sandbox")),
    ("--workspace", "session", _value("--workspace", "DIR", "project directory (the current directory)")),
    ("--state-dir", "session", _STATE_DIR),
)  # fmt: skip
"""Option, group and the function that adds it."""


def _session_options(*without: str) -> AddOption:
    def add(parser: argparse.ArgumentParser) -> None:
        for title in ("session", "model", "what it may do", "output"):
            rows = [one for option, group, one in _OF_SESSIONS if group == title and option not in without]
            _in_group(title, *rows)(parser)

    return add


_BOUNDS: Final = (
    _value("--schema", "FILE", "JSON Schema that the final answer has to fit"),
    _value("--timeout", "SECONDS", "pause after so long, waits for a person included (none)", type=_time_limit),
    _flag("--stdin", "read standard input, and append it to the prompt as data"),
    _in_group(
        "files for a pipeline: whole or not there, however the task ends",
        _value("--patch", "FILE", "the session's changes, as `git apply` takes them"),
        _value("--result", "FILE", "the result object, as JSON"),
        _value("--summary", "FILE", "a summary, in Markdown"),
        _value("--junit", "FILE", "a test report: the task, its commands and what was denied"),
        _flag("--no-summary", "add nothing to the summary of a GitHub Actions step"),
    ),
    _flag("--no-input", "never ask at the terminal"),
)


# The commands, in the order of the help.


def _add_verbs(policy: argparse.ArgumentParser) -> None:
    verbs = policy.add_subparsers(metavar="VERB", required=True, title="verbs", parser_class=_OneLineParser)
    for verb in _VERBS:
        verb.add_to(verbs)


_CHECKS = 'policy check RunCommand \'{"command": "make test"}\' --policy ci'
_VERBS: Final = (
    _Command("check", "policy:check", "what the policy says to a call; nothing is executed",
             (_CHECKS, "policy check --batch cases.jsonl --policy own.json"), (
        _value("tool", "TOOL", "name of the tool", nargs="?"),
        _value("arguments", "ARGS_JSON", "its arguments, a JSON object", nargs="?"),
        _value("--batch", "FILE", "one case a line, one decision a line out; - is standard input"),
        _value("--workspace", "DIR", "project directory (current directory)"),
        _text_or_json("a single decision"),
        *_settings("host.policy", "sandbox.level", "sandbox.allowed_domains"),
        _flag("--exit-code", "exit 0 allowed, 1 denied, 4 needs approval, 2 unusable (always 0)"),
    )),
    _Command("test", "policy:test", "each case of a file against the decision that it expects",
             ("policy test cases.jsonl --policy own.json",
              "policy test cases.jsonl --policy own.json --junit policy.xml"), (
        _value("file", "FILE", "cases as of `check --batch`, each with `expect`; - is standard input"),
        _value("--junit", "FILE", "also write a report in JUnit's form"),
        _value("--workspace", "DIR", "project directory (the current directory)"),
        *_settings("host.policy", "sandbox.level"),
    )),
    _Command("tools", "policy:tools", "which tools the model would be shown, and why not the others",
             ("policy tools --policy read-only", "policy tools --toolset native --output json"), (
        _value("--workspace", "DIR", "project directory (current directory)"),
        _text_or_json("the list"),
        *_settings("host.policy", "host.toolset", "sandbox.level")[:-1],
        _value("--skill", "NAME", "what this skill leaves of them; repeatable", action="append", default=[]),
        _STATE_DIR,
    )),
    _Command("validate", "policy:validate", "every problem of a bundle, with its JSON path, and what its lists admit",
             ("policy validate own.json", "policy validate own.json --sandbox none"), (
        _value("file", "FILE", None),
        _value("--workspace", "DIR", "what ${workspace} stands for (current directory)"),
        _text_or_json("the list"),
        *_settings("sandbox.level"),
    )),
    _Command("show", "policy:show", "print a built-in as a bundle to start from",
             ("policy show ci", "policy show workspace > own.json"), (
        _value("name", "NAME", "read-only, workspace, ci or full"),
    )),
    _Command("rejudge", "replay:rejudge", "what another policy would have said to a session's calls",
             ("policy rejudge latest --policy ci", "policy rejudge sess_1f2e --output json"), (
        _SESSION,
        _value("--workspace", "DIR", "project directory (the session's)"),
        _text_or_json("the list"),
        *_settings("host.policy"),
    )),
)  # fmt: skip

_ALL: Final = (
    _Command("run", "headless:run", "run one task, headless",
             ('run "Fix the failing test."', "run - --policy ci --output json < task.md"), (
        _value("prompt", "PROMPT", "what to do; - reads it from standard input"),
        _value("--session-id", "ID", "choose the id (default: generated)"),
        _flag("--or-resume", "with --session-id: start the session, continue it, or repeat its result"),
        _value("--order", "FILE", argparse.SUPPRESS),  # of `batch`: see `RunOrder`
        _session_options(),
        *_BOUNDS,
    )),
    _Command("chat", "chat:chat", "a conversation at the terminal",
             ("chat", 'chat --continue "Now add a test for it."'), (
        _value("prompt", "PROMPT", "the first prompt", nargs="?"),
        _in_group(
            "",
            _flag("--continue", "continue the newest session of this workspace", dest="continues"),
            _value("--session", "ID", "continue this session"),
        ),
        _flag("--plain", "lines only, for screen readers; nothing is drawn over"),
        _session_options("--output", "--verbose", "--approve", "--approve-all"),
        _defaults(approve=[], approve_all=False),
    )),
    _Command("resume", "headless:resume", "continue a session that was interrupted or paused, headless",
             ("resume", 'resume sess_1f2e "Now add a test for it."'), (
        _value("session_id", "SESSION_ID", "default: the newest resumable one", nargs="?"),
        _value("prompt", "PROMPT", "another task, for a session whose last one is over", nargs="?"),
        _session_options(),
        *_BOUNDS,
    )),
    _Command("batch", "batch:batch", "run many tasks, each as a session of its own",
             ("batch tasks.jsonl --jobs 8", "batch tasks.jsonl --policy ci --max-cost 20"), (
        _value("file", "FILE", "the tasks: JSON Lines, or CSV with the same names"),
        _value("--out", "DIR", "where results, patches and the summary go (FILE.out)"),
        _value("--jobs", "N", "sessions at once (by cores and memory)", type=_jobs),
        _value("--engine", None, "where they run (local)", choices=("local", "ray"), default="local"),
        _value("--retries", "N", "retries of retryable failures (2)", type=_count, default=2),
        _flag("--keep", "keep all workspaces (those of completed tasks are removed)"),
        _value("--schema", "FILE", "JSON Schema that each final answer has to fit"),
        _value("--timeout", "SECONDS", "pause a session after so long (none)", type=_time_limit),
        _flag("--no-input", argparse.SUPPRESS),  # of `run`; a batch never asks
        _session_options("--workspace", "--verbose"),
        _defaults(workspace=None),
    )),
    _Command("serve", "servers:serve", "one session for a client that talks JSON-RPC 2.0",
             ("serve --workspace /srv/project", "serve --socket /run/user/1000/agent.sock"), (
        _value("--socket", "PATH", "listen on a local socket instead of standard input and output"),
        _value("--reconnect-s", "SECONDS", "how long a session waits for a client of the socket to come back "
               "(0: not at all)", type=_seconds, default=0.0),
        _session_options("--output", "--verbose"),
    )),
    _Command("sessions", "sessions:sessions", "list sessions, remove one, or prune them",
             ("sessions --search parser", "sessions --prune --max-age 30d --dry-run"), (
        _value("verb", "VERB", "rm ID removes one; list, or no verb, lists them", nargs="?", choices=("rm", "list")),
        _value("session_id", "ID", "of rm: an id, or the start of a generated one (sess_…)", nargs="?"),
        _text_or_json("the list"),
        _value("--search", "TEXT", "only those with TEXT in title, prompt, workspace or id", default=""),
        _value("--limit", "N", "the newest N rows, 0 for all (20; all as JSON)", type=_count),
        _flag("--prune", "remove ended sessions that are over a limit; without one, over those of [retention] in the "
              "configuration"),
        _in_group(  # None for each that was not given
            "limits of --prune",
            _value("--max-age", "AGE", "keep what was used within AGE: 30d; units s, m, h, d, w"),
            _value("--max-count", "N", "keep the newest N"),
            _value("--max-size", "SIZE", "keep the newest that together have SIZE: 2GiB, 500M, 4096"),
            _flag("--resumable", "let the limits, or rm, apply to resumable and damaged sessions too", default=None),
            _flag("--dry-run", "only list what would be removed", default=None),
        ),
        _STATE_DIR,
    )),
    _Command("approvals", "sessions:approvals", "list the open questions of all live sessions",
             ("approvals", "approvals --output json"), (_text_or_json("the list"), _STATE_DIR)),
    _Command("approve", "sessions:approve", "approve an open question of a live session",
             ("approve appr_1f2e", "approve appr_1f2e --scope session"), (
        _value("approval_id", "ID", "the question, as `agent-host approvals` lists it"),
        _value("--scope", None, "how far it reaches (once)", choices=("once", "task", "session"), default="once"),
        _STATE_DIR,
    )),
    _Command("deny", "sessions:deny", "deny an open question of a live session",
             ("deny appr_1f2e", 'deny appr_1f2e --reason "Not on a Friday."'), (
        _value("approval_id", "ID", "the question, as `agent-host approvals` lists it"),
        _value("--reason", "TEXT", "why, for the model"),
        _STATE_DIR,
    )),
    _Command("show", "sessions:show", "what a session did: calls, decisions, output, approvals, marks",
             ("show latest", "show sess_1f2e --html session.html"), (
        _SESSION,
        _value("--step", "N", "one step, whole", type=_count),
        _text_or_json("what is shown"),
        _value("--html", "FILE", "write one page for a browser to FILE (extra `report`)"),
        _flag("--full", "with --html: leave out no text and no picture"),
        _flag("--markdown", "show it as Markdown, for a pull request or an issue"),
        _STATE_DIR,
    )),
    _Command("report", "sessions:report", "write many sessions as one page (extra `report`)",
             ("report --all --html sessions.html", "report sess_1f2e sess_77ab --html two.html --with-sessions"), (
        _value("sessions", "SESSION_ID", "ids, or starts of ids", nargs="*"),
        _flag("--all", "all sessions of the state directory"),
        _value("--html", "FILE", "the page", required=True),
        _flag("--with-sessions", "also write the page of each session, beside FILE in a folder"),
        _STATE_DIR,
    )),
    _Command("view", "servers:view", "serve sessions as a live page (extra `view`)",
             ("view", "view --port 8090 --allow-approve"), (
        _value("--port", None, "port on 127.0.0.1 (any free one)", type=_port, default=0),
        _flag("--allow-approve", "open questions can be answered on the page"),
        _STATE_DIR,
    )),
    _Command("replay", "replay:replay", "run a recorded session again; exit 1 if a call differs",
             ("replay sess_1f2e --workspace /tmp/copy", "replay sess_1f2e --policy ci"), (
        _SESSION,
        _value("--workspace", "DIR", "where its commands and writes run again, such as a copy"),
        _text_or_json("the report"),
        *_settings("host.policy"),
    )),
    _Command("mock-gateway", "servers:mock_gateway", "a scripted LLM gateway on loopback",
             ("mock-gateway --script turns.toml --port 8089",
              "mock-gateway --script new.toml --record https://llm.example.com"), (
        _value("--script", "FILE", "TOML or JSON lines; with --record a new file", required=True),
        _value("--record", "URL", "pass requests on to this gateway, and write its answers down"),
        _value("--host", None, "address to listen on (127.0.0.1)", default="127.0.0.1"),
        _value("--port", None, "port (any free one)", type=_port, default=0),
        _value("--workspace", "DIR", "what ${workspace} in the script stands for", default="."),
    )),
    _Command("policy", "", "try a policy, or see what is wrong with a bundle",
             (_CHECKS, "policy show workspace > own.json"), (_add_verbs,)),
    _Command("mcp", "protocols:mcp", "an MCP server, to which others hand tasks",
             ("mcp --workspace /srv/project", "mcp --policy ci --approve-all"), (
        _flag("--allow-approve", "let the client itself approve calls, with a tool of its own"),
        _session_options("--output", "--verbose"),
    )),
    _Command("acp", "protocols:acp", "an agent for editors (Agent Client Protocol)",
             ("acp", "acp --policy read-only"), (
        lambda parser: parser.add_argument(
            "--init", dest="command", action="store_const", const="init:init", default="protocols:acp",
            help="set a provider up, as `agent-host init` does",
        ),
        _defaults(key_env=None, yes=False),  # options of `init` that this command lacks
        _session_options("--output", "--verbose", "--workspace"),
    )),
    _Command("tool-service", "servers:tool_service", "the Backend Tool Service, for hosts elsewhere",
             ("tool-service --tenants tenants.toml --port 8090",
              "tool-service --tenants tenants.toml --host 0.0.0.0 --workers 4"), (
        _value("--tenants", "FILE", "who may call which tools: JSON or TOML", required=True),
        _value("--host", None, "address to listen on (127.0.0.1)", default="127.0.0.1"),
        _value("--port", None, "port (any free one)", type=_port, default=0),
        _value("--workers", "N", "processes behind the port (1)", type=_workers, default=1),
        _value("--drain-s", "SECONDS", "how long calls may still run at the end (30)", type=_seconds, default=30.0),
        _value("--artifacts", "DIR", "directory of outputs without WORKSPACE_SERVICE_URL (state directory)"),
        _STATE_DIR,
    )),
    _Command("cost-check", "replay:cost_check", "what recorded sessions cost now; exit 1 on growth",
             ("cost-check recordings/*.toml --baseline costs.json",
              "cost-check sess_1f2e --workspace . --baseline costs.json --write-baseline"), (
        _value("recordings", "RECORDING", "ids of sessions, or scripts (.toml, .jsonl)", nargs="+"),
        _value("--baseline", "FILE", "the costs to compare with", required=True),
        _value("--max-growth", "PERCENT", "allowed growth (2%%)", type=_percent, default=0.02),
        _flag("--write-baseline", "write FILE in place of comparing"),
        _value("--workspace", "DIR", "directory that recorded sessions work in; it is copied"),
        _text_or_json("the report (text)"),
        *_settings("host.policy", "llm.dialect"),
    )),
    _Command("init", "init:init", "find a provider, prove it, write the configuration",
             ("init", "init --provider ollama --model qwen2.5-coder:7b"), (
        _value("--provider", "NAME", "a known provider, or one of the configuration"),
        _value("--model", "NAME", "the model (default: the provider's usual one)"),
        _value("--gateway", "URL", "a provider by its URL"),
        _value("--key-env", "VAR", "the variable that has its key"),
        _flag("--yes", "ask nothing; confirm a change of the configuration"),
        _STATE_DIR,
    )),
    _Command("doctor", "init:doctor", "what this machine has; exit 0 or 1",
             ("doctor", "doctor --deep --output json"), (
        *_settings("llm.gateway", "llm.provider", "llm.dialect", "llm.model", "sandbox.level"),
        _text_or_json("the report (text)"),
        _flag("--deep", "also have the model call a tool, with one real request"),
        _value("--authorize", "NAME", "authorize agent-host at an MCP server (oauth = true)"),
    )),
    _Command("completion", "completion:completion", "print a shell's completion of commands",
             ("completion bash > ~/.local/share/bash-completion/completions/agent-host",
              "completion fish > ~/.config/fish/completions/agent-host.fish"), (
        _value("shell", "SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),
        _value("--words", None, argparse.SUPPRESS, nargs="*"),
    )),
)  # fmt: skip
COMMANDS: Final = {command.name: command for command in _ALL}
