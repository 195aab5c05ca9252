"""Inner door: what recorded sessions cost, replayed against a gateway that counts tokens as a provider's cache does.

A cost is in token equivalents: a token of input counts 1, one written to the cache 1.25, one read from it 0.1, one of
output 5. So it changes with what this program sends, and with no price list.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tomllib
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import UsageError
from agent_host.events import EventType
from agent_host.host.options import SessionOptions, anchor, existing_directory
from agent_host.host.replay import replay_session
from agent_host.host.sessions import open_recorded
from agent_host.testing.gateway import MockGateway, Script
from agent_host.testing.script import ScriptError
from config.lean_typing import NamedTuple
from config.load import read_regular_file
from config.settings import SETTINGS
from state.temporary import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WRITTEN: Final = 1.25
READ: Final = 0.1
OUTPUT: Final = 5.0
_PROMPT: Final = "Do the task."
_SCRIPTS: Final = (".toml", ".jsonl")


class RecordedCost(NamedTuple):
    """The cost of one recorded session: in token equivalents, and the tokens of its first request."""

    equivalents: int
    first_request: int


class Growth(NamedTuple):
    """A cost beside that of the baseline, None where that has none; `is_over` says that one of its figures grew by more
    than is allowed."""

    name: str
    cost: RecordedCost
    before: RecordedCost | None
    is_over: bool


class _Meter:
    """Adds up what requests used."""

    def __init__(self) -> None:
        self.equivalents = 0.0
        self.first_request = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Count an answered request."""
        if event["eventType"] != EventType.LLM_REQUEST_COMPLETED:
            return
        used = event["payload"]
        read, written = used.get("cachedInputTokens", 0), used.get("cacheWriteTokens", 0)
        fresh = used["inputTokens"] - read - written
        self.first_request = self.first_request or used["inputTokens"]
        self.equivalents += fresh + WRITTEN * written + READ * read + OUTPUT * used["outputTokens"]

    @property
    def cost(self) -> RecordedCost:
        """The sum so far."""
        return RecordedCost(round(self.equivalents), self.first_request)


async def cost_of(recording: str, flags: Mapping[str, Any], *, workspace: str | None, state_dir: str) -> RecordedCost:
    """The cost of a recording: a script, which is run in a copy of the directory of its name beside it, with the
    settings of the file `NAME.settings` there; or the id of a session, which is run again in a copy of
    `workspace`. Raises UsageError, SessionNotFound and what opening a session raises."""
    meter = _Meter()
    with scratch("cost") as place:
        root = os.path.join(place, "workspace")
        if recording.endswith(_SCRIPTS):
            await _run_script(anchor(recording), flags, root, os.path.join(place, "state"), meter.take)
        else:
            if workspace is None:
                raise UsageError(f"{recording} is a session: name the directory that it works in with --workspace")
            existing_directory(anchor(workspace))
            shutil.copytree(anchor(workspace), root, symlinks=True)
            await replay_session(
                flags, session_id=recording, workspace=root, state_dir=state_dir, on_counted=meter.take
            )
    return meter.cost


async def _run_script(
    path: str, flags: Mapping[str, Any], root: str, state_dir: str, take: Callable[[Mapping[str, Any]], object]
) -> None:
    stem = path.rpartition(".")[0]
    _make_workspace(stem, root)
    try:
        script = dataclasses.replace(Script.load(path, {"workspace": root}), count_tokens=True)
    except ScriptError as error:
        raise UsageError(f"{path}: {error}") from error
    settings = {**_settings_beside(f"{stem}.settings"), **flags}
    async with MockGateway(script) as gateway:
        options = SessionOptions(
            workspace=root, gateway=gateway.url, state_dir=state_dir, settings=settings, approve_all=True
        )
        async with open_recorded(options, None, take, None) as session:
            result = await session.run(_PROMPT)
    if result.status != "TASK_COMPLETED":
        raise UsageError(f"{path}: the session does not come to its end: {result.reason}: {result.message}")


def _make_workspace(template: str, root: str) -> None:
    if os.path.isdir(template):
        shutil.copytree(template, root, symlinks=True)
    else:
        os.makedirs(root)


def _settings_beside(path: str) -> dict[str, Any]:
    """The settings of a recording, by key; `${here}` in it stands for its directory. Raises UsageError."""
    try:
        text = read_regular_file(path).decode().replace("${here}", os.path.dirname(path))
        sections = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    found: dict[str, Any] = {}
    for section, content in sections.items():
        if section in SETTINGS or not isinstance(content, dict):
            found[section] = content
        else:
            found |= {f"{section}.{name}": value for name, value in content.items()}
    return found


def name_of(recording: str) -> str:
    """The name of a recording in a baseline."""
    return os.path.basename(recording).rpartition(".")[0] if recording.endswith(_SCRIPTS) else recording


def read_baseline(path: str) -> dict[str, RecordedCost]:
    """The costs of a baseline, by name. Raises UsageError."""
    try:
        rows = orjson.loads(read_regular_file(anchor(path)))["recordings"]
        return {
            name: RecordedCost(int(row["tokenEquivalents"]), int(row["firstRequestTokens"]))
            for name, row in rows.items()
        }
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}; --write-baseline makes one") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"--baseline {path}: it is no baseline: --write-baseline makes one") from error


def baseline_of(costs: Mapping[str, RecordedCost]) -> bytes:
    """The content of a baseline with these costs."""
    rows = {
        name: {"tokenEquivalents": cost.equivalents, "firstRequestTokens": cost.first_request}
        for name, cost in sorted(costs.items())
    }
    return orjson.dumps({"recordings": rows}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def compare(costs: Mapping[str, RecordedCost], before: Mapping[str, RecordedCost], most: float) -> list[Growth]:
    """Each cost beside the baseline's; `most` is the growth that is allowed, as a part of it."""

    def is_over(now: RecordedCost, then: RecordedCost | None) -> bool:
        return then is not None and any(a > b * (1 + most) for a, b in zip(now, then, strict=True))

    return [Growth(name, cost, before.get(name), is_over(cost, before.get(name))) for name, cost in costs.items()]
