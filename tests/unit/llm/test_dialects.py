"""Which dialects there are, and how `auto` finds the one that a gateway speaks."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.errors import ErrorCode, GatewayError, GatewayRejected, GatewayUnavailable, UsageError
from agent_host.ids import MACHINE
from agent_host.llm.known_dialects import (
    AUTO,
    NAMES,
    dialect_of_script,
    dialect_of_settings,
    find_dialect,
    make_dialect,
    provider_of,
)
from agent_host.testing.gateway import MockGateway, Script
from config.load import load_defaults
from config.settings import SETTINGS, Settings
from state.keys import FILE, GatewayDialects
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


Seen = list[tuple[str, dict[str, str], bytes]]


def settings(**llm: Any) -> Settings:
    flags = {f"llm.{name}": value for name, value in llm.items()}
    return Settings({**load_defaults(), **flags})


@contextmanager
def answering(statuses: Mapping[str, int], default: int = 404) -> Iterator[tuple[str, Seen]]:
    """A server that answers each path so; it notes what it was asked."""
    seen: Seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(statuses.get(self.path, default))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def test_every_name_of_the_setting_is_a_dialect() -> None:
    assert {*SETTINGS["llm.dialect"].choices} >= {*NAMES, AUTO}
    for name in NAMES:
        made = make_dialect(name, settings())
        assert made.name == name
        assert dialect_of_settings(settings(dialect=name)) is not None
    assert dialect_of_settings(settings(dialect=AUTO)) is None
    assert len({make_dialect(name, settings()).path for name in NAMES}) == len(NAMES)


def test_the_settings_say_what_a_server_takes() -> None:
    made = make_dialect("openai", settings(max_tokens_field="max_tokens"))
    assert b'"max_tokens":9' in made.head(model="m", max_output_tokens=9, system="s", tools=[], session_id="s1")


@each_row(
    ("wanted", "gateway", "sent"),
    [
        ("auto", "https://api.openai.com/v1", True),
        ("auto", "https://EU.api.OpenAI.com", True),
        ("auto", "https://mine.openai.azure.com/openai/v1", True),
        ("auto", "https://openai.com.example/v1", False),
        ("auto", "https://notopenai.com/v1", False),
        ("auto", "http://127.0.0.1:4000", False),
        ("auto", "mock:script.toml", False),
        ("auto", "", False),
        ("always", "http://127.0.0.1:4000", True),
        ("always", "mock:script.toml", True),
        ("never", "https://api.openai.com/v1", False),
    ],
)
def test_the_cache_is_named_where_that_is_known_to_be_taken(wanted: str, gateway: str, *, sent: bool) -> None:
    made = make_dialect("openai", settings(prompt_cache_key=wanted, gateway=gateway))
    head = made.head(model="m", max_output_tokens=9, system="s", tools=[], session_id="s1")
    assert (b'"prompt_cache_key":"s1"' in head) == sent


def test_providers_as_opentelemetry_names_them() -> None:
    assert [provider_of(name) for name in ("anthropic", "openai", "responses")] == ["anthropic", "openai", "openai"]


# --- auto -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/chat/completions", "openai"),
        ("/v1beta/openai/chat/completions?k=v", "openai"),
    ],
)
def test_the_path_of_the_url_says_it_and_nobody_is_asked(tmp_path: Path, path: str, name: str) -> None:
    dialect, said = find_dialect(settings(), f"http://127.0.0.1:1{path}", None, str(tmp_path), MACHINE.time)
    assert (dialect.name, said) == (name, f"the gateway speaks {name}: its URL says so")
    assert not (tmp_path / FILE).exists()


def test_a_scripted_gateway_speaks_all() -> None:
    assert dialect_of_script(settings()).dialect.name == NAMES[0]


@pytest.mark.parametrize(
    ("statuses", "name"),
    [
        ({"/v1/messages": 400}, "anthropic"),
        ({"/v1/messages": 400, "/v1/chat/completions": 400}, "anthropic"),
        ({"/v1/chat/completions": 400}, "openai"),
        ({"/v1/chat/completions": 422}, "openai"),
        ({"/v1/messages": 405, "/v1/chat/completions": 415}, "openai"),
        ({"/v1/messages": 401, "/v1/chat/completions": 400}, "openai"),  # what is read is sure
        ({"/v1/chat/completions": 401}, "openai"),  # and what wants a token, where other paths are not there
        ({"/v1/chat/completions": 500}, "openai"),
        ({"/v1/messages": 403}, "anthropic"),
    ],
)
def test_the_first_that_reads_an_empty_object_is_taken(tmp_path: Path, statuses: dict[str, int], name: str) -> None:
    with answering(statuses) as (url, seen):
        dialect, said = find_dialect(settings(), url + "/v1", "tok", str(tmp_path), MACHINE.time)
        assert dialect.name == name
        assert said.startswith(f"the gateway speaks {name}: it ")
        assert {body for _, _, body in seen} == {b"{}"}
        asked = len(seen)
        again, said = find_dialect(settings(), url + "/v1", "tok", str(tmp_path), MACHINE.time)
        assert (again.name, said, len(seen)) == (name, f"the gateway speaks {name}: as it was found to do", asked)
        find_dialect(settings(), url + "/v1", "tok", str(tmp_path), MACHINE.time, refresh=True)
        assert len(seen) == 2 * asked


def test_the_probe_is_signed_as_requests_are(tmp_path: Path) -> None:
    with answering({"/v1/chat/completions": 400}) as (url, seen):
        find_dialect(
            settings(headers={"X-Team": "t", "authorization": "Basic x"}), url, "tok", str(tmp_path), MACHINE.time
        )
    for _, headers, _ in seen:
        assert (headers["x-api-key"], headers["authorization"], headers["x-team"]) == ("tok", "Basic x", "t")


async def test_the_mock_gateway_takes_it_for_a_look(tmp_path: Path) -> None:
    with MockGateway(Script.from_turns([{"text": "a"}])).in_thread() as url:
        assert find_dialect(settings(), url, None, str(tmp_path), MACHINE.time).dialect.name == NAMES[0]


@pytest.mark.parametrize(
    ("statuses", "default", "kind", "says"),
    [
        ({}, 404, GatewayRejected, "name the dialect"),
        ({}, 401, GatewayRejected, "set LLM_GATEWAY_AUTH_TOKEN"),
        ({"/v1/messages": 403}, 401, GatewayRejected, "set LLM_GATEWAY_AUTH_TOKEN"),
        ({}, 503, GatewayUnavailable, "HTTP 503"),
        ({"/v1/messages": 401}, 429, GatewayUnavailable, "HTTP 429"),
    ],
)
def test_a_gateway_that_does_not_say_is_not_guessed_at(
    tmp_path: Path, statuses: dict[str, int], default: int, kind: type[GatewayError], says: str
) -> None:
    with answering(statuses, default) as (url, seen), pytest.raises(kind, match=says) as caught:
        find_dialect(
            settings(),
            url.replace("http://", "http://user:pass-word@") + "?key=s3cret",
            "t0ken",
            str(tmp_path),
            MACHINE.time,
        )
    assert len(seen) == len(NAMES)
    assert not any(secret in str(caught.value) for secret in ("pass-word", "s3cret", "t0ken"))
    assert "--dialect auto" in str(caught.value)
    assert (caught.value.details.get("code") == ErrorCode.UNAUTHORIZED) == ("TOKEN" in says)
    assert not (tmp_path / FILE).exists()


def test_a_gateway_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GatewayUnavailable, match="cannot be asked"):
        find_dialect(settings(), "http://127.0.0.1:1", None, str(tmp_path), MACHINE.time)
    with pytest.raises(UsageError):
        find_dialect(settings(), "http://127.0.0.1:1", "a\nb", str(tmp_path), MACHINE.time)


def test_what_cannot_be_kept_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with answering({"/v1/messages": 400}) as (url, seen):
        for _ in range(2):
            assert find_dialect(settings(), url, None, str(tmp_path / "file"), MACHINE.time).dialect.name == "anthropic"
    assert len(seen) == 2


def test_a_name_that_nobody_knows_any_more_is_asked_for(tmp_path: Path) -> None:
    with answering({"/v1/messages": 400}) as (url, seen):
        GatewayDialects(str(tmp_path), MACHINE.time).keep(url, "of_yesterday")
        assert find_dialect(settings(), url, None, str(tmp_path), MACHINE.time).dialect.name == "anthropic"
    assert len(seen) == 1


def test_a_named_dialect_imports_neither_the_others_nor_a_client() -> None:
    code = (
        "import sys; from agent_host.llm.known_dialects import dialect_of_settings;"
        "from config.load import load_defaults; from config.settings import Settings;"
        "dialect_of_settings(Settings({**load_defaults(), 'llm.dialect': 'openai'}));"
        "print(*(name for name in sys.modules if name.startswith(('agent_host.llm.', 'httpx'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    found = done.stdout.split()
    assert "agent_host.llm.dialects.openai_chat" in found
    assert not {*found} & {
        "httpx",
        "agent_host.llm.client",
        "agent_host.llm.dialects.anthropic",
        "agent_host.llm.dialects.openai_responses",
    }
