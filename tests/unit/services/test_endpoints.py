"""Where services are, by environment variable."""

from __future__ import annotations

import pytest

from agent_host.errors import UsageError
from agent_host.services import Endpoints, endpoints
from tests.support.rows import each_row


def test_nothing_set_means_embedded_everywhere() -> None:
    assert endpoints({}) == Endpoints()
    assert endpoints({"SESSION_SERVICE_URL": "", "PATH": "/bin"}) == Endpoints()


def test_each_variable_is_one_service() -> None:
    environ = {
        "SESSION_SERVICE_URL": "https://a.example/v1/",
        "WORKSPACE_SERVICE_URL": "http://127.0.0.1:8080",
        "APPROVAL_SERVICE_URL": "http://[::1]:1",
        "AUDIT_SERVICE_URL": "HTTPS://b.example",
        "TELEMETRY_SERVICE_URL": "http://c.example//",
    }
    assert endpoints(environ) == Endpoints(
        "https://a.example/v1", "http://127.0.0.1:8080", "http://[::1]:1", "HTTPS://b.example", "http://c.example"
    )


@each_row(
    "url",
    [
        "a.example", "ftp://a.example", "http://", "http:///x", "http://a.example:99999", "http://a.example:x",
        "http://[::1", "http://a.example/?q=1", "http://a.example?", "http://a.example/#x", "http://a b.example",
        "http://a.example/\n", "http://\u00e4.example", "http://a.example:0", "file:///etc/passwd",
        "http:\\\\a.example",
        "http://user:hunter2@a.example", "http://hunter2@a.example", "http://a.example/?token=hunter2",
        "http://a.example/#hunter2",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_told_with_its_variable(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        endpoints({"AUDIT_SERVICE_URL": url})
    assert "$AUDIT_SERVICE_URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
