"""Parts that several commands share: the options that are settings, and the state directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.cli import answer, exit_codes, flush, notice
from agent_host.display_text import escape
from agent_host.errors import UsageError
from agent_host.host.options import (
    COMMAND_LINE,
    OPTION_OF,
    LayeredOptions,
    SessionOptions,
    is_default_state_dir,
    state_dir_from,
)
from config import json_text
from config.load import read_regular_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping

    from agent_host.cli.outputs import OutputFiles
    from agent_host.host.peers import PeerCheck
    from agent_host.rpc.questions import Desk, QuestionChannel


def settings_of_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """Settings given on the command line, by key."""
    return {
        key: value
        for key, option in OPTION_OF.items()
        if (value := getattr(namespace, _destination(option), None)) is not None
    }


def options_again(namespace: argparse.Namespace) -> list[str]:
    """The options of a session as they were given, for another process with the same options."""
    words = setting_options(namespace, OPTION_OF)
    for option, value in (("--workspace", namespace.workspace), ("--state-dir", namespace.state_dir)):
        words += [] if value is None else [option, value]
    return words + approval_options(namespace)


def setting_options(namespace: argparse.Namespace, keys: Iterable[str]) -> list[str]:
    """The options of these settings as they were given."""
    given, words = settings_of_options(namespace), list[str]()
    for key in keys:
        value = given.get(key)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [OPTION_OF[key], str(one)]
    return words


def approval_options(namespace: argparse.Namespace) -> list[str]:
    """The options that approve in advance, as they were given."""
    words = [word for name in namespace.approve for word in ("--approve", name)]
    return [*words, *(["--approve-all"] if namespace.approve_all else [])]


def _destination(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def answer_in(form: str, value: Any, lines: Iterable[str], *, indented: bool = True) -> None:
    """Print `value` if the form is `json`, else the result of `lines`, for a person."""
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indented else 0)
    answer(json_text.dumps(value, option=option) if form == "json" else "".join(lines))


def warn_if_empty(namespace: argparse.Namespace, *options: str) -> None:
    """Report which of these options are given but empty, as after the expansion of an unset shell variable."""
    for option in options:
        if getattr(namespace, _destination(option)) == "":
            notice(f"{option} is empty, and counts as not given")


def state_dir_of(namespace: argparse.Namespace, *, may_be_file: bool = False) -> str:
    """The state directory of `--state-dir`, the environment or the platform, absolute. Raises UsageError, see
    `state_dir_from`."""
    warn_if_empty(namespace, "--state-dir")
    return state_dir_from(namespace.state_dir, may_be_file=may_be_file)


# From one command line to the options of its sessions, for `run`, `resume` and `serve` alike.


_GIVE_UP_S = 6.0
_LAST_S = 9.0


class TimeLimit:
    """The time limit of this process (`--timeout`), including waits for a person; None for no limit. At the limit the
    task is paused and running calls are ended; if no session is open yet, or if that takes too long, the process
    ends."""

    def __init__(self, limit_s: float | None) -> None:
        self.is_over = False
        self._limit_s = limit_s
        self._is_open = False
        if limit_s is None:
            return
        self._until = time.monotonic() + limit_s
        for delay_s, act in ((limit_s, self._end_early), (limit_s + _LAST_S, lambda: os._exit(exit_codes.PAUSED))):
            timer = threading.Timer(delay_s, act)
            timer.daemon = True
            timer.start()

    @property
    def words(self) -> str:
        """The message for the end of the time."""
        return f"the time limit of {self._limit_s or 0:g} s is over (--timeout)"

    def watch(self, end: Callable[[], object], give_up: Callable[[], object]) -> None:
        """Make the running loop call `end` when the time is over, and `give_up` if that did not help."""
        if self._limit_s is None:
            return
        self._is_open = True
        loop = asyncio.get_running_loop()

        def act() -> None:
            self.is_over = True
            end()
            loop.call_later(_GIVE_UP_S, give_up)

        loop.call_later(max(0.0, self._until - time.monotonic()), act)

    def _end_early(self) -> None:
        if not self._is_open:
            notice(f"error: {self.words}; no session was started")
            flush(sys.stderr)
            os._exit(exit_codes.PAUSED)


def _schema_of(namespace: argparse.Namespace) -> dict[str, str]:
    path = getattr(namespace, "schema", None)
    if path is None:
        return {}
    from agent_host.host.backends import schema_text

    try:
        return {"host.answer_schema": schema_text(read_regular_file(path))}
    except (OSError, UsageError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--schema {path}: {why}") from error


class CommandLine:
    """The options of a command line. `source` resolves those of each session, `no_input` forbids questions,
    `time_limit` limits the time of the process. Raises UsageError for invalid options."""

    def __init__(self, namespace: argparse.Namespace, time_limit: TimeLimit | None = None) -> None:
        warn_if_empty(namespace, "--workspace", "--state-dir", "--gateway", "--provider", "--model")
        self.time_limit = time_limit or TimeLimit(None)
        self._options = SessionOptions(
            workspace=namespace.workspace,
            state_dir=namespace.state_dir,
            session_id=getattr(namespace, "session_id", None),
            approvals=namespace.approve,
            approve_all=namespace.approve_all,
            settings={**settings_of_options(namespace), **_schema_of(namespace)},
        )
        self.no_input: bool = getattr(namespace, "no_input", False)
        self.order: RunOrder | None = None
        self.outputs: OutputFiles | None = None
        """The output files for a pipeline; None if none was requested."""
        self.source = LayeredOptions(self._options, COMMAND_LINE, notice)

    def end_with_input(self, stop: Callable[[], None]) -> None:
        """Call `stop` on the running loop at the end of standard input, if the run ends with it. The interrupt key then
        belongs to the process that started this one."""
        if self.order is None:
            return
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

        def wait() -> None:
            with contextlib.suppress(OSError):
                while os.read(0, 4096):
                    pass
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop)

        threading.Thread(target=wait, name="standard-input", daemon=True).start()

    def resume_command(self, session_id: str) -> str:
        """The command that resumes the session. It contains the workspace if that differs from the recorded one, and
        what is not recorded: the approvals that were given in advance, and a gateway whose URL had a user or password,
        without these."""
        import shlex  # only an unfinished session is resumed

        source = self.source
        options = "" if is_default_state_dir(source.state_dir) else f" --state-dir {shlex.quote(source.state_dir)}"
        options += "" if source.moved is None else f" --workspace {shlex.quote(source.moved)}"
        options += "" if source.unrecorded_gateway is None else f" --gateway {shlex.quote(source.unrecorded_gateway)}"
        options += "".join(f" --approve {shlex.quote(name)}" for name in source.approvals)
        options += " --approve-all" if self._options.approve_all else ""
        return f"agent-host resume {session_id}{options}"


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The part of a run that a batch does not put on the command line: a prompt of any length, and the `policy` that
    narrows that of the options ("" for none). Such a run ends with its standard input, as a session of `serve` does, so
    no session continues after its batch was killed."""

    prompt: str
    policy: str = ""

    @classmethod
    def read(cls, path: str) -> RunOrder:
        """Read the order in a file. Raises UsageError."""
        try:
            with open(path, "rb") as file:
                return cls(**json_text.loads(file.read()))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"--order {path}: {error}") from error


