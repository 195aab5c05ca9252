"""Providers of models: those that this program knows, the section `[providers]` of a user's configuration, and the one
that a run asks.

    [providers]
    default = "work"

    [providers.work]
    base_url = "https://llm.example.com/v1"
    dialect = "openai"
    key_env = "WORK_KEY"

A key belongs to one place: it is sent to the provider's `base_url` and to nothing else. An entry with the name of a
known provider changes what is known of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from config.settings import LlmProvider, ValueSource, has_key_header
from config.shapes import Problem, Record, Text, display, hint_at, member_path, one_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from config.settings import Settings
    from config.shapes import Shape

DEFAULT = "default"
"""The key of `[providers]` that names the one to ask, where nothing else does."""


class KnownProvider(NamedTuple):
    """A provider that needs no entry. Where the variable `url_env` names another place, that place speaks
    `dialect_elsewhere`."""

    base_url: str
    dialect: str
    model: str = ""
    key_env: str = ""
    url_env: str = ""
    dialect_elsewhere: str = ""


KNOWN: dict[str, KnownProvider] = {
    "anthropic": KnownProvider(
        "https://api.anthropic.com", "anthropic", "claude-sonnet-5", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
    ),
    "openai": KnownProvider(
        "https://api.openai.com/v1", "responses", "gpt-5.4", "OPENAI_API_KEY", "OPENAI_BASE_URL", "openai"
    ),
    "openrouter": KnownProvider(
        "https://openrouter.ai/api/v1",
        "openai",
        "anthropic/claude-sonnet-5",
        "OPENROUTER_API_KEY",
        "OPENROUTER_BASE_URL",
    ),
    "gemini": KnownProvider(
        "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        "openai",
        "gemini-flash-latest",
        "GEMINI_API_KEY",
        "GEMINI_BASE_URL",
    ),
    "ollama": KnownProvider("http://127.0.0.1:11434", "openai"),
    "llamacpp": KnownProvider("http://127.0.0.1:8080", "openai"),
    "lmstudio": KnownProvider("http://127.0.0.1:1234", "openai"),
    "vllm": KnownProvider("http://127.0.0.1:8000", "openai"),
    "litellm": KnownProvider("http://127.0.0.1:4000", "openai"),
}
"""By name, in the order in which a variable with a key makes one found; then servers at their usual local ports."""
KEY_VARIABLES: tuple[str, ...] = tuple(known.key_env for known in KNOWN.values() if known.key_env)
LOCAL: tuple[str, ...] = tuple(name for name, known in KNOWN.items() if not known.key_env)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _Unquoted:
    """A value that no message quotes, since it may hold a secret, or be one by mistake."""

    def __init__(self, expected: str, fits: Callable[[Any], bool]) -> None:
        self._expected = expected
        self.fits = fits

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        if not self.fits(value):
            yield Problem(path, f"must be {self._expected}")


_URL = _Unquoted(
    "an http:// or https:// URL",
    lambda value: type(value) is str and re.match(r"(?i)https?://[^/\s]", value) is not None,
)
_VARIABLE = _Unquoted(
    "the name of an environment variable, which holds the key",
    lambda value: type(value) is str and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", value) is not None,
)
_HEADERS = _Unquoted(
    "a table of strings",
    lambda value: type(value) is dict and all(type(one) is str for one in value.values()),
)
_ENTRY = Record(
    {},
    {
        "base_url": _URL,
        "dialect": one_of("anthropic", "openai", "responses", "auto"),
        "model": Text(1, 256),
        "key_env": _VARIABLE,
        "key_keyring": Text(1, 256),
        "headers": _HEADERS,
        "context_tokens": whole(1, 10**9),
    },
    closed=True,
)


class _Table:
    """`default`, and entries by name."""

    def fits(self, value: Any) -> bool:
        """See Shape."""
        return next(self.problems(value, ""), None) is None

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
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
            elif not _ENTRY.fits(entry):
                yield from _ENTRY.problems(entry, where)
            elif "key_env" in entry and "key_keyring" in entry:
                yield Problem(where, "has key_env and key_keyring: give one of them")
            elif "base_url" not in entry and name not in KNOWN:
                yield Problem(where, f"needs base_url{hint_at(name, KNOWN)}")


TABLE: Shape = _Table()
"""Shape of `[providers]`."""


class NoSuchProvider(LookupError):
    """There is no provider of a name; the message says which there are."""


def names_of(settings: Settings) -> tuple[str, ...]:
    """The names of all providers, those of the configuration first."""
    return tuple(dict.fromkeys((*(name for name in settings.providers if name != DEFAULT), *KNOWN)))


def provider_called(name: str, settings: Settings, environ: Mapping[str, str], why: str = "") -> LlmProvider:
    """The provider of this name, by its entry, by the variables of a known one, by what is known. Raises
    NoSuchProvider."""
    entry, known = settings.providers.get(name), KNOWN.get(name)
    if known is None and not isinstance(entry, dict):
        raise NoSuchProvider(f"there is no provider {name!r}{hint_at(name, names_of(settings))}")
    own: dict[str, Any] = entry if isinstance(entry, dict) else {}
    known = known or KnownProvider(own["base_url"], "auto")
    has_other_key = "key_keyring" in own or has_key_header(own.get("headers", {}))
    elsewhere = own.get("base_url") or environ.get(known.url_env, "").strip()
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
    )


def found_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the known providers whose keys the environment has."""
    return tuple(name for name, known in KNOWN.items() if known.key_env and environ.get(known.key_env, "").strip())


def choose_provider(
    settings: Settings, environ: Mapping[str, str], began: str | None = None, *, finds: bool = True
) -> LlmProvider | None:
    """The provider of a run: the one that `--provider` or `llm.provider` names, else that of `providers.default`, else,
    if it `finds` any, the first whose key the environment has. None where a gateway is named before it, or there is
    none. `began` is the provider that a resumed session began with. Raises NoSuchProvider."""
    gateway = settings.chosen.get("llm.gateway") if settings.llm.gateway else None
    named = settings.chosen.get("llm.provider") if settings.llm.provider else None
    if gateway is not None and (named is None or gateway.value >= named.value):
        return None
    default = settings.providers.get(DEFAULT)
    if named is not None:
        name, why = settings.llm.provider, "--provider" if named is ValueSource.OPTION else "llm.provider"
    elif began is not None:
        name, why = began, "the session began with it"
    elif isinstance(default, str):
        name, why = default, "providers.default"
    else:
        found = found_in(environ) if finds else ()
        if not found:
            return None
        name, why = found[0], f"${KNOWN[found[0]].key_env}"
    return provider_called(name, settings, environ, why)._replace(by_option=named is ValueSource.OPTION)
