"""Providers of models: the known ones, the section `[providers]` of a user's configuration, and the choice for a run.

    [providers]
    default = "work"

    [providers.work]
    base_url = "https://llm.example.com/v1"
    dialect = "openai"
    key_env = "WORK_KEY"

A key is sent to its provider's `base_url` and nowhere else. An entry with the name of a known provider overrides its
values.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from config.settings import CURRENCY, PRICES, PROVIDERS, LlmProvider, ValueSource, has_key_header
from config.shapes import (
    FLAG,
    Leaf,
    Problem,
    Record,
    Text,
    display,
    hint_at,
    integer,
    is_table_of_strings,
    matches,
    member_path,
    number,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from config.settings import Settings
    from config.shapes import Shape

DEFAULT = "default"
"""The key of `[providers]` that names the provider to use if nothing else chooses one."""


class KnownProvider(NamedTuple):
    """A provider that needs no entry. If the variable `url_env` names another URL, its dialect is
    `dialect_elsewhere`."""

    base_url: str
    dialect: str
    model: str = ""
    key_env: str = ""
    url_env: str = ""
    dialect_elsewhere: str = ""


_OPENAI_OF_GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"
_KEYED = (
    ("anthropic", "https://api.anthropic.com", "anthropic", "claude-sonnet-5", ""),
    ("openai", "https://api.openai.com/v1", "responses", "gpt-5.4", "openai"),
    ("openrouter", "https://openrouter.ai/api/v1", "openai", "anthropic/claude-sonnet-5", ""),
    ("gemini", _OPENAI_OF_GEMINI, "openai", "gemini-flash-latest", ""),
)
_SERVERS = {"ollama": 11434, "llamacpp": 8080, "lmstudio": 1234, "vllm": 8000, "litellm": 4000}
KNOWN: dict[str, KnownProvider] = {
    name: KnownProvider(url, dialect, model, f"{name.upper()}_API_KEY", f"{name.upper()}_BASE_URL", elsewhere)
    for name, url, dialect, model, elsewhere in _KEYED
} | {name: KnownProvider(f"http://127.0.0.1:{port}", "openai") for name, port in _SERVERS.items()}
"""By name, in the order in which keys in the environment are looked for; then servers at their usual local ports."""
LOCAL: tuple[str, ...] = tuple(_SERVERS)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


# No message quotes these, because they may contain a secret, or be one by mistake.
_URL = Leaf("an http:// or https:// URL", matches(r"(?is)https?://[^/\s].*"), quotes=False)
_VARIABLE = Leaf(
    "the name of the environment variable with the key", matches(r"[A-Za-z_][A-Za-z0-9_]{0,254}"), quotes=False
)
_HEADERS = Leaf("a table of strings", is_table_of_strings, quotes=False)
_PROVIDER = Record(
    {},
    {
        "base_url": _URL,
        "dialect": one_of("anthropic", "openai", "responses", "auto"),
        "model": Text(1, 256),
        "key_env": _VARIABLE,
        "key_keyring": Text(1, 256),
        "headers": _HEADERS,
        "context_tokens": integer(1, 10**9),
    },
    closed=True,
)


class _Table:
    """A section whose keys the user chooses."""

    def __init__(self, problems: Callable[[Any, str], Iterator[Problem]]) -> None:
        self.problems = problems

    def fits(self, value: Any) -> bool:
        return next(self.problems(value, ""), None) is None


def _provider_problems(value: Any, path: str) -> Iterator[Problem]:
    if type(value) is not dict:
        yield Problem(path, f"must be a table: [{path}.NAME]")
        return
    names = [*(name for name in value if name != DEFAULT), *(name for name in KNOWN if name not in value)]
    for name, entry in value.items():
        where = member_path(path, name)
        if name == DEFAULT:
            if entry not in names:
                hint = hint_at(entry, names) if type(entry) is str else ""
                yield Problem(where, f"must be the name of a provider, not {display(entry)}{hint}")
        elif not _NAME.fullmatch(name):
            yield Problem(where, "has a name that is not 1 to 64 letters, digits, `-`, `_` and `.`")
        elif not _PROVIDER.fits(entry):
            yield from _PROVIDER.problems(entry, where)
        elif "key_env" in entry and "key_keyring" in entry:
            yield Problem(where, "has key_env and key_keyring: give one of them")
        elif "base_url" not in entry and name not in KNOWN:
            yield Problem(where, f"needs base_url{hint_at(name, KNOWN)}")


PROVIDERS_SHAPE: Shape = _Table(_provider_problems)
"""Shape of `[providers]`: `default`, and entries by name."""


class NoSuchProvider(LookupError):
    """There is no provider of this name; the message hints at those that exist."""


def names_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of all providers, those of the configuration first."""
    return tuple(dict.fromkeys((*(name for name in settings.providers if name != DEFAULT), *KNOWN)))


