"""The one function that every LLM request passes first (AH 8.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.decision import Decision
from policy.names import CapabilityName as Name
from policy.rules import approval_needed, deny, expiry_denial, not_granted

if TYPE_CHECKING:
    from datetime import datetime

    from policy.bundle import PolicyBundle


def check_llm(bundle: PolicyBundle, *, model: str, now: datetime) -> Decision:
    """The verdict on one LLM request: expiry, the LLM.Call grant, the model (AH 8.7)."""
    expired, entry = expiry_denial(bundle, Name.LLM_CALL.value, now), bundle.capability(Name.LLM_CALL)
    if expired is not None or entry is None:
        return expired or not_granted(Name.LLM_CALL.value)
    if model not in bundle.llm_policy.allowed_models:
        return deny(entry.name, "llmPolicy.allowedModels", f"model not allowed: {model}")
    if entry.requires_approval:
        return approval_needed(entry, "low", ())
    return Decision("ALLOWED", "granted", entry.name, f"llmPolicy.allowedModels: {model}")
