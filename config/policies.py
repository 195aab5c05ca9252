"""The shipped policy bundles, read from this package's `policies/` folder."""

from __future__ import annotations

import os
from typing import Any

import orjson

BUILT_IN = ("read-only", "workspace", "ci", "full")
_FOLDER = os.path.join(os.path.dirname(__file__), "policies")


def template(name: str) -> dict[str, Any]:
    """The template of the built-in bundle `name`, one of BUILT_IN, placeholders still in it.

    An entry `@group` of a path list stands for the paths of that group in places.json.
    """
    content, places = _read(name), _read("places")
    for capability in content["capabilities"]:
        if "blockedPaths" in capability:
            capability["blockedPaths"] = [
                path
                for entry in capability["blockedPaths"]
                for path in (places[entry[1:]] if entry.startswith("@") else [entry])
            ]
    return content


def _read(name: str) -> dict[str, Any]:
    with open(os.path.join(_FOLDER, f"{name}.json"), "rb") as handle:
        content: dict[str, Any] = orjson.loads(handle.read())
    return content
