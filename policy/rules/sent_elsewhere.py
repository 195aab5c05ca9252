"""Kinds of tools that a tenant has run in the Backend Tool Service and not on this machine (BT, "When to Use Remote
Tools"): `insteadOf` of BackendTool.Invoke. It only takes away: a call is then judged by both capabilities. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy.decision import Decision
from policy.names import CapabilityName as Name
from policy.rules.case import where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.bundle.model import PolicyBundle

_NONE: Final[frozenset[str]] = frozenset()


def sent_elsewhere(bundle: PolicyBundle) -> frozenset[str]:
    """The capabilities whose tools run in the Backend Tool Service only."""
    entry = bundle.capability(Name.BACKEND_TOOL_INVOKE)
    return _NONE if entry is None or entry.instead_of is None else frozenset(entry.instead_of)


def not_here(bundle: PolicyBundle, capabilities: Iterable[str]) -> Decision | None:
    """The denial of a call that would run on this machine and needs these `capabilities`; None where it may run
    here."""
    entry, elsewhere = bundle.capability(Name.BACKEND_TOOL_INVOKE), sent_elsewhere(bundle)
    sent = next((name for name in capabilities if name in elsewhere), None)
    if entry is None or sent is None:
        return None
    return Decision("DENIED", reason_for(sent), sent, where(entry, "insteadOf", sent))


def reason_for(capability: str) -> str:
    """Why a tool of this capability does not run here."""
    return f"the policy has tools of {capability} run in the Backend Tool Service, which has none of this name"