# SIGINT, SIGTERM and SIGHUP on the event loop, on every platform.


def on_signals(stop: Callable[[int], None]) -> None:
    """Call `stop(number)` on the running loop for each SIGINT and SIGTERM.

    The same signal received twice in one turn of the loop counts once, because `timeout` sends it to its child, and
    then to the child's process group.

    A closed terminal (SIGHUP) counts as SIGTERM, once, because the kernel and the shell may both send it and a repeat
    does not mean impatience. It stays ignored if it was ignored from the start, as with `nohup`.
    """
    loop = asyncio.get_running_loop()
    taken: set[int] = set()

    def take(number: int) -> None:
        if number not in taken:
            taken.add(number)
            loop.call_soon(taken.discard, number)
            stop(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, take, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(take, received))
    hang_up = getattr(signal, "SIGHUP", None)  # none on Windows
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return

    def hung_up() -> None:
        loop.add_signal_handler(hang_up, lambda: None)
        stop(signal.SIGTERM)

    loop.add_signal_handler(hang_up, hung_up)


def end_on_signals(end: Callable[[int], None]) -> None:
    """Call `end(number)` for the first SIGINT or SIGTERM; the next one ends the process."""
    received: list[int] = []

    def take(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        end(number)

    on_signals(take)


def peer_check(state_dir: str) -> Callable[[Any], PeerCheck]:
    """The check of clients of a socket of this process; see `agent_host.host.peers`, which is imported with the first
    client."""

    def check(connection: Any) -> PeerCheck:
        from agent_host.host.peers import PeerCheck

        return PeerCheck(state_dir, connection)

    return check


class SessionQuestions:
    """The channel of open questions of this process's session, created with the first question."""

    def __init__(self, state_dir: str, notice: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._notice = notice
        self._channel: QuestionChannel | None = None

    def open(self, desk: Desk, session_id: str) -> None:
        """See `QuestionChannel.open`."""
        if self._channel is None:
            from agent_host.rpc.questions import QuestionChannel

            self._channel = QuestionChannel(self._state_dir, peer_check(self._state_dir), self._notice)
        self._channel.open(desk, session_id)

    async def close(self) -> None:
        """See `QuestionChannel.close`."""
        if self._channel is not None:
            await self._channel.close()


# A command's scope for people.

_NO_SANDBOX = "commands run without a sandbox; one would give them this:"
_MAX_PLACES = 12


def sandbox_in_words(sandbox: Mapping[str, Any]) -> str:
    """Describe the sandbox of a session's commands ({level, wanted, why?, scope?}), in lines."""
    if sandbox.get("scope"):
        return scope_in_words(sandbox["scope"], detailed=False)
    why = f" ({sandbox['why']})" if sandbox.get("why") else ""
    return f"{escape(f'commands run without a sandbox{why}', keep='')}\n"


def scope_in_words(row: Mapping[str, Any], *, detailed: bool = True) -> str:
    """A scope in JSON (`CommandScope.to_wire`) in lines: what a command can read, write and reach, and what is not
    restricted; or, unless `detailed`, only the extent of the latter."""
    head = _NO_SANDBOX if row["level"] == "none" else f"commands run in the {row['level']} sandbox:"
    unenforced = row["unheld"]
    if not detailed and unenforced:
        unenforced = [f"{len(unenforced)} rules, which --output json names"]
    lines = [
        head,
        f"  reads {_list(row['reads'], 'every place')}",
        f"  writes {_list(row['writes'], 'every place')}",
        f"  never reads {_list(row['hidden'])}",
        f"  never changes {_list(row['guarded'])}",
        f"  reaches {'no host' if row['domains'] == [] else _list(row['domains'], 'any host')}",
        f"  never reaches {_list(row['blockedDomains'])}",
        f"  uses the agents {_list(row['agents'])}",
        *(f"  not held: {one}" for one in unenforced),
        *(f"  refused as well: {one}" for one in row.get("withheld", ())),
    ]
    return "".join(f"{escape(line, keep='')}\n" for line in lines if not line.endswith(" -"))


def _list(places: list[str] | None, every: str = "") -> str:
    """Places on one line, `-` if there are none."""
    if places is None:
        return every
    omitted = len(places) - _MAX_PLACES
    return ", ".join(places[:_MAX_PLACES]) + (f" and {omitted} more" if omitted > 0 else "") or "-"
