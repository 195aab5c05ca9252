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

    AddOptions = Callable[[argparse.ArgumentParser], None]


class _Formatter(argparse.HelpFormatter):
    """As wide as the terminal; examples keep their lines. Left to itself argparse asks shutil for the width, and
    imports every compression there is with it."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, width=max(columns, 40) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES_TITLE) else super()._fill_text(text, width, indent)


class _OneLineParser(argparse.ArgumentParser):
    """Errors are one line that says what to do, exit code 2; the usage says what has to be given, and no option."""

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
        """See argparse.ArgumentParser; whatever is not known is an error of this command, and not of the program."""
        words = [] if args is None else list(args)
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
        """True for a word that can only be an option, and is none. Behind `--`, and for the program itself behind the
        name of a command, stands what is for others to judge."""
        if not word.startswith("--") or word == "--" or " " in word:
            return False
        before = words[: words.index(word)]
        known = self._option_string_actions
        if "--" in before or any(known[one].nargs == argparse.REMAINDER for one in before if one in known):
            return False
        if self._subparsers is not None and any(not one.startswith("-") for one in before):
            return False
        return word.partition("=")[0] not in known

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(name) for name in action.choices]
        if isinstance(action.choices, dict):  # of commands
            self.error(f"unknown {str(action.metavar).lower()} {value}{_near(str(value), names)}")
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
    """A question about the nearest name, "" where none is near."""
    hint = hint_at(name, list(known))
    return hint if "did you mean" in hint else ""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line; `command` names the function to call with it, `module:function`
    in this package. Exits with 2 on a usage error."""
    # A parser is a good part of a millisecond: where the command comes first, it is the only one that gets its own.
    arguments = arguments or _without_arguments()
    return make_parser([name for name in arguments[:1] if name in COMMANDS] or COMMANDS).parse_args(arguments)


def _without_arguments() -> Sequence[str]:
    """`chat` at a terminal. Without its extra the commands are listed, with what to install."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ()
    if importlib.util.find_spec("prompt_toolkit") is not None:
        return ("chat",)
    sys.stdout.write(make_parser(COMMANDS).format_help() + "\n")
    notice("for a conversation here install agent-host[tui]")
    sys.exit(0)


def make_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of the program, with the commands of these names."""
    parser = _OneLineParser(
        prog="agent-host",
        description="A local agent host: tasks that survive kill -9, tools that pass a policy first.",
        epilog=_examples("agent-host"),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agent-host {__version__}", help="show the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", parser_class=_OneLineParser)
    for name in names:
        command = COMMANDS[name]
        command.add_options(_add(commands, name, command.function, command.about))
    return parser


COMMANDS_WITH_SESSION: Final = ("resume", "show", "replay", "rejudge")
"""Commands whose first argument is the id of a session."""
_EXAMPLES_TITLE = "examples:"
_EXAMPLES: Mapping[str, tuple[str, str]] = {
    "agent-host": ("init", 'run "Fix the failing test."'),
    "run": ('run "Fix the failing test."', "run - --policy ci --output json < task.md"),
    "chat": ("chat", 'chat --continue "Now add a test for it."'),
    "resume": ("resume", 'resume sess_1f2e "Now add a test for it."'),
    "batch": ("batch tasks.jsonl --jobs 8", "batch tasks.jsonl --policy ci --max-cost 20"),
    "serve": ("serve --workspace /srv/project", "serve --socket /run/user/1000/agent.sock"),
    "sessions": ("sessions --search parser", "sessions --prune --max-age 30d --dry-run"),
    "approvals": ("approvals", "approvals --output json"),
    "approve": ("approve appr_1f2e", "approve appr_1f2e --scope session"),
    "deny": ("deny appr_1f2e", 'deny appr_1f2e --reason "Not on a Friday."'),
    "show": ("show latest", "show sess_1f2e --html session.html"),
    "view": ("view", "view --port 8090 --allow-approve"),
    "report": ("report --all --html sessions.html", "report sess_1f2e sess_77ab --html two.html --with-sessions"),
    "replay": ("replay sess_1f2e --workspace /tmp/copy", "replay sess_1f2e --policy ci"),
    "mock-gateway": (
        "mock-gateway --script turns.toml --port 8089",
        "mock-gateway --script new.toml --record https://llm.example.com",
    ),
    "policy": (
        'policy check RunCommand \'{"command": "make test"}\' --policy ci',
        "policy show workspace > own.json",
    ),
    "check": (
        'policy check RunCommand \'{"command": "make test"}\' --policy ci',
        "policy check --batch cases.jsonl --policy own.json",
    ),
    "test": (
        "policy test cases.jsonl --policy own.json",
        "policy test cases.jsonl --policy own.json --junit policy.xml",
    ),
    "tools": ("policy tools --policy read-only", "policy tools --toolset native --output json"),
    "validate": ("policy validate own.json", "policy validate own.json --sandbox none"),
    "policy show": ("policy show ci", "policy show workspace > own.json"),
    "rejudge": ("policy rejudge latest --policy ci", "policy rejudge sess_1f2e --output json"),
    "mcp": ("mcp --workspace /srv/project", "mcp --policy ci --approve-all"),
    "acp": ("acp", "acp --policy read-only"),
    "tool-service": (
        "tool-service --tenants tenants.toml --port 8090",
        "tool-service --tenants tenants.toml --host 0.0.0.0 --workers 4",
    ),
    "cost-check": (
        "cost-check recordings/*.toml --baseline costs.json",
        "cost-check sess_1f2e --workspace . --baseline costs.json --write-baseline",
    ),
    "init": ("init", "init --provider ollama --model qwen2.5-coder:7b"),
    "doctor": ("doctor", "doctor --deep --output json"),
    "completion": (
        "completion bash > ~/.local/share/bash-completion/completions/agent-host",
        "completion fish > ~/.config/fish/completions/agent-host.fish",
    ),
}


def _examples(name: str) -> str:
    return "\n".join([_EXAMPLES_TITLE, *(f"  agent-host {line}" for line in _EXAMPLES[name])])


def _add(commands: Any, name: str, function: str, about: str) -> argparse.ArgumentParser:
    shown = f"policy {name}" if function == "policy:show" else name
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, epilog=_examples(shown), allow_abbrev=False
    )
    parser.set_defaults(command=function)
    return parser


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
            number = math.nan  # which is in no bounds
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
_timeout = _number(lambda number: 0 < number <= 604_800, "give seconds above 0, up to 604,800")
_seconds = _number(lambda number: 0 <= number <= 86_400, "give seconds from 0 to 86,400")
_percent = _number(
    lambda number: 0 <= number <= 1000, "give a percentage from 0 to 1000, such as 2%", unit="%", scale=100
)
_cost = _number(lambda number: number > 0, "give an amount above 0")  # 0 would mean that there is no limit


