"""`agent-host init`: set up a working provider in one command; and `agent-host doctor`: check this machine, one line
for each check."""

from __future__ import annotations

import difflib
import getpass
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple

from agent_host.cli import answer, exit_codes, notice, put
from agent_host.cli.ask import agrees, can_ask
from agent_host.cli.shared import scope_in_words, settings_of_options, state_dir_of
from agent_host.display_text import escape
from agent_host.errors import UsageError
from agent_host.host import first_provider
from agent_host.host.backends import KEYRING_SERVICE
from agent_host.host.machine_checks import authorize, machine_checks
from config.providers import KNOWN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from agent_host.host.first_provider import ConfigurationChange, Plan

_LINE_BYTES = 4096
_BY_URL = "another one, by its URL"


class _TypedKey(NamedTuple):
    """A typed key, and the place to store it."""

    key: str
    place: Literal["keyring", "variable", "file"]


def init(namespace: argparse.Namespace) -> int:
    """Find a provider or use the named one, test it, and write the configuration; exit 1 if the test fails."""
    asks = can_ask(no_input=namespace.yes)
    if namespace.provider is not None or namespace.gateway is not None:
        own = {"model": namespace.model, "key_env": namespace.key_env}
        plan = first_provider.plan(namespace.provider, namespace.gateway, **own)
    else:
        plan = _ask_for_plan(namespace) if asks else _only_plan(namespace)
    name, variable = plan.provider.name, plan.provider.key_env
    typed = None
    if variable and not os.environ.get(variable, "").strip():
        if not asks:
            raise UsageError(f"provider {name}: set {variable} to its key")
        typed = _ask_for_key(name, variable)
        os.environ[variable] = typed.key  # for the test; it is stored after that
    notice(f"asking {name} at {plan.shown_url} for one call of a tool")
    proven = first_provider.prove(plan, state_dir_of(namespace))
    if not proven.works:
        notice(f"error: {name}: {proven.message}; nothing was written")
        return exit_codes.FAILED
    entry = first_provider.entry_to_write(plan, proven)
    if typed is not None and typed.place != "variable":
        key = typed.key if typed.place == "file" else None
        entry = first_provider.entry_with_key(name, entry, proven.settings.llm.dialect, key)
    notice(f"{name}: {proven.settings.llm.model} at {plan.shown_url}: {proven.message}")
    change = first_provider.change_of(name, entry)
    if not _is_confirmed(change, yes=namespace.yes, asks=asks):
        return exit_codes.FAILED
    if typed is not None and typed.place == "keyring":
        first_provider.keep_in_keyring(name, typed.key)
        answer(f"put the key into the keyring ({KEYRING_SERVICE}, {name})\n")
    if typed is not None and typed.place == "variable":
        notice(f"set {variable} to the key where you run agent-host: it is not kept here")
    return _write(change)


def _only_plan(namespace: argparse.Namespace) -> Plan:
    """Return the plan for the only provider that a variable names. Raises UsageError with the list if there is not
    exactly one."""
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
        url = _ask_for_url()
        return first_provider.plan(
            None,
            url,
            model=namespace.model,
            key_env=namespace.key_env or _read("Variable with its key (none): ") or None,
        )
    name, model = [*(one.name for one in found), *others][at], namespace.model
    models = found[at].models if at < len(found) else ()  # the models that a local server lists
    if not model and len(models) > 1:
        model = models[_choose("Which model?", models)]
    return first_provider.plan(name, model=model, key_env=namespace.key_env)


def _ask_for_url() -> str:
    while True:
        url = _read("Its URL: ")
        try:
            first_provider.check_typed_url(url)
        except UsageError as error:
            put(sys.stderr, f"{escape(str(error))}\n")
        else:
            return url


def _ask_for_key(name: str, variable: str) -> _TypedKey:
    """Ask for the key, without echo, and for the place to store it."""
    # Ctrl-C raises an exception here, so that the terminal's echo is restored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        key = getpass.getpass(f"Key of {name} (it is not shown): ", sys.stderr).strip()
    except EOFError as error:
        raise UsageError("the input has ended; nothing was written") from error
    finally:
        signal.signal(signal.SIGINT, before)
    if not key:
        raise UsageError(f"set {variable} to the key of {name}, or type it")
    places: dict[Literal["keyring", "variable", "file"], str] = {
        "keyring": "in the system's keyring",
        "variable": f"in {variable}, which you set yourself",
        "file": "in the file, as plain text",
    }
    if not first_provider.has_keyring():
        del places["keyring"]
    return _TypedKey(key, list(places)[_choose("Where is it kept?", list(places.values()))])


def _choose(question: str, rows: Sequence[str]) -> int:
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


def _is_confirmed(change: ConfigurationChange, *, yes: bool, asks: bool) -> bool:
    """True if the change may be written: the file is new, or the user saw the difference and confirmed it. Raises
    UsageError if there is no terminal to confirm it at."""
    if not change.before or change.before == change.after:
        return True
    scrubber = change.scrubber()
    before, after = (scrubber.text(text).splitlines() for text in (change.before, change.after))
    lines = difflib.unified_diff(before, after, change.path, change.path, lineterm="")
    put(sys.stderr, "".join(f"{escape(line)}\n" for line in lines))
    if yes:
        return True
    if not asks:
        raise UsageError(f"{change.path} is kept as it is: --yes writes the change")
    if agrees("Write this?"):
        return True
    notice(f"{change.path} is kept as it is")
    return False


def _write(change: ConfigurationChange) -> int:
    if change.before == change.after:
        notice(f"{change.path} has it already")
        return exit_codes.COMPLETED
    first_provider.write(change)
    answer(f"wrote {change.path}\n")
    if not change.before:
        answer("".join(f"  {line}\n" for line in change.scrubber().text(change.after).splitlines()))
    other = first_provider.gateway_before_it()
    if other is not None:
        notice(f"{other} names a gateway, which takes precedence: remove that, or run with --provider")
    answer('try: agent-host run "What does this project do?"\n')
    return exit_codes.COMPLETED


_MARKS = {True: "ok  ", False: "FAIL", None: "-   "}


def doctor(namespace: argparse.Namespace) -> int:
    """Run every check and print a line for each; or let a person authorize this program at one MCP server."""
    if namespace.authorize is not None:
        answer(authorize(settings_of_options(namespace), state_dir_of(namespace), namespace.authorize, notice) + "\n")
        return exit_codes.COMPLETED
    checks = machine_checks(
        settings_of_options(namespace), state_dir_of(namespace, may_be_file=True), deep=namespace.deep
    )
    if namespace.output == "json":
        rows = [{name: value for name, value in check._asdict().items() if value is not None} for check in checks]
        answer(json.dumps({"ok": all(check.ok is not False for check in checks), "checks": rows}, indent=2) + "\n")
    else:
        for check in checks:
            lines = () if check.scope is None else scope_in_words(check.scope).splitlines()
            answer(f"{_MARKS[check.ok]}  {check.name:10} {check.found}\n")
            answer("".join(f"      {line}\n" for line in lines))
    return exit_codes.FAILED if any(check.ok is False for check in checks) else exit_codes.COMPLETED
