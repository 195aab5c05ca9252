"""The options of every command, in argparse (interface section 1)."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from agent_host.cli.shared import SETTING_OPTIONS, number_or_nan, whole_number
from agent_host.cli.streams import notice
from agent_host.version import __version__
from config.shapes import hint_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


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
        """See argparse.ArgumentParser."""
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
            self.error("; ".join(self._say_unknown(word) for word in unknown))
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

    def _say_unknown(self, word: str) -> str:
        name = word.partition("=")[0]
        return f"unknown option {name}{_near(name, self._option_string_actions)}"

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
        """Say it in one line and exit."""
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
    chosen = [name for name in arguments[:1] if name in _COMMANDS]
    return make_parser(chosen or tuple(_COMMANDS)).parse_args(arguments)


def _without_arguments() -> Sequence[str]:
    """`chat` at a terminal. Without its extra the commands are listed, with what to install."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ()
    if importlib.util.find_spec("prompt_toolkit") is not None:
        return ("chat",)
    sys.stdout.write(make_parser(COMMANDS).format_help() + "\n")
    notice("for a conversation here install agent-host[tui]")
    sys.exit(0)


def make_parser(names: Sequence[str]) -> argparse.ArgumentParser:
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
        _COMMANDS[name](commands)
    return parser


COMMANDS_WITH_SESSION: Final = ("resume", "show", "replay", "rejudge")
"""Commands whose first argument is the id of a session."""
_EXAMPLES_TITLE = "examples:"
_EXAMPLES: Mapping[str, tuple[str, str]] = {
    "agent-host": ("agent-host init", 'agent-host run "Fix the failing test."'),
    "run": ('agent-host run "Fix the failing test."', "agent-host run - --policy ci --output json < task.md"),
    "chat": ("agent-host chat", 'agent-host chat --continue "Now add a test for it."'),
    "resume": ("agent-host resume", 'agent-host resume sess_1f2e "Now add a test for it."'),
    "batch": ("agent-host batch tasks.jsonl --jobs 8", "agent-host batch tasks.jsonl --policy ci --max-cost 20"),
    "serve": ("agent-host serve --workspace /srv/project", "agent-host serve --socket /run/user/1000/agent.sock"),
    "sessions": ("agent-host sessions --search parser", "agent-host sessions --prune --max-age 30d --dry-run"),
    "approvals": ("agent-host approvals", "agent-host approvals --output json"),
    "approve": ("agent-host approve appr_1f2e", "agent-host approve appr_1f2e --scope session"),
    "deny": ("agent-host deny appr_1f2e", 'agent-host deny appr_1f2e --reason "Not on a Friday."'),
    "show": ("agent-host show latest", "agent-host show sess_1f2e --html session.html"),
    "view": ("agent-host view", "agent-host view --port 8090 --allow-approve"),
    "report": (
        "agent-host report --all --html sessions.html",
        "agent-host report sess_1f2e sess_77ab --html two.html --with-sessions",
    ),
    "replay": ("agent-host replay sess_1f2e --workspace /tmp/copy", "agent-host replay sess_1f2e --policy ci"),
    "mock-gateway": (
        "agent-host mock-gateway --script turns.toml --port 8089",
        "agent-host mock-gateway --script new.toml --record https://llm.example.com",
    ),
    "policy": (
        'agent-host policy check RunCommand \'{"command": "make test"}\' --policy ci',
        "agent-host policy show workspace > own.json",
    ),
    "check": (
        'agent-host policy check RunCommand \'{"command": "make test"}\' --policy ci',
        "agent-host policy check --batch cases.jsonl --policy own.json",
    ),
    "test": (
        "agent-host policy test cases.jsonl --policy own.json",
        "agent-host policy test cases.jsonl --policy own.json --junit policy.xml",
    ),
    "tools": ("agent-host policy tools --policy read-only", "agent-host policy tools --toolset native --output json"),
    "validate": ("agent-host policy validate own.json", "agent-host policy validate own.json --sandbox none"),
    "policy show": ("agent-host policy show ci", "agent-host policy show workspace > own.json"),
    "rejudge": ("agent-host policy rejudge latest --policy ci", "agent-host policy rejudge sess_1f2e --output json"),
    "mcp": ("agent-host mcp --workspace /srv/project", "agent-host mcp --policy ci --approve-all"),
    "acp": ("agent-host acp", "agent-host acp --policy read-only"),
    "tool-service": (
        "agent-host tool-service --tenants tenants.toml --port 8090",
        "agent-host tool-service --tenants tenants.toml --host 0.0.0.0 --workers 4",
    ),
    "cost-check": (
        "agent-host cost-check recordings/*.toml --baseline costs.json",
        "agent-host cost-check sess_1f2e --workspace . --baseline costs.json --write-baseline",
    ),
    "init": ("agent-host init", "agent-host init --provider ollama --model qwen2.5-coder:7b"),
    "doctor": ("agent-host doctor", "agent-host doctor --deep --output json"),
    "completion": (
        "agent-host completion bash > ~/.local/share/bash-completion/completions/agent-host",
        "agent-host completion fish > ~/.config/fish/completions/agent-host.fish",
    ),
}


