"""Records of the journal as JSON has them, for tests that look at what was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state.records import fields_of

if TYPE_CHECKING:
    from state.checkpoint import OpenCall

_OF_THE_CALL = ("callId", "approvalId", "arguments")


def answered(call: OpenCall) -> dict[str, Any] | None:
    """The fields of the answer to `call`, without those of the call; None where there is no answer."""
    if call.answer is None:
        return None
    return {name: value for name, value in fields_of(call.answer).items() if name not in _OF_THE_CALL}
