"""config/policy-bundle.schema.json from the bundle's classes: `python -m tests.support.bundle_schema_file` makes it."""

from __future__ import annotations

import json
from pathlib import Path

from config.policies import BUILT_IN
from tests.support.bundle_schema import bundle_schema

FILE = Path(__file__).resolve().parents[2] / "config" / "policy-bundle.schema.json"


def content() -> str:
    """The file as it should be."""
    return json.dumps(bundle_schema(BUILT_IN), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(content(), encoding="utf-8")