def _examples(name: str) -> str:
    return "\n".join([_EXAMPLES_TITLE, *(f"  {line}" for line in _EXAMPLES[name])])


def _run(commands: Any) -> None:
    run = _add(commands, "run", "headless:run", "run one task, headless")
    run.add_argument("prompt", metavar="PROMPT", help="what to do; - reads it from standard input")
    run.add_argument("--session-id", metavar="ID", help="choose the id (default: generated)")
    run.add_argument(
        "--or-resume",
        action="store_true",
        help="with --session-id: start the session, go on with it, or repeat its result",
    )
    run.add_argument("--order", metavar="FILE", help=argparse.SUPPRESS)  # of `batch`: see `RunOrder`
    _session_options(run)
    _bounds(run)
    _output_files(run)
    _no_input(run)


def _bounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", metavar="FILE", help="JSON Schema that the final answer has to fit")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=_timeout, help="pause after so long, waits for a person included (none)"
    )
    parser.add_argument(
        "--stdin", action="store_true", help="read standard input, and put it behind the prompt as data"
    )


def _output_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files for a pipeline: whole or not there, however the task ends")
    for option, text in (
        ("--patch", "the session's changes, as `git apply` takes them"),
        ("--result", "the result object, as JSON"),
        ("--summary", "a summary, in Markdown"),
        ("--junit", "a test report: the task, its commands and what was denied"),
    ):
        group.add_argument(option, metavar="FILE", help=text)
    group.add_argument("--no-summary", action="store_true", help="add nothing to the summary of a GitHub Actions step")


def _resume(commands: Any) -> None:
    resume = _add(commands, "resume", "headless:resume", "continue a session that was interrupted or paused, headless")
    resume.add_argument("session_id", metavar="SESSION_ID", nargs="?", help="default: the newest resumable one")
    resume.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="another task, for a session whose last one is over"
    )
    _session_options(resume)
    _bounds(resume)
    _output_files(resume)
    _no_input(resume)


def _batch(commands: Any) -> None:
    batch = _add(commands, "batch", "batch:batch", "run many tasks, each as a session of its own")
    batch.add_argument("file", metavar="FILE", help="the tasks: JSON Lines, or CSV with the same names")
    batch.add_argument("--out", metavar="DIR", help="where results, patches and the summary go (FILE.out)")
    batch.add_argument("--jobs", metavar="N", type=_jobs, help="sessions at once (by cores and memory)")
    batch.add_argument("--engine", choices=("local", "ray"), default="local", help="where they run (local)")
    batch.add_argument("--retries", metavar="N", type=_count, default=2, help="tries again of what may be retried (2)")
    batch.add_argument("--keep", action="store_true", help="keep all workspaces (those of completed tasks are removed)")
    batch.add_argument("--schema", metavar="FILE", help="JSON Schema that each final answer has to fit")
    batch.add_argument("--timeout", metavar="SECONDS", type=_timeout, help="pause a session after so long (none)")
    batch.add_argument("--no-input", action="store_true", help=argparse.SUPPRESS)  # of `run`; a batch never asks
    _session_options(batch, without=("--workspace", "--verbose"))
    batch.set_defaults(workspace=None)


def _serve(commands: Any) -> None:
    serve = _add(commands, "serve", "serve:serve", "one session for a client that talks JSON-RPC 2.0")
    serve.add_argument("--socket", metavar="PATH", help="listen on a local socket instead of standard input and output")
    serve.add_argument(
        "--reconnect-s",
        metavar="SECONDS",
        type=_seconds,
        default=0.0,
        help="how long a session waits for a client of the socket to come back (0: not at all)",
    )
    _session_options(serve, without=("--output", "--verbose"))


