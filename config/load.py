"""Layers of configuration: defaults, the user's file, environment, command line; then the workspace, which tightens."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import stat
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from config.json_text import describe_toml
from config.policies import names_file
from config.settings import (
    ALL_TOOLS,
    MOCK_PREFIX,
    MODELS,
    PROVIDERS,
    SETTINGS,
    STRONGER,
    Setting,
    Settings,
    Tightening,
    TomlValue,
    ValueSource,
)
from config.shapes import (
    FLAG,
    TEXT,
    Leaf,
    ListOf,
    all_problems,
    display,
    hint_at,
    integer,
    is_table_of_strings,
    meant_name,
    number,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.shapes import Shape

_LINUX = bool(sys.platform == "linux")
_USER_FILE_VARIABLE = "AGENT_HOST_CONFIG"

# Settings that come from the environment, by variable.
ENVIRONMENT: dict[str, str] = {"LLM_GATEWAY_ENDPOINT": "llm.gateway"}

# Sections of other programs for the same thing.
_FORMS = dict.fromkeys(
    ("mcp_servers", "mcpServers"), "; a server is a [[mcp.servers]] with name and either command and args, or url"
)


class ConfigError(ValueError):
    """Files, variables or options have invalid settings; each of `problems` names the place, the fault, and valid
    values."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def load(
    flags: Mapping[str, TomlValue],
    *,
    workspace: str | None,
    environ: Mapping[str, str] | None = None,
    given_by: str = "the command line",
    may_be_missing: bool = False,
    option_of: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Load the settings of a run. `flags` are the values given for it, by setting; `given_by` names where they were
    given, and `option_of` the option of each. With `may_be_missing` a file that the environment names need not exist.

    Raises ConfigError with all unknown keys (naming the nearest known one), wrong types and values out of bounds. A
    line of the workspace's file that tries to widen a setting is not an error: it is ignored and reported
    (`Settings.ignored`).
    """
    environ = os.environ if environ is None else environ
    values, given, names = dict(load_defaults()), dict[str, ValueSource](), dict[str, str]()
    problems: list[str] = []
    path, chosen = _user_file(environ)
    if path is not None and ((chosen and not may_be_missing) or os.path.exists(path)):
        of_user = _resolve_relative(path, _read(path, problems, f"${_USER_FILE_VARIABLE}: " if chosen else ""))
        values |= of_user
        given |= dict.fromkeys((key for key, value in of_user.items() if value != ""), ValueSource.FILE)
    for variable, key in ENVIRONMENT.items():
        if environ.get(variable):
            given[key], names[key] = ValueSource.ENVIRONMENT, variable
            values |= _checked(key, environ[variable], f"${variable}", problems)
    for key, value in flags.items():
        if key in option_of:
            checked = _checked_option(key, value, option_of[key], problems)
        elif key in SETTINGS:
            checked = _checked(key, value, given_by, problems)
        else:
            problems.append(f"{given_by}: unknown key {key}{_hint_at_key(key)}")
            continue
        values |= {key: _combine(key, values.get(key), one) for key, one in checked.items()}
        names[key] = option_of.get(key, key)
        if value != "":
            given[key] = ValueSource.OPTION
    ignored: list[str] = []
    ceilings: dict[str, float] = {}
    if workspace is not None:
        path = os.path.join(workspace, ".agent", "config.toml")
        if os.path.exists(path):
            _tighten(values, _read(path, problems), path, ignored, ceilings)
    if problems:
        raise ConfigError(*problems)
    return Settings(values, tuple(ignored), ceilings, given, names=names)


def _combine(key: str, present: TomlValue | None, given: TomlValue) -> TomlValue:
    """Combine a value given for a run with the present one: replace it, or add to it."""
    if not SETTINGS[key].adds or not isinstance(present, list) or not isinstance(given, list):
        return given
    return [*present, *(entry for entry in given if entry not in present)]


def user_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files that configure this program for its user: the folder of its configuration, and the file that
    `environ` names."""
    path, chosen = _user_file(environ)
    folder = _user_folder()
    named = () if path is None or not chosen else (path,)
    return named if folder is None else (folder, *named)


def user_skills(environ: Mapping[str, str]) -> str | None:
    """Return the folder of the user's skills, next to the configuration; None for a user without a home directory."""
    path, _ = _user_file(environ)
    return None if path is None else os.path.join(os.path.dirname(path), "skills")


def user_file(environ: Mapping[str, str]) -> str | None:
    """Return the path of the user's configuration, even if the file does not exist; None for a user without a home
    directory."""
    return _user_file(environ)[0]


def _user_file(environ: Mapping[str, str]) -> tuple[str | None, bool]:
    """Return (path, True if a variable names it); the path is None for a user without a home directory."""
    chosen = environ.get(_USER_FILE_VARIABLE)
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen)), True
    folder = _user_folder()
    return None if folder is None else os.path.join(folder, "config.toml"), False


