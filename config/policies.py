"""The shipped policy bundles, read from this package's `policies/` folder."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import orjson

BUILT_IN = ("read-only", "workspace", "ci", "full")
_VERSION = "builtin."
_SEPARATORS = "/" if os.sep == "/" else "/\\"
_FOLDER = os.path.join(os.path.dirname(__file__), "policies")


def template(name: str) -> dict[str, Any]:
    """Return the template of the built-in bundle `name`, one of BUILT_IN, with its placeholders.

    An entry `@group` of a path list stands for the paths of that group in places.json.
    """
    content, places = template_as_written(name), place_groups()
    for capability in content["capabilities"]:
        if "blockedPaths" in capability:
            capability["blockedPaths"] = [
                path
                for entry in capability["blockedPaths"]
                for path in (places[entry[1:]] if entry.startswith("@") else [entry])
            ]
    return content


def template_as_written(name: str) -> dict[str, Any]:
    """Return the template with its groups not yet replaced."""
    content: dict[str, Any] = orjson.loads(_bytes(name))
    return content


def names_file(name: str) -> bool:
    """True if a policy of this name is a bundle file: it has a slash or ends in `.json`. Any other name can only be a
    built-in's, whatever the current directory contains (design, invariant 12)."""
    return name.endswith(".json") or any(one in name for one in _SEPARATORS)


def digest(name: str) -> str:
    """Return the sha256, in hex, of the shipped template of the built-in bundle `name`."""
    return hashlib.sha256(_bytes(name)).hexdigest()


def is_built_in(version: str) -> bool:
    """True if a policyBundleVersion is that of a built-in."""
    return version.removeprefix(_VERSION) in BUILT_IN and version.startswith(_VERSION)


def write_template(name: str) -> str:
    """Return the text of a bundle to start from, equivalent to the built-in bundle `name`.

    Its layout is that of the shipped file, it has its own version, is for any session and lasts
    as long as a built-in.
    """
    text = _bytes(name).decode()
    text = re.sub(r'\n  "sandboxed": .*', "", text)
    text = text.replace(f'"policyBundleVersion": "{_VERSION}{name}"', f'"policyBundleVersion": "local.{name}"', 1)
    return re.sub(r'"expiresInS": [0-9]+', '"sessionId": "*"', text, count=1)


def place_groups() -> dict[str, list[str]]:
    """Return the groups of places that path lists may name, with placeholders in their entries. The file also has
    `reasons`, the decisions about single names in a workspace: guarded are files that start a program when somebody
    opens, enters or lists a project, without asking for a build or a test."""
    groups: dict[str, list[str]] = template_as_written("places")
    groups.pop("reasons")
    return groups


def _bytes(name: str) -> bytes:
    with open(os.path.join(_FOLDER, f"{name}.json"), "rb") as handle:
        return handle.read()
