"""Data of a state directory apart from its sessions: ids chosen by users, its key, findings of earlier starts.

Ids chosen by users (interface section 1, `--session-id`):

Without a Session Service a chosen id is the session's own id. A service assigns its own ids; then `keys/KEY.json` names
the session that was started under the key. A pruned session with a chosen id leaves its result as a stub, so that a
task done once under an id is never done again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import orjson

from config.lean_typing import NamedTuple
from config.shapes import FLAG, TEXT, ListOf, Record
from state import Damaged, SessionPaths, check_session_id, is_session_id, translate_errors
from state.disk import LOCAL_DISK, boot_id, make_durable_dir, replace_atomically, write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state.disk import SessionLock

FOLDER = "keys"


def prompt_mark(state_dir: str, prompt: str) -> str:
    """Return a mark that distinguishes prompts without revealing them, because they may contain a secret: HMAC-SHA-256,
    in hex, under the key of the state directory."""
    import hmac  # only a session with a chosen id has a mark

    return hmac.new(redaction_key(state_dir), prompt.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def session_of(state_dir: str, key: str) -> str:
    """Return the id of the session that was started under `key`; the key itself if no other id is recorded. Raises
    InvalidSessionId, and Damaged for a record that cannot be read, because it may name a session."""
    path = _path(state_dir, key)
    kept = _read(path)
    named = key if kept is None else kept.get("sessionId")
    if isinstance(named, str) and is_session_id(named):
        return named
    raise Damaged(f"{path} names no session")


def remember(state_dir: str, key: str, session_id: str) -> None:
    """Record that `key` names `session_id`; durable on return. Raises InvalidSessionId, WriteFailed."""
    path = _path(state_dir, key)
    keep_json(state_dir, path, {"sessionId": session_id}, doing="keeping the session's id")


def hold(state_dir: str, key: str) -> SessionLock:
    """Lock `key`, so that no other process starts a session under it. Raises SessionLocked, WriteFailed,
    InvalidSessionId."""
    check_session_id(key)
    folder = os.path.join(state_dir, FOLDER)
    with translate_errors("preparing the state directory"):
        make_durable_dir(LOCAL_DISK, folder, within=state_dir)
    return LOCAL_DISK.lock(os.path.join(folder, f"{key}.lock"), key)


def read_result(state_dir: str, session_id: str) -> dict[str, Any] | None:
    """Return the result of a session that ended, from `result.json` or, after a prune, from the stub; None if there is
    neither. Raises InvalidSessionId, and Damaged for one that exists but cannot be read: the session was started."""
    paths = SessionPaths(state_dir, session_id)
    kept = _read(paths.result)
    return _read(paths.stub) if kept is None else kept


def leave_stub(state_dir: str, session_id: str, options: dict[str, Any] | None, *, damaged: bool) -> None:
    """Before a session is pruned, keep its result if its id was chosen, or may have been. `options` are those of its
    checkpoint, None if there is none or it is `damaged`. Raises OSError."""
    try:
        kept = read_result(state_dir, session_id)
    except Damaged:
        kept, damaged = None, True
    if kept is None and options is not None:  # it never ended
        kept = {"sessionId": session_id, "started": options.get("started", {})}
    if kept is None and damaged:  # it is unknown if its id was chosen: assume so
        kept = {"sessionId": session_id, "started": {"key": session_id}}
    started = {} if kept is None else kept.get("started")
    if not isinstance(started, dict) or not isinstance(started.get("key"), str):  # its id was not chosen
        return
    stub = SessionPaths(state_dir, session_id).stub
    make_durable_dir(LOCAL_DISK, os.path.dirname(stub), within=state_dir)
    replace_atomically(LOCAL_DISK, stub, [orjson.dumps(kept, option=orjson.OPT_INDENT_2)])


def _read(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file does not exist. Raises Damaged."""
    try:
        kept = orjson.loads(LOCAL_DISK.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise Damaged(f"{path} is no JSON: {error}") from error
    if not isinstance(kept, dict):
        raise Damaged(f"{path} holds no object")
    return kept


def _path(state_dir: str, key: str) -> str:
    return os.path.join(state_dir, FOLDER, f"{check_session_id(key)}.json")


# The key for the placeholders of redacted values: one per state directory, so that a resumed session uses the same
# placeholders as before, and so that values cannot be guessed and verified from events alone.

KEY_NAME: Final = "redaction.key"
_KEY_BYTES: Final = 32


def redaction_key(state_dir: str, *, makes: bool = True) -> bytes:
    """Return the key of this state directory. With `makes` it is made at the first use, and an invalid one, as after a
    power loss, is replaced. If it can be neither read nor stored, return a key for this process only: the placeholders
    of its sessions then differ from earlier ones."""
    path = os.path.join(state_dir, KEY_NAME)
    with contextlib.suppress(OSError):
        return _read_redaction_key(path)
    with contextlib.suppress(OSError):
        if makes:
            _make_redaction_key(path)
            return _read_redaction_key(path)
    return _process_mark()


def _make_redaction_key(path: str) -> None:
    """Store a complete key, never a part of one, and never in place of another process's key. Raises OSError."""
    made = f"{path}.{os.getpid()}-{threading.get_ident()}"
    try:
        write_new(LOCAL_DISK, made, [os.urandom(_KEY_BYTES)])
        try:
            LOCAL_DISK.link(made, path)
        except OSError:  # another process was faster, there is an invalid key, or the disk has no hard links
            try:
                _read_redaction_key(path)
            except OSError:
                LOCAL_DISK.replace(made, path)
    finally:
        LOCAL_DISK.remove(made)


def _read_redaction_key(path: str) -> bytes:
    """Read the key. Raises OSError, also if the file is not a key."""
    key = LOCAL_DISK.read(path)
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return key


@functools.cache
def _process_mark() -> bytes:
    return os.urandom(_KEY_BYTES)


# Findings for the next starts: rows by key, in a small file of the state directory for each kind. An unreadable file
# counts as empty. A URL may contain a secret, so only its hash is stored.

_MAX_BYTES = 1 << 20
FILE = "gateway-dialects.json"
_DIALECT_GOOD_FOR_S = 7 * 86_400  # another gateway may be installed at its URL
LOCAL_SERVERS_FILE = "local-servers.json"
_SERVER_GOOD_FOR_S = 3600  # a server may be restarted with another model or context window
SANDBOX_LEVELS_FILE = "sandbox-levels.json"
_LEVEL = Record({"works": FLAG, "problem": TEXT, "unheld": ListOf(TEXT)})
_TELLING = ("Uid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:")


def read_bytes(path: str, most: int) -> bytes | None:
    """Return the first `most` bytes of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return None


def read_json(path: str, most: int) -> Any:
    """Return the JSON in a file of at most `most` bytes; None if it cannot be read."""
    try:
        return orjson.loads(read_bytes(path, most) or b"")
    except orjson.JSONDecodeError:
        return None


def keep_json(state_dir: str, path: str, value: Any, *, doing: str, must_exist: bool = False) -> None:
    """Write a small JSON file in a state directory, which must exist already if `must_exist`; durable on return. Raises
    WriteFailed, whose message says that `doing` failed."""
    content = orjson.dumps(value)
    with translate_errors(doing):
        make_durable_dir(LOCAL_DISK, os.path.dirname(path), within=state_dir, must_exist=must_exist)
        replace_atomically(LOCAL_DISK, path, [content])


class KeptRows(NamedTuple):
    """The rows of one file, {`section`: {key: row}}, of which the `most` newest are kept. `doing` describes the write
    in error messages."""

    state_dir: str
    file: str
    section: str
    doing: str
    most: int = 256

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return all rows, the newest last."""
        kept = read_json(os.path.join(self.state_dir, self.file), _MAX_BYTES)
        section = kept.get(self.section) if isinstance(kept, dict) else None
        found = section.items() if isinstance(section, dict) else ()
        return {key: one for key, one in found if isinstance(one, dict)}

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        """Store `row` under `key`; durable on return. Raises WriteFailed."""
        rows = self.rows()
        rows.pop(key, None)
        newest = list(rows.items())[-(self.most - 1) :]
        path = os.path.join(self.state_dir, self.file)
        keep_json(self.state_dir, path, {self.section: {**dict(newest), key: row}}, doing=self.doing)


def _is_fresh(row: Mapping[str, Any], now: float, good_for_s: float) -> bool:
    at = row.get("at")
    return isinstance(at, (int, float)) and 0 <= now - at < good_for_s


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class GatewayDialects:
    """The detected dialect of each gateway, by URL, so that detection runs only once."""

    def __init__(self, state_dir: str, now: Callable[[], float]) -> None:
        self._kept = KeptRows(state_dir, FILE, "gateways", "keeping the dialect of a gateway")
        self._now = now

    def find(self, url: str) -> str | None:
        """Return the dialect that was detected at `url` within the last seven days."""
        row = self._kept.rows().get(_hash(url), {})
        name = row.get("dialect")
        return name if isinstance(name, str) and _is_fresh(row, self._now(), _DIALECT_GOOD_FOR_S) else None

    def keep(self, url: str, name: str) -> None:
        """Store the dialect of a gateway; durable on return. Only the 256 newest are kept. Raises WriteFailed."""
        self._kept.keep(_hash(url), {"dialect": name, "at": self._now()})


class LocalServers:
    """Facts from local servers about their models, by URL and model, kept for an hour so that not every start requests
    them."""

    def __init__(self, state_dir: str, now: Callable[[], float]) -> None:
        self._kept = KeptRows(state_dir, LOCAL_SERVERS_FILE, "servers", "keeping what a server said")
        self._now = now

    def find(self, url: str, model: str, *, stale: bool = False) -> dict[str, Any] | None:
        """Return the facts about `model` from the server at `url`, by name, if they are less than an hour old or
        `stale` is True."""
        row = self._kept.rows().get(server_key(url, model), {})
        facts = row.get("facts")
        is_usable = stale or _is_fresh(row, self._now(), _SERVER_GOOD_FOR_S)
        return facts if isinstance(facts, dict) and is_usable else None

    def keep(self, url: str, model: str, facts: Mapping[str, Any]) -> None:
        """Store the facts about `model`; durable on return. Raises WriteFailed."""
        self._kept.keep(server_key(url, model), {"facts": dict(facts), "at": self._now()})


def server_key(url: str, model: str) -> str:
    """Return the key of the row for a URL and a model."""
    return _hash(f"{url}\n{model}")


class SandboxLevels:
    """Results of tests of sandbox levels, so that a start need not repeat them: {works, problem, unheld} by level, for
    the boot of the machine, this program's version and the restrictions on this process."""

    def __init__(self, state_dir: str, version: str) -> None:
        doing = "keeping which levels of the sandbox work"
        self._kept = KeptRows(state_dir, SANDBOX_LEVELS_FILE, "machines", doing, most=16)
        self._key = _machine_key(version)

    def findings(self) -> dict[str, dict[str, Any]]:
        """Return the results for this machine, by level; empty if nothing was tested under the same conditions."""
        found = {} if self._key is None else self._kept.rows().get(self._key, {})
        return {level: row for level, row in found.items() if _LEVEL.fits(row)}

    def keep(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the results; durable on return. Nothing is stored if the boot id is unknown. Raises WriteFailed."""
        if self._key is not None:
            self._kept.keep(self._key, found)


def _machine_key(version: str) -> str | None:
    """Return a hash of the conditions that decide if a level works, including the restrictions on this process (in a
    container, or in another sandbox); None if they cannot be determined."""
    boot = boot_id()
    if boot is None or sys.platform == "win32":
        return None
    parts = [version, boot, os.uname().release, str(os.geteuid())]
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        lines = [line.strip() for line in status if line.startswith(_TELLING)]
        parts += [*lines, os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")]
    return _hash("\0".join(parts))
