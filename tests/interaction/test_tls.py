"""A gateway behind TLS, as every real one is: its certificate is checked, and its answer streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

from tests.support.process import Host, gateway, say
from tests.support.tls import server_context, tls_in_front_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.slow
def test_a_gateway_with_a_certificate_that_the_system_trusts(host: Host, authority: trustme.CA, tmp_path: Path) -> None:
    trusted = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(str(trusted))
    with gateway(say("Done.")) as model, tls_in_front_of(model.url, server_context(authority, "127.0.0.1")) as url:
        options = ("--gateway", url, "--policy", "full", "--output", "json")
        outcome = host.run("run", "Do it.", *options, env={"SSL_CERT_FILE": str(trusted)})
    assert (outcome.code, outcome.result["text"]) == (0, "Done."), outcome.stderr


@pytest.mark.parametrize(("name", "trusts"), [("127.0.0.1", False), ("other.example", True)])
def test_a_certificate_that_cannot_be_trusted(
    host: Host, authority: trustme.CA, tmp_path: Path, name: str, trusts: bool
) -> None:
    """From nobody known, or of another host: no request is sent, and the session waits for a gateway that is right."""
    host.configure(max_retries=0)
    trusted = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(str(trusted))
    with gateway(say("Never.")) as model:
        with tls_in_front_of(model.url, server_context(authority, name)) as url:
            options = ("--gateway", url, "--policy", "full", "--output", "json")
            outcome = host.run("run", "Do it.", *options, env={"SSL_CERT_FILE": str(trusted)} if trusts else {})
        assert model.count == 0
    assert outcome.code == 3
    assert "certificate verify failed" in outcome.stderr.lower()
