"""Where requests go for each way to name a gateway."""

from __future__ import annotations

import pytest

from agent_host.llm.urls import request_url

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
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