def _chat(commands: Any) -> None:
    chat = _add(commands, "chat", "chat:chat", "a conversation at the terminal")
    chat.add_argument("prompt", metavar="PROMPT", nargs="?", help="the first prompt")
    which = chat.add_mutually_exclusive_group()
    which.add_argument(
        "--continue", dest="continues", action="store_true", help="go on with the newest session of this workspace"
    )
    which.add_argument("--session", metavar="ID", help="go on with this session")
    chat.add_argument("--plain", action="store_true", help="lines only, for screen readers; nothing is drawn over")
    _session_options(chat, without=("--output", "--verbose", "--approve", "--approve-all"))
    chat.set_defaults(approve=[], approve_all=False)


def _mcp(commands: Any) -> None:
    mcp = _add(commands, "mcp", "protocols:mcp", "an MCP server, to which others hand tasks")
    mcp.add_argument(
        "--allow-approve", action="store_true", help="let the client itself approve calls, with a tool of its own"
    )
    _session_options(mcp, without=("--output", "--verbose"))


def _approvals(commands: Any) -> None:
    listed = _add(commands, "approvals", "sessions:approvals", "list the open questions of all live sessions")
    listed.add_argument("--output", choices=("text", "json"), default="text", help="form of the list")
    _state_dir(listed)


def _approve(commands: Any) -> None:
    approve = _add(commands, "approve", "sessions:approve", "approve an open question of a live session")
    approve.add_argument("approval_id", metavar="ID", help="the question, as `agent-host approvals` lists it")
    approve.add_argument(
        "--scope", choices=("once", "task", "session"), default="once", help="how far it reaches (once)"
    )
    _state_dir(approve)


def _deny(commands: Any) -> None:
    deny = _add(commands, "deny", "sessions:deny", "deny an open question of a live session")
    deny.add_argument("approval_id", metavar="ID", help="the question, as `agent-host approvals` lists it")
    deny.add_argument("--reason", metavar="TEXT", help="why, for the model")
    _state_dir(deny)


def _acp(commands: Any) -> None:
    acp = _add(commands, "acp", "protocols:acp", "an agent for editors (Agent Client Protocol)")
    acp.add_argument(
        "--init",
        dest="command",
        action="store_const",
        const="init:init",
        default="protocols:acp",
        help="set a provider up, as `agent-host init` does",
    )
    acp.set_defaults(key_env=None, yes=False)  # options of `init` that this command has not
    _session_options(acp, without=("--output", "--verbose", "--workspace"))


def _sessions(commands: Any) -> None:
    sessions = _add(commands, "sessions", "sessions:sessions", "list sessions, remove one, or prune them")
    sessions.add_argument(
        "verb", metavar="rm", nargs="?", choices=("rm",), help="remove the session ID; else list them"
    )
    sessions.add_argument("session_id", metavar="ID", nargs="?", help="the whole id")
    sessions.add_argument("--output", choices=("text", "json"), default="text", help="form of the list")
    sessions.add_argument(
        "--search", metavar="TEXT", default="", help="only those with TEXT in title, prompt, workspace or id"
    )
    sessions.add_argument("--limit", metavar="N", type=_count, help="the newest N rows, 0 for all (20; all as JSON)")
    _prune_options(sessions)
    _state_dir(sessions)


def _show(commands: Any) -> None:
    show = _add(commands, "show", "show:show", "what a session did: calls, decisions, output, approvals, marks")
    show.add_argument("session_id", metavar="SESSION_ID", help="an id, the start of one, or `latest`")
    show.add_argument("--step", metavar="N", type=_count, help="one step, whole")
    show.add_argument("--output", choices=("text", "json"), default="text", help="form of what is shown")
    show.add_argument("--html", metavar="FILE", help="write one page for a browser to FILE (extra `report`)")
    show.add_argument("--full", action="store_true", help="with --html: leave out no text and no picture")
    show.add_argument("--markdown", action="store_true", help="show it as Markdown, for a pull request or an issue")
    _state_dir(show)


