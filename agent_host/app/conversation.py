"""The conversation of a session, put together: the thread on record, what a request begins with, the client."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, cast

from agent_host.errors import PolicyDenied
from agent_host.llm.deferred import DeferredClient
from agent_host.loop.conversation import Compaction, Conversation, ForModel, ModelView
from agent_host.loop.secrets import clean_message
from agent_host.retrying import RetryPolicy
from agent_host.thread.messages import decode
from agent_host.thread.summary import summary_message
from agent_host.thread.thread import Thread
from config.lean_typing import NamedTuple
from tool_runtime.families.schemas import definition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent_host.app.parts import Parts
    from agent_host.http_basics import TlsContext
    from agent_host.llm.client import LlmClient
    from agent_host.llm.stream import Dialect
    from agent_host.routing.judge import Judge
    from agent_host.scrub import Scrubber
    from agent_host.thread.messages import Message
    from config.settings import Settings
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import Checkpoint
    from state.records import ContextStrategy

# A provider may count so many times the tokens that the estimate gives (`loop.limits`).
_LOW_ESTIMATE = 1.5
_MOST_BYTES_PER_TOKEN = 8


class Gateway(NamedTuple):
    """Where the model is, and what its certificate is checked with, which is made while a session opens. `said` is what
    the first request reports: which dialect was found; "" where the dialect was named. `server_said` is what was taken
    from the server's own word."""

    url: str
    tls: TlsContext
    said: str = ""
    server_said: str = ""


def make_conversation(
    settings: Settings,
    parts: Parts,
    state: Checkpoint,
    scrubber: Scrubber,
    client: Callable[[], LlmClient],
) -> Conversation:
    """The conversation of the session with this `state`; `client` is made with its first request. Raises PolicyDenied
    for a model for summaries that the bundle does not allow."""
    retry_s = (settings.number("llm.retry_base_s"), settings.number("llm.retry_max_s"))
    return Conversation(
        _thread(parts, state, scrubber),
        DeferredClient(client),
        parts.model,
        _head_maker(parts, scrubber, state),
        RetryPolicy(settings.integer("llm.max_retries"), *retry_s, max_wait_s=settings.number("llm.max_wait_s")),
        parts.count,
        parts.models,
        _for_model(parts, scrubber, state),
        fallbacks=parts.fallbacks,
        takes_images=parts.takes_images,
        compaction=_compaction(settings, parts.bundle),
        max_cost=settings.number("llm.max_cost"),
    )


def put_under_parts(conversation: Conversation, parts: Parts, state: Checkpoint, scrubber: Scrubber) -> None:
    """Have a conversation go on with the model and under the bundle of `parts`; `scrubber` has its rules already."""
    other_model = conversation.model != parts.model  # it gets no blocks of the one before
    conversation.model = conversation.default_model = parts.model
    conversation.fallbacks = parts.fallbacks
    conversation.models = parts.models
    conversation.for_model = _for_model(parts, scrubber, state)
    if parts.bundle.redaction_rules or other_model:
        conversation.thread = _thread(parts, state, scrubber)
    conversation.make_head = _head_maker(parts, scrubber, state)


def _thread(parts: Parts, state: Checkpoint, scrubber: Scrubber, dropped: int | None = None) -> Thread:
    """The conversation behind the system prompt; a turn whose step is open enters it when the step is over. What was
    recorded under other rules leaves under those of this bundle. `dropped` is how many messages requests leave out from
    now on, None for as many as on record."""
    takes_images = parts.takes_images
    if takes_images and len(state.thread) > 1:  # a new session has no pictures yet
        takes_images = parts.models.of(parts.model).limits.images is not False
    renderer = parts.dialect.renderer(parts.model)
    thread = Thread(renderer, takes_images=takes_images, marks_from=lambda: _marks_from(parts))
    step = state.open_step
    messages: Iterator[Message] = map(decode, itertools.islice(state.thread, 1, None))
    if scrubber.redaction is not None and scrubber.redaction.has_rules:
        messages = (clean_message(scrubber, message) for message in messages)
    still_open = None if step is None else step.position - 1
    thread.restore(
        messages,
        still_open=still_open,
        dropped=state.dropped_messages if dropped is None else dropped,
        large_from=state.cleared_messages,
        summary=None if state.summary is None else summary_message(scrubber.text(state.summary), parts.count),
        thinking_from=_thinking_from(parts, state, dropped),
    )
    return thread


