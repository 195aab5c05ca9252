"""Pages of sessions as files: what is in them, and what a browser makes of them."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import page_sessions
from tests.support.browser import Watched, launched
from tests.support.page_sessions import HOSTILE
from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.support.process import Host
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Servers


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


def written(host: Host, session_id: str, *options: str) -> Path:
    path = host.root / f"{session_id}.html"
    outcome = host.run("show", session_id, "--html", str(path), *options)
    assert (outcome.code, outcome.stderr) == (0, ""), outcome.stderr
    assert outcome.text == f"wrote {path}\n"
    return path


def text_in(path: Path) -> str:
    """The text of the page without its markup."""
    page = re.sub(r"(?s)<(style|script)>.*?</\1>", "", path.read_text())
    return html.unescape(re.sub(r"<[^>]+>", "", page))


# Without a browser


def test_a_page_is_one_file_that_asks_for_nothing(host: Host) -> None:
    page_sessions.ended(host)
    page = written(host, "ended").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href|action)=\"(?!data:|#)", page)
    assert not re.search(r" (?:on\w+|style)=", page), "its policy would refuse them"
    text = text_in(host.root / "ended.html")
    for wanted in ("Completed", "Do it.", "line seven", "exit code 3", "ALLOWED by", "a.py", "+4 −1 lines"):
        assert wanted.lower() in text.lower(), wanted
    assert '<span class="s-b fg-1">FAILED</span>' in page
    assert page.count("<script>") == 1


@pytest.mark.slow
def test_what_needs_a_person_stands_on_top_with_its_command(host: Host) -> None:
    page_sessions.denied(host)
    text = text_in(written(host, "denied"))
    top = text[: text.index("What happened")]
    assert re.search(r"agent-host resume denied --approve replay_[0-9a-f]{32}", top)
    assert "What would allow it" in text
    page_sessions.interrupted(host)
    top = text_in(written(host, "interrupted")).split("What happened")[0]
    assert "agent-host resume interrupted" in top
    page_sessions.crashed(host)
    text = text_in(written(host, "crashed"))
    assert "The process ended without a word" in text
    assert "RunCommand was interrupted: its effects so far are unknown" in text.split("What happened")[0]


WRITES = {"name": "File.Write", "allowedPaths": ["${workspace}"], "blockedPaths": ["@credentials", "@steering"]}
DENIED = (
    (shell("cat notes | sort"), {"name": "Shell.Exec", "allowedCommands": ["cat", "sort"]}),
    (call("WriteFile", path="new.txt", content="x"), WRITES),
    (call("HttpRequest", url="https://docs.example/x"), {"name": "Network.Http", "allowedDomains": ["docs.example"]}),
    (shell("bash -c ls"), None),
    (call("ReadFile", path="/etc/passwd"), None),
    (call("WriteFile", path="../elsewhere", content="x"), None),
    (call("WriteFile", path="link/elsewhere", content="x"), None),
    (call("WriteFile", path=".git/config", content="x"), None),
    (call("WriteFile", path=".vscode/settings.json", content="x"), None),
    (call("HttpRequest", url="http://169.254.169.254/"), None),
    (call("HttpRequest", url="http://localhost:1/"), None),
)
"""Calls that `read-only` denies, and the entry that a page names for each: none by which a model could talk somebody
into more than its workspace."""


def test_a_denial_by_the_policy_names_the_entry_that_would_allow_it(host: Host) -> None:
    (host.root / "outside").mkdir()
    (host.workspace / "link").symlink_to(host.root / "outside", target_is_directory=True)
    with gateway(use(*(one for one, _ in DENIED)), say("I could not.")) as model:
        assert host.task(model.url, "--session-id", "s", policy="read-only").code == 0
    page = html.unescape(written(host, "s").read_text())
    table = page[page.index("What would allow it") :].split("</table>")[0]
    named = [json.loads(one) for one in re.findall(r'tabindex="0">({.*?})</code> in a bundle', table)]
    assert named == [entry for _, entry in DENIED if entry is not None]
    assert table.count("nothing that is named here") == sum(entry is None for _, entry in DENIED)
    own = json.loads(host.policy().read_text())
    own["capabilities"] = [{"name": "LLM.Call"}, *named]
    (host.root / "own.json").write_text(json.dumps(own))
    tried = host.run("policy", "rejudge", "s", "--policy", str(host.root / "own.json"), "--output", "json")
    now = [row["now"] for row in json.loads(tried.stdout)]
    assert now == ["DENIED" if entry is None else "ALLOWED" for _, entry in DENIED]
    full = host.run("policy", "rejudge", "s", "--policy", "full", "--output", "json")
    assert [row["now"] for row in json.loads(full.stdout)][7:] == ["DENIED"] * 4, "what even `full` denies"


def test_no_entry_is_named_under_a_policy_of_a_service(host: Host) -> None:
    with gateway(use(shell("cat notes")), say("I could not.")) as model:
        assert host.task(model.url, "--session-id", "s", policy="read-only").code == 0
    assert "in a bundle, tried by" in written(host, "s").read_text()
    path = host.root / "s.html"
    served = host.run("show", "s", "--html", str(path), env={"SESSION_SERVICE_URL": "http://127.0.0.1:1"})
    assert served.code == 0, served.stderr
    assert "in a bundle, tried by" not in path.read_text()


def test_a_page_agrees_with_the_transcript(host: Host) -> None:
    page_sessions.ended(host)
    page = written(host, "ended").read_text()
    row = json.loads(host.run("show", "ended", "--output", "json").stdout)
    shown = re.findall(r'<div class="item (\w+) [a-z]*" id="item-([^"]+)"', page)
    assert shown == [(item["kind"], item["itemId"]) for item in row["items"]]
    assert re.findall(r'id="step-(\d+)"', page) == [str(step["step"]) for step in row["steps"]]


def pages_of_transcript(client: Client, session_id: str) -> dict[str, list[Any]]:
    """What GetTranscript gives, three items at a time."""
    found: dict[str, list[Any]] = {"items": [], "waits": [], "doubts": []}
    cursor: dict[str, str] = {}
    while True:
        page = client.call("GetTranscript", sessionId=session_id, limit=3, **cursor)
        for name in found:
            found[name] += page[name]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("kind", ["ended", "denied", "interrupted", "crashed", "summarised"])
def test_an_event_a_transcript_and_a_page_never_disagree(servers: Servers, kind: str) -> None:
    host = servers.host
    getattr(page_sessions, kind)(host)
    shown = json.loads(host.run("show", kind, "--output", "json").stdout)
    _, client = servers.client("http://127.0.0.1:1")
    pages = pages_of_transcript(client, kind)
    assert pages["items"] == shown["items"]
    for name in ("waits", "doubts"):
        assert sorted(pages[name], key=str) == sorted(shown[name], key=str)
    page = written(host, kind).read_text()
    assert re.findall(r'<div class="item \w+ [a-z]*" id="item-([^"]+)"', page) == [
        one["itemId"] for one in shown["items"]
    ]
    answers = [event["payload"] for event in host.event_log(kind) if event["eventType"] == "llm_request_completed"]
    counted = [step["inputTokens"] for step in shown["steps"] if "inputTokens" in step]
    assert counted == [one["inputTokens"] for one in answers]
    total = sum(one["inputTokens"] + one["outputTokens"] for one in answers)
    assert f"{total:,}" in text_in(host.root / f"{kind}.html")
    ends = [event["payload"] for event in host.event_log(kind) if event["eventType"] == "tool_completed"]
    calls = {item["itemId"]: item for item in shown["items"] if item["kind"] == "call"}
    assert {one["toolCallId"]: one["status"] for one in ends} == {
        name: item["status"] for name, item in calls.items() if item["status"] != "open"
    }


@pytest.mark.slow
def test_a_large_output_is_cut_unless_all_is_asked_for(host: Host) -> None:
    lines = "print('x' * 60); " * 10
    command = f"{sys.executable} -c \"[print('begin')]; [print('y' * 60) for _ in range(200)]; print('end')\""
    page_sessions.answered(host, "large", use(shell(command)), say(lines))
    assert "[…" not in text_in(written(host, "large"))
    assert text_in(written(host, "large")).count("y" * 60) < 10
    assert "agent-host show large" in text_in(written(host, "large"))
    assert text_in(written(host, "large", "--full")).count("y" * 60) == 200


def test_without_jinja_a_line_says_what_to_install(host: Host) -> None:
    page_sessions.answered(host, "s", say("Done."))
    code = (
        "import sys; sys.modules['jinja2'] = None; from agent_host.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "show", "s", "--html", str(host.root / "s.html")],
        env=host.environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "agent-host: error: --html needs Jinja: install agent-host[report]\n")


def hostile(host: Host, session_id: str = "hostile") -> None:
    """Each of the strings as a prompt's part, the model's words, a command's output and its arguments."""
    for number, text in enumerate(HOSTILE):
        (host.workspace / f"h{number}.txt").write_text(text)
    reads = [call("ReadFile", path=str(host.workspace / f"h{number}.txt")) for number in range(len(HOSTILE))]
    other = [call("Grep", pattern=text, path=str(host.workspace)) for text in HOSTILE[:40]]
    names = [call("WriteFile", path=str(host.workspace / "x.txt"), content="\n".join(HOSTILE))]
    turns = [use(*reads[at : at + 20], text=" ".join(HOSTILE[at : at + 20])) for at in range(0, len(reads), 20)]
    turns += [use(*other[:20]), use(*other[20:]), use(*names), say("\n".join(HOSTILE))]
    page_sessions.answered(host, session_id, *turns, prompt=HOSTILE[1] + "\n" + "\n".join(HOSTILE))


