from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decide import check_tool
from policy.urls import (
    UrlProblem,
    address_is_public,
    blocking_rule,
    canonical_domain,
    covers,
    domain_rules,
    host_of,
    is_address,
    is_local_name,
    matching_rule,
    port_of,
    target_of,
)
from tests.support.rows import each_row

from .helpers import NOW, bundle, url


@each_row(
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


@each_row(
    "text",
    [
        "ftp://a.com", "file:///etc/passwd", "//a.com", "a.com", "http://u:p@a.com", "http://good.com@evil.com",
        "http://good.com\\@evil.com", "http://a b.com", "http://a.com\n.evil.com", "http://", "http://a.com:99999",
        "http://a.com:0", "http://a.com:00000/x", "http://[::1]:0",
        "http://1.2.3.4.5",
        "http://256.1.1.1", "http://a..com", "http://[::1", "http://[fe80::1%25eth0]", "javascript:x",
        "http://09.1.1.1", "http://-a.com", "http://%6cocalhost", "http://a\u200cb.com", "http://a\u200db.com",
        "http://a\u2100b.com", "http://a\uff03.com", "http://a\u2028b.com", "http://" + "\u00fc" * 300 + ".com",
    ],
)  # fmt: skip
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(UrlProblem):
        host_of(text)


@each_row(
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


@each_row(
    ("first", "last", "before", "behind"),
    [
        ("0.0.0.0", "0.255.255.255", None, "1.0.0.0"),
        ("10.0.0.0", "10.255.255.255", "9.255.255.255", "11.0.0.0"),
        ("100.64.0.0", "100.127.255.255", "100.63.255.255", "100.128.0.0"),
        ("127.0.0.0", "127.255.255.255", "126.255.255.255", "128.0.0.0"),
        ("169.254.0.0", "169.254.255.255", "169.253.255.255", "169.255.0.0"),
        ("172.16.0.0", "172.31.255.255", "172.15.255.255", "172.32.0.0"),
        ("192.0.0.0", "192.0.0.255", "191.255.255.255", "192.0.1.0"),
        ("192.0.2.0", "192.0.2.255", "192.0.1.255", "192.0.3.0"),
        ("192.88.99.0", "192.88.99.255", "192.88.98.255", "192.88.100.0"),
        ("192.168.0.0", "192.168.255.255", "192.167.255.255", "192.169.0.0"),
        ("198.18.0.0", "198.19.255.255", "198.17.255.255", "198.20.0.0"),
        ("198.51.100.0", "198.51.100.255", "198.51.99.255", "198.51.101.0"),
        ("203.0.113.0", "203.0.113.255", "203.0.112.255", "203.0.114.0"),
        ("224.0.0.0", "239.255.255.255", "223.255.255.255", None),
        ("240.0.0.0", "255.255.255.255", None, None),
        ("168.63.129.16", "168.63.129.16", "168.63.129.15", "168.63.129.17"),
        ("::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None, "2000::"),
        ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None),
        ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2000:ffff::1", "2001:200::"),
        ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db7::1", "2001:db9::"),
        ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "3ffe:ffff::1", "3fff:1000::"),
    ],
)
def test_a_network_ends_where_it_ends(first: str, last: str, before: str | None, behind: str | None) -> None:
    assert not address_is_public(first)
    assert not address_is_public(last)
    assert before is None or address_is_public(before)
    assert behind is None or address_is_public(behind)


@each_row(
    "inside",
    [
        "::{}",
        "::ffff:{}",
        "::ffff:0:{}",
        "64:ff9b::{}",
        "2002:{}::",
        "2002:{}:ffff:ffff:ffff:ffff:ffff",
        "2606:4700::5efe:{}",
        "2606:4700::200:5efe:{}",
    ],
)
def test_an_address_inside_of_another_is_judged_as_what_it_is(inside: str) -> None:
    assert address_is_public(inside.format("101:101"))
    assert not address_is_public(inside.format("7f00:1"))
    assert not address_is_public(inside.format("a00:1"))


def test_what_only_looks_like_an_address_inside_of_another_is_none() -> None:
    assert address_is_public("2003:7f00:1::")
    assert address_is_public("2606:4700::5eff:7f00:1")
    assert not address_is_public("64:ff9c::101:101")
    assert not address_is_public("::1:0:101:101")


def decide(text: str, *addresses: str, **lists: object) -> tuple[str, str]:
    answer = check_tool(bundle({"name": "Network.Http", **lists}), "Network.Http", url(text, *addresses), now=NOW)
    return answer.decision, answer.rule


RULES = {"allowedDomains": ["example.com", "*.cdn.example", "10.0.0.7"], "blockedDomains": ["bad.cdn.example"]}


@each_row(
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


@each_row(
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


def test_an_address_is_blocked_by_the_entry_for_itself_and_by_one_that_can_not_be_read() -> None:
    rule = "capabilities[Network.Http].blockedDomains"
    assert decide("http://1.2.3.4/", blockedDomains=["[::ffff:1.2.3.4]", "1.2.3.4"]) == ("DENIED", f"{rule}: 1.2.3.4")
    assert decide("http://1.1.1.1/", blockedDomains=["http://x/"]) == ("DENIED", f"{rule}: http://x/")


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


LABEL = "a" * 63


@each_row(
    ("host", "expected"),
    [
        (f"{LABEL}.com", f"{LABEL}.com"),
        (f"a{LABEL}.com", None),
        (f"{LABEL}.{LABEL}.{LABEL}.{'a' * 61}", f"{LABEL}.{LABEL}.{LABEL}.{'a' * 61}"),
        (f"{LABEL}.{LABEL}.{LABEL}.{'a' * 62}", None),
        ("a-.com", None),
        ("a_b.com", "a_b.com"),
        ("a.com..", None),
        (".com", None),
        ("a.com:", "a.com"),
        ("a.com:65535", "a.com"),
        ("a.com:65536", None),
        ("a.com:000001", None),
        ("a.com:x", None),
        ("[1.2.3.4]", None),
        ("[::1]x", None),
        ("a[::1]", None),
        ("[::1%1]", None),
        ("0x", "0.0.0.0"),
        ("0", "0.0.0.0"),
        ("1.2.3.4.", "1.2.3.4"),
        ("1.65535", "1.0.255.255"),
        ("1.16777215", "1.255.255.255"),
        ("1.16777216", None),
        ("1.2.65535", "1.2.255.255"),
        ("1.2.65536", None),
        ("1.2.3.255", "1.2.3.255"),
        ("1.2.3.256", None),
        ("255.1", "255.0.0.1"),
        ("256.1", None),
        ("4294967295", "255.255.255.255"),
        ("4294967296", None),
        ("0xffffffff", "255.255.255.255"),
        ("010.1", "8.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("1.x.2", None),
        ("x.1", None),
        ("1_0.2.3.4", None),
        ("0x1_0.1", None),
        ("1.0x.1", "1.0.0.1"),
        ("1.2.3.4.5", None),
        ("1.2.3.4.0", None),
        ("08", None),
        ("0000000000000001", "0.0.0.1"),
        ("00000000000000001", None),
        ("1.2.3.4.com", "1.2.3.4.com"),
        ("0xg.com", "0xg.com"),
        ("a.0xg", "a.0xg"),
        ("\u00fc" * 60 + ".example", None),
    ],
)
def test_hosts_up_to_their_limits(host: str, expected: str | None) -> None:
    try:
        found: str | None = host_of(f"http://{host}/")
    except UrlProblem:
        found = None
    assert found == expected


@pytest.mark.parametrize("character", [" ", "\t", "\n", "\x00", "\x1f", "\x7f"])
def test_white_space_and_control_characters_are_refused_wherever_they_stand(character: str) -> None:
    with pytest.raises(UrlProblem):
        host_of(f"http://a.com/{character}")
    with pytest.raises(UrlProblem):
        host_of("1http://a.com/")
    assert host_of("http://a.com/\x80!") == "a.com"


def test_a_port_is_told_where_there_is_one() -> None:
    assert port_of("http://a.com:8080/") == 8080
    assert port_of("http://a.com/") is port_of("http://a.com:/") is None
    with pytest.raises(UrlProblem):
        port_of("http://u@a.com/")


@each_row(
    ("entry", "expected"),
    [
        ("Example.COM.", "example.com"),
        ("*.Example.com", "*.example.com"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("::ffff:1.2.3.4", "::ffff:102:304"),
        ("::FFFF:FFFF:1", "::ffff:ffff:1"),
        ("127.1", "127.0.0.1"),
        ("*.*.com", None),
        ("a:1", "a:1"),
        ("Example.COM.:08080", "example.com:8080"),
        ("*.Example.com:443", "*.example.com:443"),
        ("127.1:65535", "127.0.0.1:65535"),
        ("[::FFFF:1]:80", "[::ffff:1]:80"),
        ("::1:80", "::1:80"),
        ("a:0", None),
        ("a:65536", None),
        ("a:000080", None),
        ("a:", None),
        (":80", None),
        ("*:80", None),
        ("*.:80", None),
        ("a:b", None),
        ("a:-1", None),
        ("[a]:80", None),
        ("[::1:80", None),
        ("::1]:80", None),
        ("[::1]80", None),
        ("http://a:80", None),
        ("*", None),
        ("", None),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
    ],
)
def test_domain_rules_have_one_spelling(entry: str, expected: str | None) -> None:
    try:
        found: str | None = canonical_domain(entry)
    except UrlProblem:
        found = None
    assert found == expected


def test_an_entry_with_two_ports_or_one_that_is_none_says_so() -> None:
    with pytest.raises(UrlProblem, match="65536 is not a port"):
        canonical_domain("a:65536")
    with pytest.raises(UrlProblem, match="is not an IPv6 address"):
        canonical_domain("a:1:2")


@each_row(
    ("entry", "text", "matches"),
    [
        ("a.com:8080", "http://a.com:8080/", True),
        ("a.com:8080", "http://a.com/", False),
        ("a.com:80", "http://a.com/", True),
        ("a.com:80", "https://a.com/", False),
        ("a.com:443", "HTTPS://a.com/", True),
        ("a.com", "http://a.com:8080/", True),
        ("*.a.com:8080", "http://b.a.com:8080/", True),
        ("*.a.com:8080", "http://b.a.com:8081/", False),
        ("[::1]:8080", "http://[::1]:8080/", True),
        ("[::1]:8080", "http://[::1]:8081/", False),
        ("::1:8080", "http://[::1]:8080/", False),
        ("127.0.0.1:8080", "http://127.1:8080/", True),
        ("localhost:8080", "http://127.0.0.1:8080/", False),
    ],
)
def test_an_entry_may_name_a_port(entry: str, text: str, matches: bool) -> None:
    assert decide(text, allowedDomains=[entry])[0] == ("ALLOWED" if matches else "DENIED")
    host, port = target_of(text)
    assert (blocking_rule(host, domain_rules([entry]), port) == entry) == matches


def test_a_port_is_blocked_at_every_spelling_of_its_address() -> None:
    assert decide("http://[::ffff:1.2.3.4]:81/", blockedDomains=["1.2.3.4:81"])[0] == "DENIED"
    assert decide("http://1.2.3.4:81/", blockedDomains=["[::ffff:1.2.3.4]:81"])[0] == "DENIED"
    assert decide("http://1.2.3.4:82/", blockedDomains=["[::ffff:1.2.3.4]:81"])[0] == "ALLOWED"


def test_the_port_is_said_where_it_decides() -> None:
    table = {"allowedDomains": ["a.com", "a.com:81", "*.com:82"]}
    rule = "capabilities[Network.Http].allowedDomains"
    assert decide("http://a.com:81", **table)[1] == f"{rule}: a.com:81"
    assert decide("http://a.com:82", **table)[1] == f"{rule}: a.com"
    assert decide("http://b.com:82", **table)[1] == f"{rule}: *.com:82"
    held = bundle({"name": "Network.Http", "allowedDomains": ["localhost:81"]})
    assert check_tool(held, "Network.Http", url("http://localhost:82"), now=NOW).reason.endswith(": localhost:82")
    assert check_tool(held, "Network.Http", url("http://[::1]:82"), now=NOW).reason.endswith(": [::1]:82")


def test_what_an_entry_covers_another_table_covers_too() -> None:
    for rule, entries, covered in (
        ("a.com:81", ["a.com"], True),
        ("a.com:81", ["*.com:81"], True),
        ("a.com", ["a.com:81"], False),
        ("a.com:81", ["a.com:82"], False),
        ("*.a.com", ["a.com"], False),
        ("*.b.a.com", ["*.a.com"], True),
        ("[::1]:81", ["::1"], True),
    ):
        assert covers(canonical_domain(rule), domain_rules(entries)) is covered, (rule, entries)


@given(st.sampled_from(["a.com", "*.a.com", "127.0.0.1", "[::1]"]), st.integers(-1, 70_000))
def test_every_port_and_no_other_number_is_one(name: str, port: int) -> None:
    try:
        found = canonical_domain(f"{name}:{port}")
    except UrlProblem:
        assert not 0 < port < 65_536
    else:
        assert found == f"{name}:{port}"
        assert canonical_domain(found) == found


def test_a_star_covers_names_and_no_addresses() -> None:
    table = domain_rules(["*.example.com"])
    assert matching_rule("a.b.example.com", table) == "*.example.com"
    assert matching_rule("example.com", table) is None
    assert matching_rule("10.0.0.1", {"*.0.0.1": "*.0.0.1"}) is None
    assert matching_rule("a.com", {"*.com": "*.com"}) == "*.com"


@each_row(
    "name",
    [
        "localhost", "local", "internal", "localdomain", "home", "corp", "lan", "intranet", "private", "home.arpa",
    ],
)  # fmt: skip
def test_names_that_stay_in_a_network_are_local_with_whatever_is_below(name: str) -> None:
    assert is_local_name(name)
    assert is_local_name(f"a.{name}")
    assert is_local_name(f"a.b.{name}")
    assert not is_local_name(f"{name}.example")
    assert not is_local_name(f"a{name}.example.org")


def test_arpa_alone_and_addresses_are_no_local_names() -> None:
    assert not is_local_name("in-addr.arpa")
    assert not is_local_name("xhome.arpa")
    assert not is_local_name("127.0.0.1")
    assert not is_local_name("::1")
    assert is_address("::1")
    assert is_address("1.2.3.4")
    assert not is_address("a.com")
    assert not is_address("1.com")


def test_a_blocked_domain_goes_before_an_allowed_one_and_an_unreadable_entry_before_all() -> None:
    rule = "capabilities[Network.Http]"
    assert (
        decide("https://a.com", allowedDomains=["a.com"], blockedDomains=["*.com"])[1]
        == f"{rule}.blockedDomains: *.com"
    )
    assert decide("https://a.com", blockedDomains=["http://x/"])[1] == f"{rule}.blockedDomains: http://x/"
    assert decide("https://b.com", allowedDomains=["a.com", "x y"]) == ("DENIED", f"{rule}.allowedDomains")
    assert decide("https://a.com", allowedDomains=["a.com"]) == ("ALLOWED", f"{rule}.allowedDomains: a.com")
    assert decide("https://a.com") == ("ALLOWED", rule)
    assert decide("http://10.0.0.1") == ("DENIED", rule)
    assert decide("http://a.local", allowedDomains=["*.local"]) == ("DENIED", rule)
    assert decide("http://a.com", "10.0.0.1", allowedDomains=["a.com"])[0] == "DENIED"
    assert decide("http://1.1.1.1", "10.0.0.1")[0] == "DENIED"


@each_row(
    ("allowed", "blocked", "addresses", "expected"),
    [
        (["api.example.com"], None, ["10.0.0.1"], "DENIED"),
        (["*.example.com"], None, ["10.0.0.1"], "DENIED"),
        (None, None, ["8.8.8.8", "10.0.0.1"], "DENIED"),
        (["api.example.com"], None, ["8.8.8.8", "::1"], "DENIED"),
        (["api.example.com"], None, ["nonsense"], "DENIED"),
        (["api.example.com", "10.0.0.1"], None, ["10.0.0.1"], "ALLOWED"),
        (["api.example.com", "10.0.0.1:80"], None, ["10.0.0.1"], "DENIED"),
        (["*.example.com", "10.0.0.1"], None, ["10.0.0.1"], "DENIED"),
        (["api.example.com"], None, ["8.8.8.8"], "ALLOWED"),
        (["api.example.com"], ["8.8.8.8"], ["8.8.8.8"], "DENIED"),
    ],
)
def test_a_names_addresses_are_judged_as_when_it_connects(
    allowed: list[str] | None, blocked: list[str] | None, addresses: list[str], expected: str
) -> None:
    lists = {"allowedDomains": allowed, "blockedDomains": blocked}
    held = bundle({"name": "Network.Http", **{name: one for name, one in lists.items() if one is not None}})
    assert check_tool(held, "Network.Http", url("https://api.example.com/", *addresses), now=NOW).decision == expected


def test_a_listed_local_name_may_lead_anywhere() -> None:
    held = bundle({"name": "Network.Http", "allowedDomains": ["localhost"]})
    assert check_tool(held, "Network.Http", url("http://localhost/", "127.0.0.1"), now=NOW).decision == "ALLOWED"


def test_the_reason_says_when_only_the_name_was_judged() -> None:
    held = bundle({"name": "Network.Http", "allowedDomains": ["a.example.com", "8.8.8.8"]})
    reasons = [
        check_tool(held, "Network.Http", one, now=NOW).reason
        for one in (url("https://a.example.com/"), url("https://a.example.com/", "8.8.8.8"), url("https://8.8.8.8/"))
    ]
    assert reasons == ["granted by the host's name; its addresses are judged when it connects", "granted", "granted"]
