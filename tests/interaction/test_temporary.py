"""The temporary directory of a session as its commands and its user meet it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.process import Host, call, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

DOWN = {"status": 500, "times": "always"}


def own(host: Host) -> list[Path]:
    return sorted(host.temporary.iterdir())


@pytest.mark.slow
def test_commands_and_tools_share_it_and_it_goes_with_the_session(host: Host) -> None:
    line = 'echo "$TMPDIR"; stat -c %a "$TMPDIR"; f=$(mktemp); echo "${f%/*}"'
    with gateway(use(shell(line)), say("Done.")) as model:
        outcome = host.task(model.url, "--session-id", "s1")
        (answer,) = model.results()
    assert outcome.code == 0
    place = re.escape(f"{host.temporary}/agent-host-s1-") + "[0-9a-f]{8}"
    assert re.search(rf"^({place})\n700\n\1$", answer.text, re.MULTILINE), answer.text
    assert own(host) == []


@pytest.mark.slow
def test_a_resume_has_the_same_and_makes_it_again(host: Host) -> None:
    first = use(shell("touch $TMPDIR/a"))
    with gateway(first, DOWN) as model:
        assert host.task(model.url, "--session-id", "s1").code == 3
    (folder,) = own(host)
    assert (folder / "a").exists()
    (host.root / "elsewhere").mkdir()
    with gateway(first, DOWN) as model:
        elsewhere = {"TMPDIR": str(host.root / "elsewhere")}
        assert host.run("resume", "--gateway", model.url, "s1", env=elsewhere).code == 3
    assert not list((host.root / "elsewhere").iterdir())
    assert (folder / "a").exists()
    (folder / "a").unlink()
    folder.rmdir()
    with gateway(first, use(shell("touch $TMPDIR/b; ls $TMPDIR")), say("Done.")) as model:
        assert host.resume("--gateway", model.url, "s1").code == 0
        assert "b" in model.results()[-1].text
    assert own(host) == []


@pytest.mark.slow
def test_what_stands_in_its_place_is_refused(host: Host) -> None:
    with gateway(DOWN) as model:
        assert host.task(model.url, "--session-id", "s1").code == 3
        (folder,) = own(host)
        folder.chmod(0o777)
        outcome = host.resume("--gateway", model.url, "s1")
        assert outcome.code == 2
        assert f"the session's temporary directory {folder}: a directory of its name is there" in outcome.error
        folder.rename(host.temporary / "aside")
        folder.symlink_to(host.temporary / "aside")
        outcome = host.resume("--gateway", model.url, "s1")
        assert outcome.code == 2
        assert "something other than a directory has its name" in outcome.error
        assert host.task("ftp://x", "--session-id", "s2").code == 2
    assert [path.name for path in own(host)] == sorted([folder.name, "aside"])


@pytest.mark.slow
def test_pruning_takes_it_away(host: Host) -> None:
    with gateway(DOWN) as model:
        assert host.task(model.url).code == 3
    assert len(own(host)) == 1
    assert host.run("sessions", "--prune", "--max-size", "1", "--resumable").code == 0
    assert own(host) == []


@pytest.mark.slow
def test_ci_writes_to_it_and_to_no_other_sessions(host: Host) -> None:
    other = host.temporary / "agent-host-other-00000000"
    other.mkdir(mode=0o700)
    (other / "secret").write_text("x")
    paths = [str(other / "secret"), str(host.temporary / "shared")]
    calls = [call("WriteFile", path=path, content="y") for path in paths] + [shell(f"echo y > {other}/b")]
    with gateway(use(*calls), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s1", policy="ci").code == 0
        answers = model.results()
    # The test's own temporary directory lies below the system's, which ci allows.
    assert "temporary directory of another session" in answers[0].text
    assert not answers[1].is_error
    assert "temporary directory of another session" in answers[2].text
    assert sorted(path.name for path in own(host)) == [other.name, "shared"]


@pytest.mark.slow
def test_lines_may_name_it_by_its_variable_where_a_list_decides(host: Host) -> None:
    calls = [shell('echo y > "$TMPDIR/a" && cat "$TMPDIR/a"')]
    with gateway(use(*calls), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s1", policy="ci").code == 0
        answers = model.results()
    assert not answers[0].is_error, answers[0].text


def test_a_denied_temporary_file_brings_its_name(host: Host) -> None:
    """Requests have only the variable, so that sessions of a workspace begin alike."""
    other = host.temporary / "x.txt"
    calls = [call("WriteFile", path=str(other), content="y"), call("ReadFile", path="/etc/passwd")]
    with gateway(use(*calls), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s1", policy="workspace").code == 0
        denied, elsewhere = model.results()
        assert str(host.temporary) not in str(model.bodies[0]["system"])
    assert re.search(rf"{host.temporary}/agent-host-s1-[0-9a-f]{{8}} ", denied.text), denied.text
    assert "temporary" not in elsewhere.text
