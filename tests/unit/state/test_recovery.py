"""What a resume does with each call; which boot this is; where things lie."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import InvalidSessionId, SessionPaths, check_session_id, default_state_dir
from state.checkpoint import OpenCall
from state.disk import boot_id
from state.loading import ResumeVerdict, judge
from tests.support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from state.checkpoint import Intent

INTENT: Intent = {"path": "/f", "before": None, "after": "h"}


def call(*, side_effects: bool, gated: bool, started: bool, intent: bool, result: bool) -> OpenCall:
    made = OpenCall("c", "WriteFile", {}, side_effects)
    made.gated, made.started = gated, started
    made.intent = INTENT if intent else None
    made.result = b"{}" if result else None
    return made


# Of calls with side effects and without a result: (gated, started, same boot) -> may it have begun?
MAY_HAVE_BEGUN = {
    (False, False, False): True,  # its start record may have been lost with the machine
    (False, False, True): False,
    (False, True, False): True,
    (False, True, True): True,
    (True, False, False): False,  # that start record is synced
    (True, False, True): False,
    (True, True, False): True,
    (True, True, True): True,
}


@each_row(
    ("side_effects", "gated", "started", "intent", "result", "same_boot"),
    list(itertools.product([False, True], repeat=6)),
)
def test_every_call_has_its_verdict(
    *, side_effects: bool, gated: bool, started: bool, intent: bool, result: bool, same_boot: bool
) -> None:
    if result:
        expected = ResumeVerdict.REUSE
    elif not side_effects or not MAY_HAVE_BEGUN[gated, started, same_boot]:
        expected = ResumeVerdict.RUN
    else:
        expected = ResumeVerdict.COMPARE if intent else ResumeVerdict.INTERRUPTED
    made = call(side_effects=side_effects, gated=gated, started=started, intent=intent, result=result)
    assert judge(made, same_boot=same_boot) is expected


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own file")
def test_the_boot_has_one_id() -> None:
    with open("/proc/sys/kernel/random/boot_id") as handle:
        assert boot_id() == handle.read().strip()
    assert boot_id() is boot_id()


def test_everything_of_a_session_lies_below_the_state_directory(tmp_path: Path) -> None:
    paths = SessionPaths(str(tmp_path), "a-Z_9")
    assert {name: os.path.relpath(getattr(paths, name), tmp_path) for name in LAYOUT} == LAYOUT


LAYOUT = {
    "checkpoints": "checkpoints",
    "snapshot": "checkpoints/a-Z_9.json",
    "journal": "checkpoints/a-Z_9.journal",
    "lock": "checkpoints/a-Z_9.lock",
    "records": "sessions/a-Z_9",
    "events": "sessions/a-Z_9/events.jsonl",
    "artifacts": "sessions/a-Z_9/artifacts",
    "blobs": "sessions/a-Z_9/blobs",
}


@each_row(
    "hostile",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "a\0",
        "a\n",
        "a.b",
        "a b",
        "é",
        "１",
        "C:x",
        "~",
        "a" * 129,
        "*",
    ],
)
def test_a_hostile_id_touches_no_path(hostile: str) -> None:
    with pytest.raises(InvalidSessionId) as caught:
        SessionPaths("/nowhere", hostile)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=140))
def test_only_plain_ids_pass(text: str) -> None:
    plain = 1 <= len(text) <= 128 and all(char.isascii() and (char.isalnum() or char in "_-") for char in text)
    try:
        assert check_session_id(text) == text
        assert plain
    except InvalidSessionId:
        assert not plain


@pytest.mark.parametrize("longest", ["a" * 128, "-", "_", "sess_0f"])
def test_plain_ids_pass(longest: str) -> None:
    assert check_session_id(longest) == longest


def test_the_state_directory_is_chosen_by_the_environment(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("AGENT_HOST_STATE_DIR", raising=False)
    assert default_state_dir().startswith(str(tmp_path))
    assert default_state_dir().endswith("agent-host")
    monkeypatch.setenv("AGENT_HOST_STATE_DIR", "~/state")
    assert default_state_dir() == str(tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_HOST_STATE_DIR", "relative")
    assert default_state_dir() == str(tmp_path / "relative")


@pytest.mark.parametrize("chosen", [None, "", "  ", "/data"])
def test_without_a_choice_the_state_lies_where_the_platform_says(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import platformdirs

    monkeypatch.delenv("AGENT_HOST_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    if chosen is not None:
        monkeypatch.setenv("XDG_DATA_HOME", chosen)
    assert default_state_dir() == platformdirs.user_data_dir("agent-host", appauthor=False)
