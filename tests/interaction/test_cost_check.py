"""`agent-host cost-check`: what recorded sessions cost, against a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.process import gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host

RECORDINGS = Path(__file__).resolve().parents[2] / "benchmarks" / "recordings"
KINDS = ("compaction", "debug", "edit", "long-output", "mcp", "parallel")


@pytest.mark.slow
def test_no_kind_of_session_costs_more_than_the_baseline(host: Host) -> None:
    scripts = [str(RECORDINGS / f"{kind}.toml") for kind in KINDS]
    done = host.run("cost-check", *scripts, "--baseline", str(RECORDINGS / "baseline.json"), "--output", "json")
    rows = json.loads(done.stdout)
    assert {row["name"]: row["isOver"] for row in rows} == dict.fromkeys(KINDS, False), rows
    assert done.code == 0
    # A baseline that is far above the costs would find nothing any more.
    assert all(row["tokenEquivalents"] > 0.9 * row["baseline"]["tokenEquivalents"] for row in rows), rows


@pytest.mark.slow
def test_a_session_is_measured_by_its_id_and_growth_is_seen(host: Host) -> None:
    with gateway(use(shell("echo one")), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 0
    baseline = host.root / "base.json"
    asked = ("cost-check", "s", "--workspace", str(host.workspace), "--baseline", str(baseline))
    assert host.run(*asked, "--write-baseline").code == 0
    same = host.run(*asked)
    assert (same.code, "(+0.0%" in same.text) == (0, True)
    rows = json.loads(baseline.read_text())
    rows["recordings"]["s"]["tokenEquivalents"] -= 100
    baseline.write_text(json.dumps(rows))
    grown = host.run(*asked, "--max-growth", "1%")
    assert (grown.code, grown.text.split()[0]) == (1, "over")
    assert host.run(*asked, "--max-growth", "50%").code == 0


def test_what_cannot_be_measured_is_said(host: Host) -> None:
    (host.root / "x.toml").write_text('[[turn]]\ntext = "Done."\n')
    script, baseline = str(host.root / "x.toml"), str(host.root / "base.json")
    for arguments, said in (
        ((script, "--baseline", baseline), "--write-baseline makes one"),
        ((script, script, "--baseline", baseline, "--write-baseline"), "two recordings have one name"),
        (("s", "--baseline", baseline, "--write-baseline"), "--workspace"),
        ((script, "--baseline", script, "--write-baseline"), "RECORDING is read from there"),
        (("none.toml", "--baseline", baseline, "--write-baseline"), "none.toml"),
        ((script, "--baseline", baseline, "--max-growth", "x"), "such as 2%"),
    ):
        outcome = host.run("cost-check", *arguments)
        assert (outcome.code, said in outcome.error) == (2, True), outcome
    assert host.run("cost-check", script, "--baseline", baseline, "--write-baseline").code == 0
    (host.root / "y.toml").write_text('[[turn]]\ntext = "Done."\n')
    other = host.run("cost-check", str(host.root / "y.toml"), "--baseline", baseline)
    assert (other.code, "has no y" in other.error) == (2, True)