def test_hostile_strings_make_no_element(host: Host) -> None:
    hostile(host)
    page = written(host, "hostile").read_text()
    assert page.count("<script>") == page.count("</script>") == 1
    assert not re.search(r"<(?:img|svg|iframe|form|object|base|link)\b(?! class=\"bar\"| src=\"data:| viewBox)", page)
    assert not set("\x1b\x07\x08\u202e\u2066\u200f\ufeff") & set(page)


@pytest.mark.slow
def test_many_sessions_are_one_page(host: Host) -> None:
    page_sessions.ended(host)
    page_sessions.denied(host)
    page_sessions.interrupted(host)
    path = host.root / "all.html"
    outcome = host.run("report", "--all", "--html", str(path))
    assert (outcome.code, outcome.text) == (0, f"wrote {path}\n")
    page = path.read_text()
    rows = re.findall(r'<tr class="(\w+)" id="row-(\w+)"', page)
    assert rows == [("bad", "interrupted"), ("bad", "denied"), ("good", "ended")]
    assert "agent-host show denied --html denied.html" in page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    outcome = host.run("report", "ended", "den", "--html", str(path), "--with-sessions")
    assert outcome.text == f"wrote 2 pages to {host.root}/all-sessions\nwrote {path}\n"
    links = re.findall(r'href="(all-sessions/[^"]+)"', path.read_text())
    assert links == ["all-sessions/ended.html", "all-sessions/denied.html"]
    assert "line seven" in text_in(host.root / links[0])


