"""httpx without the command-line program that it carries.

That program imports rich and click wherever they happen to be installed, which takes as long as the rest of httpx.
Where this process is our own command line, the module of that program is switched off. A program that embeds this
package may use it, and has httpx as it is.
"""

from __future__ import annotations

import sys

if "agent_host.cli.main" in sys.modules:
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None switches an import off

import httpx

__all__ = ["httpx"]
