"""Pages from transcripts made by hand: their bounds, and what hostile text becomes."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host import Transcript
from agent_host.clients.markdown import MOST_BYTES, code_span, fenced, session_markdown
from agent_host.display_text import escape, one_line
from agent_host.host.records import StoredSession
from agent_host.session.patches import FilePatch
from agent_host.session.transcript import Doubt, Picture, Wait
from agent_host.view import (
    ENDS,
    MOST_OF_ONE,
    Budget,
    coloured_html,
    list_body,
    rows_of_edits,
    rows_of_patch,
    sessions_page,
)
from agent_host.view.session import session_body, session_page, session_values
from agent_host.view.timeline import WIDTH, draw
from tests.support.page_sessions import HOSTILE

ROW = StoredSession("s", "TASK_COMPLETED", "Title", "Prompt", 1, 10, "2026-01-01T00:00:00Z", "/w", None,
                    ending={"verdict": "completed", "endedBy": "model", "retryable": False})  # fmt: skip


def at(second: float) -> str:
    return f"2026-01-01T{int(second) // 3600:02}:{int(second) // 60 % 60:02}:{second % 60:06.3f}Z"


def transcript(items: list[Any], **more: Any) -> Transcript:
    steps = {item["stepId"]: item["step"] for item in items if "step" in item}
    rows = [{"step": step, "stepId": step_id, "model": "m", "inputTokens": 9, "outputTokens": 1, "cost": 0.01}
            for step_id, step in steps.items()]  # fmt: skip
    made = Transcript(ROW, items, rows, [], [], None, [], lambda: iter(()), lambda _: None, list)
    return made._replace(**more)


def call(number: int, output: str, **more: Any) -> dict[str, Any]:
    return {
        "itemId": f"c{number}", "kind": "call", "timestamp": at(number), "stepId": f"s{number}", "step": number,
        "toolName": "RunCommand", "arguments": {"command": "make"}, "status": "succeeded", "output": output, **more,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * MOST_OF_ONE, '"' * MOST_OF_ONE, "\x1b" * MOST_OF_ONE, "漢" * 2000, "<&'" * 200])
def test_a_page_of_2000_steps_has_at_most_4_mb(text: str) -> None:
    items = [call(number, text, arguments={"command": text}) for number in range(1, 2001)]
    assert len(session_page(transcript(items), state_dir="/s")) <= 4_000_000


def test_what_failed_is_shown_before_what_went_well() -> None:
    items = [call(number, f"{number}: " + "x" * 8000) for number in range(1, 600)]
    items += [call(600, "600: " + "y" * 8000, status="failed", code="TOOL_EXECUTION_FAILED")]
    page = session_page(transcript(items), state_dir="/s").decode()
    assert "y" * 8000 in page
    assert page.count("x" * 8000) < 599
    assert "agent-host show s --state-dir /s --html FILE --full" in page
    assert session_page(transcript(items), state_dir="/s", full=True).decode().count("x" * 8000) == 599


def test_pictures_have_room_of_their_own() -> None:
    def pictures() -> Any:
        yield from (Picture("c1", "image/png", 4, 3, "QUFB" * 300_000) for _ in range(6))
        yield Picture("c1", "text/html", 4, 3, "QUFB")
        yield Picture("c1", "image/png", 4, 3, '"><script>')

    items = [call(1, "", images=[{"mediaType": "image/png", "width": 4, "height": 3, "bytes": 9}])]
    made = transcript(items, pictures=pictures)
    assert session_page(made, state_dir="/s").count(b"<img ") == 3
    assert session_page(made, state_dir="/s", full=True).count(b"<img ") == 6


def test_ids_of_a_model_make_no_ids_of_the_page() -> None:
    items = [
        {**call(1, ""), "itemId": "steps"},
        {**call(2, ""), "itemId": '"><img src=x>'},
        {**call(3, ""), "itemId": "a b"},
    ]
    ids = [item.id for group in session_values(transcript(items), state_dir="/s")["groups"] for item in group.items]
    assert ids[0] == "item-steps"
    assert all(re.fullmatch(r"item-x[0-9a-f]{16}", one) for one in ids[1:])


class Skeleton(HTMLParser):
    """The elements of a page with the names of their attributes; no text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        values = dict(attrs)
        self.found.append((tag, tuple(sorted(values))))
        assert not any(name.startswith("on") or name == "style" for name in values), values
        for name in ("href", "src"):
            assert re.match(r"$|#|/s/|data:image/png;base64,|pages/s\.html$", values.get(name) or ""), values