@pytest.mark.many_rows(1)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "--html", "x.html"), "report needs the ids of sessions, or --all"),
        (("report", "s", "--all", "--html", "x.html"), "report needs the ids of sessions, or --all"),
        (("show", "s", "--step", "1", "--markdown"), "--step is for text and JSON"),
        (("show", "s", "--full"), "--full goes with --html"),
        (("report", "nope", "--html", "x.html"), "there is no session nope"),
        (("show", "s", "--html", "/nowhere/x.html"), "--html /nowhere/x.html: No such file or directory"),
    ],
)
def test_what_cannot_be_shown_is_one_line(host: Host, arguments: tuple[str, ...], words: str) -> None:
    page_sessions.answered(host, "s", say("Done."))
    outcome = host.run(*arguments)
    assert outcome.code == 2
    assert words in outcome.error


def test_markdown_is_for_a_pull_request(host: Host) -> None:
    page_sessions.ended(host)
    page_sessions.denied(host)
    shown = host.run("show", "ended", "--markdown").text
    assert shown.startswith("### ` Do it. `\n\n**completed**")
    assert "<details><summary>Step 2: 2 calls, 1200 tokens in, 40 out</summary>" in shown
    assert "` RunCommand ` ` exit 3 `: ` exit code 3 `" in shown
    assert "**2 files changed**" in shown
    assert re.search(
        r"was not approved: ` agent-host resume denied --approve replay_\w+ `",
        host.run("show", "denied", "--markdown").text,
    )
    page_sessions.answered(host, "h", say("```\n</details> @you <img src=x> [x](http://e.example)\n````"))
    inert = re.sub(r"(?s)(`{3,})text\n.*?\n\1\n|(`+) .*? \2", "", host.run("show", "h", "--markdown").text)
    assert not set("@[]`") & set(inert), inert


