"""One real call to the gateway, for `doctor`: what is wrong with URL, token, model or wire, in one line."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from agent_host.app.conversation import Gateway, make_client
from agent_host.app.secrets import Tokens
from agent_host.contracts import Subject, ToolSpec
from agent_host.errors import TOKEN_VARIABLE, GatewayError, GatewayUnavailable, GuardrailBlocked, UsageError
from agent_host.http_basics import LOOPBACK, TlsContext, first_line, shown_url, without_html
from agent_host.lean_httpx import httpx
from agent_host.llm import error_bodies
from agent_host.llm.dialect_choice import find_dialect, named_dialect
from agent_host.llm.event_stream import whole_events
from agent_host.llm.gateway_errors import KINDS, kind_of_answer
from agent_host.llm.limits import AnswerTooLarge
from agent_host.llm.stream import StreamFault, StreamProtocolError
from agent_host.llm.urls import checked_headers, checked_token, checked_url, password_of, request_url
from agent_host.scrub import Scrubber
from agent_host.shown_text import one_line
from agent_host.thread.messages import Message
from config.policies import BUILT_IN, template
from tool_runtime.families.schemas import definition_of, parameters, text

if TYPE_CHECKING:
    from agent_host.llm.gateway_errors import Kind
    from agent_host.llm.stream import Dialect, ModelTurn
    from config.settings import Settings

_TIMEOUT_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024
_SAID_BYTES = 200
# The least that every provider takes.
_MAX_TOKENS = 16
_DEEP_TOKENS = 512
_LOOK_UP: Final = ToolSpec(
    "look_up",
    "Look up a word",
    parameters(["word"], word=text("The word")),
    capability="Tool.Invoke",
    subject=Subject("name"),
    effect="none",
    category="files",
)


def try_gateway(settings: Settings, url: str, state_dir: str) -> tuple[bool, str]:
    """True if the gateway at `url` answers a request with the token and the model of a run, and what it did. With
    `auto` its dialect is looked for anew, and kept in `state_dir`."""
    try:
        host = checked_url(url).host
        token = checked_token(Tokens.read().gateway)
        headers = checked_headers(settings.pairs("llm.headers"))
        dialect, found = named_dialect(settings) or find_dialect(settings, url, token, state_dir, anew=True)
    except (UsageError, GatewayError) as error:
        return False, str(error)
    model = model_of(settings)
    scrubber = Scrubber([token, password_of(url), *headers.values()])
    shown, began = shown_url(request_url(url, dialect.path)).partition("?")[0], time.monotonic()
    try:
        with httpx.stream(
            "POST",
            request_url(url, dialect.path),
            content=_request(dialect, model),
            headers={**dialect.headers(token), **headers, "x-session-id": "doctor", "accept-encoding": "identity"},
            timeout=_TIMEOUT_S,
            verify=TlsContext(url).get(),
            trust_env=host not in LOOPBACK,
        ) as response:
            status, media_type = response.status_code, response.headers.get("content-type", "none")
            data, speaks = _start_of(response, dialect, until=began + _TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return False, f"{shown} cannot be reached: {one_line(first_line(error))}"
    read = error_bodies.read(data)
    said = scrubber.text(one_line(without_html(read.message) or "an empty answer", _SAID_BYTES))
    if status != httpx.codes.OK:
        kind = kind_of_answer(status, read)
        return False, f"{shown} {_refusal(kind, status, model, has_token=token is not None)} (HTTP {status}): {said}"
    if not media_type.startswith("text/event-stream") or not speaks:
        return False, f"{shown} does not speak the wire {dialect.name!r}: it answered {one_line(media_type)}: {said}"
    took = int((time.monotonic() - began) * 1000)
    return True, f"{shown} answers with model {one_line(model)} ({took} ms)" + (f"; {found}" if found else "")


def try_tool_call(settings: Settings, url: str, state_dir: str) -> tuple[bool, str]:
    """True if the model behind the gateway calls a tool when it is asked to, and the server gives that as a call; and
    what it did. One request of up to `_DEEP_TOKENS` tokens."""
    try:
        token = checked_token(Tokens.read().gateway)
        dialect, _ = named_dialect(settings) or find_dialect(settings, url, token, state_dir)
        turn = asyncio.run(_tool_call(settings, url, dialect, token))
    except (UsageError, GatewayError, GuardrailBlocked) as error:
        return False, str(error)
    if any(call.name == _LOOK_UP.name for call in turn.tool_calls):
        return True, "the model calls a tool, and the server gives it as a call"
    how = "llama.cpp needs --jinja and a template with tools, vLLM --enable-auto-tool-choice and --tool-call-parser"
    if _LOOK_UP.name in turn.text:
        return False, f"the model wrote its call as text: this server parses none ({how})"
    said = one_line(turn.text or "an empty answer", _SAID_BYTES)
    return False, f"the model called no tool: choose one that can, or the server parses no calls ({how}): {said}"


async def _tool_call(settings: Settings, url: str, dialect: Dialect, token: str | None) -> ModelTurn:
    model = model_of(settings)
    head = dialect.head(
        model=model, max_output_tokens=_DEEP_TOKENS, system="You work through tools.", tools=[definition_of(_LOOK_UP)]
    )
    question = Message("user", "Call the tool look_up with the word ok.", 12)
    client = make_client(settings, Gateway(url, TlsContext(url)), token, dialect, "doctor")
    try:
        return await client.stream(head, [dialect.renderer(model).user([question])], lambda _text: None)
    finally:
        await client.aclose()


def _request(dialect: Dialect, model: str) -> bytes:
    head = dialect.head(model=model, max_output_tokens=_MAX_TOKENS, system="Answer in one word.", tools=[])
    return b"".join((head, dialect.renderer(model).user([Message("user", "Say: ok", 3)]), dialect.tail))


def model_of(settings: Settings) -> str:
    """The model of a run: the setting's, else the first that the policy allows, where that is a built-in."""
    policy = settings.text("host.policy")
    allowed = template(policy if policy in BUILT_IN else "workspace")["llmPolicy"]["allowedModels"]
    return settings.text("llm.model") or str(allowed[0])