def _report(commands: Any) -> None:
    report = _add(commands, "report", "show:report", "write many sessions as one page (extra `report`)")
    report.add_argument("sessions", metavar="SESSION_ID", nargs="*", help="ids, or starts of ids")
    report.add_argument("--all", action="store_true", help="all sessions of the state directory")
    report.add_argument("--html", metavar="FILE", required=True, help="the page")
    report.add_argument(
        "--with-sessions", action="store_true", help="also write the page of each session, beside FILE in a folder"
    )
    _state_dir(report)


def _view(commands: Any) -> None:
    view = _add(commands, "view", "servers:view", "serve sessions as a live page (extra `view`)")
    view.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1 (any free one)")
    view.add_argument("--allow-approve", action="store_true", help="open questions can be answered on the page")
    _state_dir(view)


def _mock_gateway(commands: Any) -> None:
    gateway = _add(commands, "mock-gateway", "servers:mock_gateway", "a scripted LLM gateway on loopback")
    gateway.add_argument("--script", metavar="FILE", required=True, help="TOML or JSON lines; with --record a new file")
    gateway.add_argument("--record", metavar="URL", help="pass requests on to this gateway, and write its answers down")
    gateway.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    gateway.add_argument("--port", type=_port, default=0, help="port (any free one)")
    gateway.add_argument("--workspace", metavar="DIR", default=".", help="what ${workspace} in the script stands for")


def _tool_service(commands: Any) -> None:
    service = _add(commands, "tool-service", "servers:tool_service", "the Backend Tool Service, for hosts elsewhere")
    service.add_argument("--tenants", metavar="FILE", required=True, help="who may call which tools: JSON or TOML")
    service.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    service.add_argument("--port", type=_port, default=0, help="port (any free one)")
    service.add_argument("--workers", type=_workers, default=1, metavar="N", help="processes behind the port (1)")
    service.add_argument(
        "--drain-s", type=_seconds, default=30.0, metavar="SECONDS", help="how long calls may still run at the end (30)"
    )
    service.add_argument(
        "--artifacts", metavar="DIR", help="where outputs lie without WORKSPACE_SERVICE_URL (state directory)"
    )
    _state_dir(service)


def _policy(commands: Any) -> None:
    policy = _add(commands, "policy", "", "try a policy, or see what is wrong with a bundle")
    verbs = policy.add_subparsers(metavar="VERB", required=True, title="verbs", parser_class=_OneLineParser)
    check = _add(verbs, "check", "policy:check", "what the policy says to a call; nothing is executed")
    check.add_argument("tool", metavar="TOOL", nargs="?", help="name of the tool")
    check.add_argument("arguments", metavar="ARGS_JSON", nargs="?", help="its arguments, a JSON object")
    check.add_argument("--batch", metavar="FILE", help="one case a line, one decision a line out; - is standard input")
    check.add_argument("--workspace", metavar="DIR", help="project directory (current directory)")
    check.add_argument("--output", choices=("text", "json"), default="text", help="form of a single decision")
    _setting_option(check, "host.policy")
    _setting_option(check, "sandbox.level")
    _setting_option(check, "sandbox.allowed_domains")
    _state_dir(check)
    check.add_argument(
        "--exit-code", action="store_true", help="exit 0 allowed, 1 denied, 4 needs approval, 2 unusable (always 0)"
    )
    test = _add(verbs, "test", "policy:test", "each case of a file against the decision that it expects")
    test.add_argument(
        "file", metavar="FILE", help="cases as of `check --batch`, each with `expect`; - is standard input"
    )
    test.add_argument("--junit", metavar="FILE", help="also write a report in JUnit's form")
    test.add_argument("--workspace", metavar="DIR", help="project directory (the current directory)")
    _setting_option(test, "host.policy")
    _setting_option(test, "sandbox.level")
    _state_dir(test)
    _policy_lists(verbs)


