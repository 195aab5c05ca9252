"""Paths of tools that are relative to the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.process import call, gateway, say, use

if TYPE_CHECKING:
    from tests.support.process import Host


@pytest.mark.slow
def test_every_tool_takes_paths_relative_to_the_workspace(host: Host) -> None:
    (host.workspace / "old.txt").write_text("old\n")
    turns = (
        use(call("WriteFile", path="new/a.txt", content="new\n")),
        use(call("ReadFile", path="new/../new/a.txt"), call("RunCommand", command="cat a.txt", cwd="new")),
        use(call("UploadArtifact", path="new/a.txt"), call("DeleteFile", path="old.txt")),
        use(call("ReadFile", path="../../../../../../../../etc/shadow")),
    )
    with gateway(*turns, say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(grants={"Workspace.Upload": {}}))
        read, ran = model.results(2)
    assert read.text == "new\n"
    assert "--- stdout ---\nnew\n" in ran.text
    assert [row["status"] for row in outcome.result["toolCalls"]] == ["succeeded"] * 5 + ["denied"]
    assert (host.workspace / "new" / "a.txt").read_text() == "new\n"
    assert not (host.workspace / "old.txt").exists()
    new, old = str(host.workspace / "new" / "a.txt"), str(host.workspace / "old.txt")
    assert outcome.result["filesChanged"] == [new, old]
