"""The model of a task: `taskOptions.model` of StartTask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.process import MODEL, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway
    from tests.support.serve_process import Servers

OTHER = "other-model"


def models(served: Gateway) -> list[str]:
    return [str(body["model"]) for body in served.bodies]


def test_each_task_has_its_model_and_the_next_one_the_session_s(servers: Servers) -> None:
    policy = servers.host.policy(llm={"allowedModels": [MODEL, OTHER]})
    with gateway(say("One."), say("Two."), say("Three.")) as served:
        serve, client = servers.session(served.url, policy=policy)
        ended = 0
        for task, options in (("a", {}), ("b", {"model": OTHER}), ("c", {})):
            client.task(task, taskOptions=options)
            client.event("llm_request_started", ended, model=OTHER if options else MODEL)
            ended = client.event("task_completed", ended)["eventId"]
        assert models(served) == [MODEL, OTHER, MODEL]
        refused = client.refusal("StartTask", sessionId=client.session_id, taskId="d", prompt="x",
                                 taskOptions={"model": "unheard-of"})  # fmt: skip
        assert refused.code == -32602
        assert "allowedModels" in refused.message
        client.call("Shutdown")
        serve.ended_well()


@pytest.mark.parametrize("kills", [True, False])
def test_a_resume_goes_on_with_the_model_of_the_task(servers: Servers, kills: bool) -> None:
    policy = servers.host.policy(llm={"allowedModels": [MODEL, OTHER]})
    last = "kill -9 $PPID; sleep 60" if kills else "true"
    with gateway(use(shell(last)), say("Done.")) as served:
        serve, client = servers.session(served.url, policy=policy)
        session_id = client.session_id
        client.task(taskOptions={"model": OTHER})
        if kills:
            serve.finish()
            serve, client = servers.client(served.url, policy=policy)
            client.resume(session_id)
        client.event("task_completed")
        assert set(models(served)) == {OTHER}
        client.call("Shutdown")
        serve.ended_well()
