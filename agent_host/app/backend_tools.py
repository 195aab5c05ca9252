"""The Backend Tool Service in a session (AH 7.6): where it is, what it is shown of the session, and what a call of its
tools may take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from agent_host.capability_grants import GRANT_HEADER, CapabilityGrant, signed
from agent_host.retrying import RetryPolicy
from agent_host.session.opening import LOCAL
from config.lean_typing import NamedTuple
from tool_runtime.backend.invocations import Terms as CallTerms
from tool_runtime.backend.source import BackendSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from config.settings import Settings
    from policy.bundle.model import PolicyBundle
    from state.checkpoint import SessionIdentity
    from tool_runtime.backend.invocations import Service

GRANT_S: Final = 900
"""For how long a grant holds that the host signs: longer than a call takes with all that is tried again, and not long
enough to be worth stealing."""


class GrantMaker(NamedTuple):
    """Makes the capability grant of each request: that which the Session Service gave, else one for the one tool, under
    the key of this host. `bundle` and `given` are asked each time, since a refresh of the session brings others."""

    identity: SessionIdentity
    bundle: Callable[[], PolicyBundle]
    given: Callable[[], str | None]
    key: bytes | None
    clock: Callable[[], float] = time.time

    def __call__(self, tool_name: str) -> str | None:
        """None where the host has neither."""
        given = self.given()
        if given is not None or self.key is None:
            return given
        who, tenant = self.identity, self.bundle().tenant_id
        tenant = who.tenant_id if tenant == LOCAL else tenant  # `local` is the user of this machine, whoever that is
        until = int(self.clock()) + GRANT_S
        grant = CapabilityGrant(tenant, who.session_id, (tool_name,), until, who.user_id, who.workspace_id)
        return signed(grant, self.key)


def backend_source(service: Service, grant: GrantMaker, settings: Settings) -> BackendSource:
    """The source of the tools behind `service`. What is tried again, and how long is waited for it, is as for every
    service."""
    longest_s = settings.number("services.retry_max_s")
    retry = RetryPolicy(
        settings.integer("services.max_retries"), settings.number("services.retry_base_s"), longest_s, longest_s
    )
    return BackendSource(
        service,
        CallTerms(grant, GRANT_HEADER, grant.identity.workspace_id, settings.number("backend.timeout_s"), retry),
    )
