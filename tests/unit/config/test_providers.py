"""The provider that a run asks, as tables: the order of what names one, what its entry may say, and the text that
`init` writes."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.load import ConfigError, load
from config.providers import KNOWN, NoSuchProvider, NotEditable, choose_provider, provider_called, put_provider
from config.settings import LlmProvider, settings_under
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from config.settings import Settings

GATEWAY = "http://127.0.0.1:1"
KEYS = {known.key_env: "key" for known in KNOWN.values() if known.key_env}
WORK = '[providers.work]\nbase_url = "https://llm.example.com/v1"\nkey_env = "WORK_KEY"\n'


def settings_of(tmp_path: Path, text: str = "", environ: Mapping[str, str] | None = None, **flags: str) -> Settings:
    path = tmp_path / "user.toml"
    path.write_text(text)
    given_flags = {f"llm.{name}": value for name, value in flags.items()}
    return load(given_flags, workspace=None, environ={"AGENT_HOST_CONFIG": str(path), **(environ or {})})


def chosen(tmp_path: Path, text: str = "", environ: Mapping[str, str] | None = None, **flags: str) -> str:
    found = choose_provider(settings_of(tmp_path, text, environ, **flags), environ or {})
    return "" if found is None else f"{found.name}: {found.why}"


# --- the order --------------------------------------------------------------------------------------------------------

LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("", {"gateway": GATEWAY}),
    ("gemini: --provider", {"provider": "gemini"}),
    ("", {"environ": {"LLM_GATEWAY_ENDPOINT": GATEWAY}}),
    ("", {"llm": f'gateway = "{GATEWAY}"'}),
    ("ollama: llm.provider", {"llm": 'provider = "ollama"'}),
    ("work: providers.default", {"providers": 'default = "work"'}),
    ("anthropic: $ANTHROPIC_API_KEY", {"environ": {"ANTHROPIC_API_KEY": "key"}}),
    ("openai: $OPENAI_API_KEY", {"environ": {"OPENAI_API_KEY": "key"}}),
    ("openrouter: $OPENROUTER_API_KEY", {"environ": {"OPENROUTER_API_KEY": "key"}}),
    ("gemini: $GEMINI_API_KEY", {"environ": {"GEMINI_API_KEY": "key"}}),
    ("", {}),
]
"""What is chosen, "" for a gateway or nothing, by what stands above everything below it."""


@pytest.mark.parametrize("at", range(len(LAYERS)))
def test_what_stands_higher_wins_over_all_that_stand_below(tmp_path: Path, at: int) -> None:
    below = [parts for _, parts in LAYERS[at:]]
    llm = "\n".join(parts["llm"] for parts in below if "llm" in parts)
    default = "".join(f"{parts['providers']}\n" for parts in below if "providers" in parts)
    environ = {name: value for parts in reversed(below) for name, value in parts.get("environ", {}).items()}
    flags = {name: parts[name] for parts in below for name in ("gateway", "provider") if name in parts}
    assert chosen(tmp_path, f"[llm]\n{llm}\n[providers]\n{default}{WORK}", environ, **flags) == LAYERS[at][0]


@pytest.mark.parametrize(
    ("text", "environ", "flags"),
    [
        (f'[llm]\ngateway = "{GATEWAY}"', {}, {"provider": "openai"}),
        ("", {"LLM_GATEWAY_ENDPOINT": GATEWAY}, {"provider": "openai"}),
        (f'[llm]\ngateway = "{GATEWAY}"\n[providers]\ndefault = "work"\n{WORK}', {}, {"provider": "openai"}),
    ],
)
def test_a_provider_on_the_command_line_goes_over_a_gateway_of_a_lower_place(
    tmp_path: Path, text: str, environ: dict[str, str], flags: dict[str, str]
) -> None:
    assert chosen(tmp_path, text, environ, **flags) == "openai: --provider"


@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_an_empty_variable_names_no_provider(tmp_path: Path, value: str) -> None:
    assert chosen(tmp_path, environ={**dict.fromkeys(KEYS, value), "GEMINI_API_KEY": "key"}) == (
        "gemini: $GEMINI_API_KEY"
    )
    assert chosen(tmp_path, environ=dict.fromkeys(KEYS, value)) == ""


def test_an_empty_name_or_gateway_of_the_configuration_names_nothing(tmp_path: Path) -> None:
    assert chosen(tmp_path, '[llm]\nprovider = ""\ngateway = ""', KEYS) == "anthropic: $ANTHROPIC_API_KEY"


def test_a_name_that_is_none_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(NoSuchProvider, match=r"'antropic'.*anthropic"):
        chosen(tmp_path, provider="antropic")


def test_a_session_that_began_with_a_provider_stays_with_it_unless_another_is_named(tmp_path: Path) -> None:
    def resumed(text: str, **flags: str) -> str | None:
        found = choose_provider(settings_of(tmp_path, text, KEYS, **flags), KEYS, "gemini")
        return found and found.name

    assert resumed("") == "gemini"
    assert resumed(f'[providers]\ndefault = "work"\n{WORK}') == "gemini"
    assert resumed("", provider="openai") == "openai"
    assert resumed("", gateway=GATEWAY) is None


# --- a provider -------------------------------------------------------------------------------------------------------


def called(tmp_path: Path, name: str, text: str = "", environ: Mapping[str, str] | None = None) -> LlmProvider:
    return provider_called(name, settings_of(tmp_path, text), environ or {})


@pytest.mark.parametrize(
    ("text", "environ", "url", "dialect"),
    [
        ("", {}, "https://api.openai.com/v1", "responses"),
        ("", {"OPENAI_BASE_URL": " "}, "https://api.openai.com/v1", "responses"),
        ("", {"OPENAI_BASE_URL": "https://env.example/v1"}, "https://env.example/v1", "openai"),
        ('base_url = "https://own.test"', {"OPENAI_BASE_URL": "https://env.test"}, "https://own.test", "openai"),
        ('dialect = "auto"', {"OPENAI_BASE_URL": "https://env.example"}, "https://env.example", "auto"),
        ('dialect = "anthropic"', {}, "https://api.openai.com/v1", "anthropic"),
    ],
)
def test_the_place_is_that_of_the_entry_then_of_the_variable_then_the_provider_s_own(
    tmp_path: Path, text: str, environ: dict[str, str], url: str, dialect: str
) -> None:
    found = called(tmp_path, "openai", f"[providers.openai]\n{text}", environ)
    assert (found.base_url, found.dialect) == (url, dialect)


def test_an_entry_of_its_own_has_the_dialect_that_is_found_and_no_key_unless_it_names_one(tmp_path: Path) -> None:
    own = called(tmp_path, "mine", '[providers.mine]\nbase_url = "http://127.0.0.1:9"', KEYS)
    assert (own.dialect, own.has_key, own.model) == ("auto", False, "")


@pytest.mark.parametrize(
    ("entry", "key_env", "key_keyring"),
    [
        ("", "ANTHROPIC_API_KEY", ""),
        ('key_env = "OTHER"', "OTHER", ""),
        ('key_keyring = "a"', "", "a"),
        ('headers = { "X-Api-Key" = "k" }', "", ""),
        ('headers = { authorization = "Bearer k" }', "", ""),
        ('headers = { x-team = "t" }', "ANTHROPIC_API_KEY", ""),
        ('key_env = "OTHER"\nheaders = { authorization = "Bearer k" }', "OTHER", ""),
    ],
)
def test_the_key_of_an_entry_takes_the_place_of_the_usual_variable(
    tmp_path: Path, entry: str, key_env: str, key_keyring: str
) -> None:
    found = called(tmp_path, "anthropic", f"[providers.anthropic]\n{entry}")
    assert (found.key_env, found.key_keyring) == (key_env, key_keyring)


def test_every_known_provider_has_what_a_request_needs_and_variables_of_its_own() -> None:
    for name, known in KNOWN.items():
        assert known.dialect in ("anthropic", "openai", "responses"), name
        if known.key_env:
            assert known.base_url.startswith("https://"), name
            assert known.model, name
            assert known.url_env, name
        else:
            assert known.base_url.startswith("http://127.0.0.1:"), name
    named = [name for known in KNOWN.values() for name in (known.key_env, known.url_env) if name]
    assert len(named) == len(set(named))
    assert len({known.base_url for known in KNOWN.values()}) == len(KNOWN)


def test_the_settings_of_a_provider_go_below_what_the_user_chose_for_it(tmp_path: Path) -> None:
    entry = '[providers.anthropic]\nmodel = "m"\ncontext_tokens = 9000\nheaders = { x-team = "t" }\n'
    text = f'{entry}[llm]\nheaders = {{ authorization = "of the gateway" }}\n'
    plain = settings_of(tmp_path, text)
    under = settings_under(plain, provider_called("anthropic", plain, {}))
    assert (under.llm.gateway, under.llm.dialect, under.llm.model) == ("https://api.anthropic.com", "anthropic", "m")
    assert under.llm.headers == {"x-team": "t"}
    assert under.models["m"]["context_tokens"] == 9000
    other_gateway = settings_of(tmp_path, f'{text}dialect = "openai"\nmodel = ""\n')
    under = settings_under(other_gateway, provider_called("anthropic", other_gateway, {}))
    assert (under.llm.dialect, under.llm.model) == ("anthropic", "m")
    own = settings_of(tmp_path, text, model="mine", dialect="openai")
    under = settings_under(own, provider_called("anthropic", own, {}))
    assert (under.llm.dialect, under.llm.model) == ("openai", "mine")
    assert under.models["mine"]["context_tokens"] == 9000


# --- the section ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[providers]\ndefault = "wrok"\n' + WORK, "providers.default must be the name of a provider, not .wrok.*work"),
        ("[providers]\ndefault = 3", "providers.default must be the name"),
        ("[providers]\nwork = 3", "providers.work"),
        ('[providers.work]\nmodel = "m"', "providers.work needs base_url"),
        ('[providers."a b"]\nbase_url = "http://h"', "has a name that is not"),
        ('[providers.work]\nbase_url = "ftp://h"', "base_url"),
        ('[providers.work]\nbase_url = "http://"', "base_url"),
        ('[providers.openai]\ndialect = "morse"', "dialect"),
        ('[providers.openai]\nkey = "sk-secret"', "key"),
        ('[providers.openai]\nkey_env = "sk-secret"', "key_env"),
        ('[providers.openai]\nkey_env = "A"\nkey_keyring = "B"', "key_env and key_keyring"),
        ('[providers.openai]\nheaders = { a = 1, x-api-key = "sk-secret" }', "headers"),
        ('[providers.openai]\nbase_url = "me:sk-secret@host"', "base_url"),
        ("[providers.openai]\ncontext_tokens = 0", "context_tokens"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_by_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        settings_of(tmp_path, text)
    assert "sk-secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        '[providers]\ndefault = "openai"',
        WORK,
        '[providers.anthropic]\nbase_url = "http://evil.example"',
        '[llm]\nprovider = "openai"',
    ],
)
def test_a_workspace_may_name_no_provider(tmp_path: Path, text: str) -> None:
    (tmp_path / "user.toml").write_text("")
    (tmp_path / ".agent").mkdir()
    (tmp_path / ".agent" / "config.toml").write_text(text)
    settings = load({}, workspace=str(tmp_path), environ={"AGENT_HOST_CONFIG": str(tmp_path / "user.toml")})
    assert (dict(settings.providers), settings.llm.provider) == ({}, "")
    assert len(settings.ignored) == 1
    assert choose_provider(settings, {}) is None


# --- the text ---------------------------------------------------------------------------------------------------------

ENTRY = {"base_url": "https://llm.example.com/v1", "key_env": "WORK_KEY", "model": "m"}


def wanted(text: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    before = tomllib.loads(text)
    return {**before, "providers": {**before.get("providers", {}), "default": name, name: dict(entry)}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[providers]\ndefault = "work"\n\n[providers.work]\nmodel = "m"\n'),
        (
            '# mine\n[llm]\nmodel = "x"  # yes\n\n\n',
            '# mine\n[llm]\nmodel = "x"  # yes\n\n[providers]\ndefault = "work"\n\n[providers.work]\nmodel = "m"\n',
        ),
        (
            '[providers]\n# why\ndefault = "other"  # for now\n\n[llm]\nmodel = "x"\n',
            '[providers]\n# why\ndefault = "work"  # for now\n\n[llm]\nmodel = "x"\n\n[providers.work]\nmodel = "m"\n',
        ),
        (
            '[providers.work]\n# its key\nkey_env = "A"\n\n# of the loop\n[llm]\nmodel = "x"\n',
            (
                '[providers.work]\nmodel = "m"\n# its key\n\n# of the loop\n[llm]\nmodel = "x"\n\n'
                '[providers]\ndefault = "work"\n'
            ),
        ),
        (
            '[providers]\r\ndefault = "work"\r\n[providers.work]\r\nkey_env = "A"\r\n',
            '[providers]\r\ndefault = "work"\r\n[providers.work]\r\nmodel = "m"\r\n',
        ),
        (
            '[providers."work"]\nkey_env = "A"\n[providers.work.headers]\na = "b"\n[providers.workshop]\nmodel = "y"\n',
            '[providers."work"]\nmodel = "m"\n[providers.workshop]\nmodel = "y"\n\n[providers]\ndefault = "work"\n',
        ),
    ],
)
def test_only_what_is_to_change_changes(before: str, after: str) -> None:
    assert put_provider(before, "work", {"model": "m"}) == after


@each_row(
    "text",
    [
        "providers = {}",
        'providers = { default = "x" }',
        'providers.default = "x"',
        'providers.work.model = "x"',
        '[providers]\nwork = { model = "x" }',
        '[providers]\nwork.model = "x"',
        '[providers]\n"default" = "x"',
        "[llm]\nx = '''\n[providers.work]\n'''",
        "[llm]\nx = '''\n[providers]\n'''",
        '["providers"]\n"def\\u0061ult" = "x"',
        '["pro\\u0076iders"]\ndefault = "x"',
    ],
)
def test_a_text_in_another_form_is_left_alone_and_the_message_has_what_to_write(text: str) -> None:
    with pytest.raises(NotEditable) as refused:
        put_provider(text, "work", ENTRY)
    assert tomllib.loads(str(refused.value)) == {"providers": {"default": "work", "work": ENTRY}}


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_COMMENTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\u0085\u2028[]=\"'"), max_size=12
).map(lambda text: "# " + text.replace("\x85", " "))
_NAMES = st.sampled_from(["work", "openai", "a.b", "with-dash", "default"])
_ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "base_url": _TEXTS,
        "model": _TEXTS,
        "key_env": _TEXTS,
        "headers": st.dictionaries(_TEXTS, _TEXTS, max_size=2),
        "context_tokens": st.integers(1, 10**9),
    },
)
_LINES = st.one_of(
    _COMMENTS,
    st.sampled_from(
        [
            "",
            "   ",
            "[llm]",
            "[ models . 'a' ]  # [providers.work]",
            "[[mcp.servers]]",
            "[providers]",
            "[providers.work]",
            '[providers . "a.b"]',
            "[providers.work.headers]",
            "[providers.other] # it",
            'default = "other"  # why',
            "default='other'",
            "a = 1 # [x]",
            'b = """',
            '"""',
            "c = [",
            "  ['d'],",
            "]",
            "providers.x = 1",
        ]
    ),
)