def pages_with(text: str) -> list[list[tuple[str, tuple[str, ...]]]]:
    """What all pages consist of with this text in every place that somebody else fills."""
    text = f"{text} x"  # so that a text of blanks is none too
    items = [
        call(1, text, toolName=text, arguments={"command": text, text: text}, rule=text, decision="ALLOWED",
             riskLevel=text, sandboxLevel=text, denials=[text], pathsChanged=[text], summary=text,
             coloured={"stdout": text}, images=[{"mediaType": text, "width": 1, "height": 1, "bytes": 1}],
             approval={"approvalId": text, "decision": "approved", "scope": text, "reason": text, "answeredBy": text}),
        call(2, text, toolName=text, status="denied", code=text, message=text, rule=text,
             approval={"decision": "denied", "scope": "once", "reason": text, "replay": {"command": text}}),
        {"itemId": "m", "kind": "mark", "timestamp": at(3), "mark": "llm_retry", "reason": text, "message": text,
         "text": text, "summary": text, "sandbox": {"level": text}},
        {"itemId": "u", "kind": "message", "timestamp": at(4), "role": "user", "text": text},
        {"itemId": "a", "kind": "message", "timestamp": at(5), "role": "assistant", "text": text},
    ]  # fmt: skip
    row = ROW._replace(title=text, prompt=f"{text} more", workspace=text, reason=text, resumable=True,
                       ending={"verdict": "failed", "endedBy": text, "retryable": False},
                       usage={"inputTokens": 1, "outputTokens": 1, "cost": 1.0, "costCurrency": text})  # fmt: skip
    question = {"approvalId": text, "title": text, "actionSummary": text, "riskLevel": text, "details": {text: text}}
    made = transcript(
        items, row=row, questions=[question], sandbox={"level": text, "why": text},
        waits=[Wait("model", at(0), at(1), text, "c1"), Wait("tool", at(1), at(2), text, "c1")],
        doubts=[Doubt("interrupted", text, "c1"), Doubt("not_delivered", text)],
        files=lambda: [FilePatch(text, "modified", f"@@ -1 +1 @@\n-{one_line(text)}\n+{one_line(text)}\n", 1, 1, text)],
    )  # fmt: skip
    body = session_body(made, state_dir="/s", can_approve=True)
    parts = [*body["parts"].values(), *(html for _, html in body["steps"])]
    parts += list_body([row], {"s"}, state_dir="/s")["parts"].values()
    parts += [session_page(made, state_dir="/s", full=True).decode()]
    parts += [sessions_page([row], state_dir="/s", folder=name).decode() for name in ("pages", None)]
    return [Skeleton(part).found for part in parts]


@pytest.mark.slow
def test_no_text_of_a_session_changes_what_a_page_consists_of() -> None:
    plain = pages_with("plain")
    assert sum(map(len, plain)) > 400
    coloured = re.compile(r"\x1b\[[0-9;:]*m")
    for text in HOSTILE:
        if coloured.search(text) is None:  # colours are elements of their own
            assert pages_with(text.replace("\n", " ").replace("\r", " ")) == plain, text


def test_a_list_is_of_metadata_and_what_waits_comes_first() -> None:
    rows = [ROW._replace(session_id=name) for name in ("a", "b")] + [ROW._replace(session_id="c", resumable=True,
            ending={"verdict": "interrupted", "endedBy": "infrastructure", "retryable": True})]  # fmt: skip
    body = list_body(rows, {"b"}, state_dir="/s")
    assert re.findall(r'id="row-(\w)"', body["parts"]["more"]) == ["b", "c", "a"]
    assert body["title"] == "(1) 3 sessions"
    assert b"Prompt" not in sessions_page(rows, state_dir="/s", folder=None)


# Timelines


def test_a_night_between_two_processes_is_drawn_short() -> None:
    waits = [
        Wait("model", at(0), at(5), "m"),
        Wait("process", at(5), at(50_000)),
        Wait("tool", at(50_000), at(50_005), "t"),
    ]
    drawn = draw(waits, [], {})
    assert drawn is not None
    model, tool = (next(bar for bar in drawn.bars if bar.kind == kind) for kind in ("model", "tool"))
    assert model.width > 400
    assert tool.width > 400
    assert {gap["kind"] for gap in drawn.gaps} == {"idle", "away"}


