"""The shipped policy bundles, read from this package's `policies/` folder."""

from __future__ import annotations

import os
from typing import Any

import orjson

BUILT_IN = ("read-only", "workspace", "ci", "full")
_FOLDER = os.path.join(os.path.dirname(__file__), "policies")


def template(name: str) -> dict[str, Any]:
    """The template of the built-in bundle `name`, one of BUILT_IN, placeholders still in it."""
    with open(os.path.join(_FOLDER, f"{name}.json"), "rb") as handle:
        content: dict[str, Any] = orjson.loads(handle.read())
    return content
