"""`agent-host completion SHELL`: the script of a shell, and the words that it offers at a Tab.

The scripts are a few lines that call this program, because commands and options are defined only in `options`.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from agent_host.cli import answer
from agent_host.cli.options import COMMANDS, make_parser
from agent_host.errors import AgentHostError
from agent_host.host.options import OPTION_OF, settings_from, state_dir_from
from config.policies import BUILT_IN
from config.providers import names_of
from config.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SCRIPTS = {
    "bash": r"""_agent_host() {
    local IFS=$'\n'
    COMPREPLY=($(agent-host completion bash --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _agent_host agent-host
""",
    "zsh": r"""#compdef agent-host
_agent_host() {
    local -a found
    found=("${(@f)$(agent-host completion zsh --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found[1]" ]]; then compadd -Q -- "${found[@]}"; else _files; fi
}
if [[ "$funcstack[1]" == _agent_host ]]; then _agent_host "$@"; else compdef _agent_host agent-host; fi
""",
    "fish": r"""function __agent_host
    set -l words (commandline -opc) (commandline -ct)
    agent-host completion fish --words $words[2..-1] 2>/dev/null
end
complete -c agent-host -a '(__agent_host)'
""",
}
_SESSIONS_SHOWN = 50


def completion(namespace: argparse.Namespace) -> int:
    """Print the script, or the completions of the last word."""
    if namespace.words is None:
        answer(_SCRIPTS[namespace.shell])
    else:
        answer("".join(f"{word}\n" for word in completions(namespace.words or [""])))
    return 0


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of `words` (those after the program's name); none if any file may follow."""
    *before, start = words
    parser, values = make_parser(COMMANDS), 0
    pending: argparse.Action | None = None
    for word in before:
        commands = _commands_of(parser)
        if pending is not None:
            pending = None
        elif word.startswith("-"):
            action = _options_of(parser).get(word)
            pending = action if action is not None and action.nargs != 0 else None
        elif word in commands:
            parser, values = commands[word], 0
        else:
            values += 1
    option, equals, rest = start.partition("=")
    if pending is not None:
        found = _values_of(pending)
    elif equals and option in _options_of(parser):
        found, start = _values_of(_options_of(parser)[option]), rest
    elif start.startswith("-"):
        found = [one for one, action in _options_of(parser).items() if action.help is not argparse.SUPPRESS]
    elif _commands_of(parser):
        found = _commands_of(parser)
    else:
        found = _operands_of(parser, values)
    return sorted(one for one in found if one.startswith(start))


def _options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {name: action for action in parser._actions for name in action.option_strings}  # noqa: SLF001  no other way


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    found = (action.choices for action in parser._actions if not action.option_strings)  # noqa: SLF001  as above
    return next((dict(choices) for choices in found if isinstance(choices, dict)), {})


def _values_of(action: argparse.Action) -> Iterable[str]:
    """Values of an option, as far as they can be listed."""
    if action.choices is not None:
        return map(str, action.choices)
    key = next((key for key, option in OPTION_OF.items() if option in action.option_strings), "")
    if key == "host.policy":
        return BUILT_IN
    try:
        if key == "llm.provider" or "--provider" in action.option_strings:
            return names_of(settings_from({}, workspace=None))
    except AgentHostError:  # an invalid configuration completes nothing
        return ()
    return SETTINGS[key].choices if key in SETTINGS else ()


def _operands_of(parser: argparse.ArgumentParser, place: int) -> Iterable[str]:
    """Words for this position among a command's arguments: sessions, or a few names."""
    actions = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001  as above
    if actions and actions[-1].dest == "sessions":
        return [*_sessions(), "latest"]
    if place >= len(actions):
        return ()
    choices = actions[place].choices
    if choices is not None:
        return map(str, choices)
    if actions[place].dest == "session_id":
        return _sessions() if place else [*_sessions(), "latest"]  # `sessions rm` takes no `latest`
    if actions[place].dest == "approval_id":
        from agent_host.rpc.questions import open_questions

        try:
            return [str(row["approvalId"]) for row in open_questions(state_dir_from(None), lambda _: None)]
        except (OSError, AgentHostError):
            return ()
    return BUILT_IN if place == 0 and actions[0].metavar == "NAME" else ()


def _sessions() -> list[str]:
    try:
        state_dir = state_dir_from(None)
        with os.scandir(os.path.join(state_dir, "sessions")) as entries:
            by_age = sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)
    except (OSError, AgentHostError):
        return []
    return [entry.name for entry in by_age[:_SESSIONS_SHOWN]]
