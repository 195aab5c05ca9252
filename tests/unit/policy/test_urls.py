from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.check import check_tool
from policy.urls import UrlProblem, address_is_public, host_of, is_local_name

from .helpers import NOW, bundle, url


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://Example.COM./x", "example.com"),
        ("http://example.com:8080?q", "example.com"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://B\u00dcCHER.example/", "xn--bcher-kva.example"),
        ("https://bu\u0308cher.example/", "xn--bcher-kva.example"),
        ("https://stra\u00dfe.example/", "xn--strae-oqa.example"),
        ("https://\u03b2\u03cc\u03bb\u03bf\u03c2.example/", "xn--nxasmm1c.example"),
        ("https://\uff45xample\uff0ecom/", "example.com"),
        ("http://\u2460\u2461\u2466.0.0.1/", "127.0.0.1"),
        ("http://127.0.0.1", "127.0.0.1"),
        ("http://2130706433", "127.0.0.1"),
        ("http://0x7f.1", "127.0.0.1"),
        ("http://0177.0.0.1", "127.0.0.1"),
        ("http://127.1/", "127.0.0.1"),
        ("http://\uff11\uff12\uff17\u30020.0.1/", "127.0.0.1"),
        ("http://[::FFFF:127.0.0.1]:80/", "::ffff:7f00:1"),
    ],
)
def test_hosts_have_one_spelling(text: str, host: str) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "ftp://a.com", "file:///etc/passwd", "//a.com", "a.com", "http://u:p@a.com", "http://good.com@evil.com",
        "http://good.com\\@evil.com", "http://a b.com", "http://a.com\n.evil.com", "http://", "http://a.com:99999",
        "http://1.2.3.4.5",
        "http://256.1.1.1", "http://a..com", "http://[::1", "http://[fe80::1%25eth0]", "javascript:x",
        "http://09.1.1.1", "http://-a.com", "http://%6cocalhost", "http://a\u200cb.com", "http://a\u200db.com",
        "http://a\u2100b.com", "http://a\uff03.com", "http://a\u2028b.com", "http://" + "\u00fc" * 300 + ".com",
    ],
)  # fmt: skip
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(UrlProblem):
        host_of(text)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1", "::", "::1", "fe80::1", "fc00::1",
        "fd00::1",
        "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "2002:7f00:1::", "2002:a00:1::1", "2001::1", "2001:db8::1", "3fff::1", "2606:4700::5efe:7f00:1", "100::1",
        "fe80::1%eth0", "2606:4700::1%1", "::ffff:0:127.0.0.1", "example.com", "", "1.2.3",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not address_is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "::ffff:1.1.1.1",
        "64:ff9b::101:101",
        "2002:101:101::1",
    ],
)
def test_addresses_that_are_public(address: str) -> None:
    assert address_is_public(address)


def decide(text: str, *addresses: str, **lists: object) -> tuple[str, str]:
    answer = check_tool(bundle({"name": "Network.Http", **lists}), "Network.Http", url(text, *addresses), now=NOW)
    return answer.decision, answer.rule


RULES = {"allowedDomains": ["example.com", "*.cdn.example", "10.0.0.7"], "blockedDomains": ["bad.cdn.example"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.com/a", "ALLOWED"),
        ("https://EXAMPLE.com.:443/a", "ALLOWED"),
        ("https://a.b.cdn.example", "ALLOWED"),
        ("https://cdn.example", "DENIED"),
        ("https://evilcdn.example", "DENIED"),
        ("https://sub.example.com", "DENIED"),
        ("https://example.com.evil.org", "DENIED"),
        ("https://notexample.com", "DENIED"),
        ("https://bad.cdn.example", "DENIED"),
        ("https://BAD.cdn.example.", "DENIED"),
        ("https://example.com@evil.org", "DENIED"),
        ("http://10.0.0.7/", "ALLOWED"),
        ("http://10.0.0.8/", "DENIED"),
    ],
)
def test_domain_rules_go_by_label(text: str, expected: str) -> None:
    assert decide(text, **RULES)[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost", "http://a.localhost", "http://127.0.0.1", "http://0", "http://[::1]", "http://printer",
        "http://metadata.google.internal", "http://nas.local", "http://router.home.arpa", "http://wiki.corp",
        "http://router.lan", "http://intranet.home", "http://168.63.129.16",
    ],
)  # fmt: skip
def test_local_addresses_are_denied_unless_listed_as_such(text: str) -> None:
    assert decide(text)[0] == "DENIED"
    assert decide(text, allowedDomains=[host_of(text)])[0] == "ALLOWED"