def provider_called(name: str, settings: Settings, environ: Mapping[str, str], why: str = "") -> LlmProvider:
    """Return the provider of this name, from its entry, then the variables of a known provider, then its known values.
    Raises NoSuchProvider."""
    entry, known = settings.providers.get(name), KNOWN.get(name)
    if known is None and not isinstance(entry, dict):
        raise NoSuchProvider(f"there is no provider {name!r}{hint_at(name, names_of(settings))}")
    own: dict[str, Any] = entry if isinstance(entry, dict) else {}
    known = known or KnownProvider(own["base_url"], "auto")
    has_other_key = "key_keyring" in own or has_key_header(own.get("headers", {}))
    in_environment = "" if "base_url" in own else environ.get(known.url_env, "").strip()
    elsewhere = own.get("base_url") or in_environment
    return LlmProvider(
        name,
        elsewhere or known.base_url,
        own.get("dialect") or (elsewhere and known.dialect_elsewhere) or known.dialect,
        own.get("model") or known.model,
        "model" in own,
        own.get("key_env") or ("" if has_other_key else known.key_env),
        own.get("key_keyring", ""),
        own.get("headers", {}),
        own.get("context_tokens"),
        why,
        url_env=known.url_env if in_environment else "",
    )


def found_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the known providers whose keys are in the environment."""
    return tuple(name for name, known in KNOWN.items() if known.key_env and environ.get(known.key_env, "").strip())


def choose_provider(
    settings: Settings, environ: Mapping[str, str], started_with: str | None = None, *, finds: bool = True
) -> LlmProvider | None:
    """Choose the provider of a run: the one that `--provider` or `llm.provider` names, else `started_with`, with which
    a resumed session started, else, with `finds`, `providers.default` or the first whose key is in the environment.
    None if a gateway that was named takes precedence, or if there is none. Raises NoSuchProvider."""
    gateway = settings.chosen.get("llm.gateway") if settings.llm.gateway else None
    named = settings.chosen.get("llm.provider") if settings.llm.provider else None
    if gateway is not None and (named is None or gateway.value >= named.value):
        return None
    default = settings.providers.get(DEFAULT)
    if named is not None:
        name, why = settings.llm.provider, "--provider" if named is ValueSource.OPTION else "llm.provider"
    elif started_with is not None:
        name, why = started_with, "the session started with it"
    elif not finds:
        return None
    elif isinstance(default, str):
        name, why = default, "providers.default"
    else:
        found = found_in(environ)
        if not found:
            return None
        name, why = found[0], f"${KNOWN[found[0]].key_env}"
    return provider_called(name, settings, environ, why)._replace(by_option=named is ValueSource.OPTION)


# Prices and limits of models, by name or pattern.
#
#     [models."claude-sonnet-4-5*"]
#     price_input = 3.0        # a million tokens
#     price_output = 15.0
#
# docs/costs.md explains each key and which entry applies (`agent_host.llm.models`).

_MAX_ENTRIES = 1000
# Prices are stored in millionths of a millionth of the currency per token.
_PRICE = number(0, 10**6)
_TOKENS = integer(1, 10**9)
_MODEL = Record(
    {},
    {
        **dict.fromkeys(PRICES, _PRICE),
        "currency": Leaf("a word of up to 16 letters, such as USD", matches(r"[A-Za-z]{1,16}")),
        "context_tokens": _TOKENS,
        "max_output_tokens": _TOKENS,
        "cache_minimum_tokens": integer(0, 10**9),
        "images": FLAG,
        "thinking": FLAG,
        "thinking_bound": FLAG,
        "tokenizer": one_of("estimate", "o200k_base", "cl100k_base"),
    },
    closed=True,
)


def _model_problems(value: Any, path: str) -> Iterator[Problem]:
    if type(value) is not dict:
        yield Problem(path, f'must be a table of tables: [{path}."NAME"], not {display(value)}')
        return
    if len(value) > _MAX_ENTRIES:
        yield Problem(path, f"must have at most {_MAX_ENTRIES:,} entries, not {len(value):,}")
        return
    currencies: dict[str, str] = {}
    for name, entry in value.items():
        where = member_path(path, name)
        yield from Text(1, 256).problems(name, f"the name {display(name)} in {path}")
        if not _MODEL.fits(entry):
            yield from _MODEL.problems(entry, where)
            continue
        if not any(key in entry for key in PRICES):
            continue
        missing = [key for key in PRICES[:2] if key not in entry]
        if missing:
            yield Problem(where, f"has a price, and so needs {' and '.join(missing)} as well")
        currencies.setdefault(entry.get("currency", CURRENCY), where)
    if len(currencies) > 1:
        (first, one), (second, other), *_ = currencies.items()
        yield Problem(other, f"has prices in {second}, and {one} in {first}: give all in one, since they are added")


MODELS_SHAPE: Shape = _Table(_model_problems)
"""Shape of `[models]`. An entry with any price needs those of input and output; all prices are in one currency, because
they are added up."""


# Edits of the text of a user's configuration, which leave every other line and comment as it was.

_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = r"""\s*=\s*(?:"[^"]*"|'[^']*')(?P<comment>\s*(?:#.*)?)"""
_CONTROLS = dict.fromkeys((127,), "\\u007f")


