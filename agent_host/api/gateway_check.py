"""One real call to the gateway, for `doctor`: what is wrong with URL, token, model or wire, in one line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

from agent_host.app.machine import TOKEN_VARIABLE
from agent_host.app.secrets import Tokens
from agent_host.errors import UsageError
from agent_host.http_basics import LOOPBACK, TlsContext, first_line, shown_url
from agent_host.lean_httpx import httpx
from agent_host.llm.anthropic import AnthropicDialect
from agent_host.llm.urls import checked_headers, checked_token, checked_url, password_of, without_path
from agent_host.scrub import Scrubber
from agent_host.shown_text import one_line
from agent_host.thread.messages import Message
from config.policies import BUILT_IN, template

if TYPE_CHECKING:
    from config.settings import Settings

_TIMEOUT_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024
_SAID_BYTES = 200


def try_gateway(settings: Settings, url: str) -> tuple[bool, str]:
    """Whether the gateway at `url` answers a request with the token and the model of a run, and what it did."""
    dialect = AnthropicDialect()
    try:
        host = checked_url(url).host
        token = checked_token(Tokens.read().gateway)
        headers = {**dialect.headers(token), **checked_headers(settings.pairs("llm.headers"))}
    except UsageError as error:
        return False, str(error)
    model = model_of(settings)
    scrubber = Scrubber([token, password_of(url), *settings.pairs("llm.headers").values()])
    asked = Message("user", "Say: ok", 3)
    body = b"".join(
        (
            dialect.head(model=model, max_output_tokens=1, system="Answer in one word.", tools=[]),
            dialect.renderer(model).user([asked]),
            dialect.tail,
        )
    )
    base = without_path(url, dialect.path)
    shown, began = shown_url(base) + dialect.path, time.monotonic()
    try:
        with httpx.stream(
            "POST",
            base + dialect.path,
            content=body,
            headers={**headers, "x-session-id": "doctor", "accept-encoding": "identity"},
            timeout=_TIMEOUT_S,
            verify=TlsContext(base).get(),
            trust_env=host not in LOOPBACK,
        ) as response:
            status, kind = response.status_code, response.headers.get("content-type", "none")
            data = _start_of(response, until=began + _TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return False, f"{shown} cannot be reached: {one_line(first_line(error))}"
    said = scrubber.text(one_line(_said(data), _SAID_BYTES))
    if status != httpx.codes.OK:
        return False, f"{shown} {_refusal(status, model, has_token=token is not None)} (HTTP {status}): {said}"
    if not kind.startswith("text/event-stream") or b'"message_start"' not in data:
        return False, f"{shown} does not speak the wire {dialect.name!r}: it answered {one_line(kind)}: {said}"
    took = int((time.monotonic() - began) * 1000)
    return True, f"{shown} answers with model {one_line(model)} ({took} ms)"


def model_of(settings: Settings) -> str:
    """The model of a run: the setting's, else the first that the policy allows, where that is a built-in."""
    policy = settings.text("host.policy")
    allowed = template(policy if policy in BUILT_IN else "workspace")["llmPolicy"]["allowedModels"]
    return settings.text("llm.model") or str(allowed[0])


def _refusal(status: int, model: str, *, has_token: bool) -> str:
    if status in (401, 403):
        return f"refuses the token in {TOKEN_VARIABLE}" if has_token else f"wants a token: set {TOKEN_VARIABLE}"
    if status == 404:
        return f"does not know the path, or the model {one_line(model)!r}: check --gateway and --model"
    if status == 429:
        return "limits requests: try again later"
    if status >= 500:
        return "fails: try again later"
    return f"refuses the request: check the model, {one_line(model)!r}, and the wire"


def _start_of(response: httpx.Response, *, until: float) -> bytes:
    """The answer up to its first content, `until` a moment of the monotonic clock."""
    data = b""
    for piece in response.iter_raw():
        data += piece
        if len(data) > _MAX_ANSWER_BYTES or b"content_block" in data or time.monotonic() > until:
            break
    return data


def _said(data: bytes) -> str:
    """The message of an error object; else the answer as it is."""
    try:
        error = orjson.loads(data)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return data[: 4 * _SAID_BYTES].decode("utf-8", "replace") or "an empty answer"
