"""Batches: many tasks, each in its own session, that are started, retried and resumed until all have ended.

The tasks are JSON Lines or CSV, all read and checked here before anything runs (interface, "Batch").
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import orjson

from agent_host.errors import UsageError
from config import json_text
from config.lean_typing import NamedTuple
from config.policies import BUILT_IN, names_file
from config.shapes import Record, Text, all_problems, integer, list_problems, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Kind = Literal["directory", "archive", "git"]

_MOST_BYTES: Final = 256 * 1024**2
_MOST_TASKS: Final = 100_000
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_FOLDS_CASE: Final = sys.platform in ("win32", "darwin")
"""On these systems, ids that differ only in case would share a patch file."""
_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@^~{}-]{0,199}")
_HOST_AND_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-].*")
_LINE: Final = Text(0, 64 * 1024)
_LIMITS: Final = Record({}, {"maxSteps": integer(1, 10_000), "maxCost": number(0), "timeoutS": number(0)}, closed=True)
_SHAPE: Final = Record(
    {"id": Text(), "prompt": Text(), "workspace": Text()},
    {"policy": Text(), "model": Text(), "limits": _LIMITS, "setup": _LINE, "check": _LINE},
    closed=True,
)


class Source(NamedTuple):
    """The origin of a workspace: the absolute path of a directory or an archive, or a git URL with its revision."""

    kind: Kind
    place: str
    revision: str = ""


class BatchTask(NamedTuple):
    """One task. `policy` is a name or an absolute path and narrows the batch's policy. Limits that are None default to
    the batch's. `setup` and `check` are shell commands, "" for none."""

    id: str
    prompt: str
    workspace: Source
    policy: str = ""
    model: str = ""
    max_steps: int | None = None
    max_cost: float | None = None
    timeout_s: float | None = None
    setup: str = ""
    check: str = ""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of prompt, workspace and policy, which is stable as long as the id means the same task."""
        parts = [self.prompt, *self.workspace, self.policy, content_hash(self.policy) if self.policy else ""]
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()

    @property
    def key(self) -> str:
        """16 hex digits of the SHA-256 of the id, for file names that are valid on every system."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:16]