def _user_folder() -> str | None:
    if _LINUX:  # the same as in platformdirs, whose import takes a fortieth of a start
        chosen = os.environ.get("XDG_CONFIG_HOME", "")
        # A relative path must be ignored, by the XDG specification: the workspace would choose it.
        folder = os.path.join(chosen if os.path.isabs(chosen) else os.path.expanduser("~/.config"), "agent-host")
    else:
        import platformdirs

        folder = platformdirs.user_config_dir("agent-host", appauthor=False)
    return None if folder.startswith("~") else folder


def _read(path: str, problems: list[str], named_by: str = "") -> dict[str, TomlValue]:
    """Read and check the settings in one file, by full key; `named_by` is put before the path if the file cannot be
    read."""
    import tomllib  # most sessions have no file

    content = b""
    try:
        content = read_regular_file(path)
        raw = tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        problems.append(f"{named_by}{path}: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        problems.append(f"{path}: {describe_toml(content, error)}")
        return {}
    values: dict[str, TomlValue] = {}
    sections = {key.partition(".")[0] for key in SETTINGS}
    for section, keys in raw.items():
        if section not in sections:
            is_key = not isinstance(keys[0] if isinstance(keys, list) and keys else keys, dict)
            what = f"{section} is outside of any section" if is_key else f"unknown section [{section}]"
            hint = _hint_at_key(section) if is_key else _FORMS.get(section) or hint_at(section, sorted(sections))
            problems.append(f"{path}: {what}{hint}")
        elif not isinstance(keys, dict):
            problems.append(f"{path}: {section} must be a section of keys: [{section}]")
        elif section in SETTINGS:
            values |= _checked(section, keys, path, problems)
        else:
            for name, value in keys.items():
                key = f"{section}.{name}"
                if key in SETTINGS:
                    values |= _checked(key, value, path, problems)
                else:
                    problems.append(f"{path}: unknown key {key}{_hint_at_key(key)}")
    return values


def _hint_at_key(key: str) -> str:
    """Return the end of a sentence about an unknown key: the key of this name in another section, if there is only one,
    else the nearest."""
    same = [one for one in SETTINGS if one.rpartition(".")[2] == key.rpartition(".")[2]]
    return f"; did you mean {same[0]}?" if len(same) == 1 else hint_at(key, sorted(SETTINGS))


def _resolve_relative(file: str, values: dict[str, TomlValue]) -> dict[str, TomlValue]:
    """Resolve a relative bundle and script in the user's `file` against its own directory, because a workspace could
    choose those in the current directory (design, invariant 12)."""
    policy, gateway, folder = values.get("host.policy"), values.get("llm.gateway"), os.path.dirname(file)
    if isinstance(policy, str) and names_file(policy):
        values["host.policy"] = os.path.join(folder, os.path.expanduser(policy))
    if isinstance(gateway, str) and gateway.startswith(MOCK_PREFIX):
        script = os.path.expanduser(gateway.removeprefix(MOCK_PREFIX))
        values["llm.gateway"] = MOCK_PREFIX + os.path.join(folder, script)
    return values


def read_regular_file(path: str) -> bytes:
    """Read a regular file. Anything else is rejected, because reading a pipe might never end. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(fd, "rb") as handle:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return handle.read()


def _checked(key: str, value: TomlValue, where: str, problems: list[str]) -> dict[str, TomlValue]:
    """Return the value by its key; for an invalid value return nothing and add to `problems`."""
    setting = SETTINGS[key]
    found = all_problems(_shape_of(key, setting), value, key)
    problems.extend(f"{where}: {problem.sentence}" for problem in found)
    if found:
        return {}
    return {key: float(value) if setting.kind is float and isinstance(value, int) else value}


def _checked_option(key: str, value: TomlValue, option: str, problems: list[str]) -> dict[str, TomlValue]:
    found: list[str] = []
    checked = _checked(key, value, "", found)
    choices = SETTINGS[key].choices
    if found and choices:
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        for one in value if isinstance(value, list) else [value]:
            if one not in choices:
                meant = meant_name(one, choices, likeness=0.6) if isinstance(one, str) else None
                hint = "" if meant is None else f"; did you mean {meant}?"
                problems.append(f"{option}: choose {listed}, not {_shown(one)}{hint}")
    else:
        problems.extend(f"{option}{problem.removeprefix(': ').removeprefix(key)}" for problem in found)
    return checked


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 40 else display(value)


def _shape_of(key: str, setting: Setting) -> Shape:
    if setting.proxy:
        return _PROXY_URL
    if key in _USER_SECTIONS:
        from config.providers import MODELS_SHAPE, PROVIDERS_SHAPE  # only for a section of models or providers

        return MODELS_SHAPE if key == MODELS else PROVIDERS_SHAPE
    if setting.tables:
        expected = f"a list of tables: [[{key}]]"
        return Leaf(expected, lambda value: isinstance(value, list) and all(isinstance(entry, dict) for entry in value))
    if setting.kind is dict:
        return Leaf(f"a table of strings: [{key}]", is_table_of_strings)
    if setting.kind is list:
        return ListOf(one_of(*setting.choices) if setting.choices else TEXT)
    if setting.kind is bool:
        return FLAG
    if setting.kind is str:
        return one_of(*setting.choices) if setting.choices else TEXT
    return (integer if setting.kind is int else number)(setting.low, setting.high)


def _is_proxy_url(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return value == ""
    from ipaddress import IPv6Address  # most sessions have no proxy

    user, host = r"[A-Za-z0-9._~!$&'()*+,;=:%-]+@", r"\[([0-9A-Fa-f:.]+)\]|[A-Za-z0-9._-]+"
    found = re.fullmatch(rf"https?://(?:{user})?(?:{host})(?::([0-9]{{1,5}}))?/?", value)
    if found is None or not 0 < int(found[2] or 1) < 65_536:
        return False
    try:
        return found[1] is None or bool(IPv6Address(found[1]).compressed)
    except ValueError:
        return False


# The URL may contain a password.
_PROXY_URL = Leaf(
    "empty or the URL of a proxy: http://HOST:PORT, http://USER:PASSWORD@HOST:PORT, or https:// for one by TLS",
    _is_proxy_url,
    quotes=False,
)


def _tighten(
    values: dict[str, TomlValue],
    wanted: dict[str, TomlValue],
    path: str,
    ignored: list[str],
    ceilings: dict[str, float],
) -> None:
    """Apply the values that tighten. The file belongs to the author of the workspace, who is not the user."""
    for key, value in wanted.items():
        setting, present = SETTINGS[key], values[key]
        if setting.tightening is Tightening.SMALLER and isinstance(value, int | float):
            ceilings[key] = value
        if setting.tightening is Tightening.MORE and isinstance(value, list) and isinstance(present, list):
            values[key] = [*present, *(entry for entry in value if entry not in present)]
        elif setting.tightening is Tightening.FEWER and isinstance(value, list) and isinstance(present, list):
            wider: list[Any] = [] if ALL_TOOLS in present else [entry for entry in value if entry not in present]
            kept: list[Any] = [entry for entry in value if entry not in wider]
            values[key] = present if ALL_TOOLS in value else kept
            if wider:
                ignored.append(_describe_ignored(path, key, wider))
        elif _is_narrower(value, present, setting):
            values[key] = value
        elif value != present:
            ignored.append(_describe_ignored(path, key, value))


def _describe_ignored(path: str, key: str, value: TomlValue) -> str:
    how = SETTINGS[key].tightening.value
    return f"{path}: {key} = {value!r} is ignored: a workspace may change it {how}"


def _is_narrower(value: TomlValue, present: TomlValue, setting: Setting) -> bool:
    if setting.tightening is Tightening.STRONGER:
        return str(value) in STRONGER.get(str(present), ())
    if setting.tightening is Tightening.LOWER:
        return setting.choices.index(str(value)) < setting.choices.index(str(present))
    if setting.tightening is not Tightening.SMALLER:
        return False
    if not (isinstance(value, int | float) and isinstance(present, int | float)):
        return False
    is_unset = setting.zero_is_unset and present == 0
    return (is_unset or value < present) and not (setting.zero_is_unset and value <= 0)


# The shipped defaults. Their file is so simple that it can be read without a TOML parser at each start.

# Sections whose keys the user chooses: none by default.
_USER_SECTIONS = frozenset((MODELS, PROVIDERS))
DEFAULTS = os.path.join(os.path.dirname(__file__), "defaults.toml")


@functools.cache
def load_defaults() -> dict[str, TomlValue]:
    """Return the value of each setting in defaults.toml, by full key. It is read once; do not change the result.

    Supported are comments, sections, and one-line values that are the same in JSON. A test compares the result with
    tomllib's.
    """
    values: dict[str, TomlValue] = {}
    section, decoder = "", json.JSONDecoder()
    with open(DEFAULTS, encoding="utf-8") as handle:
        for line in map(str.strip, handle):
            if line.startswith("["):
                section = line[1 : line.index("]")]
                if section in _USER_SECTIONS:
                    values[section] = {}
            elif line and not line.startswith("#"):
                key, _, rest = line.partition(" = ")
                values[f"{section}.{key}"], _ = decoder.raw_decode(rest)  # the rest is a comment
    return values
