"""Servers on this machine: their model and their window are read, and the toolset follows; over real HTTP."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.host.backends import SHIPPED_SMALL, SMALL_WINDOW_TOKENS
from agent_host.llm.models import ROWS
from tests.support.process import MODEL, call, gateway, say, use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.process import Gateway, Host

SLIM = ["ReadFile", "WriteFile", "EditFile", "ListDirectory", "Grep", "RunCommand"]
QWEN = "qwen2.5-coder"
BROKEN, SILENT = object(), object()
"""Pages whose connection ends without an answer, and that never answer."""


class Server:
    """Pages of a local server in front of a scripted gateway, which answers everything else. `asked` has the paths of
    the pages that were asked for, `tokens` the tokens that came with them."""

    def __init__(self, pages: Mapping[str, Any], model: Gateway) -> None:
        self.pages = dict(pages)
        self.model = model
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.tokens.append(self.headers.get("authorization", ""))
                found = outer.pages.get(self.path)
                if found is BROKEN:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if found is SILENT:
                    outer.over.wait()
                    return
                status = found if isinstance(found, int) else 404 if found is None else 200
                self.answer(status, "application/json", json.dumps(found).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path in outer.pages:
                    self.do_GET()
                    return
                headers = {"content-type": "application/json", "x-session-id": self.headers.get("x-session-id", "")}
                asked = urllib.request.Request(outer.model.url + self.path, body, headers)
                try:
                    with urllib.request.urlopen(asked) as reply:
                        self.answer(reply.status, reply.headers["content-type"], reply.read())
                except urllib.error.HTTPError as error:
                    self.answer(error.code, "application/json", error.read())

            def answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def server(pages: Mapping[str, Any], *turns: dict[str, Any]) -> Iterator[Server]:
    with gateway(*(turns or [say("Done.")])) as model:
        made = Server(pages, model)
        try:
            yield made
        finally:
            made.close()


def llama(window: int, model: str = QWEN) -> dict[str, Any]:
    return {
        "/props": {"default_generation_settings": {"n_ctx": window}, "total_slots": 1},
        "/v1/models": {"object": "list", "data": [{"id": model, "meta": {"n_ctx_train": 32_768}}]},
    }


def vllm(window: int, model: str = QWEN) -> dict[str, Any]:
    return {"/v1/models": {"data": [{"id": model, "max_model_len": window}]}}


def ollama(window: int, model: str = QWEN) -> dict[str, Any]:
    return {
        "/v1/models": {"data": [{"id": model, "owned_by": "library"}]},
        "/api/show": {
            "model_info": {"general.architecture": "qwen2", "qwen2.context_length": 131_072},
            "parameters": f'stop "<|im_end|>"\nnum_ctx                        {window}',
        },
    }


SERVERS = {"llama.cpp": llama, "vLLM": vllm, "Ollama": ollama}


def tools(body: Mapping[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body["tools"]]


def run(host: Host, url: str, *options: str) -> Mapping[str, Any]:
    return host.task(url, "--dialect", "openai", *options).result


@pytest.mark.parametrize("kind", SERVERS)
def test_model_and_window_are_read_and_a_small_one_gets_slim_tools(host: Host, kind: str) -> None:
    with server(SERVERS[kind](8192)) as local:
        result = run(host, local.url, "--session-id", "s")
        (body,) = local.model.bodies
    assert (result["status"], result["model"], body["model"]) == ("TASK_COMPLETED", QWEN, QWEN)
    assert tools(body) == SLIM
    assert body["max_completion_tokens"] == 2048
    (told,) = [event["payload"] for event in host.event_log("s") if event["eventType"] == "llm_server_read"]
    assert (told["model"], told["contextTokens"]) == (QWEN, 8192)
    assert "8,192 tokens" in told["message"]


@pytest.mark.parametrize("kind", SERVERS)
def test_a_large_window_keeps_the_desktop_tools(host: Host, kind: str) -> None:
    with server(SERVERS[kind](16_000)) as local:
        run(host, local.url)
        (body,) = local.model.bodies
    assert {"DeleteFile", "ReadOutput"} < set(tools(body))
    assert body["max_completion_tokens"] == 4000


def test_what_the_user_chose_stays(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(f'[models."{QWEN}"]\ncontext_tokens = 40000\n')
    with server(llama(4096), say("A."), say("B.")) as local:
        run(host, local.url)
        run(host, local.url, "--model", "other", "--toolset", "desktop")
        first, second = local.model.bodies
    assert (first["model"], first["max_completion_tokens"]) == (QWEN, 10_000)
    assert (second["model"], second["max_completion_tokens"]) == ("other", 1024)
    assert "DeleteFile" in tools(first)
    assert "DeleteFile" in tools(second)


def test_a_bundle_of_a_file_chooses_its_model_itself(host: Host) -> None:
    with server(llama(8192)) as local:
        result = host.task(local.url, "--dialect", "openai", policy=host.policy()).result
        (body,) = local.model.bodies
    assert (result["model"], body["model"]) == (MODEL, MODEL)
    assert body["max_completion_tokens"] <= 2048


def test_of_several_models_none_is_taken(host: Host) -> None:
    pages = {"/v1/models": {"data": [{"id": "one"}, {"id": "two"}]}}
    with server(pages) as local:
        assert run(host, local.url)["model"] not in ("one", "two")


def test_a_server_is_asked_once_and_anew_by_its_url_and_model(host: Host) -> None:
    turns = [say("A."), say("B."), say("C.")]
    with server(llama(8192), *turns) as local:
        run(host, local.url)
        asked = len(local.asked)
        assert asked
        run(host, local.url)
        assert len(local.asked) == asked
        run(host, local.url, "--model", "other")
        assert len(local.asked) > asked


@pytest.mark.parametrize("pages", [{}, {"/props": "odd", "/v1/models": {"data": [None, {"id": 5}]}}, {"/props": 503}])
def test_a_server_that_says_nothing_useful_is_a_gateway_like_others(host: Host, pages: dict[str, Any]) -> None:
    with server(pages) as local:
        assert run(host, local.url)["status"] == "TASK_COMPLETED"
        assert "DeleteFile" in tools(local.model.bodies[0])


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("page", [BROKEN, SILENT], ids=["broken", "silent"])
@pytest.mark.parametrize("kind", ["llama", "vllm"])
def test_one_page_that_cannot_be_read_costs_only_itself(host: Host, kind: str, page: object) -> None:
    pages = {**llama(8192), "/v1/models": page} if kind == "llama" else {**vllm(8192), "/props": page}
    with server(pages) as local:
        run(host, local.url, "--model", QWEN)
        assert tools(local.model.bodies[0]) == SLIM


def test_nothing_is_posted_to_a_server_that_has_no_page(host: Host) -> None:
    with server({"/api/show": {"model_info": {"x.context_length": 8192}}}) as local:
        run(host, local.url, "--model", "other")
        assert "/api/show" not in local.asked


@pytest.mark.many_rows(1)
@pytest.mark.parametrize(
    ("began", "resumed"),
    [(llama(8192), llama(200_000, "another")), (llama(8192), {}), ({"/props": 503}, llama(8192))],
    ids=["another model", "no answer", "nothing learned"],
)
def test_model_window_and_toolset_are_fixed_for_the_session(
    host: Host, began: dict[str, Any], resumed: dict[str, Any]
) -> None:
    """What was learned from the server when the session began is on record, and so is that nothing was."""
    read = use(call("ReadFile", path="nowhere"))
    with server(began, read, {"status": 500}, say("Done.")) as local:
        host.configure(max_retries=0)
        before = run(host, local.url, "--session-id", "s")
        assert before["status"] == "SESSION_PAUSED"
        local.pages = dict(resumed)
        (host.state / "local-servers.json").unlink(missing_ok=True)
        asked = len(local.asked)
        after = host.resume("s").result
        assert (after["text"], after["model"], len(local.asked)) == ("Done.", before["model"], asked)
        first, *_, last = local.model.bodies
        assert (tools(last), last["model"]) == (tools(first), first["model"])
        assert last["max_completion_tokens"] == first["max_completion_tokens"]
        assert (tools(last) == SLIM) == (began == llama(8192))


def test_a_resume_at_another_server_asks_that_one(host: Host) -> None:
    with server(llama(8192), {"status": 500}) as local, server(llama(4096, "another")) as other:
        host.configure(max_retries=0)
        run(host, local.url, "--session-id", "s")
        assert host.resume("s", "--gateway", other.url).result["model"] == "another"
        assert other.asked


def test_the_start_says_when_the_first_request_does_not_fit(host: Host) -> None:
    with server(llama(1024)) as local:
        outcome = host.run("run", "Do it.", "--gateway", local.url, "--dialect", "openai", "--toolset", "desktop")
    assert "does not fit into the window of 1,024: use --toolset slim" in outcome.stderr


def test_slim_reads_on_what_was_cut(host: Host) -> None:
    command = use(call("RunCommand", command="seq 1 60000"))
    with gateway(command, say("Done.")) as model:
        host.task(model.url, "--toolset", "slim", "--session-id", "s")
        shown = model.bodies[-1]["messages"][-1]["content"][0]["content"]
    ref = str(shown).rpartition("[storage_ref: ")[2].partition("]")[0]
    assert ref.startswith("artifacts/")
    turns = [say("Passed over."), say("Passed over."), use(call("ReadFile", path=ref, offset=30_000, limit=2))]
    with gateway(*turns, say("Done.")) as model:
        assert host.resume("s", "Go on.", "--gateway", model.url).result["text"] == "Done."
        shown = str(model.bodies[-1]["messages"][-1]["content"][0]["content"])
    assert "30000\n30001\n[2 lines shown; offset: 30002 goes on]" in shown


def test_slim_runs_nothing_in_the_background(host: Host) -> None:
    with gateway(use(call("RunCommand", command="true", background=True)), say("Done.")) as model:
        result = host.task(model.url, "--toolset", "slim").result
    assert result["toolCalls"] == [{"toolName": "RunCommand", "status": "failed", "code": "INVALID_REQUEST"}]


def test_the_shipped_table_has_no_other_small_windows() -> None:
    small = [row[0].lstrip("*") for row in ROWS if row[1] is not None and row[1] < SMALL_WINDOW_TOKENS]
    assert tuple(small) == SHIPPED_SMALL


def test_a_small_window_of_the_shipped_table_gets_slim_tools(host: Host) -> None:
    with gateway(say("Done.")) as model:
        run(host, model.url, "--model", "gpt-4")
        assert tools(model.bodies[0]) == SLIM


def doctor(host: Host, url: str, *options: str) -> tuple[int, dict[str, str]]:
    """The exit code, and what each check found, with its mark."""
    outcome = host.run("doctor", "--gateway", url, "--dialect", "openai", *options)
    lines = [line for line in outcome.text.splitlines() if not line.startswith("      ")]
    return outcome.code, {line[6:16].strip(): f"{line[:4].strip()} {line[17:]}" for line in lines}


@pytest.mark.slow
def test_doctor_compares_the_window_with_the_first_request(host: Host) -> None:
    with server(llama(512), say("ok")) as local:
        code, found = doctor(host, local.url)
        assert code == 1
        assert found["model"].startswith(f"FAIL it serves the model {QWEN}; its window is 512 tokens (/props)")
        assert "does not fit into the window of 512" in found["model"]
        assert QWEN in found["gateway"]
        local.pages = llama(8192)
        assert doctor(host, local.url)[1]["model"].startswith(f"ok it serves the model {QWEN}; its window is 8,192")
        local.pages = {"/v1/models": {"data": [{"id": "one"}, {"id": "two"}]}}
        assert "it serves one, two: choose one with --model" in doctor(host, local.url)[1]["model"]


@pytest.mark.many_rows(1)
@pytest.mark.parametrize(
    ("turn", "ok", "words"),
    [
        ({"tool_calls": [{"name": "look_up", "arguments": {"word": "ok"}}]}, "ok", "calls a tool"),
        ({"text": '<tool_call>{"name": "look_up", "arguments": {"word": "ok"}}</tool_call>'}, "FAIL", "as text"),
        ({"text": "I would look it up."}, "FAIL", "called no tool"),
        ({"status": 500}, "FAIL", "HTTP 500"),
    ],
)
def test_doctor_goes_deep_with_one_call_of_a_tool(host: Host, turn: dict[str, Any], ok: str, words: str) -> None:
    with server(llama(8192), say("ok"), {**turn, "when": {"last_contains": "look_up"}, "times": "always"}) as local:
        code, found = doctor(host, local.url, "--deep")
    assert found["tool call"].startswith(f"{ok} ")
    assert words in found["tool call"]
    assert (code == 0) == (ok == "ok")
