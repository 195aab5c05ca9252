"""What a call stored is read back by its reference: in this session, in a resumed one, and in no other."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, bundle, call, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway

LINES = "for i in $(seq 1 5000); do echo line $i of a long output; done"
BEFORE = (say("Of the task before."), say("Of the task before."))
REF = re.compile(r"storage_ref: (artifacts/[\w-]+)")


def read(ref: str, **more: Any) -> dict[str, Any]:
    return call("ReadOutput", ref=ref, **more)


def ref_of(host: Host, session_id: str) -> str:
    """The only output that the session stored."""
    (found,) = (path for path in (host.records(session_id) / "artifacts").iterdir() if path.name.startswith("art_"))
    return f"artifacts/{found.name}"


def stored(host: Host, *, session_id: str = "mine", policy: Any = "full") -> str:
    """A session that printed much, paused so that it can be resumed; its reference."""
    with gateway(use(shell(LINES)), say("Done.")) as model:
        assert host.task(model.url, "--session-id", session_id, policy=policy).code == 0
        assert REF.search(model.results()[0].text) is not None
    return ref_of(host, session_id)


def answers(host: Host, model: Gateway, *options: str) -> list[Any]:
    assert host.run("resume", "mine", "More.", "--gateway", model.url, "--output", "json", *options).code == 0
    return list(model.results())


def test_lines_and_matches_are_read_back_after_a_resume(host: Host) -> None:
    ref = stored(host)
    asked = use(
        read(ref, offset=4000, limit=2), read(ref, pattern="line 49[0-9]7 "), read(ref, offset=9999),
        read(ref, pattern="("), read(ref, pattern="line", offset=3, limit=1),
    )  # fmt: skip
    with gateway(*BEFORE, asked, say("Done.")) as model:
        window, matches, behind, wrong, second = answers(host, model)
    assert window.text.splitlines() == [
        "line 4000 of a long output", "line 4001 of a long output", "[2 lines shown; offset: 4002 goes on]",
    ]  # fmt: skip
    assert matches.text.splitlines()[0] == "4907: line 4907 of a long output"
    assert len(matches.text.splitlines()) == 10
    assert behind.text == "[No more lines in 5000 lines]\n"
    assert (wrong.is_error, wrong.text.startswith("INVALID_REQUEST: $.pattern")) == (True, True)
    assert second.text.splitlines()[0] == "3: line 3 of a long output"


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("ref", ["artifacts/art_0000000000000000", "artifacts/../index.jsonl", "x"])
def test_other_references_are_refused(host: Host, ref: str) -> None:
    stored(host)
    other = stored(host, session_id="other")
    with gateway(*BEFORE, use(read(ref), read(other)), say("Done.")) as model:
        for answer in answers(host, model):
            assert answer.is_error
            assert "this session has stored nothing under" in answer.text


def test_it_needs_what_the_call_needed(host: Host) -> None:
    policy = host.root / "policy.json"
    ref = stored(host, policy=host.policy())
    policy.write_text(json.dumps(bundle(host.workspace, without=("Shell.Exec",))))
    with gateway(*BEFORE, use(read(ref)), say("Done.")) as model:
        (answer,) = answers(host, model, "--policy", str(policy))
    assert answer.is_error
    assert answer.text.startswith("CAPABILITY_DENIED")