# Options that several commands have.


def _flag(parser: argparse._ActionsContainer, option: str, about: str) -> None:
    parser.add_argument(option, action="store_true", help=about)


def _text_or_json(parser: argparse._ActionsContainer, of: str) -> None:
    parser.add_argument("--output", choices=("text", "json"), default="text", help=f"form of {of}")


def _workspace(parser: argparse._ActionsContainer, about: str) -> None:
    parser.add_argument("--workspace", metavar="DIR", help=about)


def _state_dir(parser: argparse._ActionsContainer) -> None:
    about = "where sessions are kept ($AGENT_HOST_STATE_DIR, else the user's data directory)"
    parser.add_argument("--state-dir", metavar="DIR", help=about)


SETTING_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "host.policy": {
        "metavar": "NAME_OR_FILE",
        "help": "read-only, workspace, ci, full, or a bundle file (workspace)",
    },
    "llm.gateway": {
        "metavar": "URL",
        "help": "LLM gateway, or mock:FILE for a scripted one ($LLM_GATEWAY_ENDPOINT)",
    },
    "llm.provider": {
        "metavar": "NAME",
        "help": "a provider of the configuration, or a known one (the one that is found)",
    },
    "llm.dialect": {
        "metavar": "NAME",
        "help": "wire format of the gateway: anthropic, openai, responses or auto (anthropic)",
    },
    "llm.model": {"metavar": "NAME", "help": "a model that the policy allows (its first)"},
    "host.max_steps": {"metavar": "N", "type": _steps, "help": "the most steps of a task, 1 to 10,000 (40)"},
    "llm.max_cost": {"metavar": "N", "type": _cost, "help": "end before it costs more: docs/costs.md (no limit)"},
    "host.toolset": {
        "metavar": "FAMILY",
        "action": "append",
        "help": "tools the model sees: desktop, native, skills or slim; repeatable (desktop)",
    },
    "sandbox.level": {
        "metavar": "LEVEL",
        "help": "sandbox of commands: none, landlock, namespace or auto (auto)",
    },
    "sandbox.allowed_domains": {
        "metavar": "HOST",
        "action": "append",
        "help": "a host that commands may reach; repeatable (none)",
    },
    "host.output": {"metavar": "FORM", "help": "text, json or jsonl (text)"},
    "host.verbose": {
        "action": "store_true",
        "default": None,
        "help": "show commands' output and the model's thinking, on standard error",
    },
}
"""Arguments for argparse of the options that are settings (`OPTION_OF`)."""
_GROUP_TITLES = {"session": "session", "model": "model", "policy": "what it may do", "output": "output"}