SECONDS = st.floats(0, 80_000, allow_nan=False)


@given(
    st.lists(st.tuples(st.sampled_from(["model", "tool", "person", "slot", "service", "process"]), SECONDS, SECONDS))
)
def test_any_waits_stay_in_the_drawing(spans: list[tuple[Any, float, float]]) -> None:
    waits = [Wait(on, at(min(one, two)), at(max(one, two))) for on, one, two in spans]
    drawn = draw(waits, [], {})
    if drawn is not None:
        for bar in drawn.bars:
            assert 0 <= bar.x <= WIDTH
            assert bar.x + bar.width <= WIDTH + 1.01
        assert all(0 <= place <= WIDTH for place, _ in drawn.ticks)


# Text


TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
SGR = st.from_regex(r"\x1b\[[0-9;:]{0,12}m", fullmatch=True)


@given(st.lists(st.one_of(TEXT, SGR), max_size=12))
def test_colours_change_no_text(parts: list[str]) -> None:
    text = "".join(parts)
    shown = str(coloured_html(text))
    plain = escape(re.sub("\x1b\\[[0-9;:]*m", "", text))
    assert html.unescape(re.sub(r"</?span[^>]*>", "", shown)) == html.unescape(html.escape(plain))
    assert re.fullmatch(r'(?s)(?:[^<>]|<span class="[a-z0-9 -]+">|</span>)*', shown)


@given(TEXT)
def test_a_text_is_whole_or_its_ends_are_short(text: str) -> None:
    shown = Budget().fit(text * 100)
    assert bool(shown.cut_from) == (len((text * 100).encode()) > MOST_OF_ONE)
    if shown.cut_from:
        assert len(shown.html) <= ENDS
        assert len(shown.tail) <= ENDS


@given(st.lists(st.one_of(TEXT, st.from_regex(r"[-+ @\\]{1,3}.{0,20}")), max_size=30))
def test_any_patch_has_rows(lines: list[str]) -> None:
    for row in rows_of_patch("\n".join(lines)):
        assert escape(row.left + row.right) == row.left + row.right


def test_a_patch_stands_side_by_side() -> None:
    rows = rows_of_patch("--- a\n+++ b\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n+and a half\n three\n")
    assert [(row.kind, row.old, row.left, row.new, row.right) for row in rows[1:]] == [
        ("same", "1", "one", "1", "one"), ("change", "2", "two", "2", "TWO"), ("add", "", "", "3", "and a half"),
        ("same", "3", "three", "4", "three"),
    ]  # fmt: skip
    edits = {"edits": [{"oldText": "a\nb\n", "newText": "a\nc\n"}, {"oldText": 1}, None]}
    assert [(row.kind, row.left, row.right) for row in rows_of_edits(edits)][:2] == [
        ("same", "a", "a"),
        ("change", "b", "c"),
    ]


@given(TEXT)
def test_code_ends_where_it_should(text: str) -> None:
    span = code_span(text)
    ticks = re.match("`*", span)
    assert ticks is not None
    assert span == "" or span.count(ticks[0]) == 2
    first, *lines, last = fenced(text)
    assert first == f"{last}text"
    assert not any(last in line for line in lines)


def test_markdown_fits_into_a_comment() -> None:
    items = [call(number, "x" * 9000, exitCode=1) for number in range(1, 300)]
    shown = session_markdown(transcript(items))
    assert len(shown.encode()) <= MOST_BYTES
    assert "more steps are not shown." in shown


def test_markdown_of_a_conversation_is_whole() -> None:
    asks = [
        {"itemId": f"m{number}", "kind": "message", "role": "user", "timestamp": at(number), "text": text}
        for number, text in enumerate(("Title", "And now?"))
    ]
    resumed = {"itemId": "r", "kind": "mark", "timestamp": at(2), "mark": "session_resumed"}
    items = [asks[0], call(1, "x" * 90_000), resumed, call(1, "", status="failed", code="TIMEOUT"), asks[1]]
    shown = session_markdown(transcript(items), whole=True)
    assert "x" * 90_000 in shown
    assert shown.index("Step 1: 1 call, 9 tokens in") < shown.index("resumed") < shown.index("TIMEOUT")
    assert shown.count("9 tokens in") == 1
    assert shown.rstrip().endswith("**You**\n\n```text\nAnd now?\n```")
    assert "x" * 9000 not in session_markdown(transcript(items))