def _policy_lists(verbs: Any) -> None:
    """The verbs that print a list or a bundle."""
    tools = _add(verbs, "tools", "policy:tools", "which tools the model would be shown, and why not the others")
    tools.add_argument("--workspace", metavar="DIR", help="project directory (current directory)")
    tools.add_argument("--output", choices=("text", "json"), default="text", help="form of the list")
    _setting_option(tools, "host.policy")
    _setting_option(tools, "host.toolset")
    _setting_option(tools, "sandbox.level")
    tools.add_argument(
        "--skill", metavar="NAME", action="append", default=[], help="what this skill leaves of them; repeatable"
    )
    _state_dir(tools)
    validate = _add(
        verbs, "validate", "policy:validate", "every problem of a bundle, with its JSON path, and what its lists admit"
    )
    validate.add_argument("file", metavar="FILE")
    validate.add_argument("--workspace", metavar="DIR", help="what ${workspace} stands for (current directory)")
    validate.add_argument("--output", choices=("text", "json"), default="text", help="form of the list")
    _setting_option(validate, "sandbox.level")
    _state_dir(validate)
    show = _add(verbs, "show", "policy:show", "print a built-in as a bundle to start from")
    show.add_argument("name", metavar="NAME", help="read-only, workspace, ci or full")
    rejudge = _add(verbs, "rejudge", "replay:rejudge", "what another policy would have said to a session's calls")
    rejudge.add_argument("session_id", metavar="SESSION_ID")
    rejudge.add_argument("--workspace", metavar="DIR", help="project directory (the session's)")
    rejudge.add_argument("--output", choices=("text", "json"), default="text", help="form of the list")
    _setting_option(rejudge, "host.policy")
    _state_dir(rejudge)


def _replay(commands: Any) -> None:
    replay = _add(commands, "replay", "replay:replay", "run a recorded session again; exit 1 where a call differs")
    replay.add_argument("session_id", metavar="SESSION_ID")
    replay.add_argument("--workspace", metavar="DIR", help="where its commands and writes run again, such as a copy")
    replay.add_argument("--output", choices=("text", "json"), default="text", help="form of the report")
    _setting_option(replay, "host.policy")
    _state_dir(replay)


def _cost_check(commands: Any) -> None:
    check = _add(commands, "cost-check", "replay:cost_check", "what recorded sessions cost now; exit 1 on growth")
    check.add_argument("recordings", metavar="RECORDING", nargs="+", help="ids of sessions, or scripts (.toml, .jsonl)")
    check.add_argument("--baseline", metavar="FILE", required=True, help="the costs to compare with")
    check.add_argument("--max-growth", metavar="PERCENT", type=_percent, default=0.02, help="allowed growth (2%%)")
    check.add_argument("--write-baseline", action="store_true", help="write FILE in place of comparing")
    check.add_argument("--workspace", metavar="DIR", help="directory that recorded sessions work in; it is copied")
    check.add_argument("--output", choices=("text", "json"), default="text", help="form of the report (text)")
    _setting_option(check, "host.policy")
    _setting_option(check, "llm.dialect")
    _state_dir(check)


def _percent(text: str) -> float:
    if not 0 <= (number := number_or_nan(text.removesuffix("%"))) <= 1000:
        raise argparse.ArgumentTypeError(f"give a percentage from 0 to 1000, such as 2%, not {text}")
    return number / 100


def _init(commands: Any) -> None:
    init = _add(commands, "init", "init:init", "find a provider, prove it, write the configuration")
    init.add_argument("--provider", metavar="NAME", help="a known provider, or one of the configuration")
    init.add_argument("--model", metavar="NAME", help="the model (default: the provider's usual one)")
    init.add_argument("--gateway", metavar="URL", help="a provider by its URL")
    init.add_argument("--key-env", metavar="VAR", help="the variable that has its key")
    init.add_argument("--yes", action="store_true", help="ask nothing; confirm a change of the configuration")
    _state_dir(init)


def _completion(commands: Any) -> None:
    completion = _add(commands, "completion", "completion:completion", "what a shell needs to complete commands by Tab")
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    completion.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _doctor(commands: Any) -> None:
    doctor = _add(commands, "doctor", "init:doctor", "what this machine has; exit 0 or 1")
    _setting_option(doctor, "llm.gateway")
    _setting_option(doctor, "llm.provider")
    _setting_option(doctor, "llm.dialect")
    _setting_option(doctor, "llm.model")
    _setting_option(doctor, "sandbox.level")
    _state_dir(doctor)
    doctor.add_argument("--output", choices=("text", "json"), default="text", help="form of the report (text)")
    doctor.add_argument("--deep", action="store_true", help="also have the model call a tool, with one real request")
    doctor.add_argument("--authorize", metavar="NAME", help="authorize agent-host at an MCP server (oauth = true)")


