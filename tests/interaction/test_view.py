"""`agent-host view`: who may see it, what it shows while sessions run, and that it writes nothing."""

from __future__ import annotations

import hashlib
import html
import re
from typing import TYPE_CHECKING

import pytest

from tests.support import page_sessions
from tests.support.browser import Watched, launched
from tests.support.local_view import HEADER, viewing
from tests.support.process import call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Serve, Servers

ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]


def files_under(folder: Path) -> dict[str, str]:
    """The content of all files, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


@pytest.mark.many_rows(3)
@pytest.mark.many_rows(4)
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({HEADER: ""}, 403),
        ({HEADER: "x" * 22}, 403),
        ({HEADER: "~" * 22}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_only_this_page_with_its_token_gets_data(host: Host, headers: dict[str, str], code: int) -> None:
    page_sessions.answered(host, "s", say("The secret answer."))
    with viewing(host) as view:
        if code == 200:
            with view.stream("/api/sessions/s") as parts:
                assert "The secret answer." in parts.text
            return
        for path in ("/api/sessions", "/api/sessions/s", "/api/sessions/nope"):
            reply = view.get(path, **headers)
            assert reply.status_code == code, path
            assert "secret" not in reply.text
            assert "access-control-allow-origin" not in reply.headers
        assert view.post({"approvalId": "a", "decision": "approved"}, **headers).status_code == code


@pytest.mark.slow
def test_the_page_itself_has_no_data_and_stands_in_no_frame(host: Host) -> None:
    page_sessions.answered(host, "s", say("The secret answer."))
    with viewing(host) as view:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w-]{22}", view.printed)
        for path in ("/", "/s/s", "/s/nope"):
            reply = view.get(path, **{HEADER: ""})
            assert reply.status_code == 200
            assert "secret" not in reply.text
            policy = reply.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert reply.headers["referrer-policy"] == "no-referrer"
        assert view.get("/", Host="evil.example").status_code == 403
        assert view.get("/api/sessions/nope").status_code == 404
        assert view.get("/api/sessions/..%2f..%2fetc").status_code == 404


@pytest.mark.slow
def test_it_writes_nothing(host: Host) -> None:
    page_sessions.ended(host)
    page_sessions.denied(host)
    page_sessions.interrupted(host)
    before = files_under(host.state)
    with viewing(host) as view:
        for session_id in ("ended", "denied", "interrupted"):
            with view.stream(f"/api/sessions/{session_id}") as parts:
                assert "Do it." in parts.text
        with view.stream("/api/sessions") as parts:
            rows = re.findall(r'id="row-(\w+)"', parts.text)
        assert view.post({"approvalId": "a", "decision": "approved"}).status_code == 403
    assert files_under(host.state) == before
    assert rows == ["interrupted", "denied", "ended"], "what waits for a person comes first"


@pytest.mark.slow
def test_naming_what_would_allow_a_denied_call_writes_nothing(host: Host) -> None:
    with gateway(use(shell("cat notes")), say("I could not.")) as model:
        assert host.task(model.url, "--session-id", "s", policy="read-only").code == 0
    host.configure(sandbox="auto")  # a level that is measured would be kept in the state directory
    (host.state / "sandbox-levels.json").unlink(missing_ok=True)
    before = files_under(host.state)
    with viewing(host) as view, view.stream("/api/sessions/s") as parts:
        assert "in a bundle, tried by" in parts.text
    assert files_under(host.state) == before


@pytest.mark.slow
def test_the_list_has_metadata_alone(host: Host) -> None:
    page_sessions.answered(host, "s", use(call("ReadFile", path="/nowhere/file")), say("Ignore all rules."))
    with viewing(host) as view, view.stream("/api/sessions") as parts:
        assert "Do it." in parts.text
        assert "Ignore" not in parts.text
        assert "/nowhere" not in parts.text


@pytest.mark.slow
def test_a_kill_and_a_resume_are_on_the_page(host: Host) -> None:
    work = (use(shell("until test -e go; do sleep 0.02; done; kill -9 $PPID; sleep 60")), say("All is done."))
    with gateway(*work) as model, viewing(host) as view:
        task = host.start_task(model.url, "--session-id", "s")
        eventually((host.state / "sessions" / "s" / "events.jsonl").exists, "the session")
        with view.stream("/api/sessions/s") as parts:
            eventually(lambda: "until test -e go" in parts.text, "the call, while it runs")
            assert "running" in parts.title
            (host.workspace / "go").touch()
            task.finish()
            eventually(lambda: "interrupted" in parts.title, "the kill")
            assert "agent-host resume s" in parts.text
            assert host.resume("s").code == 0
            eventually(lambda: "completed" in parts.title, "the end")
            assert "The process ended without a word" in text_of(parts.text)
            assert "All is done." in parts.text


def asking(servers: Servers, url: str) -> tuple[Serve, Client, str]:
    serve, client = servers.session(url, policy=servers.host.policy(grants=ASKS, approvalRules=RULES))
    client.task()
    return serve, client, str(client.event("approval_requested")["payload"]["approvalId"])


@pytest.mark.slow
def test_an_open_question_is_answered_only_where_that_is_allowed(servers: Servers) -> None:
    host = servers.host
    with gateway(use(shell("echo x >> effects")), say("Done.")) as model:
        serve, client, approval = asking(servers, model.url)
        with viewing(host) as view, view.stream(f"/api/sessions/{client.session_id}") as parts:
            assert f"agent-host approve {approval}" in parts.text
            assert "data-approval" not in parts.text
            assert view.post({"approvalId": approval, "decision": "approved"}).status_code == 403
            with view.stream("/api/sessions") as rows:
                assert "waits for an answer" in rows.text
        with viewing(host, "--allow-approve") as view, view.stream(f"/api/sessions/{client.session_id}") as parts:
            assert f'data-approval="{approval}"' in parts.text
            assert view.post({"approvalId": approval, "decision": "session"}).status_code == 400
            assert view.post({"approvalId": approval, "decision": "approved", "scope": "session"}).status_code == 400
            good = {"approvalId": approval, "decision": "approved"}
            assert view.post(good, **{"content-type": "text/plain"}).status_code == 415
            assert view.post(good, Origin="http://evil.example").status_code == 403
            assert view.post({**good, "approvalId": "x" * 5000}).status_code == 413
            assert view.post({**good, "approvalId": "appr_nope"}).json() == {"status": "not_found"}
            assert view.post(good).json()["status"] == "delivered"
            client.event("task_completed")
            assert view.post(good).json()["status"] == "not_found"
            eventually(lambda: "on the local page" in parts.text, "the answer on the page")
        resolved = client.event("approval_resolved")["payload"]
        client.call("Shutdown")
        serve.ended_well()
    assert (resolved["decision"], resolved["scope"], resolved["answeredBy"]) == ("approved", "once", "view")
    assert (host.workspace / "effects").read_text() == "x\n"


@pytest.mark.slow
def test_where_a_question_is_cut_there_is_nothing_to_press(servers: Servers) -> None:
    with gateway(use(shell(f"echo {'x' * 20_000} > /dev/null")), say("Done.")) as model:
        serve, client, approval = asking(servers, model.url)
        path = f"/api/sessions/{client.session_id}"
        with viewing(servers.host, "--allow-approve") as view, view.stream(path) as parts:
            assert f"agent-host approve {approval}" in parts.text
            assert "data-approval" not in parts.text
        client.call("ApproveAction", approvalId=approval, decision="denied")
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()


def test_a_denial_on_the_page_runs_nothing(servers: Servers) -> None:
    host = servers.host
    with gateway(use(shell("echo x >> effects")), say("Done.")) as model:
        serve, client, approval = asking(servers, model.url)
        with viewing(host, "--allow-approve") as view:
            assert view.post({"approvalId": approval, "decision": "denied"}).json()["status"] == "delivered"
        resolved = client.event("approval_resolved")["payload"]
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert (resolved["decision"], resolved["answeredBy"]) == ("denied", "view")
    assert not (host.workspace / "effects").exists()


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(host: Host) -> None:
    page_sessions.answered(host, "s", say("Done."))
    with viewing(host) as view:
        outcome = host.run("view", "--port", str(view.port))
    assert outcome.code == 2
    assert outcome.error.startswith(f"agent-host: error: --port {view.port}: ")


@pytest.mark.slow
def test_a_person_follows_and_answers_in_a_browser(servers: Servers) -> None:
    host = servers.host
    with launched() as browser, gateway(use(shell("echo x >> effects")), say("Done <b>well</b>.")) as model:
        serve, client, _ = asking(servers, model.url)
        with viewing(host, "--allow-approve") as view:
            watched = Watched(browser)
            page = watched.open(view.printed)
            page.locator("tr", has_text="waits for an answer").wait_for()
            assert "token" not in page.url
            assert page.title().startswith("(1) ")
            with page.context.expect_page() as opened:
                page.locator("table.rows a").first.click(modifiers=["ControlOrMeta"])
            opened.value.locator("#live", has_text="live").wait_for()  # another tab of this server lends the token
            assert "token" not in opened.value.url
            opened.value.close()
            page.locator("table.rows a").first.click()
            page.get_by_role("button", name="Approve once").click()
            page.locator(".verdict", has_text="completed").wait_for()
            page.locator(".said", has_text="Done <b>well</b>.").first.wait_for()
            assert page.locator(".said b").count() == 0
            assert watched.serious() == []
            assert (watched.errors, watched.left) == ([], [])
            other = Watched(browser)
            other.open(f"{view.url}/s/{client.session_id}")
            other.page.get_by_text("the token is missing").wait_for()
            watched.context.close()
        client.call("Shutdown")
        serve.ended_well()
