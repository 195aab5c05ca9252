"""The shipped defaults. Their file is plain enough that a start needs no TOML parser to read it."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from config.settings import TomlValue

# Sections whose keys the user chooses: none by default.
_WHOLE = frozenset(("models",))
DEFAULTS = os.path.join(os.path.dirname(__file__), "defaults.toml")


@functools.cache
def shipped_defaults() -> dict[str, TomlValue]:
    """The value of each setting in defaults.toml, by full key; read once, and not to be changed.

    It reads comments, sections, and values of one line that are the same in JSON. A test compares it with tomllib.
    """
    values: dict[str, TomlValue] = {}
    section, decoder = "", json.JSONDecoder()
    with open(DEFAULTS, encoding="utf-8") as handle:
        for line in map(str.strip, handle):
            if line.startswith("["):
                section = line[1 : line.index("]")]
                if section in _WHOLE:
                    values[section] = {}
            elif line and not line.startswith("#"):
                key, _, rest = line.partition(" = ")
                values[f"{section}.{key}"], _ = decoder.raw_decode(rest)  # what follows is a comment
    return values
