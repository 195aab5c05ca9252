"""`agent-host acp` as an editor meets it: whole sessions over its wire, each message checked against the schema."""

from __future__ import annotations

import json
import os
import signal
import sys
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from agent_host.llm.dialects import sendable_name
from agent_host.testing.gateway import MockGateway, Script
from tests.support.acp_client import Editor, Refused, choose
from tests.support.mcp_servers import command
from tests.support.model_server import PROOF, model_server
from tests.support.pictures import png
from tests.support.process import MODEL, call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

pytestmark = [pytest.mark.peer, pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")]


@pytest.fixture
def editors(host: Host) -> Iterator[list[Editor]]:
    """Editors that a test has started; those that are left are ended."""
    started: list[Editor] = []
    yield started
    for editor in started:
        editor.close()


def _editor(editors: list[Editor], host: Host, *options: str, policy: str = "full") -> Editor:
    editor = Editor(host, "--policy", policy, *options)
    editors.append(editor)
    editor.initialize()
    return editor


def test_a_session_from_its_first_prompt_to_its_removal(host: Host, editors: list[Editor]) -> None:
    turns = [
        use(call("WriteFile", path="made.txt", content="one\ntwo\n"), text="I write."),
        use(call("EditFile", path="old.txt", edits=[{"oldText": "two", "newText": "2"}])),
        say("Done."),
    ]
    (host.workspace / "old.txt").write_text("one two\n")
    with gateway(*turns) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace)
        assert editor.prompt(session_id) == "end_turn"
        assert editor.text() == "I write.Done."
        written, edited = (one for one in editor.updates("tool_call"))
        place = str(host.workspace / "made.txt")
        assert (written["kind"], written["title"], written["locations"]) == (
            "edit", "WriteFile: made.txt", [{"path": place}],
        )  # fmt: skip
        first, *_ = editor.call_of(written["toolCallId"])["content"]
        assert first == {"type": "diff", "path": place, "oldText": None, "newText": "one\ntwo\n"}
        second = editor.call_of(edited["toolCallId"])
        assert (second["status"], second["content"][0]["newText"]) == ("completed", "2")
        usage = editor.updates("usage_update")
        assert [one["used"] > 0 and one["size"] >= 0 for one in usage] == [True] * 3
        assert editor.updates("session_info_update")[0]["title"] == "Do it."
        names = [one["name"] for one in editor.updates("available_commands_update")[0]["availableCommands"]]
        assert names == ["compact", "continue", "cost", "diff"]
        (row,) = editor.call("session/list", cwd=str(host.workspace))["sessions"]
        assert (row["sessionId"], row["cwd"], row["title"]) == (session_id, str(host.workspace), "Do it.")
        assert editor.call("session/list", cwd=str(host.home))["sessions"] == []
        assert editor.call("session/close", sessionId=session_id) == {}
        assert (
            editor.refusal("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "x"}]).code
            == -32002
        )
        assert editor.call("session/delete", sessionId=session_id) == {}
        assert editor.call("session/list")["sessions"] == []
        assert editor.refusal("session/delete", sessionId=session_id).code == -32002
        editor.leave()
    assert host.checkpoints() == []


def test_half_of_a_character_in_a_prompt_and_a_session_without_one(host: Host, editors: list[Editor]) -> None:
    with gateway(say("Done.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        assert editor.prompt(editor.new(host.workspace), "a cut emoji \ud83d") == "end_turn"
        unused = editor.new(host.workspace)
        assert editor.call("session/delete", sessionId=unused) == {}
        editor.leave()
    assert unused not in os.listdir(host.state / "sessions")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "runs", "asked"), [("allow_once", True, 2), ("allow_always", True, 1), ("reject_once", False, 2)]
)
def test_a_call_that_needs_approval_is_asked_about(
    host: Host, editors: list[Editor], option: str, runs: bool, asked: int
) -> None:
    touch = shell("touch ran")
    with gateway(use(touch), use(touch), say("Done.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="workspace")
        editor.answers["session/request_permission"] = choose(option)
        session_id = editor.new(host.workspace)
        assert editor.prompt(session_id) == "end_turn"
        questions = [one for one in editor.recorder.of("agent") if one.get("method") == "session/request_permission"]
        assert len(questions) == asked
        shown = questions[0]["params"]["toolCall"]
        assert (shown["kind"], shown["title"]) == ("execute", "Run: touch ran")
        assert "risk: " in shown["content"][0]["content"]["text"]
        assert [one["kind"] for one in questions[0]["params"]["options"]] == [
            "allow_once", "allow_always", "reject_once",
        ]  # fmt: skip
        assert (host.workspace / "ran").exists() == runs
        status = {editor.call_of(one["toolCallId"])["status"] for one in editor.updates("tool_call")}
        assert status == {"completed" if runs else "failed"}
        assert ("RunCommand was denied" in editor.notices()) == (not runs)
        editor.leave()


@pytest.mark.slow
def test_a_question_may_be_answered_elsewhere(host: Host, editors: list[Editor]) -> None:
    """The editor's own request is then taken back; the record says who answered which."""
    with gateway(use(shell("touch one")), use(shell("touch two")), say("Done.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="workspace")
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        asked = editor.asked("session/request_permission")
        editor.answer(asked, choose("allow_once")(asked["params"]))
        editor.wait(lambda: editor.open_requests, "a second question")
        (row,) = json.loads(host.run("approvals", "--output", "json").stdout)
        assert host.run("approve", row["approvalId"]).code == 0
        assert editor.reply(number) == {"stopReason": "end_turn"}
        assert editor.open_requests == []
        editor.leave()
    answers = [one["payload"] for one in host.event_log(session_id) if one["eventType"] == "approval_resolved"]
    assert [one["answeredBy"] for one in answers] == ["acp", "command"]


@pytest.mark.slow
def test_the_cost_of_a_session_is_shown_with_its_tokens(host: Host, editors: list[Editor]) -> None:
    used = {"input_tokens": 1000, "output_tokens": 100}
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write('[models."claude-*"]\nprice_input = 10\nprice_output = 100\ncontext_tokens = 50000\n')
    with gateway(say("One.", usage=used), say("Two.", usage=used)) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--model", "claude-sonnet-4-5")
        session_id = editor.new(host.workspace)
        assert editor.prompt(session_id) == "end_turn"
        assert editor.prompt(session_id, "Again.") == "end_turn"
        first, second = editor.updates("usage_update")
        assert (first["used"], first["size"]) == (1100, 50_000)
        assert [one["cost"]["amount"] for one in (first, second)] == pytest.approx([0.02, 0.04])
        assert first["cost"]["currency"] == "USD"
        editor.leave()


@pytest.mark.slow
def test_a_session_that_is_no_longer_wanted_is_not_opened(host: Host, editors: list[Editor]) -> None:
    with gateway(say("Here.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        number = editor.send("session/new", {"cwd": str(host.workspace), "mcpServers": []})
        editor.notify("$/cancel_request", requestId=number)
        with pytest.raises(Refused) as caught:
            editor.reply(number)
        assert caught.value.code == -32800
        assert editor.prompt(editor.new(host.workspace)) == "end_turn"
        editor.leave()
    assert not any(row["pid"] for row in json.loads(host.run("sessions", "--output", "json").stdout))


@pytest.mark.slow
def test_a_prompt_is_cancelled_with_the_command_that_runs(host: Host, editors: list[Editor]) -> None:
    with gateway(use(shell("echo h''ere; sleep 600")), say("Again.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        editor.wait(lambda: _says(editor, "here"), "output of the command")
        editor.notify("session/cancel", sessionId=session_id)
        assert editor.reply(number) == {"stopReason": "cancelled"}
        assert editor.prompt(session_id, "And now?") == "end_turn"
        editor.leave()


@pytest.mark.slow
def test_either_side_cancels_its_requests(host: Host, editors: list[Editor]) -> None:
    """A prompt that is cancelled by its id ends as one that is cancelled, and takes back the question it asked."""
    with gateway(use(shell("touch ran")), say("Again.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="workspace")
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        editor.wait(lambda: editor.open_requests, "a question")
        editor.notify("$/cancel_request", requestId=number)
        assert editor.reply(number) == {"stopReason": "cancelled"}
        assert editor.open_requests == []
        (taken_back,) = [one for one in editor.recorder.of("agent") if one.get("method") == "$/cancel_request"]
        assert taken_back["params"]["requestId"] == 1
        editor.notify("$/cancel_request", requestId=number)  # nobody is there any more
        assert editor.prompt(session_id) == "end_turn"
        editor.leave()
    assert not (host.workspace / "ran").exists()


@pytest.mark.slow
def test_a_session_that_was_killed_in_an_answer_goes_on_with_the_next_prompt(host: Host, editors: list[Editor]) -> None:
    turns = [say("Again.", when={"last_contains": "Go on."}), say("One, two, three, four.", chunk_delay_ms=3000)]
    with gateway(*turns) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        editor.wait(lambda: model.count, "a request")
        _kill(host, session_id)
        assert _lost(editor, number)
        assert editor.prompt(session_id, "Go on.") == "end_turn"
        assert "The session was resumed in another process" in editor.notices()
        assert editor.text().endswith("Again.")
        editor.leave()


@pytest.mark.slow
def test_a_session_that_was_killed_in_a_question_runs_nothing_unasked(host: Host, editors: list[Editor]) -> None:
    with gateway(use(shell("echo x >> ran")), say("Again.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="workspace")
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        editor.wait(lambda: editor.open_requests, "a question")
        _kill(host, session_id)
        assert _lost(editor, number)
        editor.wait(lambda: not editor.open_requests, "the question taken back")
        assert editor.prompt(session_id, "Go on.") == "end_turn"
        assert not (host.workspace / "ran").exists()
        editor.leave()


@pytest.mark.slow
def test_a_session_that_was_killed_in_a_command_does_not_run_it_again(host: Host, editors: list[Editor]) -> None:
    with gateway(use(shell("echo x >> ran; echo h''ere; sleep 600")), say("Again.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        editor.wait(lambda: _says(editor, "here"), "output of the command")
        _kill(host, session_id)
        assert _lost(editor, number)
        assert editor.prompt(session_id, "Go on.") == "end_turn"
        assert (host.workspace / "ran").read_text() == "x\n"
        assert "TOOL_INTERRUPTED" in json.dumps(model.bodies[-1]["messages"])
        editor.leave()


@pytest.mark.slow
def test_a_killed_task_continues_when_the_person_says_so(host: Host, editors: list[Editor]) -> None:
    with gateway(use(shell("echo x >> ran")), say("Said.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="workspace")
        session_id = editor.new(host.workspace)
        number = editor.begin(session_id)
        editor.wait(lambda: editor.open_requests, "a question")
        _kill(host, session_id)
        assert _lost(editor, number)
        editor.answers["session/request_permission"] = choose("allow_once")
        assert editor.prompt(session_id, "/continue") == "end_turn"
        assert ((host.workspace / "ran").read_text(), editor.text()) == ("x\n", "Said.")
        assert editor.refusal(
            "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "/continue"}]
        ).message.startswith("there is no task")
        editor.leave()


@pytest.mark.slow
def test_two_sessions_at_once_do_not_disturb_each_other(host: Host, editors: list[Editor]) -> None:
    turns = [
        use(shell("echo fi''rst; sleep 600"), when={"last_contains": "First"}),
        say("The second.", when={"last_contains": "Second"}),
        say("The first again.", when={"last_contains": "Third"}),
    ]
    with gateway(*turns) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        first, second = editor.new(host.workspace), editor.new(host.workspace)
        number = editor.begin(first, "First")
        editor.wait(lambda: _says(editor, "first"), "output of the command")
        assert editor.prompt(second, "Second") == "end_turn"
        _kill(host, first)
        assert _lost(editor, number)
        assert editor.text(second) == "The second."
        assert editor.prompt(first, "Third") == "end_turn"
        assert editor.text(first) == "The first again."
        busy = editor.begin(second, "First")
        editor.wait(lambda: _says(editor, "first", session_id=second), "output of the command")
        again = editor.refusal("session/prompt", sessionId=second, prompt=[{"type": "text", "text": "x"}])
        assert again.code == -32600
        editor.notify("session/cancel", sessionId=second)
        assert editor.reply(busy) == {"stopReason": "cancelled"}
        editor.leave()
    assert host.checkpoints() == []


@pytest.mark.slow
def test_a_session_is_loaded_with_its_history_and_its_open_question(host: Host, editors: list[Editor]) -> None:
    turns = [use(call("ReadFile", path="a.txt")), say("Read."), use(shell("touch ran")), say("Done.")]
    (host.workspace / "a.txt").write_text("content\n")
    options = ("--sandbox", "none")
    with gateway(*turns) as model:
        editor = _editor(editors, host, "--gateway", model.url, *options, policy="workspace")
        session_id = editor.new(host.workspace)
        assert editor.prompt(session_id, "First.") == "end_turn"
        editor.begin(session_id, "Second.")
        editor.wait(lambda: editor.open_requests, "a question")
        editor.leave()
        other = _editor(editors, host, "--gateway", model.url, *options, policy="workspace")
        wrong = other.refusal("session/load", sessionId=session_id, cwd=str(host.home), mcpServers=[])
        assert (wrong.code, str(host.workspace) in wrong.message) == (-32602, True)
        loaded = other.call("session/load", sessionId=session_id, cwd=str(host.workspace), mcpServers=[])
        assert loaded["modes"]["currentModeId"] == "workspace"
        kinds = [one["sessionUpdate"] for one in other.updates()]
        history = [one for one in kinds if one in ("user_message_chunk", "agent_message_chunk", "tool_call")]
        assert history[:5] == [
            "user_message_chunk", "tool_call", "agent_message_chunk", "user_message_chunk", "tool_call",
        ]  # fmt: skip
        first, *_ = other.updates("tool_call")
        assert (first["kind"], first["status"]) == ("read", "completed")
        assert "content" in first["content"][0]["content"]["text"]
        asked = other.asked("session/request_permission")
        assert asked["params"]["toolCall"]["title"] == "Run: touch ran"
        other.answer(asked, choose("allow_once")(asked["params"]))
        other.wait(lambda: other.text().endswith("Done."), "the end of the task")
        assert (host.workspace / "ran").exists()
        other.leave()


@pytest.mark.slow
def test_a_session_that_is_resumed_says_nothing_again(host: Host, editors: list[Editor]) -> None:
    with gateway(say("One."), say("Two.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace)
        assert editor.prompt(session_id) == "end_turn"
        editor.leave()
        other = _editor(editors, host, "--gateway", model.url)
        other.call("session/resume", sessionId=session_id, cwd=str(host.workspace))
        assert other.prompt(session_id, "More.") == "end_turn"
        assert other.text() == "Two."
        other.leave()
    assert [one["role"] for one in model.bodies[-1]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.slow
def test_without_a_provider_a_person_is_sent_to_set_one_up(host: Host, editors: list[Editor]) -> None:
    editor = Editor(host)
    editors.append(editor)
    offered = editor.initialize()
    agent, terminal = offered["authMethods"]
    assert ("type" not in agent, terminal["type"], terminal["args"]) == (True, "terminal", ["--init"])
    assert [one["id"] for one in editor.initialize({})["authMethods"]] == [agent["id"]]
    refused = editor.refusal("session/new", cwd=str(host.workspace), mcpServers=[])
    assert (refused.code, "agent-host init" in refused.message) == (-32000, True)
    assert editor.refusal("authenticate", methodId=agent["id"]).code == -32000
    assert editor.refusal("authenticate", methodId=terminal["id"]).code == -32602
    with gateway(say("Here.")) as model:
        with open(host.root / "user.toml", "a", encoding="utf-8") as file:
            file.write(f'gateway = "{model.url}"\n')
        assert editor.call("authenticate", methodId=agent["id"]) == {}
        assert editor.prompt(editor.new(host.workspace)) == "end_turn"
        editor.leave()


@pytest.mark.slow
def test_the_terminal_method_sets_a_provider_up(host: Host, editors: list[Editor]) -> None:
    """What an editor's terminal runs is `init`; the agent that runs meanwhile finds what it wrote."""
    (host.root / "user.toml").unlink()
    with model_server(PROOF, say("It works.")) as server:
        editor = Editor(host, env={"AGENT_HOST_CONFIG": "", "XDG_CONFIG_HOME": str(host.root / "config")})
        editors.append(editor)
        agent, terminal = editor.initialize()["authMethods"]
        assert editor.refusal("authenticate", methodId=agent["id"]).code == -32000
        words = ["acp", "--gateway", server.url, "--model", MODEL, *terminal["args"]]
        env = {"AGENT_HOST_CONFIG": "", "XDG_CONFIG_HOME": str(host.root / "config")}
        assert host.run(*words, env=env).code == 0
        assert editor.call("authenticate", methodId=agent["id"]) == {}
        editor.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "sent"),
    [
        ({"type": "resource_link", "name": "a.py", "uri": "file:///x/a.py"}, "[a.py](file:///x/a.py)"),
        (
            {"type": "resource", "resource": {"uri": "file:///x/b.md", "text": "```\ncode\n```"}},
            "file:///x/b.md:\n````\n```\ncode\n```\n````",
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///x/c.bin", "blob": "AAAA"}},
            "file:///x/c.bin (binary, its content is not shown)",
        ),
    ],
)
def test_what_comes_with_a_prompt_reaches_the_model(
    host: Host, editors: list[Editor], block: dict[str, object], sent: str
) -> None:
    with gateway(say("Seen.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace)
        blocks = [{"type": "text", "text": "Look at "}, block]
        assert editor.call("session/prompt", sessionId=session_id, prompt=blocks) == {"stopReason": "end_turn"}
        assert f"Look at \n\n{sent}" in json.dumps(model.bodies[0]["messages"], ensure_ascii=False).replace("\\n", "\n")
        editor.leave()


@pytest.mark.slow
def test_pictures_of_a_prompt_are_shown_to_the_model(host: Host, editors: list[Editor]) -> None:
    """They lie in the session's temporary directory: the model looks at them with its tool, under the policy."""
    turns = [
        use(shell("mv $TMPDIR/picture_*.png $TMPDIR/one.png")),
        use(call("ReadFile", path="${temporary}/one.png")),
        say("Seen."),
    ]
    mock = MockGateway(Script.from_turns(turns, variables={"temporary": "-"}), keep_bodies=True)
    with mock.in_thread() as url:
        editor = _editor(editors, host, "--gateway", url, policy="ci")
        assert editor.initialize()["agentCapabilities"]["promptCapabilities"]["image"] is True
        session_id = editor.new(host.workspace)
        (temporary,) = host.temporary.glob("agent-host-*")
        mock._script = mock._script.with_variables({"temporary": str(temporary)})
        data = b64encode(png(40, 30)).decode()
        blocks = [
            {"type": "text", "text": "What is on "},
            {"type": "image", "data": data, "mimeType": "image/png"},
            {"type": "text", "text": "?"},
        ]
        assert editor.call("session/prompt", sessionId=session_id, prompt=blocks) == {"stopReason": "end_turn"}
        first, _, last = (json.loads(record.body or b"") for record in mock.requests)
        assert "What is on [picture 1]?" in json.dumps(first["messages"])
        assert f"- {temporary}/picture_" in json.dumps(first["messages"])
        assert data in json.dumps(last["messages"])
        for wrong in ({"data": "AAAA", "mimeType": "image/png"}, {"data": data, "mimeType": "image/tiff"}):
            refused = editor.refusal("session/prompt", sessionId=session_id, prompt=[{"type": "image", **wrong}])
            assert refused.code == -32602
        editor.leave()
    assert mock.failures == []


@pytest.mark.slow
def test_an_agent_whose_tools_show_no_pictures_offers_to_take_none(host: Host, editors: list[Editor]) -> None:
    with gateway(say("Here.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--toolset", "native")
        assert editor.initialize()["agentCapabilities"]["promptCapabilities"]["image"] is False
        image = [{"type": "image", "data": b64encode(png()).decode(), "mimeType": "image/png"}]
        session_id = editor.new(host.workspace)
        assert editor.refusal("session/prompt", sessionId=session_id, prompt=image).code == -32602
        editor.leave()


@pytest.mark.slow
def test_a_wrong_message_is_answered_and_the_agent_lives_on(host: Host, editors: list[Editor]) -> None:
    with gateway(say("Here.")) as model:
        editor = Editor(host, "--gateway", model.url)
        editors.append(editor)
        early = editor.refusal("session/new", cwd=str(host.workspace), mcpServers=[])
        assert (early.code, early.message) == (-32600, "initialize comes first")
        editor.initialize()
        for line, code in (
            (b"{", -32700),
            (b"[]", -32600),
            (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600),
            (b'{"jsonrpc":"1.0","id":null,"method":"initialize"}', -32600),
            (b'{"jsonrpc":"2.0","id":null,"method":"no/such","params":{}}', -32601),
            (b'{"jsonrpc":"2.0","id":null,"method":"session/new","params":{"cwd":5}}', -32602),
            (b"[" * 100_000, -32700),
        ):
            editor.raw(line + b"\n")
            with pytest.raises(Refused) as caught:
                editor.reply(None)
            assert caught.value.code == code, line
        for cwd, more, part in (
            ("work", [], "absolute"),
            (str(host.root / "nowhere"), [], "nowhere"),
            (str(host.workspace), [str(host.home)], "additionalDirectories"),
        ):
            refused = editor.refusal("session/new", cwd=cwd, mcpServers=[], additionalDirectories=more)
            assert part in refused.message
        for line in (
            b'{"jsonrpc":"2.0","id":77,"result":{}}',
            b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":7}}',
            b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":{}}}',
            b'{"jsonrpc":"2.0","method":"no/such"}',
            b"",
        ):
            editor.raw(line + b"\n")
        session_id = editor.new(host.workspace)
        image = [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]
        assert editor.refusal("session/prompt", sessionId=session_id, prompt=image).code == -32602
        assert editor.refusal("session/prompt", sessionId="nobody", prompt=image).code == -32002
        assert editor.refusal("session/set_mode", sessionId=session_id, modeId="god").code == -32602
        assert editor.prompt(session_id) == "end_turn"
        editor.leave()


@pytest.mark.slow
def test_a_question_of_an_mcp_server_is_a_form_of_the_editor(host: Host, editors: list[Editor]) -> None:
    program, *args = command("odd")
    settings = {"name": "odd", "transport": "stdio", "command": program, "args": args, "elicitation": True}
    with open(host.root / "user.toml", "a", encoding="utf-8") as file:
        file.write("[mcp]\nconnect_timeout_s = 25.0\n[[mcp.servers]]\n")
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    policy = host.policy(grants={"Mcp.Invoke": {"allowedToolNames": ["odd/*"]}})
    ask = use(call(sendable_name("odd/ask")))
    page = use(call(sendable_name("odd/page")))
    with gateway(ask, say("Done."), ask, say("Done."), page, say("Done."), ask, say("Done.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, policy=str(policy))
        session_id = editor.new(host.workspace)
        editor.answers["elicitation/create"] = lambda _: {"action": "accept", "content": {"name": "Ada", "times": 2}}
        assert editor.prompt(session_id) == "end_turn"
        assert model.results()[0].text == "accept name='Ada' times=2"
        editor.answers["elicitation/create"] = lambda _: {"action": "decline"}
        assert editor.prompt(session_id) == "end_turn"
        assert model.results()[0].text.startswith("decline")
        editor.answers["elicitation/create"] = lambda _: {"action": "accept"}
        assert editor.prompt(session_id) == "end_turn"
        assert "accept" in model.results()[0].text
        asked = [one["params"] for one in editor.recorder.of("agent") if one.get("method") == "elicitation/create"]
        assert [one["mode"] for one in asked] == ["form", "form", "url"]
        assert asked[-1]["url"] == "https://example.com/login"
        editor.leave()
        plain = Editor(host, "--policy", str(policy), "--gateway", model.url)
        editors.append(plain)
        plain.initialize({})
        assert plain.prompt(plain.new(host.workspace)) == "end_turn"
        assert "this editor shows no forms" in plain.text()
        plain.leave()


@pytest.mark.slow
def test_servers_that_an_editor_names_are_not_started_unless_the_user_says_so(
    host: Host, editors: list[Editor]
) -> None:
    server = {"name": "evil", "command": "/bin/touch", "args": [str(host.workspace / "started")], "env": []}
    with gateway(say("Done.")) as model:
        editor = _editor(editors, host, "--gateway", model.url)
        session_id = editor.new(host.workspace, mcpServers=[server])
        assert editor.prompt(session_id) == "end_turn"
        assert [one for one in editor.notices() if "MCP servers" in one] == ["MCP servers that are not started: evil"]
        editor.leave()
    assert not (host.workspace / "started").exists()


@pytest.mark.slow
def test_news_is_text_for_an_editor_without_notices(host: Host, editors: list[Editor]) -> None:
    with gateway(use(call("WriteFile", path="/etc/x", content="x")), say("Done.")) as model:
        editor = Editor(host, "--gateway", model.url, "--policy", "workspace")
        editors.append(editor)
        editor.initialize({})
        assert editor.prompt(editor.new(host.workspace)) == "end_turn"
        assert editor.notices() == []
        assert "> **agent-host**: WriteFile was denied" in editor.text()
        editor.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turn", "stop"),
    [
        ({"text": "No.", "stop_reason": "refusal"}, "refusal"),
        (use(call("ReadFile", path="a.txt")), "max_turn_requests"),
    ],
)
def test_a_turn_says_why_it_stopped(host: Host, editors: list[Editor], turn: dict[str, object], stop: str) -> None:
    with gateway(turn) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--max-steps", "1")
        assert editor.prompt(editor.new(host.workspace)) == stop
        editor.leave()


@pytest.mark.slow
def test_a_person_changes_policy_model_and_sandbox(host: Host, editors: list[Editor]) -> None:
    turns = [
        use(call("WriteFile", path="a.txt", content="x")),
        say("Not."),
        use(call("WriteFile", path="a.txt", content="x")),
        say("Done."),
    ]
    with gateway(*turns) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="ci")
        opened = editor.call("session/new", cwd=str(host.workspace), mcpServers=[])
        session_id = opened["sessionId"]
        assert opened["modes"]["currentModeId"] == "ci"
        now = {one["id"]: one["currentValue"] for one in opened["configOptions"]}
        assert (now["policy"], now["sandbox"]) == ("ci", "none")
        assert now["model"] in [one["value"] for one in opened["configOptions"][1]["options"]]
        assert editor.call("session/set_mode", sessionId=session_id, modeId="read-only") == {}
        assert editor.updates("config_option_update")[-1]["configOptions"][0]["currentValue"] == "read-only"
        assert editor.prompt(session_id) == "end_turn"
        assert not (host.workspace / "a.txt").exists()
        back = editor.call("session/set_config_option", sessionId=session_id, configId="policy", value="ci")
        assert back["configOptions"][0]["currentValue"] == "ci"
        assert editor.updates("current_mode_update")[-1]["currentModeId"] == "ci"
        assert editor.prompt(session_id, "Again.") == "end_turn"
        assert (host.workspace / "a.txt").exists()
        other = opened["configOptions"][1]["options"][-1]["value"]
        chosen = editor.call("session/set_config_option", sessionId=session_id, configId="model", value=other)
        assert chosen["configOptions"][1]["currentValue"] == other
        again = editor.call("session/load", sessionId=session_id, cwd=str(host.workspace), mcpServers=[])
        assert again["configOptions"][1]["currentValue"] == other, "a mode is on record"
        for option, value in (("color", "blue"), ("policy", "god"), ("model", "no-such-model")):
            refused = editor.refusal("session/set_config_option", sessionId=session_id, configId=option, value=value)
            assert refused.code == -32602
        editor.leave()


@pytest.mark.slow
def test_two_hundred_messages_of_one_connection_fit_the_schema(host: Host, editors: list[Editor]) -> None:
    calls = [shell(f"echo {number}") for number in range(20)]
    turns = [use(one, text="I look.") for one in calls]
    asks = [use(call("WriteFile", path=f"{number}.txt", content=f"{number}\n")) for number in range(10)]
    with gateway(*turns, *asks, say("Done."), *asks, say("Done."), say("Less.")) as model:
        editor = _editor(editors, host, "--gateway", model.url, "--sandbox", "none", policy="workspace")
        editor.answers["session/request_permission"] = choose("allow_once")
        session_id = editor.new(host.workspace)
        assert editor.prompt(session_id) == "end_turn"
        assert editor.prompt(session_id, "Again.") == "end_turn"
        for command_text, answer in (("/cost", "tokens in"), ("/diff", "10 changed files"), ("/compact", "record")):
            assert editor.prompt(session_id, command_text) == "end_turn"
            assert answer in editor.text()
        assert editor.prompt(session_id, "With less.") == "end_turn"
        assert len(editor.updates("compaction_update")) == 1
        editor.call("session/load", sessionId=session_id, cwd=str(host.workspace), mcpServers=[])
        assert len(editor.updates("compaction_update")) == 2, "the history says where requests began to show less"
        assert len(editor.recorder.messages) >= 200
        editor.leave()


def _says(editor: Editor, text: str, *, session_id: str | None = None) -> bool:
    """Whether a command has printed it."""
    updates = editor.updates("tool_call_update", session_id)
    return any(text in json.dumps(one.get("content", "")) for one in updates)


def _kill(host: Host, session_id: str) -> None:
    """Kill the process of a session."""
    rows = json.loads(host.run("sessions", "--output", "json").stdout)
    (pid,) = [row["pid"] for row in rows if row["sessionId"] == session_id]
    os.kill(pid, signal.SIGKILL)


def _lost(editor: Editor, number: int) -> bool:
    """Whether the prompt was answered with the death of its process."""
    with pytest.raises(Refused) as caught:
        editor.reply(number)
    return caught.value.code == -32603 and "signal 9" in caught.value.message