# In a browser


def reached(page: Page) -> list[str]:
    """The items that Tab reaches, in order."""
    found: list[str] = page.evaluate("""() => [...document.querySelectorAll('.item')].filter(item => {
        const link = item.querySelector('a.at');
        link.focus();
        return document.activeElement === link && link.tabIndex >= 0;
    }).map(item => item.id)""")
    return found


def structure(page: Page) -> dict[str, Any]:
    """What a screenshot shows, by structure: small enough to be compared."""
    found: dict[str, Any] = page.evaluate("""() => ({
        verdict: document.querySelector('.verdict').textContent,
        tiles: [...document.querySelectorAll('.tiles dt')].map(one => one.textContent),
        needs: document.querySelectorAll('.needs li').length,
        lanes: [...document.querySelectorAll('svg text[text-anchor=end]')].map(one => one.textContent),
        marks: [...document.querySelectorAll('svg circle')].map(one => one.getAttribute('class')),
        charts: document.querySelectorAll('.charts figure').length,
        steps: document.querySelectorAll('.step h3').length,
        calls: [...document.querySelectorAll('.item.call .chip')].map(one => one.textContent).slice(0, 8),
        pictures: [...document.querySelectorAll('img')].filter(one => one.naturalWidth > 0).length,
        headings: [...document.querySelectorAll('h2')].map(one => one.textContent),
    })""")
    return found


STRUCTURES = json.loads((Path(__file__).parent / "page_checks" / "structures.json").read_text())
"""What was seen on a screenshot of each kind of session when it was looked at."""


@pytest.mark.slow
@pytest.mark.many_rows(1)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_each_kind_of_session_reads_well_in_a_browser(host: Host, browser: Browser, kind: str) -> None:
    getattr(page_sessions, kind)(host)
    path = written(host, kind)
    for scheme, width in (("light", 1200), ("dark", 390)):
        watched = Watched(browser, color_scheme=scheme, viewport={"width": width, "height": 900})
        page = watched.open(path.as_uri())
        assert structure(page) == STRUCTURES[kind]
        assert page.evaluate("document.scrollingElement.scrollWidth") == width, "the page itself is scrolled sideways"
        page.click("#fold")
        assert watched.serious() == []
        ids = re.findall(r'<div class="item [^"]*" id="([^"]+)"', path.read_text())
        assert reached(page) == ids
        assert (watched.errors, watched.left) == ([], [])
        watched.context.close()


@pytest.mark.slow
def test_all_is_printed_in_dark_ink(host: Host, browser: Browser) -> None:
    page_sessions.ended(host)
    watched = Watched(browser, color_scheme="dark")
    page = watched.open(written(host, "ended").as_uri())
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator(".item:visible").count() == page.locator(".item").count()
    assert page.locator(".bar:visible").count() == 0
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 30, 33)"
    assert page.pdf().startswith(b"%PDF")
    watched.context.close()


