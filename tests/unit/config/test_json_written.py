"""JSON of what orjson refuses."""

from __future__ import annotations

import json
from typing import Any

import orjson

from config import json_text
from tests.support.rows import each_row

BOTH = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@each_row("value", [{"a": [1, "ä"]}, "\udcff", 2**70, deep(300)], ids=["plain", "text", "number", "deep"])
@each_row("option", [0, orjson.OPT_APPEND_NEWLINE, BOTH])
def test_it_reads_back_as_it_was(value: Any, option: int) -> None:
    data = json_text.dumps(value, option=option)
    assert json.loads(data) == value
    assert data.endswith(b"\n") == bool(option)


def test_what_is_no_json_becomes_its_text() -> None:
    assert json_text.dumps({"a": deep, "b": 2**70}) == json_text.dumps({"a": str(deep), "b": 2**70})
