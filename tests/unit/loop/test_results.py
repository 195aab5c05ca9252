"""A call's result: what is on record of it, what the model reads, what observers are told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.contracts import Artifact, ToolError, ToolResult
from agent_host.events import EventType
from agent_host.judging import PreparedCall, Refusal
from agent_host.loop import conversation
from agent_host.loop.results import Observations, add_note, finish, refused_result, text_of
from agent_host.thread.messages import decode, message_tokens
from state.blobs import sha256_hex
from tests.support.loop_crashes import died, open_calls
from tests.support.loop_parts import Home, shell
from tests.support.pictures import image
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import Image
    from agent_host.services.workspace import ArtifactOnDisk
    from agent_host.thread.messages import Message
    from tests.support.loop import Loop


@pytest.fixture
async def loop(tmp_path: Path) -> Loop:
    """A step with one open call."""
    loop = await died(tmp_path, shell("make", "c"), secrets=("s3cret-value",))
    loop.ctx.step_id = "st"
    return loop


def told(loop: Loop) -> dict[str, Any]:
    (payload,) = loop.told(EventType.TOOL_COMPLETED)
    return payload


CALL = PreparedCall(shell("make", "c"), TOOLS["RunCommand"])


def gave(text: str = "out", **fields: Any) -> ToolResult:
    """What a tool gave."""
    return ToolResult("RunCommand", "s", "t", "st", "succeeded", text, **fields)


def failed(code: str, message: str) -> ToolResult:
    return ToolResult("RunCommand", "s", "t", "st", "failed", error=ToolError(code, message))


async def test_a_good_result(loop: Loop) -> None:
    uris = ("workspaces/w/artifacts/a",)
    started = time.monotonic()
    message = await finish(loop.ctx, CALL, gave("fine", artifact_uris=uris), Observations(started, "then"))
    assert (message.role, message.content, message.tool_call_id, message.is_error) == ("tool", "fine", "c", False)
    assert message.tokens == message_tokens(loop.ctx.conversation.count, "fine")
    (call,) = open_calls(loop)
    assert (call.status, call.code, call.replay) == ("succeeded", None, None)
    assert call.result is not None
    assert decode(call.result) == message
    assert loop.ctx.state.artifact_uris == {"c": list(uris)}
    sent = orjson.loads(call.result)
    assert (sent["sessionId"], sent["taskId"], sent["stepId"]) == ("s", "t", "st")
    assert told(loop) == {
        "toolCallId": "c", "toolName": "RunCommand", "status": "succeeded", "startedAt": "then",
        "artifactUris": list(uris), "outputBytes": 4, "outputSha256": sha256_hex(b"fine"), "output": "fine",
        "latencyMs": told(loop)["latencyMs"],
    }  # fmt: skip
    assert loop.watcher.events[-1].step_id == "st"
    assert loop.kept().open_step == loop.ctx.state.open_step, "it is on record at once"


async def test_colours_are_on_record_without_secrets_and_not_for_the_model(loop: Loop) -> None:
    records = loop.watch_records()
    coloured = {"stdout": "\x1b[31mred\x1b[0m s3cret-value", "stderr": "\x1b[31ms3cret\x1b[0m-value"}
    message = await finish(loop.ctx, CALL, gave("red", coloured=coloured))
    assert message.content == "red"
    ((kind, fields),) = records
    assert kind == "call_finished"
    assert fields["coloured"].keys() == {"stdout"}, "colours cut the secret of the other stream in two"
    assert fields["coloured"]["stdout"].startswith("\x1b[31mred\x1b[0m ")
    assert "s3cret" not in fields["coloured"]["stdout"]
    assert loop.kept().open_step == loop.ctx.state.open_step


async def test_a_denial_that_can_be_replayed(loop: Loop) -> None:
    refusal = Refusal("denied", "APPROVAL_REQUIRED", "ask", approve="rule")
    result = refused_result(loop.ctx, CALL.call, refusal)
    message = await finish(loop.ctx, CALL._replace(refusal=refusal), result)
    assert message.is_error
    (call,) = open_calls(loop)
    assert (call.status, call.code) == ("denied", "APPROVAL_REQUIRED")
    assert call.replay == {"callId": "c", "approve": "rule"}
    assert (told(loop)["code"], told(loop)["latencyMs"]) == ("APPROVAL_REQUIRED", 0)
    assert told(loop).keys().isdisjoint({"startedAt", "artifactUris"})


async def test_what_the_model_reads_holds_no_secret_and_can_be_encoded(loop: Loop) -> None:
    message = await finish(loop.ctx, CALL, gave("s3cret-value in \ud800"))
    assert message.content == "[redacted] in ?"
    (call,) = open_calls(loop)
    assert b"s3cret-value" not in (call.result or b"")
    assert told(loop)["outputSha256"] == sha256_hex(b"[redacted] in ?")


@pytest.mark.parametrize(
    ("output", "error", "text"),
    [
        (None, None, ""),
        ("", None, ""),
        ("out", None, "out"),
        (None, ToolError("X", "bad"), "X: bad"),
        ("", ToolError("X", "bad"), "X: bad"),
        ("out", ToolError("X", "bad"), "X: bad\nout"),
    ],
)
def test_the_text_of_a_result(output: str | None, error: ToolError | None, text: str) -> None:
    assert text_of(ToolResult("RunCommand", "s", "t", "st", "failed", output, error=error)) == text


@pytest.mark.parametrize(
    ("text", "behind", "before"),
    [
        ('{"a": 1.0}', '{"a": 1.0,"note":"n [x]"}', '{"a": 1.0,"note":"n [x]"}'),
        ("{ }\n", '{"note":"n [x]"}', '{"note":"n [x]"}'),
        ('{"note":"own"}', '{"note":"own\\nn [x]"}', '{"note":"own\\nn [x]"}'),
        ('{"note":5}', '{"note":5,"hostNote":"n [x]"}', '{"note":5,"hostNote":"n [x]"}'),
        ('{"a": "cut he', '{"a": "cut he\n[n [x]]', '[n [x]]\n{"a": "cut he'),
        ("ERROR: no", "ERROR: no\n[n [x]]", "[n [x]]\nERROR: no"),
    ],
)
def test_json_with_a_note_stays_json(text: str, behind: str, before: str) -> None:
    spec, plain = TOOLS["RunCommand"], TOOLS["ReadFile"]
    has_json = spec._replace(output_schema={"type": "object"})
    assert add_note(has_json, text, "\n[n [x]]") == behind
    assert add_note(has_json, text, "[n [x]]\n", first=True) == before
    assert add_note(plain, text, "\n[n [x]]") == f"{text}\n[n [x]]"
    assert add_note(has_json, text, "") == text


async def test_events_carry_the_start_of_a_long_output_and_name_where_the_rest_is(loop: Loop) -> None:
    text = "ä" * 5000
    await finish(loop.ctx, CALL, gave(text, exit_code=3), Observations(paths=["/w/a"]))
    payload = told(loop)
    assert (payload["output"], payload["itemId"]) == ("ä" * 4096, "c")
    assert (payload["exitCode"], payload["pathsChanged"]) == (3, ["/w/a"])
    assert "message" not in payload


async def test_a_failure_says_why_in_one_line(loop: Loop) -> None:
    await finish(loop.ctx, CALL, failed("FILE_NOT_FOUND", "no such file\nmore"))
    assert told(loop)["message"] == "no such file"


async def test_a_secret_at_the_cut_of_the_reason_shows_no_half(loop: Loop) -> None:
    await finish(loop.ctx, CALL, failed("X", f"{'a' * 994}s3cret-value"))
    assert told(loop)["message"].endswith("a[redac")


async def test_how_stderr_began_is_told_without_secrets(loop: Loop) -> None:
    """NT: its first 1 KiB. A secret at the cut shows no half."""
    await finish(loop.ctx, CALL, gave(exit_code=1, stderr="e" * 1018 + "s3cret-value and more"))
    assert told(loop)["stderr"] == "e" * 1018 + "[redac"
    assert told(loop)["exitCode"] == 1


async def test_what_was_kept_is_told_by_which_output_it_is(loop: Loop) -> None:
    class Small(Home):
        """A disk that is full after the first artifact."""

        async def keep(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> ArtifactOnDisk:
            self.full = self.held != {}
            return (await super().keep(artifact, task_id=task_id, step_id=step_id))._replace(sha256="ab")

    loop.ctx.artifacts = loop.ctx.artifacts._replace(home=Small(), elsewhere=False)
    streams = [Artifact("tool_output", part, "text/plain", b"x", part=part) for part in ("stdout", "stderr")]
    await finish(loop.ctx, CALL, gave(artifacts=tuple(streams)))
    payload, ref = told(loop), "artifacts/art_0"
    assert (payload["storedParts"], payload["storedSha256"]) == ({"stdout": ref}, {ref: "ab"})
    assert (payload["storageRefs"], payload["artifactUris"]) == ([ref], [f"workspaces/w/{ref}"])


async def read(loop: Loop, *images: Image) -> Message:
    return await finish(loop.ctx, CALL, gave(images[0].text, images=images))


async def test_a_picture_is_on_record_and_only_named_to_observers(loop: Loop) -> None:
    picture = image(640, 480, 1000)
    message = await read(loop, picture)
    assert message.images == (picture,)
    assert message.tokens == message_tokens(loop.ctx.conversation.count, picture.text) + 410
    (call,) = open_calls(loop)
    assert call.result is not None
    assert decode(call.result) == message
    payload = told(loop)
    assert (payload["images"], payload["output"]) == ([picture.text], picture.text)
    assert "data" not in orjson.dumps(payload).decode()


async def test_a_picture_is_not_kept_for_a_model_that_takes_none(loop: Loop) -> None:
    loop.ctx.conversation.takes_images = False
    message = await read(loop, image())
    assert (message.content, message.images) == (f"{image().text}; this model takes no images", ())
    assert "images" not in told(loop)


async def test_a_session_keeps_so_many_bytes_of_pictures(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_KEPT_BYTES", 1500)
    talk, first, second = loop.ctx.conversation, image(4, 3, 800), image(4, 3, 900)
    assert talk.keep_images([first]) is None
    said = talk.keep_images([second])
    assert said is not None
    assert said.startswith("not shown: this session has")
    assert talk.open_picture_bytes == len(first.data)
