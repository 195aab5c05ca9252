"""Which hosts a request may reach: local ones that are named, redirects, addresses behind names, proxies."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from agent_host.contracts import ToolConstraints
from tests.unit.tool_runtime.conftest import MakeRouter, error_of, request, text_of
from tests.unit.tool_runtime.test_http import response, serving


def named(*entries: str, blocked: tuple[str, ...] = ()) -> ToolConstraints:
    return ToolConstraints(allowed_domains=entries, blocked_domains=blocked or None)


def leading_to(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    """Have names of public form lead to addresses; `_` stands for a dot."""
    honest = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **more: Any) -> Any:
        spelled = host.decode() if isinstance(host, bytes) else host
        return honest(addresses.get(spelled.replace(".", "_"), spelled), *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]"])
async def test_a_local_host_is_asked_where_it_is_named_by_itself(make_router: MakeRouter, host: str) -> None:
    router = make_router(address_allowed=None)
    entry = {"0x7f.1": "127.1"}.get(host, host)
    async with serving({"/": response(body=b"near")}) as server:
        call = f"http://{host}:{server.port}/"
        for limits in (named(entry), named(f"{entry}:{server.port}"), named("*.com", entry)):
            assert text_of(await router.execute(request("HttpRequest", limits, url=call))).endswith("near")
        refused = (None, named("*.example"), named(f"{entry}:{server.port}", blocked=(entry,)))
        for one in refused:
            code, _ = error_of(await router.execute(request("HttpRequest", one, url=call)))
            assert code in ("INVALID_REQUEST", "PERMISSION_DENIED")
        assert len(server.requests) == 3


async def test_a_named_port_is_no_other_port(make_router: MakeRouter) -> None:
    router = make_router(address_allowed=None)
    async with serving({"/": response()}) as server:
        limits = named(f"localhost:{server.port + 1}")
        code, message = error_of(
            await router.execute(request("HttpRequest", limits, url=f"http://localhost:{server.port}/"))
        )
        assert (code, f"localhost:{server.port}" in message) == ("PERMISSION_DENIED", True)
        assert server.connections == 0


@pytest.mark.parametrize(
    ("allowed", "blocked", "code"),
    [
        (("localhost",), (), "PERMISSION_DENIED"),
        (("localhost", "127.0.0.1"), (), None),
        (("localhost", "127.0.0.1"), ("127.0.0.1",), "PERMISSION_DENIED"),
        (("localhost", "127.0.0.1"), ("127.0.0.1:{port}",), "PERMISSION_DENIED"),
        (("localhost", "127.0.0.1:1"), (), "PERMISSION_DENIED"),
    ],
)
async def test_a_redirect_is_judged_as_the_first_request_is(
    make_router: MakeRouter, allowed: tuple[str, ...], blocked: tuple[str, ...], code: str | None
) -> None:
    router = make_router(address_allowed=None)
    answers = {"/": response("302 Found", Location="http://127.0.0.1:{port}/x"), "/x": response(body=b"there")}
    async with serving(answers) as server:
        lists = [tuple(one.replace("{port}", str(server.port)) for one in entries) for entries in (allowed, blocked)]
        limits = ToolConstraints(allowed_domains=lists[0], blocked_domains=lists[1])
        found = await router.execute(request("HttpRequest", limits, url=f"http://localhost:{server.port}/"))
        if blocked == ("127.0.0.1",) or blocked == ("127.0.0.1:{port}",):
            assert server.connections == 0  # where localhost leads is blocked as well
        assert (found.error.code if found.error else None) == code


async def test_a_public_host_does_not_lead_to_a_local_one_by_a_redirect(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first host passes for a public one: without a list of domains, the local one behind the redirect does not."""
    leading_to(monkeypatch, public_example="127.0.0.9")
    router = make_router(address_allowed=lambda address: address == "127.0.0.9")
    answers = {"/": response("302 Found", Location="http://127.0.0.1:{port}/x"), "/x": response(body=b"secret")}
    async with serving(answers, "0.0.0.0") as server:
        call = f"http://public.example:{server.port}/"
        assert error_of(await router.execute(request("HttpRequest", url=call)))[0] == "INVALID_REQUEST"
        assert [line for line, _, _ in server.requests] == ["GET / HTTP/1.1"]
        limits = named("public.example", "127.0.0.1")
        assert text_of(await router.execute(request("HttpRequest", limits, url=call))).endswith("secret")


async def test_a_name_of_public_form_leads_to_a_local_address_only_where_that_is_named_too(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading_to(monkeypatch, git_corp_example="127.0.0.1")
    router = make_router(address_allowed=None)
    async with serving({"/": response(body=b"near")}) as server:
        call = f"http://git.corp.example:{server.port}/"
        for limits in (None, named("git.corp.example"), named("*.corp.example", "127.0.0.1")):
            code, message = error_of(await router.execute(request("HttpRequest", limits, url=call)))
            assert (code, "git.corp.example leads to 127.0.0.1" in message) == ("INVALID_REQUEST", True)
        assert server.connections == 0
        limits = named("git.corp.example", "127.0.0.1")
        assert text_of(await router.execute(request("HttpRequest", limits, url=call))).endswith("near")
        limits = ToolConstraints(blocked_domains=("127.0.0.1",))
        code, message = error_of(await router.execute(request("HttpRequest", limits, url=call)))
        assert (code, "blocks an address" in message) == ("PERMISSION_DENIED", True)
        # The connection that is still open under the scope that names it serves no other scope.
        assert error_of(await router.execute(request("HttpRequest", url=call)))[0] == "INVALID_REQUEST"
        assert server.connections == 1


async def test_a_proxy_of_the_configuration_is_used_and_none_of_the_environment(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving({"http://public.example/x": response(body=b"by proxy"), "/near": response()}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        leading_to(monkeypatch, public_example="127.0.0.9")
        plain, ours = (
            make_router(address_allowed=None),
            make_router(address_allowed=None, http_proxy=f"http://me:p%40ss@127.0.0.1:{proxy.port}"),
        )
        assert (await plain.execute(request("HttpRequest", url="http://public.example/x"))).status == "failed"
        assert proxy.connections == 0
        found = await ours.execute(request("HttpRequest", url="http://public.example/x"))
        assert text_of(found).endswith("by proxy")
        assert proxy.requests[0][1]["proxy-authorization"] == "Basic bWU6cEBzcw=="
        # Local hosts are asked directly, and only where they are named.
        call = f"http://localhost:{proxy.port}/near"
        assert error_of(await ours.execute(request("HttpRequest", url=call)))[0] == "INVALID_REQUEST"
        text_of(await ours.execute(request("HttpRequest", named("localhost"), url=call)))
        assert proxy.requests[-1][0] == "GET /near HTTP/1.1"
        assert "proxy-authorization" not in proxy.requests[-1][1]


async def test_https_goes_through_a_tunnel_of_its_own_proxy(make_router: MakeRouter) -> None:
    refusal = b"HTTP/1.1 403 Not that way\r\nContent-Length: 0\r\n\r\n"
    async with serving({"public.example:443": refusal}) as proxy:
        router = make_router(address_allowed=None, https_proxy=f"http://127.0.0.1:{proxy.port}")
        code, message = error_of(await router.execute(request("HttpRequest", url="https://public.example/x")))
        assert (code, "403" in message) == ("TOOL_EXECUTION_FAILED", True)
        assert proxy.requests[0][0] == "CONNECT public.example:443 HTTP/1.1"
