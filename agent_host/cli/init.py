"""`agent-host init`: from nothing to a provider that works, in one command."""

from __future__ import annotations

import difflib
import getpass
import os
import sys
from typing import TYPE_CHECKING

from agent_host.cli import exit_codes
from agent_host.cli.ask import agrees, can_ask
from agent_host.cli.shared import state_dir_of
from agent_host.cli.streams import answer, notice, put
from agent_host.display_text import escape
from agent_host.errors import GatewayError, UsageError
from agent_host.host import first_provider
from agent_host.http import displayable_url
from config.providers import KNOWN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from agent_host.host.first_provider import Candidate, Change, Plan

_LINE_BYTES = 4096
_BY_URL = "another one, by its URL"
_KEEPING = ("in the system's keyring", "in this variable, which you set yourself", "in the file, as plain text")


def init(namespace: argparse.Namespace) -> int:
    """Find a provider or take the one that is named, prove it, write it down; exit 1 where the proof fails."""
    asks = can_ask(no_input=namespace.yes)
    if namespace.provider is None and namespace.gateway is None:
        plan = _ask_for_plan(namespace) if asks else _only_plan(namespace)
    else:
        plan = _named_plan(namespace)
    if asks and plan.provider.key_env and not os.environ.get(plan.provider.key_env):
        plan = _ask_for_key(plan)
    shown = displayable_url(plan.provider.base_url)
    notice(f"asking {plan.provider.name} at {shown} for one call of a tool")
    try:
        proven = first_provider.prove(plan, state_dir_of(namespace))
    except GatewayError as error:
        notice(f"error: {plan.provider.name}: {error}; nothing was written")
        return exit_codes.FAILED
    if not proven.works:
        notice(f"error: {plan.provider.name}: {proven.said}; nothing was written")
        return exit_codes.FAILED
    entry = first_provider.entry_to_write(plan, proven)
    notice(f"{plan.provider.name}: {proven.settings.llm.model} at {shown}: {proven.said}")
    return _write(first_provider.change_of(plan.provider.name, entry), yes=namespace.yes, asks=asks)


def _named_plan(namespace: argparse.Namespace) -> Plan:
    return first_provider.plan(namespace.provider, namespace.gateway, model=namespace.model, key_env=namespace.key_env)


def _only_plan(namespace: argparse.Namespace) -> Plan:
    """The plan for the one provider that a variable names. Raises UsageError with the list where that is not one."""
    by_key = first_provider.candidates(os.environ, local=False)
    if namespace.yes and len(by_key) == 1:
        return first_provider.plan(by_key[0].name, model=namespace.model, key_env=namespace.key_env)
    found = first_provider.candidates(os.environ)
    listed = ", ".join(f"{one.name} ({one.found})" for one in found)
    if not found:
        keys = ", ".join(known.key_env for known in KNOWN.values() if known.key_env)
        raise UsageError(f"no provider is found: set one of {keys}, or give --provider NAME or --gateway URL")
    if not namespace.yes and len(by_key) == 1:
        raise UsageError(f"init asks at a terminal; without one give --yes for {by_key[0].name}, or --provider NAME")
    raise UsageError(f"several providers could be meant, or none that a key names: {listed}; give --provider NAME")


# At a terminal.


def _ask_for_plan(namespace: argparse.Namespace) -> Plan:
    found = first_provider.candidates(os.environ)
    known = {one.name for one in found}
    others = [name for name, row in KNOWN.items() if row.key_env and name not in known]
    rows = [*(f"{one.name:12} {one.found}" for one in found), *(f"{name:12} with a key" for name in others), _BY_URL]
    at = _choose("Which provider?", rows)
    if at == len(rows) - 1:
        url = _read("Its URL: ")
        return first_provider.plan(
            None,
            url,
            model=namespace.model,
            key_env=namespace.key_env or _read("Variable with its key (none): ") or None,
        )
    name = [*(one.name for one in found), *others][at]
    model = namespace.model or _ask_for_model(found[at] if at < len(found) else None)
    return first_provider.plan(name, model=model, key_env=namespace.key_env)


def _ask_for_model(chosen: Candidate | None) -> str | None:
    """The model among those that a local server lists; None where there is no choice."""
    if chosen is None or len(chosen.models) < 2:
        return None
    return chosen.models[_choose("Which model?", chosen.models)]


def _ask_for_key(plan: Plan) -> Plan:
    """The plan with its key in a place that the person chooses; this process has it in its variable."""
    name, variable = plan.provider.name, plan.provider.key_env
    key = getpass.getpass(f"Key of {name} (it is not shown): ", sys.stderr).strip()
    if not key:
        raise UsageError(f"set {variable} to the key of {name}, or type it")
    at = _choose("Where is it kept?", [_KEEPING[0], f"{_KEEPING[1]}: {variable}", _KEEPING[2]])
    entry = {field: value for field, value in plan.entry.items() if field != "key_env"}
    if at == 0:
        first_provider.keep_in_keyring(name, key)
        return first_provider.plan(name, **{**entry, "key_keyring": name})
    if at == 1:
        os.environ[variable] = key
        return plan
    header = {"x-api-key": key} if plan.provider.dialect == "anthropic" else {"authorization": f"Bearer {key}"}
    return first_provider.plan(name, **{**entry, "headers": header})


def _choose(question: str, rows: Sequence[str]) -> int:
    """The place of the row that a person chooses. Raises UsageError at the end of input."""
    for number, row in enumerate(rows, 1):
        put(sys.stderr, f"  {number}  {escape(row)}\n")
    while True:
        line = _read(f"{question} [1] ")
        if not line:
            return 0
        if line.isascii() and line.isdigit() and 1 <= int(line) <= len(rows):
            return int(line) - 1
        put(sys.stderr, f"give a number from 1 to {len(rows)}\n")


def _read(question: str) -> str:
    put(sys.stderr, question)
    line = sys.stdin.readline(_LINE_BYTES)
    if not line:
        raise UsageError("the input has ended; nothing was written")
    return line.strip()


def _write(change: Change, *, yes: bool, asks: bool) -> int:
    """Write the change, with a look at it where there was something before."""
    if change.before == change.after:
        notice(f"{change.path} says so already")
        return exit_codes.COMPLETED
    if change.before:
        lines = difflib.unified_diff(
            change.before.splitlines(), change.after.splitlines(), change.path, change.path, lineterm=""
        )
        put(sys.stderr, "".join(f"{escape(line)}\n" for line in lines))
        if not yes and not (asks and agrees("Write this?")):
            if not asks:
                raise UsageError(f"{change.path} is kept as it is: --yes writes the change")
            notice(f"{change.path} is kept as it is")
            return exit_codes.FAILED
    first_provider.write(change)
    answer(f"wrote {change.path}\n")
    if not change.before:
        answer("".join(f"  {line}\n" for line in change.after.splitlines()))
    answer('try: agent-host run "What does this project do?"\n')
    return exit_codes.COMPLETED
