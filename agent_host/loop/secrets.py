"""What goes on record of a model's turn: everything but secrets (AH 8.7).

The calls that run are the model's own, with every byte. What is kept of them, and what the model is shown of them from
then on, has placeholders; so a call whose arguments held a secret cannot be taken up again from the record. It says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson

from agent_host.thread.blocks import holds_arguments, with_lengths
from agent_host.thread.messages import ToolCall
from policy.detectors.redaction import PLACEHOLDER

if TYPE_CHECKING:
    from agent_host.scrub import Scrubber
    from agent_host.thread.blocks import Block
    from agent_host.thread.messages import Message

NOT_KEPT = "its arguments held a secret, which is kept nowhere, so it cannot be resumed: make the call again"
_HOLDS_PLACEHOLDER = (
    "the arguments hold {placeholder}, which stands in the place of a secret that you were not shown; it would be put "
    "there for good: leave that part of the file as it is, or name where the value is to come from"
)


def clean_message(scrubber: Scrubber, message: Message) -> Message:
    """The message as it is kept, and goes back to the model. A block of the provider that holds a secret is left out:
    blocks are signed, and one with a placeholder in it would be refused."""
    content = scrubber.text(message.content)
    changed = content != message.content
    calls = tuple(_kept(scrubber, call) for call in message.tool_calls)
    # A secret is found in arguments by where it stands in them, and not in a text that quotes them.
    of_others = calls != message.tool_calls

    def is_kept(block: Block) -> bool:
        is_other = (changed and block.holds_text) or (of_others and holds_arguments(block))
        return not is_other and _is_clean(scrubber, block)

    kept = message.keeping(is_kept)
    if changed:
        texts = [scrubber.text(part) for part in kept.parts() if isinstance(part, str)]
        # A secret may begin in one text and end in the next: then they become one.
        lengths = [len(text) for text in texts] if "".join(texts) == content else [len(content)]
        kept = kept._replace(content=content, order=with_lengths(kept.order, lengths))
    return kept._replace(tool_calls=calls)


def holds_secret(scrubber: Scrubber, call: ToolCall) -> bool:
    """True if the call's arguments differ from what is kept of them."""
    return scrubber.json(call.arguments_json) != call.arguments_json


def placeholder_problem(call: ToolCall) -> str | None:
    """Why a call that would put a placeholder in the place of a secret cannot be run; None for any other."""
    if b"[redacted:" not in call.arguments_json:
        return None
    found = re.search(PLACEHOLDER, call.arguments_json.decode())
    return None if found is None else _HOLDS_PLACEHOLDER.format(placeholder=found.group())


def _is_clean(scrubber: Scrubber, block: Block) -> bool:
    raw = block.raw.encode()
    return scrubber.json(raw) == raw


def _kept(scrubber: Scrubber, call: ToolCall) -> ToolCall:
    if not holds_secret(scrubber, call):
        return call
    return ToolCall(call.call_id, call.name, orjson.loads(scrubber.json(call.arguments_json)), NOT_KEPT)