def _settings(parser: argparse.ArgumentParser, *keys: str) -> None:
    for key in keys:
        parser.add_argument(OPTION_OF[key], **SETTING_ARGUMENTS[key])
    _state_dir(parser)


def _session_options(parser: argparse.ArgumentParser, without: tuple[str, ...] = ()) -> None:
    """Add the options of a session, in groups: the model, what it may do, the output, and the rest."""
    groups = {name: parser.add_argument_group(title) for name, title in _GROUP_TITLES.items()}
    for key, arguments in SETTING_ARGUMENTS.items():
        if OPTION_OF[key] not in without:
            groups[_group_of(key)].add_argument(OPTION_OF[key], **arguments)
    policy, session = groups["policy"], groups["session"]
    if "--approve" not in without:
        about = "approve in advance; repeatable"
        policy.add_argument("--approve", metavar="RULE_OR_TOOL", action="append", default=[], help=about)
    if "--approve-all" not in without:
        _flag(policy, "--approve-all", "approve everything but guarded tools: for a throw-away sandbox")
    if "--workspace" not in without:
        _workspace(session, "project directory (the current directory)")
    _state_dir(session)


def _group_of(key: str) -> str:
    if key.startswith("llm."):
        return "model"
    if key in ("host.output", "host.verbose"):
        return "output"
    return "session" if key == "host.max_steps" else "policy"


def _bounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", metavar="FILE", help="JSON Schema that the final answer has to fit")
    about = "pause after so long, waits for a person included (none)"
    parser.add_argument("--timeout", metavar="SECONDS", type=_timeout, help=about)
    _flag(parser, "--stdin", "read standard input, and append it to the prompt as data")


def _output_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files for a pipeline: whole or not there, however the task ends")
    for option, about in (
        ("--patch", "the session's changes, as `git apply` takes them"),
        ("--result", "the result object, as JSON"),
        ("--summary", "a summary, in Markdown"),
        ("--junit", "a test report: the task, its commands and what was denied"),
    ):
        group.add_argument(option, metavar="FILE", help=about)
    _flag(group, "--no-summary", "add nothing to the summary of a GitHub Actions step")


# The commands, in the order of the help.


class _Command(NamedTuple):
    function: str
    about: str
    add_options: AddOptions


COMMANDS: Final[dict[str, _Command]] = {}


def _command(name: str, function: str, about: str) -> Callable[[AddOptions], AddOptions]:
    def register(add_options: AddOptions) -> AddOptions:
        COMMANDS[name] = _Command(function, about, add_options)
        return add_options

    return register


@_command("run", "headless:run", "run one task, headless")
def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument("prompt", metavar="PROMPT", help="what to do; - reads it from standard input")
    run.add_argument("--session-id", metavar="ID", help="choose the id (default: generated)")
    _flag(run, "--or-resume", "with --session-id: start the session, continue it, or repeat its result")
    run.add_argument("--order", metavar="FILE", help=argparse.SUPPRESS)  # of `batch`: see `RunOrder`
    _session_options(run)
    _bounds(run)
    _output_files(run)
    _flag(run, "--no-input", "never ask at the terminal")


@_command("chat", "chat:chat", "a conversation at the terminal")
def _chat(chat: argparse.ArgumentParser) -> None:
    chat.add_argument("prompt", metavar="PROMPT", nargs="?", help="the first prompt")
    which = chat.add_mutually_exclusive_group()
    about = "continue the newest session of this workspace"
    which.add_argument("--continue", dest="continues", action="store_true", help=about)
    which.add_argument("--session", metavar="ID", help="continue this session")
    _flag(chat, "--plain", "lines only, for screen readers; nothing is drawn over")
    _session_options(chat, without=("--output", "--verbose", "--approve", "--approve-all"))
    chat.set_defaults(approve=[], approve_all=False)


