"""What a call would do, shown to the person who decides about it (AH 10.1, SK 4.1): from the facts that policy judged.

All text of the model goes through a `Screen`; the whole stays below some 128 KiB.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from agent_host.approval import file_details
from agent_host.approval.screen import Act, Description, Screen, widening_of_facts
from agent_host.shown_text import json_size
from policy.facts import CommandFacts, PathFacts, UrlFacts
from policy.names import CapabilityName
from policy.shell.commands import parsed_line
from policy.urls import UrlProblem, host_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.shell.commands import Operand, ParsedCommand, Redirection, SimpleCommand

_MAX_COMMAND_BYTES: Final = 40 * 1024
_MAX_STDIN_BYTES: Final = 8 * 1024
_MAX_SEGMENT_BYTES: Final = 24 * 1024
_MAX_REASON_BYTES: Final = 4 * 1024
_MAX_WORDS: Final = 60
_MAX_LISTED: Final = 20
_MAX_HEADERS: Final = 50
_MAX_URL_BYTES: Final = 8 * 1024
_MAX_BODY_BYTES: Final = 8 * 1024
_MAX_ARGUMENT_BYTES: Final = 64 * 1024
# Parts of header names whose values may let somebody in.
_SECRET_HEADERS: Final = (
    "auth", "cookie", "token", "secret", "key", "passw", "credential", "session", "signature", "csrf", "xsrf",
)  # fmt: skip


async def describe(act: Act, scrub: Callable[[str], str]) -> Description:
    """`act` for a person, without what `scrub` takes out. What is on the disk is read in a thread."""
    screen = Screen(scrub)
    shown = await _described(act, screen)
    asked = widening_of_facts(act.facts)
    if asked is None:
        return shown
    opens = [screen.line(line) for line in asked.lines[:_MAX_LISTED]]
    if len(asked.lines) > _MAX_LISTED:
        opens.append(f"[… {len(asked.lines) - _MAX_LISTED} more]")
    grant = {"opens": opens, "reason": screen.text(asked.reason, _MAX_REASON_BYTES)}
    return Description(screen.line(f"{shown.summary} ({'; '.join(opens)})"), {"sandboxGrant": grant, **shown.details})


async def _described(act: Act, screen: Screen) -> Description:
    facts, display = act.facts, act.spec.display
    if display == "command" and isinstance(facts, CommandFacts):
        return _command(act, facts, screen)
    if display == "request" and isinstance(facts, UrlFacts):
        return _request(act, facts, screen)
    path = facts if isinstance(facts, PathFacts) else None
    if display == "upload":
        return await asyncio.to_thread(file_details.describe_upload, act, path, screen)
    describer = file_details.BY_DISPLAY.get(display)
    if path is not None and describer is not None:
        return await asyncio.to_thread(describer, act, path, screen)
    return _arguments(act, screen)


def _arguments(act: Act, screen: Screen) -> Description:
    """A call of a tool that has no better words for it: its name and all its arguments."""
    shown: dict[str, Any] = {**screen.others(act, max_bytes=_MAX_ARGUMENT_BYTES)}
    if act.spec.runs:
        shown["runs"] = [screen.line(word) for word in act.spec.runs[:_MAX_WORDS]]
        shown["toolSha256"] = act.spec.identity
    return Description(screen.line(" ".join([act.spec.name, *shown.get("otherArguments", "").split()])), {**shown})


# Commands


def _command(act: Act, facts: CommandFacts, screen: Screen) -> Description:
    # Never in a thread: the parser and its memory of the last lines are the loop's.
    parsed = parsed_line(facts)
    details: dict[str, Any] = {
        "command": screen.text(facts.command, _MAX_COMMAND_BYTES),
        "cwd": screen.path(facts.cwd),
        "shell": facts.shell,
        **_segments(parsed, screen),
        "writes": _targets(parsed, facts, ("write", "delete"), screen),
        "reads": _targets(parsed, facts, ("read",), screen),
        "dynamic": bool(parsed.dynamic),
        "doubts": [screen.line(str(one)) for one in (*parsed.dynamic, *parsed.opaque)[:_MAX_LISTED]],
    }
    if facts.script is not None:
        details |= {
            "skill": screen.line(facts.script.skill),
            "script": screen.path(facts.script.path),
            "scriptSha256": facts.script.sha256,
        }
        return Description(f"Run: {screen.line(facts.command)}", details | screen.others(act, "skill", "args", "cwd"))
    if facts.argv:  # all of them stand in the line
        return Description(
            f"Run: {screen.line(facts.command)}", details | screen.others(act, "args", "env", "working_dir")
        )
    title = "Run in the background" if act.arguments.get("background") is True else "Run"
    stdin = act.arguments.get("stdin")
    if isinstance(stdin, str):
        details |= {"stdinBytes": _size(stdin), "stdin": screen.text(stdin, _MAX_STDIN_BYTES)}
        return Description(f"{title}: {screen.line(facts.command)}", details | screen.others(act, "cwd", "stdin"))
    return Description(f"{title}: {screen.line(facts.command)}", details | screen.others(act, "cwd"))


def _segments(parsed: ParsedCommand, screen: Screen) -> dict[str, Any]:
    """Every program that would start, as far as the room goes; `segmentsNotShown` counts the others."""
    shown: list[dict[str, Any]] = []
    room = _MAX_SEGMENT_BYTES
    for one in parsed.commands:
        segment = _segment(one, screen)
        room -= (
            60 + json_size(segment["program"] or "") + sum(json_size(word or "") + 3 for word in segment["arguments"])
        )
        if room < 0:
            return {"segments": shown, "segmentsNotShown": len(parsed.commands) - len(shown)}
        shown.append(segment)
    return {"segments": shown}


def _segment(one: SimpleCommand, screen: Screen) -> dict[str, Any]:
    """{program, arguments, dynamic}; null stands for what is only known when it runs."""
    words = [None if word is None else screen.line(word) for word in one.arguments[:_MAX_WORDS]]
    if len(one.arguments) > _MAX_WORDS:
        words.append(f"[… {len(one.arguments) - _MAX_WORDS} more]")
    return {
        "program": None if one.program is None else screen.line(one.program),
        "arguments": words,
        "dynamic": one.program is None or None in one.arguments,
    }


def _targets(parsed: ParsedCommand, facts: CommandFacts, modes: tuple[str, ...], screen: Screen) -> list[str | None]:
    """The files that the line opens, or hands to a program that changes files, where they really are; null for one that
    is only known when it runs."""
    found: dict[str | None, None] = {}
    for one in parsed.files:
        if one.mode in modes:
            found.update(dict.fromkeys(_places(one, facts)))
    listed = list(found)[:_MAX_LISTED]
    shown: list[str | None] = [None if place is None else screen.line(place) for place in listed]
    return shown if len(found) <= _MAX_LISTED else [*shown, f"[… {len(found) - _MAX_LISTED} more]"]


def _places(one: Redirection | Operand, facts: CommandFacts) -> list[str | None]:
    spellings = one.spellings(facts.cwd, facts.home)
    return [facts.real_paths.get(spelling, spelling) for spelling in spellings] or [one.path]


# Requests


def _request(act: Act, facts: UrlFacts, screen: Screen) -> Description:
    details: dict[str, Any] = {"method": screen.line(facts.method), "url": screen.text(facts.url, _MAX_URL_BYTES)}
    try:
        details["host"] = host_of(facts.url)
    except UrlProblem as problem:
        details["note"] = screen.line(str(problem))
    shown = ["method"]
    headers = act.arguments.get("headers")
    if isinstance(headers, dict):
        shown.append("headers")
        details["headers"] = [_header(str(name), value, screen) for name, value in list(headers.items())[:_MAX_HEADERS]]
        if len(headers) > _MAX_HEADERS:
            details["headersNotShown"] = len(headers) - _MAX_HEADERS
    body = act.arguments.get("body")
    if isinstance(body, str):
        shown.append("body")
        details["bodyBytes"] = _size(body)
        details |= {"binary": True} if "\0" in body else {"body": screen.text(body, _MAX_BODY_BYTES)}
    for needed, file in facts.also:
        if needed == CapabilityName.FILE_WRITE:
            details |= {"saveTo": screen.path(file.real_path), "saveToExists": file.kind != "missing"}
        else:
            details["bodyFile"] = screen.path(file.real_path)
            if file.size_bytes is not None:
                details["bodyBytes"] = file.size_bytes
    return Description(f"{screen.line(facts.method)} {screen.line(facts.url)}", details | screen.others(act, *shown))


def _header(name: str, value: object, screen: Screen) -> dict[str, str]:
    """{name, value}; without the value where that may let somebody in."""
    shown = {"name": screen.line(name)}
    if not any(part in name.lower() for part in _SECRET_HEADERS):
        shown["value"] = screen.line(str(value))
    return shown


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
