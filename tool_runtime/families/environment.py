"""What programs that tools start get for their environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tool_runtime.platform.environment import child_environment

if TYPE_CHECKING:
    from tool_runtime.settings import RuntimeSettings


def environment_under(settings: RuntimeSettings) -> dict[str, str]:
    """This process's environment as programs get it: without secrets, and with nobody to be asked. Reading it costs
    more than starting a process does, so it is done once."""
    return child_environment(
        os.environ,
        secret=settings.secret_env,
        passthrough=settings.env_passthrough,
        allowed=settings.env_allowed,
        temporary=settings.temporary,
    )
