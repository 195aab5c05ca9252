"""MCP servers in whole sessions: configured, approved, killed around a call, hidden, changed, unavailable."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # it has none
import pytest
import trustme

from agent_host.llm.dialects import sendable_name
from agent_host.testing.services import MockServices
from tests.support.mcp_servers import command, logged, over_http
from tests.support.process import bundle, call, eventually, gateway, say, use
from tests.support.tls import server_context, tls_in_front_of
from tool_runtime import sandbox as levels

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Gateway, Host
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.slow  # each starts a server with the SDK, and the host that imports it


def mcp(tool: str, **arguments: Any) -> dict[str, Any]:
    """A call of a tool of the server, as a gateway names it."""
    return call(sendable_name(f"odd/{tool}"), **arguments)


def configure(host: Host, *options: str, kind: str = "odd", log: bool = True, more: str = "", **fields: Any) -> Path:
    """A server in the user's configuration; returns what it logs."""
    host.imports = (
        "tool_runtime.remote.mcp.connection",
        "tool_runtime.remote.mcp.source",
        "tool_runtime.remote.mcp.connection",
    )
    path = host.root / "mcp.log"
    program, *args = command(kind, path if log else None, *options)
    given = fields or {"transport": "stdio", "command": program, "args": args}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": "odd", **given}.items()]
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write("\n".join(["[mcp]", "connect_timeout_s = 25.0", more, "[[mcp.servers]]", *lines, ""]))
    return path


def grant(**more: Any) -> dict[str, dict[str, Any]]:
    return {"Mcp.Invoke": {"allowedToolNames": ["odd/*"], **more}}


def events(host: Host, outcome: Any, kind: str) -> list[dict[str, Any]]:
    log = host.event_log(outcome.result["sessionId"])
    return [one["payload"] for one in log if one["eventType"] == kind]


def servers_of(host: Host) -> list[int]:
    """The processes of servers that this test has started."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(host.root / "mcp.log") in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def test_the_workspace_built_in_asks_for_what_the_configuration_names(host: Host) -> None:
    log = configure(host)
    with gateway(use(mcp("add", a=1, b=2)), say("Done.")) as model:
        denied = host.task(model.url, policy="workspace")
        assert (denied.code, logged(log)) == (4, [])
        outcome = host.task(model.url, "--approve", "odd/add", policy="workspace")
        assert model.results()[0].text == "3"
    assert (outcome.code, logged(log)) == (0, [{"tool": "add", "a": 1, "b": 2}])
    (listed,) = events(host, denied, "tools_listed")
    assert listed["source"] == "mcp:odd"
    assert servers_of(host) == []


@pytest.mark.parametrize("level", [level for level in levels.LEVELS if levels.look(level).works])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_program_is_held_to_what_its_entry_says(host: Host, level: str, is_open: bool) -> None:
    """It writes its log, or finds that it cannot."""
    log = host.root / "mcp.log"
    log.touch()
    program, *args = command("odd", log)
    configure(host, transport="stdio", command=program, args=args, write=[str(log)] if is_open else [])
    with gateway(use(mcp("add", a=1, b=2)), say("Done.")) as model:
        outcome = host.task(model.url, "--approve", "odd/add", "--sandbox", level)
        said = model.results()[0].text
    assert outcome.code == 0, outcome.stderr
    assert (said == "3", logged(log) != []) == (is_open, is_open), said


SERVER = """
import os, sys
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
app = MCPServer("small")
@app.tool()
def kept() -> str:
    return open(sys.argv[1] + "/note").read()
@app.tool()
def other() -> str:
    try:
        return open(os.path.join(os.path.dirname(sys.argv[1]), "secret")).read()
    except OSError as error:
        raise ToolError(str(error)) from error
