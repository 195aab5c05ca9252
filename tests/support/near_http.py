"""`agent-host` whose HttpRequest may talk to this machine, which is the only one that tests talk to.

python -m tests.support.near_http run "Do it." ...
"""

from __future__ import annotations

import sys
from typing import Any

from agent_host.cli.main import main
from agent_host.host import parts

_made = parts.runtime_settings


def _near(*arguments: Any, **named: Any) -> Any:
    return _made(*arguments, **named)._replace(address_allowed=lambda address: address == "127.0.0.1")


if __name__ == "__main__":
    setattr(parts, "runtime_settings", _near)  # noqa: B010  the one seam between configuration and runtime
    sys.exit(main(sys.argv[1:]))
