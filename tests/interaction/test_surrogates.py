"""Halves of characters in what a model says: the task goes on with U+FFFD, and tells of it once an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.streaming import once, streaming

if TYPE_CHECKING:
    from tests.support.process import Host

CALL = r'{"path": "PATH", "content": "a\ud83d\ude00b\ud800c\\ud800"}'


def event(kind: str, fields: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}",{fields}}}\n\n'


def delta(index: int, kind: str, name: str, encoded: str) -> str:
    return event("content_block_delta", f'"index":{index},"delta":{{"type":"{kind}","{name}":{encoded}}}')


def answer(*blocks: str, stop: str) -> bytes:
    """The events of one answer; `blocks` are JSON as it goes over the wire, escapes and all."""
    usage = '"usage":{"input_tokens":10,"output_tokens":5}'
    start = event("message_start", f'"message":{{{usage}}}')
    end = event("message_delta", f'"delta":{{"stop_reason":"{stop}"}},{usage}') + event("message_stop", '"x":1')
    return "".join([start, *blocks, end]).encode()


def text(index: int, *encoded: str) -> str:
    start = event("content_block_start", f'"index":{index},"content_block":{{"type":"text","text":""}}')
    return start + "".join(delta(index, "text_delta", "text", one) for one in encoded)


def call(index: int, call_id: str, name: str, *parts: str) -> str:
    block = f'{{"type":"tool_use","id":"{call_id}","name":"{name}","input":{{}}}}'
    start = event("content_block_start", f'"index":{index},"content_block":{block}')
    pieces = "".join(delta(index, "input_json_delta", "partial_json", json.dumps(part)) for part in parts)
    return start + pieces + event("content_block_stop", f'"index":{index}')


def test_halves_of_characters_do_not_stop_a_task(host: Host) -> None:
    arguments = CALL.replace("PATH", str(host.workspace / "out.txt"))
    cut = arguments.index(r"\ude00")
    first = answer(
        text(0, r'"Hi \ud83d"', r'"\ude00, \ud800you\udc00"'),
        call(1, r"c\ud800", "WriteFile", arguments[:cut], arguments[cut:]),
        call(2, "d", r"No\udfffTool", "{}"),
        stop="tool_use",
    )
    last = answer(text(0, r'"Done \ud83d"'), stop="end_turn")
    with streaming(once(first), once(last)) as model:
        outcome = host.start(
            "run", "Do it.", "--gateway", model.url, "--policy", "full", "--output", "jsonl", "--session-id", "s"
        ).finish()
        *_, said, results = json.loads(model.requests[1])["messages"]
    assert outcome.code == 0, outcome
    assert (host.workspace / "out.txt").read_text() == "a😀b\ufffdc\\ud800"

    told = [one for one in host.event_log("s") if one["eventType"] == "llm_answer_repaired"]
    assert [(one["severity"], one["payload"]["count"]) for one in told] == [("warning", 5), ("warning", 1)]
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    result = json.loads((host.records("s") / "result.json").read_bytes())
    assert (result["status"], result["text"]) == ("TASK_COMPLETED", "Done \ufffd")
    shown = "".join(line["payload"]["text"] for line in lines if line.get("eventType") == "text_chunk")
    assert shown == "Hi 😀, \ufffdyou\ufffdDone \ufffd"

    history = host.history("s")
    assert history[2]["content"] == "Hi 😀, \ufffdyou\ufffd"
    assert [one["name"] for one in history[2]["toolCalls"]] == ["WriteFile", "No\ufffdTool"]
    assert said["content"][1]["id"] == results["content"][0]["tool_use_id"]
    assert said["content"][1]["id"].isascii(), "a gateway takes back only ids of plain letters"


def test_a_person_reads_of_it_once(host: Host) -> None:
    with streaming(once(answer(text(0, r'"\ud800 and \ud800"'), stop="end_turn"))) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full")
    assert (outcome.code, outcome.text) == (0, "\ufffd and \ufffd\n")
    outcome.names_once("warning", "halves of characters", "2")
