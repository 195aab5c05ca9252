"""httpx without the command-line program that it carries.

That program imports rich and click wherever they happen to be installed, which takes as long as the rest of httpx. With
its module switched off httpx only says, should anybody start it, that the program is not available.
"""

from __future__ import annotations

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None switches an import off

import httpx  # noqa: E402  after the line above, that is the point

__all__ = ["httpx"]