@given(
    lines=st.lists(_LINES, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    name=_NAMES.filter(lambda name: name != "default"),
    entry=_ENTRIES,
)
def test_every_text_comes_back_with_the_entry_and_all_else_or_is_left_alone(
    lines: list[str], end: str, name: str, entry: dict[str, Any]
) -> None:
    text = end.join([*lines, ""])
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(tomllib.TOMLDecodeError):
            put_provider(text, name, entry)
        return
    try:
        after = put_provider(text, name, entry)
    except NotEditable as error:
        said = tomllib.loads(str(error))
        after = ""
    if not after:
        assert said == {"providers": {"default": name, name: entry}}
        return
    assert tomllib.loads(after) == wanted(text, name, entry)
    assert put_provider(after, name, entry) == after
    comments = [line for line in lines if line.startswith("#")]
    assert [line for line in after.replace("\r\n", "\n").split("\n") if line in comments] == comments
    assert ("\r\n" in after) == (end == "\r\n" and bool(lines))


@given(name=_NAMES.filter(lambda name: name != "default"), entry=_ENTRIES)
def test_any_entry_can_be_put_into_an_ordinary_text(name: str, entry: dict[str, Any]) -> None:
    text = '# mine\n[llm]\nmodel = "x"\n\n[providers]\ndefault = "z"\n[providers.z]\nmodel = "y"\n'
    after = put_provider(text, name, entry)
    assert tomllib.loads(after) == wanted(text, name, entry)