@_command("resume", "headless:resume", "continue a session that was interrupted or paused, headless")
def _resume(resume: argparse.ArgumentParser) -> None:
    resume.add_argument("session_id", metavar="SESSION_ID", nargs="?", help="default: the newest resumable one")
    about = "another task, for a session whose last one is over"
    resume.add_argument("prompt", metavar="PROMPT", nargs="?", help=about)
    _session_options(resume)
    _bounds(resume)
    _output_files(resume)
    _flag(resume, "--no-input", "never ask at the terminal")


@_command("batch", "batch:batch", "run many tasks, each as a session of its own")
def _batch(batch: argparse.ArgumentParser) -> None:
    batch.add_argument("file", metavar="FILE", help="the tasks: JSON Lines, or CSV with the same names")
    batch.add_argument("--out", metavar="DIR", help="where results, patches and the summary go (FILE.out)")
    batch.add_argument("--jobs", metavar="N", type=_jobs, help="sessions at once (by cores and memory)")
    batch.add_argument("--engine", choices=("local", "ray"), default="local", help="where they run (local)")
    batch.add_argument("--retries", metavar="N", type=_count, default=2, help="retries of retryable failures (2)")
    _flag(batch, "--keep", "keep all workspaces (those of completed tasks are removed)")
    batch.add_argument("--schema", metavar="FILE", help="JSON Schema that each final answer has to fit")
    batch.add_argument("--timeout", metavar="SECONDS", type=_timeout, help="pause a session after so long (none)")
    _flag(batch, "--no-input", argparse.SUPPRESS)  # of `run`; a batch never asks
    _session_options(batch, without=("--workspace", "--verbose"))
    batch.set_defaults(workspace=None)


@_command("serve", "servers:serve", "one session for a client that talks JSON-RPC 2.0")
def _serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--socket", metavar="PATH", help="listen on a local socket instead of standard input and output")
    about = "how long a session waits for a client of the socket to come back (0: not at all)"
    serve.add_argument("--reconnect-s", metavar="SECONDS", type=_seconds, default=0.0, help=about)
    _session_options(serve, without=("--output", "--verbose"))


@_command("sessions", "sessions:sessions", "list sessions, remove one, or prune them")
def _sessions(sessions: argparse.ArgumentParser) -> None:
    about = "remove the session ID; else list them"
    sessions.add_argument("verb", metavar="rm", nargs="?", choices=("rm",), help=about)
    sessions.add_argument("session_id", metavar="ID", nargs="?", help="the whole id")
    _text_or_json(sessions, "the list")
    about = "only those with TEXT in title, prompt, workspace or id"
    sessions.add_argument("--search", metavar="TEXT", default="", help=about)
    sessions.add_argument("--limit", metavar="N", type=_count, help="the newest N rows, 0 for all (20; all as JSON)")
    about = "remove ended sessions that are over a limit; without one, over those of [retention] in the configuration"
    _flag(sessions, "--prune", about)
    limits = sessions.add_argument_group("limits of --prune")  # None if one was not given
    limits.add_argument("--max-age", metavar="AGE", help="keep what was used within AGE: 30d; units s, m, h, d, w")
    limits.add_argument("--max-count", metavar="N", help="keep the newest N")
    limits.add_argument("--max-size", metavar="SIZE", help="keep the newest that together have SIZE: 2GiB, 500M, 4096")
    for option, about in (
        ("--resumable", "let the limits, or rm, apply to resumable and damaged sessions too"),
        ("--dry-run", "only list what would be removed"),
    ):
        limits.add_argument(option, action="store_true", default=None, help=about)
    _state_dir(sessions)


@_command("approvals", "sessions:approvals", "list the open questions of all live sessions")
def _approvals(approvals: argparse.ArgumentParser) -> None:
    _text_or_json(approvals, "the list")
    _state_dir(approvals)


@_command("approve", "sessions:approve", "approve an open question of a live session")
def _approve(approve: argparse.ArgumentParser) -> None:
    approve.add_argument("approval_id", metavar="ID", help="the question, as `agent-host approvals` lists it")
    scopes = ("once", "task", "session")
    approve.add_argument("--scope", choices=scopes, default="once", help="how far it reaches (once)")
    _state_dir(approve)


@_command("deny", "sessions:deny", "deny an open question of a live session")
def _deny(deny: argparse.ArgumentParser) -> None:
    deny.add_argument("approval_id", metavar="ID", help="the question, as `agent-host approvals` lists it")
    deny.add_argument("--reason", metavar="TEXT", help="why, for the model")
    _state_dir(deny)


