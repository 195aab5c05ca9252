"""Hosts killed around a call of the Backend Tool Service: it runs once at most, and the model is told what became of
it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import impatient
from tests.support.process import Host, call, eventually, gateway, say, use
from tests.support.tool_server import KEY, TOKEN, ToolServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Gateway, Outcome, Process, ToolAnswer

KILLED = -9
CRASH = "agent_host.faults.crash"
SESSION = "sess_backend"
TURNS = [use(call("Pay", text="once")), say("Done.")]


class Service(ToolServer):
    """A service with one tool, which goes on once it is `released`."""

    def __init__(self) -> None:
        super().__init__({"Pay": self._pay})
        self.released = threading.Event()

    async def _pay(self, arguments: dict[str, Any]) -> dict[str, Any]:
        await asyncio.to_thread(self.released.wait, 60)
        return {"status": "succeeded", "outputText": f"paid {arguments['text']}"}


@pytest.fixture
def service() -> Iterator[Service]:
    """One that serves, and whose tool answers at once unless it is held."""
    service = Service()
    service.released.set()
    with service.in_thread():
        yield service
        service.released.set()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    machine = Host(tmp_path)
    impatient(machine, max_retries=1)
    yield machine
    machine.close()


def variables(service: Service) -> dict[str, str]:
    return {
        "BACKEND_TOOL_SERVICE_URL": service.url,
        "BACKEND_TOOL_SERVICE_TOKEN": TOKEN,
        "AGENT_HOST_GRANT_KEY": KEY,
    }


def started(host: Host, model: Gateway, service: Service, *crash: str, **grant: Any) -> Process:
    named = host.policy(grants={"BackendTool.Invoke": {"allowedToolNames": ["Pay"], **grant}})
    options = ["--gateway", model.url, "--policy", str(named), "--output", "json", "--session-id", SESSION]
    program = CRASH if crash else "agent_host"
    return host.start(*crash, "run", "Do it.", *options, program=program, env=variables(service))


def killed_while_it_runs(host: Host, model: Gateway, service: Service, **grant: Any) -> None:
    service.released.clear()
    process = started(host, model, service, **grant)
    eventually(lambda: service.ran, "the call at the service")
    process.kill()


def resumed(host: Host, model: Gateway, service: Service) -> Outcome:
    return host.run("resume", SESSION, "--gateway", model.url, "--output", "json", env=variables(service))


def answer(model: Gateway) -> ToolAnswer:
    (found,) = model.results()
    return found


@pytest.mark.parametrize("record", range(1, 9))
def test_a_host_killed_behind_any_record_has_the_tool_run_once_at_most(
    host: Host, service: Service, record: int
) -> None:
    with gateway(*TURNS) as model:
        ended = started(host, model, service, "--after-record", str(record)).finish()
        if ended.code != KILLED:  # it had fewer records, and is done
            assert ended.result["text"] == "Done."
            return
        outcome = resumed(host, model, service)
    assert (outcome.code, outcome.result["text"]) == (0, "Done."), outcome.stderr
    told = model.results() if model.bodies[-1]["messages"][-1]["role"] == "user" else []
    if not told:  # the turn with the call never went on record
        assert service.ran == []
    elif told[0].is_error:  # it never came to the service, and is not sent after all
        assert told[0].text.startswith("TOOL_INTERRUPTED: ")
        assert service.ran == []
    else:
        assert (told[0].text, len(service.ran)) == ("paid once", 1)


def test_a_call_that_was_cut_off_before_it_was_sent_is_reported_and_not_sent(host: Host, service: Service) -> None:
    found = False
    for record in range(1, 9):
        session = host.root / f"try-{record}"
        machine = Host(session)
        impatient(machine, max_retries=1)
        with gateway(*TURNS) as model:
            started(machine, model, service, "--after-record", str(record)).finish()
            log = (machine.state / "checkpoints" / f"{SESSION}.journal").read_bytes()
            if b"call_started" not in log or service.ran:
                continue
            assert resumed(machine, model, service).code == 0
            told = answer(model)
        assert told.is_error
        assert told.text.startswith("TOOL_INTERRUPTED: ")
        assert service.ran == []
        asked = [path for method, path, *_ in service.requests if method == "GET" and "invocations" in path]
        assert len(asked) == 1
        found = True
        break
    assert found, "no record stands between the start of the call and its request"


def test_an_answer_that_came_while_nobody_was_there_is_used(host: Host, service: Service) -> None:
    with gateway(*TURNS) as model:
        killed_while_it_runs(host, model, service)
        service.released.set()
        outcome = resumed(host, model, service)
    assert (outcome.code, answer(model).text, answer(model).is_error) == (0, "paid once", False)
    assert len(service.ran) == 1
    assert [(one["toolName"], one["status"]) for one in outcome.result["toolCalls"]] == [("Pay", "succeeded")]


def test_a_call_that_still_runs_is_waited_for(host: Host, service: Service) -> None:
    with gateway(*TURNS) as model:
        killed_while_it_runs(host, model, service)
        arguments = ("resume", SESSION, "--gateway", model.url, "--output", "json")
        process = host.start(*arguments, env=variables(service))
        eventually(
            lambda: len([path for _, path, *_ in service.requests if "invocations" in path]) > 1,
            "a second question for the call",
        )
        service.released.set()
        assert process.finish().code == 0
    assert answer(model).text == "paid once"
    assert len(service.ran) == 1


def test_a_service_that_has_forgotten_the_call_is_not_sent_it_again(host: Host, service: Service) -> None:
    with gateway(*TURNS) as model:
        killed_while_it_runs(host, model, service)
        service.forget()
        assert resumed(host, model, service).code == 0
    assert answer(model).text.startswith("TOOL_INTERRUPTED: ")
    assert len(service.ran) == 1


def test_a_tool_that_policy_calls_repeatable_is_sent_again(host: Host, service: Service) -> None:
    with gateway(*TURNS) as model:
        killed_while_it_runs(host, model, service, toolPolicies=[{"tool": "Pay", "repeatable": True}])
        service.forget()
        service.released.set()
        assert resumed(host, model, service).code == 0
    assert answer(model).text == "paid once"
    assert len(service.ran) == 2


def test_a_service_that_does_not_say_leaves_the_model_to_look(host: Host, service: Service) -> None:
    with gateway(*TURNS) as model:
        killed_while_it_runs(host, model, service)
        refused = {**variables(service), "AGENT_HOST_GRANT_KEY": "ff" * 32}
        outcome = host.run("resume", SESSION, "--gateway", model.url, "--output", "json", env=refused)
    assert outcome.code == 0
    told = answer(model)
    assert told.text.startswith("TOOL_INTERRUPTED: ")
    assert "inspect before you try again" in told.text
    assert len(service.ran) == 1


def test_a_host_that_is_killed_again_while_it_asks_asks_again(host: Host, service: Service) -> None:
    with gateway(*TURNS) as model:
        killed_while_it_runs(host, model, service)
        arguments = ("resume", SESSION, "--gateway", model.url, "--output", "json")
        second = host.start(*arguments, env=variables(service))
        eventually(lambda: [path for _, path, *_ in service.requests if "invocations" in path], "a question")
        second.kill()
        service.released.set()
        assert resumed(host, model, service).code == 0
    assert answer(model).text == "paid once"
    assert len(service.ran) == 1
