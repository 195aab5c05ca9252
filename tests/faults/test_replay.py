"""A denied call that is approved after all, and the process that dies on the way: it runs once, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interaction.test_replay import MADE, effects, replay_ids, run
from tests.interaction.test_replay import host as host
from tests.support.process import gateway, say, use

if TYPE_CHECKING:
    from tests.support.process import Host

# reopened, status, told, the turn, the answer, the start, the result, the commit; the model's last turn and its commit
RECORDS = 10
CRASH = "agent_host.faults.crash"


@pytest.mark.parametrize("number", range(1, RECORDS + 1))
def test_killed_after_a_record(host: Host, number: int) -> None:
    # Where the host's own turn was lost, its place is taken by one of the model's.
    with gateway(use(MADE), say("Could not."), say("Not yet."), *[say("Done now.")] * 3) as model:
        (known,) = replay_ids(run(host, model.url).result)
        options = ["resume", "s", "--output", "json"]
        crash = ["--after-record", str(number)]
        ended = host.start(*crash, *options, "--approve", known, program=CRASH).finish()
        assert ended.code == -9, ended
        ended = host.run(*options)
        if ended.code == 4:  # the approval was lost with the process: nothing was run, and it can be given again
            assert (effects(host), replay_ids(ended.result)) == ([], [known])
            ended = host.resume("s", "--approve", known)
    assert (ended.code, ended.result["text"]) == (0, "Done now.")
    if ended.result["toolCalls"][-1].get("code") == "TOOL_INTERRUPTED":  # killed between its start and its end
        assert number in (6, 7)
    else:
        assert effects(host) == ["made"]
    assert host.checkpoints() == []


@pytest.mark.parametrize("number", [2, 4, 5, 6, 7])
def test_the_same_command_again(host: Host, number: int) -> None:
    """Whoever restarts what has died gives the same options again."""
    with gateway(use(MADE), say("Could not."), say("Not yet."), *[say("Done now.")] * 3) as model:
        (known,) = replay_ids(run(host, model.url).result)
        command = ["resume", "s", "--output", "json", "--approve", known]
        assert host.start("--after-record", str(number), *command, program=CRASH).finish().code == -9
        ended = host.run(*command)
        if ended.code == 4:  # killed between the turn and the approval's record: it is denied again
            assert (number, effects(host), replay_ids(ended.result)) == (4, [], [known])
            ended = host.run(*command)
    assert (ended.code, ended.result["text"]) == (0, "Done now.")
    assert effects(host) == ["made"] or ended.result["toolCalls"][-1].get("code") == "TOOL_INTERRUPTED"
    assert host.checkpoints() == []
