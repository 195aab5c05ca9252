"""What a task may do less than its bundle allows (interface section 2, `taskOptions`)."""

from __future__ import annotations

from typing import Literal

from config.lean_typing import NamedTuple

ApprovalMode = Literal["always", "on_risky_actions", "never"]


class TaskOptions(NamedTuple):
    """How one task is narrowed; None leaves it to the bundle.

    `approval_mode`: `always` wants an approval for every call with side effects, `on_risky_actions` for those of high
    risk as well as for what the bundle names, `never` has nobody asked: what needs an approval is denied.
    `allow_network` False takes requests and known network programs away; True gives nothing.
    """

    approval_mode: ApprovalMode | None = None
    allow_network: bool | None = None


AS_THE_BUNDLE_SAYS = TaskOptions()