class NotEditable(ValueError):
    """The text cannot be changed line by line; the message contains the lines to write by hand."""


def put_provider(text: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a configuration with this entry of `[providers]` as the default; it replaces one of the same
    name. Raises NotEditable, and tomllib.TOMLDecodeError for a text that is not TOML."""
    header, *pairs = [f"[{PROVIDERS}.{name if _BARE.fullmatch(name) else _value(name)}]", *_pairs(entry)]
    default = f"default = {_value(name)}"

    def put(lines: list[str]) -> list[str]:
        lines = _put_pair(list(_put_entry(lines, name, pairs)), PROVIDERS, "default", default)
        is_new = not any(_name_of(line) == (PROVIDERS, name) for line in lines)
        return [*_without_end(lines), "", header, *pairs] if is_new else lines

    changes = {"default": name, name: dict(entry)}
    return _edit(text, put, PROVIDERS, changes, [f"[{PROVIDERS}]", default, "", header, *pairs])


def put_setting(text: str, section: str, name: str, value: str) -> str:
    """Return the text of a configuration with this setting. Raises NotEditable, and tomllib.TOMLDecodeError."""
    pair = f"{name} = {_value(value)}"
    return _edit(
        text, lambda lines: _put_pair(lines, section, name, pair), section, {name: value}, [f"[{section}]", pair]
    )


def _edit(
    text: str, put: Callable[[list[str]], list[str]], section: str, changes: Mapping[str, Any], instead: list[str]
) -> str:
    """Return the text after `put`. Raises NotEditable, with the lines to write `instead`, unless the result parses to
    the same values with these `changes` in the section."""
    import tomllib

    before = tomllib.loads(text)
    end = "\r\n" if "\r\n" in text else "\n"
    after = end.join([*_without_end(put(text.replace("\r\n", "\n").split("\n"))), ""])
    try:
        is_same = tomllib.loads(after) == {**before, section: {**before.get(section, {}), **changes}}
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise NotEditable("\n".join(instead))
    return after


def _without_end(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _put_entry(lines: Sequence[str], name: str, pairs: Sequence[str]) -> Iterator[str]:
    """Replace the lines of one provider's section by `pairs`; comments stay, its subsections are removed."""
    is_replaced = False
    for line in lines:
        header = _name_of(line)
        if header:
            is_replaced = header[:2] == (PROVIDERS, name)
        if header == (PROVIDERS, name):
            yield line
            yield from pairs
        elif not is_replaced or (not header and line.strip()[:1] in ("", "#")):
            yield line


def _put_pair(lines: list[str], section: str, name: str, pair: str) -> list[str]:
    """Put this pair into its section; it replaces one of the same name, whose comment stays."""
    at = next((place for place, line in enumerate(lines) if _name_of(line) == (section,)), None)
    if at is None:
        kept = _without_end(lines)
        return [*kept, *([""] if kept else []), f"[{section}]", pair]
    ends = next((place for place in range(at + 1, len(lines)) if _name_of(lines[place])), len(lines))
    for place in range(at + 1, ends):
        old = re.fullmatch(rf"\s*{re.escape(name)}{_STRING}", lines[place])
        if old is not None:
            return [*lines[:place], pair + old["comment"], *lines[place + 1 :]]
    return [*lines[: at + 1], pair, *lines[at + 1 :]]


def _name_of(line: str) -> tuple[str, ...]:
    """Return the name, in parts, of the section whose header this line is, () for any other line."""
    found = _HEADER.fullmatch(line)
    if found is None:
        return ()
    return tuple(part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', found["name"]))


def _pairs(entry: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{_value(one)} = {_value(text)}" for one, text in value.items())
            yield f"{key} = {{ {inner} }}"
        else:
            yield f"{key} = {_value(value)}"


def _value(value: str | float | bool) -> str:
    """Return a string or number in TOML, which is JSON except for one control character."""
    return json.dumps(value, ensure_ascii=False).translate(_CONTROLS)