def content_hash(policy: str) -> str:
    """Return the SHA-256 of a policy file; "" for the name of a built-in policy and for an unreadable file."""
    if not names_file(policy):
        return ""
    try:
        with open(policy, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def read_tasks(path: str) -> list[BatchTask]:
    """Return the tasks of a file; paths in it are relative to its directory. Raises UsageError that lists every invalid
    line; missing directories, archives and policies are invalid too."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: has more than {_MOST_BYTES // 1024**2} MiB")
    base = os.path.dirname(os.path.realpath(path))
    rows = _csv_rows(data) if path.lower().endswith(".csv") else _json_rows(data)
    tasks, problems = _checked(rows, base)
    if len(tasks) > _MOST_TASKS:
        problems.append(f"has more than {_MOST_TASKS:,} tasks")
    if not tasks and not problems:
        problems.append("has no task")
    if problems:
        raise UsageError(f"{path}: {list_problems(problems)}")
    return tasks


def _checked(rows: Iterable[tuple[int, Any]], base: str) -> tuple[list[BatchTask], list[str]]:
    tasks: list[BatchTask] = []
    problems: list[str] = []
    lines: dict[str, int] = {}
    for line, row in rows:
        wrong = [row] if isinstance(row, str) else [one.sentence for one in all_problems(_SHAPE, row)]
        task = None if wrong else _task(row, base, wrong)
        name = "" if task is None else task.id.casefold() if _FOLDS_CASE else task.id
        if task is not None and name in lines:
            wrong.append(f"id {task.id} is that of line {lines[name]} as well")
        problems += (f"line {line}: {one}" for one in wrong)
        if task is not None and not wrong:
            lines[name] = line
            tasks.append(task)
    return tasks, problems


def _task(row: Mapping[str, Any], base: str, wrong: list[str]) -> BatchTask | None:
    """Return the task of a row of the right shape. Problems with its values are added to `wrong`."""
    limits = row.get("limits", {})
    if not _ID.fullmatch(row["id"]):
        wrong.append("id must be 1 to 100 of A-Z, a-z, 0-9, _, . and -")
    if not row["prompt"].strip():
        wrong.append("prompt must not be empty")
    wrong += [f"limits.{name} must be above 0" for name in ("maxCost", "timeoutS") if limits.get(name) == 0]
    policy = str(row.get("policy", ""))
    if names_file(policy):
        policy = os.path.realpath(os.path.join(base, policy))
        if not os.path.isfile(policy):
            wrong.append(f"policy: there is no file {policy}")
    elif policy and policy not in BUILT_IN:
        wrong.append(f"policy: {policy!r} is not a built-in: give a bundle file or one of {', '.join(BUILT_IN)}")
    source = _source(row["workspace"], base, wrong)
    if source is None or wrong:
        return None
    return BatchTask(
        row["id"],
        row["prompt"].encode("utf-8", "replace").decode(),
        source,
        policy,
        str(row.get("model", "")),
        limits.get("maxSteps"),
        limits.get("maxCost"),
        limits.get("timeoutS"),
        str(row.get("setup", "")),
        str(row.get("check", "")),
    )


def _source(named: str, base: str, wrong: list[str]) -> Source | None:
    path = os.path.realpath(os.path.join(base, named))
    if os.path.isdir(path) and "\0" not in named:
        return Source("directory", path)
    if path.lower().endswith(_ARCHIVES) and os.path.isfile(path):
        return Source("archive", path)
    url, found, revision = named.rpartition("#")
    problem = _git_problem(url, revision) if found else None
    if not found:
        remote = _SCHEME.match(named) or _HOST_AND_PATH.fullmatch(named)
        problem = "a git URL needs its revision after a #" if remote else f"there is no directory or archive {path}"
    if problem is not None:
        wrong.append(f"workspace: {problem}")
        return None
    return Source("git", url, revision)


def _git_problem(url: str, revision: str) -> str | None:
    scheme = _SCHEME.match(url)
    is_allowed = scheme[1] in ("https", "ssh") if scheme else os.path.isabs(url) or _HOST_AND_PATH.fullmatch(url)
    if not is_allowed or "::" in url.partition("/")[0] or url.startswith("-"):
        return "a git URL begins with https:// or ssh://, or is an absolute path"
    if scheme and "@" in urlsplit(url).netloc and (scheme[1] == "https" or urlsplit(url).password is not None):
        return "a git URL must not contain a password or token: git finds them by ssh's agent and keys"
    if not url.isprintable() or not _REVISION.fullmatch(revision):
        return f"{revision!r} is not a revision"
    if scheme is None and os.path.isabs(url) and not os.path.isdir(url):
        return f"there is no repository {url}"
    return None


def _json_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line with its value, or with its problem as a text."""
    for line, text in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if text.strip():
            try:
                yield line, json_text.loads(text)
            except orjson.JSONDecodeError as error:
                yield line, f"no JSON: {error}"


def _csv_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    """Do as `_json_rows` does. An empty cell is an absent field; `limits` contains JSON."""
    reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace"), newline=""), strict=True)
    try:
        for row in reader:
            if None in row:
                yield reader.line_num, "has more cells than there are names"
                continue
            value: dict[str, Any] = {name: cell for name, cell in row.items() if cell}
            if "limits" in value:
                try:
                    value["limits"] = json_text.loads(value["limits"])
                except orjson.JSONDecodeError as error:
                    yield reader.line_num, f"limits: no JSON: {error}"
                    continue
            yield reader.line_num, value
    except csv.Error as error:
        yield reader.line_num, f"no CSV: {error}"