@_command("show", "sessions:show", "what a session did: calls, decisions, output, approvals, marks")
def _show(show: argparse.ArgumentParser) -> None:
    show.add_argument("session_id", metavar="SESSION_ID", help="an id, the start of one, or `latest`")
    show.add_argument("--step", metavar="N", type=_count, help="one step, whole")
    _text_or_json(show, "what is shown")
    show.add_argument("--html", metavar="FILE", help="write one page for a browser to FILE (extra `report`)")
    _flag(show, "--full", "with --html: leave out no text and no picture")
    _flag(show, "--markdown", "show it as Markdown, for a pull request or an issue")
    _state_dir(show)


@_command("report", "sessions:report", "write many sessions as one page (extra `report`)")
def _report(report: argparse.ArgumentParser) -> None:
    report.add_argument("sessions", metavar="SESSION_ID", nargs="*", help="ids, or starts of ids")
    _flag(report, "--all", "all sessions of the state directory")
    report.add_argument("--html", metavar="FILE", required=True, help="the page")
    _flag(report, "--with-sessions", "also write the page of each session, beside FILE in a folder")
    _state_dir(report)


@_command("view", "servers:view", "serve sessions as a live page (extra `view`)")
def _view(view: argparse.ArgumentParser) -> None:
    view.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1 (any free one)")
    _flag(view, "--allow-approve", "open questions can be answered on the page")
    _state_dir(view)


@_command("replay", "replay:replay", "run a recorded session again; exit 1 if a call differs")
def _replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("session_id", metavar="SESSION_ID")
    _workspace(replay, "where its commands and writes run again, such as a copy")
    _text_or_json(replay, "the report")
    _settings(replay, "host.policy")


@_command("mock-gateway", "servers:mock_gateway", "a scripted LLM gateway on loopback")
def _mock_gateway(gateway: argparse.ArgumentParser) -> None:
    gateway.add_argument("--script", metavar="FILE", required=True, help="TOML or JSON lines; with --record a new file")
    gateway.add_argument("--record", metavar="URL", help="pass requests on to this gateway, and write its answers down")
    gateway.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    gateway.add_argument("--port", type=_port, default=0, help="port (any free one)")
    gateway.add_argument("--workspace", metavar="DIR", default=".", help="what ${workspace} in the script stands for")


@_command("policy", "", "try a policy, or see what is wrong with a bundle")
def _policy(policy: argparse.ArgumentParser) -> None:
    verbs = policy.add_subparsers(metavar="VERB", required=True, title="verbs", parser_class=_OneLineParser)
    check = _add(verbs, "check", "policy:check", "what the policy says to a call; nothing is executed")
    check.add_argument("tool", metavar="TOOL", nargs="?", help="name of the tool")
    check.add_argument("arguments", metavar="ARGS_JSON", nargs="?", help="its arguments, a JSON object")
    check.add_argument("--batch", metavar="FILE", help="one case a line, one decision a line out; - is standard input")
    _workspace(check, "project directory (current directory)")
    _text_or_json(check, "a single decision")
    _settings(check, "host.policy", "sandbox.level", "sandbox.allowed_domains")
    _flag(check, "--exit-code", "exit 0 allowed, 1 denied, 4 needs approval, 2 unusable (always 0)")
    test = _add(verbs, "test", "policy:test", "each case of a file against the decision that it expects")
    about = "cases as of `check --batch`, each with `expect`; - is standard input"
    test.add_argument("file", metavar="FILE", help=about)
    test.add_argument("--junit", metavar="FILE", help="also write a report in JUnit's form")
    _workspace(test, "project directory (the current directory)")
    _settings(test, "host.policy", "sandbox.level")
    _policy_lists(verbs)