def test_what_two_standards_of_international_names_read_differently_is_another_name() -> None:
    """The old standard makes `ss` of it, and the request goes by the new one."""
    assert decide("https://stra\u00dfe.example", allowedDomains=["strasse.example"])[0] == "DENIED"
    assert decide("https://stra\u00dfe.example", allowedDomains=["xn--strae-oqa.example"])[0] == "ALLOWED"
    assert decide("https://xn--strae-oqa.example", blockedDomains=["stra\u00dfe.example"])[0] == "DENIED"


@pytest.mark.parametrize("text", ["http://notlocal", "http://homearpa.org", "http://[2606:4700::1111]/", "http://a.b"])
def test_public_names_are_not_local(text: str) -> None:
    assert is_local_name(host_of(text)) is (text == "http://notlocal")


def test_looked_up_addresses_count() -> None:
    assert decide("http://example.com", "1.1.1.1")[0] == "ALLOWED"
    assert decide("http://example.com", "1.1.1.1", "10.0.0.1")[0] == "DENIED"
    assert decide("http://x.example.com", "10.0.0.1", allowedDomains=["*.example.com"])[0] == "DENIED"


@pytest.mark.parametrize(
    "host", ["[::ffff:1.2.3.4]", "[64:ff9b::1.2.3.4]", "[2002:102:304::]", "[::1.2.3.4]", "[2600::5efe:1.2.3.4]"]
)
def test_an_address_inside_another_is_refused_as_itself_and_permitted_by_its_own_name_alone(host: str) -> None:
    assert decide(f"http://{host}/")[0] == "ALLOWED"
    assert decide(f"http://{host}/", blockedDomains=["1.2.3.4"])[0] == "DENIED"
    assert decide("http://1.2.3.4/", blockedDomains=[host])[0] == "DENIED"
    assert decide("http://[::ffff:1.2.3.4]/", blockedDomains=[host])[0] == "DENIED"
    assert decide("http://[::ffff:1.2.3.5]/", blockedDomains=[host, "x.example"])[0] == "ALLOWED"
    assert decide(f"http://{host}/", allowedDomains=["1.2.3.4"])[0] == "DENIED"
    assert decide("http://1.2.3.4/", allowedDomains=[host])[0] == "DENIED"


def test_the_deciding_entry_is_named() -> None:
    assert decide("https://bad.cdn.example", **RULES)[1] == "capabilities[Network.Http].blockedDomains: bad.cdn.example"
    assert decide("https://a.cdn.example", **RULES)[1] == "capabilities[Network.Http].allowedDomains: *.cdn.example"


def test_lists_that_are_empty_or_unreadable() -> None:
    assert decide("https://example.com", allowedDomains=[])[0] == "DENIED"
    assert decide("https://example.com", blockedDomains=[])[0] == "ALLOWED"
    assert decide("https://example.com", blockedDomains=["http://x/"])[0] == "DENIED"


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    assert address_is_public(text) in {True, False}
    for candidate in (text, "http://" + text):
        try:
            host = host_of(candidate)
        except UrlProblem:
            continue
        assert host_of(f"http://[{host}]/" if ":" in host else f"http://{host}/") == host
