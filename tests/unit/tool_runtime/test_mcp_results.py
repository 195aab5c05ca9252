"""The result of a call, item by item: what can be read is read, and no form makes a failure of a call that worked."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.contracts import ToolRequest
from tests.support.mcp_servers import PNG
from tests.support.rows import each_row
from tool_runtime.remote.mcp.source import output_of
from tool_runtime.tool import ToolFault

if TYPE_CHECKING:
    from tool_runtime.tool import ToolOutput

REQUEST = ToolRequest("s/sum", {}, "session", "task", "step", "call", "Mcp.Invoke")
PROMISED = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
PICTURE = base64.b64encode(PNG).decode()
URL_SAFE = base64.urlsafe_b64encode(b"\xfb\xff\xfe").decode()


def output(result: Any, schema: Any = None) -> ToolOutput:
    return output_of(result, REQUEST, schema, 10_000)


def block(**fields: Any) -> dict[str, Any]:
    return {"content": [fields, {"type": "text", "text": "beside"}]}


@each_row(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        # content that is no list
        ({}, ""),
        (None, ""),
        ({"content": None, "structuredContent": {"rows": 3}}, '{"rows":3}'),
        ({"content": "plain"}, "plain"),
        ("plain", "plain"),
        ({"content": {"type": "text", "text": "alone"}}, "alone"),
        ([{"type": "text", "text": "no object"}], "no object"),
        ({"content": ["a", "b"]}, "a\nb"),
        ({"content": 7}, "[a part of the result is left out: it is 7]"),
        # structuredContent, and what is said twice
        ({"structuredContent": {"rows": 3}}, '{"rows":3}'),
        ({"structuredContent": [1, 2]}, "[1,2]"),
        ({"structuredContent": "text"}, "text"),
        ({"content": [{"type": "text", "text": '{ "rows": 3 }'}], "structuredContent": {"rows": 3}}, '{ "rows": 3 }'),
        ({"content": [{"type": "text", "text": "x"}], "structuredContent": {"result": "x"}}, "x"),
        ({"content": ["x", '{"y": 1}'], "structuredContent": {"result": ["x", {"y": 1}]}}, 'x\n{"y": 1}'),
        ({"content": ["x"], "structuredContent": {"result": ["x", "y"]}}, 'x\n{"result":["x","y"]}'),
        # fields beside the parts
        ({"content": ["x"], "isError": None, "_meta": None, "structuredContent": None}, "x"),
        ({"content": ["x"], "isError": "false", "_meta": 3, "resultType": 7, "ttlMs": "?"}, "x"),
        ({"toolResult": "of 2024", "rows": 3}, '{"toolResult":"of 2024","rows":3}'),
        # parts
        (block(type="text", text="x", annotations={"priority": 7, "audience": "me"}, _meta=[]), "x\nbeside"),
        (block(type="TEXT", text="x"), "x\nbeside"),
        (block(type=None, text="x"), "x\nbeside"),
        (block(type="text", text=None), "[a part of the result is left out: its text is null]\nbeside"),
        (block(type="text", text={"rows": 3}), '{"rows":3}\nbeside'),
        (
            block(type="chart", data=[1]),
            '[a part of the unknown type chart]\n{"type":"chart","data":[1]}\nbeside',
        ),
        (block(rows=1), '[a part of no type]\n{"rows":1}\nbeside'),
        ({"content": [None, "x"]}, "[a part of the result is left out: it is null]\nx"),
        (block(type="image", data=7, mimeType="image/png"), "[image: not valid base64]\nbeside"),
        (block(type="image", data="*", mimeType="image/png"), "[image: not valid base64]\nbeside"),
        (block(type="image", data=PICTURE), f"[image: image/png, {len(PNG)} bytes]\nbeside"),
        (block(type="image", data=f"data:image/png;base64,{PICTURE}"), "[image: image/png, 70 bytes]\nbeside"),
        (block(type="audio", data=URL_SAFE, mimeType="audio/wav"), "[audio: audio/wav, 3 bytes]\nbeside"),
        (block(type="audio", data="UklG\nRg", mimeType=7), "[audio: application/octet-stream, 4 bytes]\nbeside"),
        (block(type="resource_link", uri="file:///n", name=None, size="big"), "[resource file:///n]\nbeside"),
        (block(type="resource_link", name="notes", mimeType=3), "[resource notes]\nbeside"),
        (block(type="resource_link"), "[resource without a name]\nbeside"),
        (block(type="resource", resource={"text": "inside"}), "[resource]\ninside\nbeside"),
        (
            block(type="resource", resource={"uri": "mem://b", "blob": "AAE=", "text": None}),
            "[resource mem://b]\n[resource: application/octet-stream, 2 bytes]\nbeside",
        ),
        (
            block(type="resource", resource={"uri": "mem://n"}),
            "[resource mem://n]\n[a part of the result is left out: the resource has neither text nor blob]\nbeside",
        ),
        (
            block(type="resource", resource=None),
            "[a part of the result is left out: it is a resource without content]\nbeside",
        ),
    ],
)  # fmt: skip
def test_what_can_be_read_is_read(result: Any, text: str) -> None:
    assert output(result).text == text
    if isinstance(result, dict):
        with pytest.raises(ToolFault):  # only the server's own word makes a failure of it
            output({**result, "isError": "true"})


def test_a_picture_without_a_type_is_still_shown() -> None:
    found = output(block(type="image", data=PICTURE))
    assert [image.media_type for image in found.images] == ["image/png"]
    assert [one.content_type for one in found.artifacts] == ["image/png"]


@pytest.mark.parametrize(
    ("structured", "text", "said"),
    [
        ({"sum": 3}, "", '{"sum":3}'),
        ({"sum": 3}, '{"sum": 3}', '{"sum": 3}'),
        ({"sum": "3"}, "three", "three\n[structuredContent is left out, since it does not fit"),
        ([3], "three", "three\n[structuredContent is left out, since it does not fit"),
        ({}, "", "[structuredContent is left out, since it does not fit"),
        (None, "three", "three\n[the result has no structuredContent, which the tool promises]"),
    ],
)  # fmt: skip
def test_structured_content_that_is_not_what_was_promised_is_left_out_and_the_text_stays(
    structured: Any, text: str, said: str
) -> None:
    result = {"content": [{"type": "text", "text": text}] if text else [], "structuredContent": structured}
    assert output(result, PROMISED).text.startswith(said)


def test_a_failure_need_not_be_what_was_promised() -> None:
    with pytest.raises(ToolFault, match=r"^no such number$"):
        output({"content": ["no such number"], "isError": True}, PROMISED)


def test_more_parts_than_are_taken_are_counted() -> None:
    text = output({"content": [{"type": "text", "text": "x"}] * 250}).text
    assert text.splitlines()[-1] == "[50 more parts of the result are left out]"
    assert text.count("x\n") == 200


def test_a_part_of_an_unknown_type_is_cut_and_a_deep_one_written() -> None:
    assert output(block(type="file", data="x" * 10_000)).text.splitlines()[1].endswith("characters more]")
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    assert output({"structuredContent": {"a": deep}}).text == orjson.dumps({"a": deep}).decode()