app.run("stdio")
"""


@pytest.mark.parametrize("level", [level for level in levels.LEVELS if levels.look(level).works])
def test_a_program_reads_its_script_and_the_paths_that_it_is_given(host: Host, level: str) -> None:
    script, served = host.root / "elsewhere" / "server.py", host.root / "served"
    script.parent.mkdir()
    script.write_text(SERVER)
    served.mkdir()
    (served / "note").write_text("a note")
    (host.root / "secret").write_text("a secret")
    configure(host, transport="stdio", command=sys.executable, args=[str(script), str(served)])
    policy = host.policy(grants={"Mcp.Invoke": {}, "File.Read": {"allowedPaths": [str(host.workspace)]}})
    with gateway(use(mcp("kept"), mcp("other")), say("Done.")) as model:
        assert host.task(model.url, "--sandbox", level, policy=policy).code == 0
        note, secret = (result.text for result in model.results())
    assert note == "a note"
    assert "a secret" not in secret
    assert f"its sandbox: read {host.root / 'secret'}: refused" in secret
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        reads = f"open({str(host.root / 'secret')!r}).read()"
        file.write(
            f'[[mcp.servers]]\nname = "nosy"\ncommand = "{sys.executable}"\nargs = {json.dumps(["-c", reads])}\n'
        )
    report = host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}", "--sandbox", level)
    assert report.code == 1
    found = {line.split()[2]: line for line in report.text.splitlines() if " mcp " in line}
    assert found["odd"].startswith("ok")
    assert found["nosy"].startswith("FAIL")
    assert "/secret'" in found["nosy"]
    assert "the sandbox holds it" in found["nosy"]


@pytest.mark.parametrize("fields", [{"url": "https://x", "write": ["/x"]}, {"command": "x", "domains": ["http://x"]}])
def test_what_an_entry_says_of_a_sandbox_is_checked(host: Host, fields: dict[str, Any]) -> None:
    configure(host, **fields)
    assert host.run("run", "x", "--gateway", "http://127.0.0.1:9").code == 2


def test_no_secret_reaches_a_server_but_what_is_named_for_it(host: Host) -> None:
    configure(
        host,
        transport="stdio",
        command=command("odd")[0],
        args=[*command("odd")[1:]],
        environment_names=["GIVEN_TOKEN"],
    )
    secrets = {
        "GIVEN_TOKEN": "given-secret-1",
        "OTHER_SECRET": "other-secret-2",
        "LLM_GATEWAY_AUTH_TOKEN": "gateway-secret-3",
    }
    leaked = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0dF3hJ6"
    turned = leaked[::-1]
    leaks = [mcp("leak", backwards=turned), mcp("leak", backwards=turned, padding=20_000)]
    with gateway(use(mcp("environment"), *leaks), say("Done.")) as model:
        policy = host.policy(grants=grant())
        options = ("--gateway", model.url, "--policy", str(policy), "--output", "json")
        outcome = host.run("run", "Do it.", *options, env=secrets)
        said, first, second = (result.text for result in model.results())
    assert outcome.code == 0
    assert "GIVEN_TOKEN" in said
    assert "OTHER_SECRET" not in said
    assert "LLM_GATEWAY_AUTH_TOKEN" not in said
    kept = b"".join(path.read_bytes() for path in host.state.rglob("*") if path.is_file())
    assert all(value.encode() not in kept and value not in said for value in secrets.values())
    assert turned.encode() in kept  # the arguments are on record, and hold no secret that anybody knows
    assert (leaked.encode() in kept, leaked in first + second) == (False, False)
    assert "[redacted" in first
    assert len(events(host, outcome, "artifact_uploaded")) == 1


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_call_that_a_crash_cut_off_is_sent_again_only_where_policy_says_so(host: Host, *, repeatable: bool) -> None:
    log = configure(host)
    policies = [{"tool": "odd/hang", "repeatable": True}] if repeatable else None
    policy = host.policy(grants=grant(toolPolicies=policies))
    with gateway(use(mcp("hang", seconds=1 if repeatable else 600)), say("Done.")) as model:
        process = host.start_task(model.url, policy=policy)
        eventually(lambda: any(one["tool"] == "hang" for one in logged(log)), "the call at the server")
        process.kill()
        eventually(lambda: servers_of(host) == [], "the end of the server of a killed host")
        outcome = host.resume("--gateway", model.url, "--policy", str(policy))
        (answer,) = model.results()
    assert outcome.code == 0
    hangs = [one for one in logged(log) if one["tool"] == "hang"]
    if repeatable:
        assert (answer.text, len(hangs)) == ("done", 2)
    else:
        assert answer.text.startswith("TOOL_INTERRUPTED: the process ended; whether it took effect is unknown")
        assert len(hangs) == 1


def test_a_server_may_ask_the_person_where_the_users_own_entry_says_so(host: Host, servers: Servers) -> None:
    """Over `serve`, headless, and where no entry says so."""
    program, *args = command("odd", host.root / "mcp.log")
    configure(host, command=program, args=args, elicitation=True)
    policy = host.policy(grants=grant())
    with gateway(use(mcp("ask")), say("Done."), use(mcp("ask")), say("Done.")) as model:
        _, client = servers.session(model.url, policy=policy)
        client.task()
        asked = client.event("approval_requested")["payload"]
        assert asked["title"] == "mcp:odd asks you"
        assert asked["details"]["question"] == "Who are you? \\x1b[2J"
        assert asked["details"]["form"]["required"] == ["name"]
        client.event("approval_requested")
        eventually(lambda: client.ask("GetSessionState")["pendingApprovals"], "a question that waits")
        (row,) = json.loads(host.run("approvals", "--output", "json").text)
        assert (row["approvalId"], row["isQuestion"]) == (asked["approvalId"], True)
        assert "(a form: its client answers it)" in host.run("approvals").text
        for verb in ("approve", "deny"):
            elsewhere = host.run(verb, asked["approvalId"])
            assert (elsewhere.code, elsewhere.text) == (1, "")
            assert "which only the client that has the session can answer" in elsewhere.error
        given = {"approvalId": asked["approvalId"], "decision": "approved"}
        refused = client.refusal("ApproveAction", **given, arguments={"name": 7})
        assert refused.message == "arguments: name must be a string, not 7"
        client.call("ApproveAction", **given, arguments={"name": "Ada", "times": 2})
        client.event("task_completed")
        assert model.results()[0].text == "accept name='Ada' times=2"
        client.call("Shutdown")
        headless = host.task(model.url, "--approve-all", policy=policy)
        assert (headless.code, model.results()[0].text) == (0, "cancel None")
    (over,) = events(host, headless, "approval_resolved")
    assert (over["isQuestion"], over["reason"]) == (True, "no approver is present to answer it")
    settings = host.root / "user.toml"
    settings.write_text(settings.read_text().replace("elicitation = true", ""))
    with gateway(use(mcp("ask")), say("Done.")) as model:
        unasked = host.task(model.url, policy=policy)
        assert model.results()[0].text.startswith("TOOL_EXECUTION_FAILED: ")
    assert events(host, unasked, "approval_requested") == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal")
def test_a_server_asks_at_the_terminal(host: Host) -> None:
    from tests.support.terminal import AtTerminal

    program, *args = command("odd")
    configure(host, command=program, args=args, elicitation=True)
    policy = str(host.policy(grants=grant()))
    with gateway(use(mcp("ask")), say("Done.")) as model:
        terminal = AtTerminal(host, "run", "Do it.", "--gateway", model.url, "--policy", policy, size=(100, 30))
        terminal.said("Answer mcp:odd?")
        terminal.type("y\n")
        terminal.said("a text")
        terminal.type("Ada\n")
        terminal.said("a whole number; nothing for 3")
        terminal.type("many\n")
        terminal.said("times needs a whole number")
        terminal.type("\n")
        assert terminal.finish()[0] == 0
        assert model.results()[0].text == "accept name='Ada' times=3"
    assert "asked by:  mcp:odd" in terminal.shown
    assert "give it no passwords" in terminal.shown


def test_a_session_that_hides_a_server_says_so_with_the_line_to_add(host: Host) -> None:
    configure(host)
    with gateway(say("Nothing to call.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", str(host.policy()))
        assert all("odd" not in one["name"] for one in model.bodies[0]["tools"])
    assert outcome.code == 0
    line = outcome.names_once("the policy admits none of the", "mcp:odd")
    assert '{"name":"Mcp.Invoke","allowedToolNames":["odd/*"],"requiresApproval":true}' in line


def test_a_server_that_is_down_keeps_its_tools_and_its_calls_fail_clearly(host: Host) -> None:
    broken = host.root / "broken"
    configure(host, "--broken", str(broken))
    policy = host.policy(grants=grant())
    with gateway(say("Done.")) as model:
        assert host.task(model.url, policy=policy).code == 0
    broken.write_text("")
    with gateway(use(mcp("add", a=1, b=2)), say("Done.")) as model:
        outcome = host.task(model.url, policy=policy)
        assert "odd_add" in "".join(one["name"] for one in model.bodies[-1]["tools"])
        assert model.results()[0].text.startswith("TOOL_EXECUTION_FAILED: ")
        assert "out of order" in model.results()[0].text
    assert outcome.code == 0
    (told,) = events(host, outcome, "tools_unavailable")
    assert "mcp:odd does not answer" in told["message"]


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
@pytest.mark.parametrize(
    ("kind", "within_s", "said"), [("dead", 25.0, "no configuration file"), ("mute", 0.2, "within 0.2 s")]
)
def test_a_server_that_does_not_answer_is_said_in_every_form_of_output(
    host: Host, form: str, kind: str, within_s: float, said: str
) -> None:
    configure(host, kind=kind, log=False)
    settings = host.root / "user.toml"
    settings.write_text(settings.read_text().replace("connect_timeout_s = 25.0", f"connect_timeout_s = {within_s}"))
    policy = str(host.policy(grants=grant()))
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", policy, "--output", form)
    assert outcome.code == 0
    assert said in outcome.names_once("mcp:odd does not answer")
    (session,) = (host.state / "sessions").iterdir()
    told = [
        one["payload"]["message"] for one in host.event_log(session.name) if one["eventType"] == "tools_unavailable"
    ]
    assert [said in one for one in told] == [True]
    assert outcome.stdout.count(b"tools_unavailable") == (form == "jsonl")


@pytest.mark.parametrize("level", ["none", *(level for level in levels.LEVELS if levels.look(level).works)])
def test_a_program_that_is_not_there_is_named(host: Host, level: str) -> None:
    configure(host, command="no-such-program")
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "workspace", "--sandbox", level)
    assert outcome.code == 0
    assert "No such file or directory: no-such-program" in outcome.names_once("mcp:odd does not answer")


def test_a_tool_that_is_another_one_now_needs_an_approval(host: Host) -> None:
    state = host.root / "server-state"
    log = configure(host, "--state", str(state))
    policy = host.policy(grants=grant())

    def session() -> tuple[Any, str]:
        with gateway(use(mcp("change")), say("Done.")) as model:
            return host.task(model.url, policy=policy), model.results()[0].text

    assert session()[1] == "unchanged"
    state.write_text("Now it deletes things.")
    between, text = session()  # it has the tools of before, and learns of the change
    assert (between.code, events(host, between, "tools_changed")) == (0, [])
    assert "has changed since this task started, and was not called" in text
    outcome, text = session()
    assert "the present version of this tool of another program is not approved: odd/change@sha256:" in text
    assert outcome.code == 4
    (changed,) = events(host, outcome, "tools_changed")
    assert changed["changed"] == ["odd/change"]
    (host.root / "copy").mkdir()
    again = ("replay", outcome.result["sessionId"], "--workspace", host.root / "copy")
    assert host.run(*again).text == "1 call, all as on record\n"
    (host.root / "user.toml").write_text("")
    told = host.run(*again)
    assert (told.code, "first difference is call 1, odd/change" in told.text) == (1, True)
    assert len(logged(log)) == 1


def test_a_server_whose_tools_are_known_is_not_started_for_a_short_session_without_a_call(host: Host) -> None:
    program, *args = command("odd", host.root / "mcp.log")
    starts = host.root / "starts"
    line = f'echo started >> {starts}; exec "$0" "$@"'
    configure(host, transport="stdio", command="/bin/sh", args=["-c", line, program, *args])
    policy = host.policy(grants=grant())

    def started_by(model: Gateway) -> int:
        before = len(starts.read_text().splitlines()) if starts.exists() else 0
        assert host.task(model.url, policy=policy).code == 0
        return len(starts.read_text().splitlines()) - before

    with gateway(*(say("Done.") for _ in range(4))) as model:
        assert started_by(model) == 1, "nothing is known of it"
        # On a machine that is busy a session may take longer than the second after which its servers are asked.
        assert any(started_by(model) == 0 for _ in range(3))
        assert sendable_name("odd/add") in [tool["name"] for tool in model.bodies[-1]["tools"]], (
            "its tools are offered all the same"
        )
    with gateway(use(mcp("add", a=1, b=2)), say("Done.")) as model:
        assert started_by(model) == 1
        assert model.results()[0].text == "3"


def test_a_workspace_only_leaves_servers_out(host: Host) -> None:
    log = configure(host)
    settings = host.workspace / ".agent" / "config.toml"
    settings.parent.mkdir()
    settings.write_text('[mcp]\nenabled = []\nservers = [{name = "evil", transport = "stdio", command = "/bin/sh"}]\n')
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", str(host.policy(grants=grant())))
    assert outcome.code == 0
    outcome.names_once("mcp.servers", "is ignored")
    assert not log.exists()
    assert "mcp:" not in outcome.stderr


def test_a_session_service_that_switches_mcp_off(host: Host) -> None:
    configure(host)
    services = MockServices(feature_flags={"mcpEnabled": False})
    with services.in_thread(), gateway(say("Done.")) as model:
        options = ("--gateway", model.url, "--policy", str(host.policy(grants=grant())), "--output", "json")
        outcome = host.run("run", "Do it.", *options, env={"SESSION_SERVICE_URL": services.url})
        assert outcome.code == 0, outcome.stderr
    assert events(host, outcome, "tools_listed") == []


@pytest.mark.parametrize("same_origin", [True, False])
def test_a_bundle_names_a_server_and_the_users_token_goes_to_its_own_origin(host: Host, *, same_origin: bool) -> None:
    authority = trustme.CA()
    roots = host.root / "roots.pem"
    authority.cert_pem.write_to_path(str(roots))
    with (
        over_http("odd", None, "--token", "s3cret-token-of-odd") as plain,
        tls_in_front_of(plain, server_context(authority, "127.0.0.1")) as url,
        gateway(use(mcp("add", a=1, b=2)), say("Done.")) as model,
    ):
        users = url if same_origin else "https://other.example"
        configure(host, transport="http", url=f"{users}/mcp", token_env="ODD_TOKEN", ca_file=str(roots))
        servers = [{"name": "odd", "transport": "http", "url": f"{url}/mcp"}]
        policy = host.policy(grants=grant(), mcpServers=servers)
        options = ("--gateway", model.url, "--policy", str(policy), "--output", "json")
        environment = {"ODD_TOKEN": "s3cret-token-of-odd", "SSL_CERT_FILE": str(roots)}
        outcome = host.run("run", "Do it.", *options, env=environment)
        text = model.results()[0].text
    assert outcome.code == 0
    assert (text == "3") is same_origin
    assert bool(events(host, outcome, "tools_unavailable")) is not same_origin


def test_a_program_that_a_bundle_names_needs_its_shell_exec(host: Host) -> None:
    program, *args = command("odd", host.root / "mcp.log")
    servers = [{"name": "odd", "transport": "stdio", "command": program, "args": args}]
    allowed = host.policy(grants={**grant(), "Shell.Exec": {"allowedCommands": [program]}}, mcpServers=servers)
    with gateway(say("One."), say("Two.")) as model:
        assert events(host, host.task(model.url, policy=allowed), "tools_listed")
        refused = host.policy(grants={**grant(), "Shell.Exec": {"allowedCommands": ["git"]}}, mcpServers=servers)
        outcome = host.task(model.url, policy=refused)
    (told,) = events(host, outcome, "tools_unavailable")
    assert "its Shell.Exec does not allow it" in told["message"]


def test_plain_http_needs_the_users_own_word(host: Host) -> None:
    with over_http("odd") as url, gateway(say("One."), say("Two.")) as model:
        policy = host.policy(grants=grant())
        configure(host, transport="http", url=url)
        outcome = host.task(model.url, policy=policy)
        (told,) = events(host, outcome, "tools_unavailable")
        assert "is not https; allow_http = true" in told["message"]
        (host.root / "user.toml").write_text((host.root / "user.toml").read_text() + "allow_http = true\n")
        assert events(host, host.task(model.url, policy=policy), "tools_listed")


def test_doctor_names_the_mistake_in_an_entry(host: Host) -> None:
    configure(host)
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write('[[mcp.servers]]\nname = "bare"\n[[mcp.servers]]\nname = "joined"\ncommand = "sh -c true"\n')
    report = host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}")
    assert report.code == 1
    found = {line.split()[2]: line for line in report.text.splitlines() if " mcp " in line}
    assert found["odd"].startswith("ok")
    assert "has neither command nor url" in found["bare"]
    assert "No such file or directory: sh -c true" in found["joined"]
    assert "its arguments are args" in found["joined"]
    assert "sandbox" not in found["joined"]


def test_doctor_and_policy_know_servers_and_their_tools(host: Host) -> None:
    configure(host)
    with gateway(say("Done.")) as model:
        host.task(model.url, policy=host.policy(grants=grant()))
    report = host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}")
    (line,) = [line for line in report.text.splitlines() if "mcp odd" in line]
    assert line.startswith("ok")
    assert "tools" in line
    policy = str(
        host.policy(grants=grant(toolPolicies=[{"tool": "odd/add", "requiresApproval": False}], requiresApproval=True))
    )
    rows = json.loads(host.run("policy", "tools", "--policy", policy, "--output", "json").stdout)
    found = {row["toolName"]: row for row in rows}
    assert (found["odd/add"]["offered"], found["odd/add"]["requiresApproval"]) == (True, False)
    assert found["odd/hang"]["requiresApproval"] is True
    checked = host.run("policy", "check", "--policy", policy, "odd/unheard_of", "{}", "--output", "json")
    assert json.loads(checked.stdout)["decision"] == "APPROVAL_REQUIRED"
    checked = host.run("policy", "check", "--policy", policy, "other/tool", "{}", "--output", "json")
    assert json.loads(checked.stdout)["decision"] == "DENIED"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('name = "a b"\ncommand = "x"', "names no server"),
        ('name = "odd"\ntransport = "http"\ncommand = "x"', "a server over http has url"),
        ('name = "odd"\nurl = "ftp://x"', "is not an http or https URL"),
        ('name = "odd"\ntoken_env = "X"', "credentials are for one URL"),
        ('name = "odd"\ncomand = "x"', "comand is not known"),
    ],
)
def test_an_entry_that_cannot_be_used_is_one_line(host: Host, entry: str, problem: str) -> None:
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write(f"[[mcp.servers]]\n{entry}\n")
    with gateway(say("Never.")) as model:
        outcome = host.task(model.url)
    assert outcome.code == 2
    assert problem in outcome.error
    assert os.fspath(host.workspace) not in outcome.error


def test_a_bundle_of_the_session_service_names_a_server(host: Host) -> None:
    program, *args = command("odd", host.root / "mcp.log")
    servers = [{"name": "odd", "transport": "stdio", "command": program, "args": args}]
    servers[0]["environmentNames"] = ["ODD_SECRET"]
    granted = bundle(
        host.workspace, grants={**grant(), "Shell.Exec": {"allowedCommands": [program]}}, mcpServers=servers
    )
    services = MockServices(policy_bundle=lambda session: {**granted, "sessionId": session})
    with services.in_thread(), gateway(use(mcp("environment")), say("Done.")) as model:
        options = ("--gateway", model.url, "--output", "json")
        environment = {"SESSION_SERVICE_URL": services.url, "ODD_SECRET": "secret-of-the-server"}
        outcome = host.run("run", "Do it.", *options, env=environment)
        text = model.results()[0].text
    assert outcome.code == 0, outcome.stderr
    assert "ODD_SECRET" in text
    assert "secret-of-the-server" not in text
    assert "secret-of-the-server" not in (host.records(outcome.result["sessionId"]) / "events.jsonl").read_text()


def test_a_task_without_the_network_has_no_tools_of_servers_over_http(host: Host, servers: Servers) -> None:
    with over_http("odd") as url, gateway(say("One."), say("Two.")) as model:
        configure(host, transport="http", url=url, allow_http=True)
        _, client = servers.session(model.url, policy=host.policy(grants=grant()))
        client.task("a")
        first = client.event("task_completed")
        client.task("b", taskOptions={"allowNetwork": False})
        client.event("task_completed", after=first["eventId"])
        client.call("Shutdown")
        offered = [[one["name"] for one in body["tools"] if "odd" in one["name"]] for body in model.bodies]
    assert offered[0]
    assert offered[1] == []
