"""Where requests go for each way to name a gateway."""

from __future__ import annotations

import re
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_host.errors import UsageError
from agent_host.llm.known_dialects import GatewayAddress, check_url, request_url
from tests.support.rows import each_row

CHAT = "/v1/chat/completions"


@each_row(
    ("url", "expected"),
    [
        ("http://h", "http://h/v1/chat/completions"),
        ("http://h/", "http://h/v1/chat/completions"),
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/v1/chat/completions/", "http://h/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
        ("https://h/v1beta/openai/chat/completions", "https://h/v1beta/openai/chat/completions"),
        ("https://h/api/paas/v4/chat/completions", "https://h/api/paas/v4/chat/completions"),
        ("https://h/openai?api-version=1", "https://h/openai/v1/chat/completions?api-version=1"),
        ("https://h/x/chat/completions?a=/v1", "https://h/x/chat/completions?a=/v1"),
    ],
)
def test_a_gateway_is_named_with_its_path_with_its_version_and_with_neither(url: str, expected: str) -> None:
    assert request_url(url, CHAT) == expected


def test_each_dialect_has_its_own_path() -> None:
    assert request_url("http://h/v1/messages", "/v1/messages") == "http://h/v1/messages"
    assert request_url("http://h/v1/", "/v1/responses") == "http://h/v1/responses"


@each_row(
    ("url", "place"),
    [
        ("http://h/v1/messages", GatewayAddress("http", "h", None, "/v1/messages", "h", None)),
        ("HTTPS://API.Example.com:443/", GatewayAddress("https", "api.example.com", 443, "/", "api.example.com", None)),
        ("http://h:8080/", GatewayAddress("http", "h", 8080, "/", "h:8080", None)),
        ("https://[::1]:8443/a?b=c", GatewayAddress("https", "::1", 8443, "/a?b=c", "[::1]:8443", None)),
        ("http://[2001:db8::7]/", GatewayAddress("http", "2001:db8::7", None, "/", "[2001:db8::7]", None)),
        ("https://bücher.example/ü?ö=1", GatewayAddress("https", "xn--bcher-kva.example", None, "/%C3%BC?%C3%B6=1",
                                               "xn--bcher-kva.example", None)),
        ("http://me:a%40b@h/", GatewayAddress("http", "h", None, "/", "h", "me:a@b")),
        ("http://token@h/%7Ea/b", GatewayAddress("http", "h", None, "/%7Ea/b", "h", "token:")),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart_as_requests_say_it(url: str, place: GatewayAddress) -> None:
    assert check_url(url) == place


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://1.2.3.400/", "not an IPv4 address"),
        ("http://01.2.3.4/", "not an IPv4 address"),
        ("http://[1:2]/", "IPv6"),
        ("http://\u2488com/", "U+2488"),
        (f"http://{'ü' * 64}.example/", "too long"),
    ],
)
def test_a_host_that_no_network_has_a_name_for_is_refused(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        check_url(url)


@given(
    st.sampled_from(["h", "A.example", "127.0.0.1", "[::1]", "ä.example"]),
    st.sampled_from(["", ":80", ":443", ":8080", ":"]),
    st.text(st.characters(exclude_categories=("Z", "C"), exclude_characters="#?%\\")).map(lambda text: "/" + text),
)
def test_it_is_taken_apart_as_httpx_does_it(host: str, port: str, path: str) -> None:
    """Which sends the requests where a proxy is in the way."""
    assume(not {".", ".."} & {*path.partition("?")[0].split("/")})  # httpx takes these out, and the gateway would
    url = f"http://{host}{port}{path}"
    place, theirs = check_url(url), httpx.URL(url)
    assert (place.host, place.named) == (theirs.raw_host.decode(), theirs.netloc.decode())
    assert unquote(place.target) == unquote(theirs.raw_path.decode())
    assert place.target.isascii()
    assert " " not in place.target