def _marks_from(parts: Parts) -> int:
    """Estimated tokens that a beginning of a request has to have for a cache mark. A provider keeps nothing that is
    shorter than its minimum; a mark that is missing costs more than one too many, and estimates may be low."""
    minimum = parts.models.of(parts.model).limits.cache_minimum_tokens
    return 0 if minimum is None else int(minimum / _LOW_ESTIMATE)


def _thinking_from(parts: Parts, state: Checkpoint, dropped: int | None) -> int:
    if not (state.flattened_messages or dropped) or not parts.binds_thinking(parts.model):
        return 0
    return state.flattened_messages if dropped is None else len(state.thread) - 1


def _for_model(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> ModelView:
    def for_model(model: str, dropped: int | None = None) -> ForModel:
        own = parts._replace(model=model)
        return ForModel(_thread(own, state, scrubber, dropped), _head_maker(own, scrubber, state))

    return for_model


def _head_maker(parts: Parts, scrubber: Scrubber, state: Checkpoint) -> Callable[[Judge, int], bytes]:
    """The front of model requests: model, limit, system prompt, and those tools that a call could be allowed of."""

    def head(judge: Judge, max_output_tokens: int) -> bytes:
        encode = partial(
            parts.dialect.head,
            model=parts.model,
            max_output_tokens=max_output_tokens,
            system=scrubber.text(decode(state.thread[0]).content),
            tools=list(map(definition_of, judge.offered())),
            session_id=state.identity.session_id,
        )
        made, marks_from = encode(), _marks_from(parts)
        # A text has fewer tokens than bytes, and no language as few as one for so many.
        is_short = len(made) < marks_from * _MOST_BYTES_PER_TOKEN and parts.count(made.decode()) < marks_from
        return encode(is_marked=False) if is_short else made

    return head


def _compaction(settings: Settings, bundle: PolicyBundle) -> Compaction:
    """Raises PolicyDenied for a model for summaries that the bundle does not allow."""
    model = settings.text("llm.summary_model") or None
    if model is not None and model not in bundle.llm_policy.allowed_models:
        allowed = ", ".join(bundle.llm_policy.allowed_models)
        raise PolicyDenied(f"llm.summary_model {model} is not in llmPolicy.allowedModels: {allowed}")
    return Compaction(cast("ContextStrategy", settings.text("llm.context_strategy")), model)


def make_client(
    settings: Settings, gateway: Gateway, token: str | None, dialect: Dialect, session_id: str
) -> LlmClient:
    """What asks the gateway. Its modules are imported here, with a session's first request."""
    from agent_host.llm.client import LlmClient
    from agent_host.llm.limits import AnswerLimits, GatewayTimeouts

    timeouts = GatewayTimeouts(
        connect_s=settings.number("llm.connect_timeout_s"),
        read_s=settings.number("llm.read_timeout_s"),
        progress_s=settings.number("llm.progress_timeout_s"),
        answer_s=settings.number("llm.answer_timeout_s"),
    )
    limits = AnswerLimits(**{name: settings.integer(f"llm.{name}") for name in AnswerLimits._fields})
    return LlmClient(
        gateway.url,
        token,
        dialect,
        session_id=session_id,
        timeouts=timeouts,
        limits=limits,
        tls=gateway.tls,
        headers=settings.pairs("llm.headers"),
    )