def _policy_lists(verbs: Any) -> None:
    tools = _add(verbs, "tools", "policy:tools", "which tools the model would be shown, and why not the others")
    _workspace(tools, "project directory (current directory)")
    _text_or_json(tools, "the list")
    for key in ("host.policy", "host.toolset", "sandbox.level"):
        tools.add_argument(OPTION_OF[key], **SETTING_ARGUMENTS[key])
    about = "what this skill leaves of them; repeatable"
    tools.add_argument("--skill", metavar="NAME", action="append", default=[], help=about)
    _state_dir(tools)
    about = "every problem of a bundle, with its JSON path, and what its lists admit"
    validate = _add(verbs, "validate", "policy:validate", about)
    validate.add_argument("file", metavar="FILE")
    _workspace(validate, "what ${workspace} stands for (current directory)")
    _text_or_json(validate, "the list")
    _settings(validate, "sandbox.level")
    show = _add(verbs, "show", "policy:show", "print a built-in as a bundle to start from")
    show.add_argument("name", metavar="NAME", help="read-only, workspace, ci or full")
    rejudge = _add(verbs, "rejudge", "replay:rejudge", "what another policy would have said to a session's calls")
    rejudge.add_argument("session_id", metavar="SESSION_ID")
    _workspace(rejudge, "project directory (the session's)")
    _text_or_json(rejudge, "the list")
    _settings(rejudge, "host.policy")


@_command("mcp", "protocols:mcp", "an MCP server, to which others hand tasks")
def _mcp(mcp: argparse.ArgumentParser) -> None:
    _flag(mcp, "--allow-approve", "let the client itself approve calls, with a tool of its own")
    _session_options(mcp, without=("--output", "--verbose"))


@_command("acp", "protocols:acp", "an agent for editors (Agent Client Protocol)")
def _acp(acp: argparse.ArgumentParser) -> None:
    about, init = "set a provider up, as `agent-host init` does", "init:init"
    acp.add_argument("--init", dest="command", action="store_const", const=init, default="protocols:acp", help=about)
    acp.set_defaults(key_env=None, yes=False)  # options of `init` that this command has not
    _session_options(acp, without=("--output", "--verbose", "--workspace"))


@_command("tool-service", "servers:tool_service", "the Backend Tool Service, for hosts elsewhere")
def _tool_service(service: argparse.ArgumentParser) -> None:
    service.add_argument("--tenants", metavar="FILE", required=True, help="who may call which tools: JSON or TOML")
    service.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    service.add_argument("--port", type=_port, default=0, help="port (any free one)")
    service.add_argument("--workers", type=_workers, default=1, metavar="N", help="processes behind the port (1)")
    about = "how long calls may still run at the end (30)"
    service.add_argument("--drain-s", type=_seconds, default=30.0, metavar="SECONDS", help=about)
    about = "directory of outputs without WORKSPACE_SERVICE_URL (state directory)"
    service.add_argument("--artifacts", metavar="DIR", help=about)
    _state_dir(service)


@_command("cost-check", "replay:cost_check", "what recorded sessions cost now; exit 1 on growth")
def _cost_check(check: argparse.ArgumentParser) -> None:
    check.add_argument("recordings", metavar="RECORDING", nargs="+", help="ids of sessions, or scripts (.toml, .jsonl)")
    check.add_argument("--baseline", metavar="FILE", required=True, help="the costs to compare with")
    check.add_argument("--max-growth", metavar="PERCENT", type=_percent, default=0.02, help="allowed growth (2%%)")
    _flag(check, "--write-baseline", "write FILE in place of comparing")
    _workspace(check, "directory that recorded sessions work in; it is copied")
    _text_or_json(check, "the report (text)")
    _settings(check, "host.policy", "llm.dialect")


@_command("init", "init:init", "find a provider, prove it, write the configuration")
def _init(init: argparse.ArgumentParser) -> None:
    init.add_argument("--provider", metavar="NAME", help="a known provider, or one of the configuration")
    init.add_argument("--model", metavar="NAME", help="the model (default: the provider's usual one)")
    init.add_argument("--gateway", metavar="URL", help="a provider by its URL")
    init.add_argument("--key-env", metavar="VAR", help="the variable that has its key")
    _flag(init, "--yes", "ask nothing; confirm a change of the configuration")
    _state_dir(init)


@_command("doctor", "init:doctor", "what this machine has; exit 0 or 1")
def _doctor(doctor: argparse.ArgumentParser) -> None:
    _settings(doctor, "llm.gateway", "llm.provider", "llm.dialect", "llm.model", "sandbox.level")
    _text_or_json(doctor, "the report (text)")
    _flag(doctor, "--deep", "also have the model call a tool, with one real request")
    doctor.add_argument("--authorize", metavar="NAME", help="authorize agent-host at an MCP server (oauth = true)")


@_command("completion", "completion:completion", "print a shell's completion of commands")
def _completion(completion: argparse.ArgumentParser) -> None:
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    completion.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