def _refusal(kind: Kind, status: int, model: str, *, has_token: bool) -> str:
    if kind == "credentials":
        return f"refuses the token in {TOKEN_VARIABLE}" if has_token else f"wants a token: set {TOKEN_VARIABLE}"
    if kind == "loading":
        return "is loading the model: try again once it is loaded; a run waits for it up to llm.max_wait_s"
    no_token = "" if has_token else f"; no token was sent: set {TOKEN_VARIABLE} if it wants one"
    if kind == "model":
        return f"does not serve the model {one_line(model)!r}: check --model{no_token}"
    if kind == "billing":
        return f"has no credit or budget left: {KINDS[kind].advice}"
    if kind == "rate_limit":
        return "limits requests: try again later"
    if issubclass(KINDS[kind].error, GatewayUnavailable):
        return "fails: try again later"
    if status == httpx.codes.NOT_FOUND:
        unknown = f"does not know the path, or the model {one_line(model)!r}"
        return f"{unknown}: check --gateway, --dialect and --model{no_token}"
    return f"refuses the request: check the model, {one_line(model)!r}, and the wire"


def _start_of(response: httpx.Response, dialect: Dialect, *, until: float) -> tuple[bytes, bool]:
    """The answer up to its first content, `until` a moment of the monotonic clock, and whether the dialect reads it."""
    data = b""
    for piece in response.iter_raw():
        data += piece
        speaks = _is_of(dialect, data)
        if speaks or len(data) > _MAX_ANSWER_BYTES or time.monotonic() > until:
            return data, speaks
    return data, False


def _is_of(dialect: Dialect, data: bytes) -> bool:
    """True if the whole events at the start of a stream bring something of an answer of this dialect."""
    assembler = dialect.assembler()
    try:
        for event, content in whole_events(data):
            assembler.feed(event, content)
    except (StreamProtocolError, StreamFault, AnswerTooLarge):
        return False
    return assembler.content > 0