@pytest.mark.slow
def test_a_page_of_many_sessions_reads_well(host: Host, browser: Browser) -> None:
    for kind in ("ended", "denied", "interrupted"):
        getattr(page_sessions, kind)(host)
    path = host.root / "all.html"
    assert host.run("report", "--all", "--html", str(path), "--with-sessions").code == 0
    for scheme, width in (("light", 1200), ("dark", 390)):
        watched = Watched(browser, color_scheme=scheme, viewport={"width": width, "height": 900})
        page = watched.open(path.as_uri())
        assert watched.serious() == []
        assert page.evaluate("document.scrollingElement.scrollWidth") == width
        page.get_by_role("button", name="Tokens").click()
        assert page.locator("tbody tr").first.get_attribute("id") == "row-ended"
        page.fill("#q", "denied")
        page.locator("#found", has_text="1 shown").wait_for()
        page.locator("tr:visible a").click()
        page.locator(".verdict.denied").wait_for()
        assert (watched.errors, watched.left) == ([], [])
        watched.context.close()


@pytest.mark.slow
def test_hostile_strings_change_nothing_in_a_browser(host: Host, browser: Browser) -> None:
    hostile(host)
    path = written(host, "hostile", "--full")
    watched = Watched(browser)
    page = watched.open(path.as_uri())
    page.click("#fold")
    assert page.evaluate("window.hit") is None
    assert (watched.errors, watched.left) == ([], [])
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    for text in ("<script>window.hit=1</script>", "&lt;script&gt;", "{{ 7 * 7 }}"):
        assert text in page.evaluate("document.querySelector('#steps').textContent")
    watched.context.close()


@pytest.mark.slow
def test_a_script_that_was_put_into_a_copy_is_blocked(host: Host, browser: Browser) -> None:
    page_sessions.answered(host, "s", say("Done."))
    path = written(host, "s")
    path.write_text(
        path.read_text().replace("<footer>", "<script>window.hit = 1</script><img src=x onerror='hit=1'><footer>")
    )
    watched = Watched(browser)
    page = watched.open(path.as_uri())
    assert page.evaluate("window.hit") is None
    assert any("Content Security Policy" in error for error in watched.errors)
    watched.context.close()


@pytest.mark.slow
def test_search_links_and_keys(host: Host, browser: Browser) -> None:
    page_sessions.ended(host)
    path = written(host, "ended")
    watched = Watched(browser)
    page = watched.open(path.as_uri())
    page.keyboard.press("/")
    page.keyboard.type("b.txt")
    page.locator("#found", has_text="1 shown").wait_for()
    assert page.locator(".item:visible").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#found").text_content() == ""
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('.item') === document.querySelectorAll('.item')[1]")
    page.keyboard.press("o")
    assert page.evaluate("document.querySelectorAll('.item')[1].querySelector('details').open")
    row = json.loads(host.run("show", "ended", "--output", "json").stdout)
    item = next(f"item-{one['itemId']}" for one in row["items"] if one.get("toolName") == "WriteFile")
    page.goto(f"{path.as_uri()}#{item}")
    assert page.evaluate("(id) => document.getElementById(id).querySelector('details').open", item)
    page.goto(f"{path.as_uri()}#step-2")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#step-2"
    assert watched.errors == []
    watched.context.close()


@pytest.mark.slow
def test_a_page_reads_without_javascript(host: Host, browser: Browser) -> None:
    page_sessions.ended(host)
    watched = Watched(browser, java_script_enabled=False)
    page = watched.open(written(host, "ended").as_uri())
    page.get_by_text("FAILED", exact=True).first.wait_for(state="attached")
    page.locator("summary", has_text="EditFile").click()
    page.get_by_text("line 7 and a half").first.wait_for()
    watched.context.close()


@pytest.mark.slow
def test_a_long_session_is_searched_and_walked(host: Host, browser: Browser) -> None:
    page_sessions.long(host, 300)
    watched = Watched(browser)
    page = watched.open(written(host, "long").as_uri())
    page.fill("#q", "next one. 27")
    page.locator("#found", has_text="11 shown").wait_for()
    page.fill("#q", "")
    page.locator("#found:empty").wait_for(state="attached")
    assert page.locator(".step h3").count() == 301
    page.goto(page.url.split("#")[0] + "#step-300")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#step-300"
    assert page.evaluate("document.querySelectorAll('.timeline svg rect').length") < 1500
    assert (watched.errors, watched.left) == ([], [])
    watched.context.close()