# What adds each command and its options to the subparsers, in the order of the help.
_COMMANDS: dict[str, Callable[[Any], None]] = {
    "run": _run,
    "chat": _chat,
    "resume": _resume,
    "batch": _batch,
    "serve": _serve,
    "sessions": _sessions,
    "approvals": _approvals,
    "approve": _approve,
    "deny": _deny,
    "show": _show,
    "report": _report,
    "view": _view,
    "replay": _replay,
    "mock-gateway": _mock_gateway,
    "policy": _policy,
    "mcp": _mcp,
    "acp": _acp,
    "tool-service": _tool_service,
    "cost-check": _cost_check,
    "init": _init,
    "doctor": _doctor,
    "completion": _completion,
}
COMMANDS: Final = tuple(_COMMANDS)


def _session_options(parser: argparse.ArgumentParser, without: tuple[str, ...] = ()) -> None:
    """Add the options of a session, in groups: the model, what it may do, the output, and the rest."""
    groups = {name: parser.add_argument_group(title) for name, title in _GROUP_TITLES.items()}
    for option, key, arguments in SETTING_OPTIONS:
        if option not in without:
            groups[_group_of(key)].add_argument(option, **arguments)
    policy, session = groups["policy"], groups["session"]
    if "--approve" not in without:
        policy.add_argument(
            "--approve", metavar="RULE_OR_TOOL", action="append", default=[], help="approve in advance; repeatable"
        )
    if "--approve-all" not in without:
        policy.add_argument(
            "--approve-all", action="store_true", help="approve everything but guarded tools: for a throw-away sandbox"
        )
    if "--workspace" not in without:
        session.add_argument("--workspace", metavar="DIR", help="project directory (the current directory)")
    _state_dir(session)


_GROUP_TITLES = {"session": "session", "model": "model", "policy": "what it may do", "output": "output"}


def _group_of(key: str) -> str:
    """The group of a setting's option."""
    if key.startswith("llm."):
        return "model"
    if key in ("host.output", "host.verbose"):
        return "output"
    return "session" if key == "host.max_steps" else "policy"


def _no_input(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--no-input", action="store_true", help="never ask at the terminal")


def _prune_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `cli/prune.py`; None if one was not given."""
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove ended sessions that are over a limit; without one, over those of [retention] in the configuration",
    )
    limits = parser.add_argument_group("limits of --prune")
    limits.add_argument("--max-age", metavar="AGE", help="keep what was used within AGE: 30d; units s, m, h, d, w")
    limits.add_argument("--max-count", metavar="N", help="keep the newest N")
    limits.add_argument("--max-size", metavar="SIZE", help="keep the newest that together have SIZE: 2GiB, 500M, 4096")
    for option, text in (
        ("--resumable", "let the limits, or rm, apply to resumable and damaged sessions too"),
        ("--dry-run", "only say what would be removed"),
    ):
        limits.add_argument(option, action="store_true", default=None, help=text)


def _setting_option(parser: argparse.ArgumentParser, key: str) -> None:
    option, _, arguments = next(row for row in SETTING_OPTIONS if row[1] == key)
    parser.add_argument(option, **arguments)


def _state_dir(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="where sessions are kept ($AGENT_HOST_STATE_DIR, else the user's data directory)",
    )


def _timeout(text: str) -> float:
    if not 0 < (number := number_or_nan(text)) <= 604_800:
        raise argparse.ArgumentTypeError(f"give seconds above 0, up to 604,800, not {text}")
    return number


def _seconds(text: str) -> float:
    if not 0 <= (number := number_or_nan(text)) <= 86_400:
        raise argparse.ArgumentTypeError(f"give seconds from 0 to 86,400, not {text}")
    return number


_count = whole_number(0, math.inf, "give a whole number from 0")
_jobs = whole_number(1, 10_000, "give a whole number from 1 to 10,000")
_port = whole_number(0, 65_535, "a port is a number from 0 to 65535")
_workers = whole_number(1, 128, "give 1 to 128 workers")


def _add(commands: Any, name: str, command: str, text: str) -> argparse.ArgumentParser:
    shown = f"policy {name}" if command == "policy:show" else name
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=_examples(shown), allow_abbrev=False
    )
    parser.set_defaults(command=command)
    return parser
