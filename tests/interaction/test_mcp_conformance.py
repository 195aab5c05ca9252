"""The conformance suite of MCP against this client: the scenarios that it passes, and those that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.node_packages import FOLDER, NODE

SUITE: Final = FOLDER / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
ROOT: Final = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.peer,
    pytest.mark.skipif(not SUITE.exists(), reason="not installed: python -m tests.support.node_packages"),
]
PASSED: Final = (
    *(
        "initialize",
        "tools_call",
        "sse-retry",
        "request-metadata",
        "http-standard-headers",
        "http-invalid-tool-headers",
    ),
    *("json-schema-ref-no-deref", "auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2"),
    *("auth/metadata-var3", "auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
    *("auth/scope-omitted-when-undefined", "auth/scope-step-up", "auth/scope-retry-limit"),
    *("auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post", "auth/token-endpoint-auth-none"),
    *("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"),
    *("auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"),
    *("auth/authorization-server-migration", "auth/iss-supported", "auth/iss-not-advertised"),
    *("auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized"),
    *("auth/metadata-issuer-mismatch", "elicitation-sep1034-client-defaults", "sep-2322-client-request-state"),
)
_OF_MACHINES: Final = "there is a person at a browser, or a bearer token: no credentials of machines"
EXPECTED_FAILURES: Final = {
    "auth/basic-cimd": "a warning: the program has no page of its own for its metadata, and registers itself",
    "auth/pre-registration": "a client's id and secret cannot be configured",
    "auth/client-credentials-jwt": _OF_MACHINES,
    "auth/client-credentials-basic": _OF_MACHINES,
    "auth/enterprise-managed-authorization": _OF_MACHINES,
    "auth/wif-jwt-bearer": _OF_MACHINES,
    "auth/dpop": "the SDK has no DPoP",
    "auth/dpop-nonce": "the SDK has no DPoP",
    "http-custom-headers": "one check wants arguments of its own, and the test's client takes any",
    "json-schema-2020-12-preservation": "the client of the test does not send schemas back, as the check wants",
}

OF_SKILLS: Final = tuple(
    f"sep-2640-client-{what}" for what in ("no-prefetch", "verify-digest", "verify-size", "verify-frontmatter")
)
"""An extension that the client does not have: there is nothing to be checked."""


def overall(scenario: str) -> str:
    """The suite's report on one scenario."""
    options = " --oauth" if scenario.startswith("auth/") else ""
    client = f"{sys.executable} -m tests.support.mcp_conformance_client{options}"
    done = subprocess.run(
        [NODE, os.fspath(SUITE), "client", "--command", client, "--scenario", scenario, "--timeout", "90000"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("scenario", PASSED)
def test_a_scenario_that_this_client_passes(scenario: str) -> None:
    report = overall(scenario)
    assert "OVERALL: PASSED" in report, report[-3000:]


@pytest.mark.parametrize("scenario", EXPECTED_FAILURES)
def test_a_scenario_that_it_does_not_pass(scenario: str) -> None:
    """It is not on the list for longer than it has to be."""
    report = overall(scenario)
    assert "OVERALL: FAILED" in report, report[-3000:]


def test_every_scenario_is_on_a_list() -> None:
    listed = subprocess.run([NODE, os.fspath(SUITE), "list"], capture_output=True, text=True, timeout=60).stdout
    named = listed.partition("Client scenarios")[2].partition("\n\n")[0].splitlines()
    scenarios = {line.split()[1] for line in named if line.startswith("  - ")}
    assert scenarios == {*PASSED, *EXPECTED_FAILURES, *OF_SKILLS}
