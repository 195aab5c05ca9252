"""Sessions as pages have to show them, each made by real processes on the machine of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.support.pictures import png
from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host

_PRICED = {"cache_read_cost": 0.3, "input_cost": 3.0, "output_cost": 15.0}
RED = "printf '\\033[1;31mFAILED\\033[0m tests/test_a.py\\n\\033[32m3 passed\\033[0m\\n'"
ANNOTATED = {"input_tokens": 1200, "output_tokens": 40}


HOSTILE: Final = [
    "<script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>",
    '"><img src=x onerror=window.hit=1>',
    "'><b onmouseover=window.hit=1>",
    "javascript:window.hit=1",
    "data:text/html,<script>parent.hit=1</script>",
    "<a href=javascript:window.hit=1>x</a>",
    "<iframe src=javascript:parent.hit=1>",
    "<style>*{display:none}</style>",
    "</style><script>window.hit=1</script>",
    "</pre></div></main><script>window.hit=1</script>",
    "</title><script>window.hit=1</script>",
    "<!--",
    "-->",
    "<![CDATA[",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "{{ self.__init__.__globals__ }}",
    "${7*7}",
    "<base href=http://evil.example/>",
    "<meta http-equiv=refresh content=0;url=http://evil.example/>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<form action=http://evil.example/><input name=q>",
    "<object data=http://evil.example/>",
    "<embed src=//evil.example>",
    "<math><mi xlink:href=javascript:window.hit=1>",
    "<template><script>window.hit=1</script></template>",
    "<noscript><img src=x onerror=window.hit=1></noscript>",
    "<textarea><script>window.hit=1</script>",
    "<details open ontoggle=window.hit=1>",
    "<input autofocus onfocus=window.hit=1>",
    "<video><source onerror=window.hit=1>",
    "<body onload=window.hit=1>",
    "<marquee onstart=window.hit=1>",
    "<x id=steps class=item>",
    "<div id=q>",
    "<p id=head>",
    "\x1b[2J\x1b[H",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    "\x1b]0;title\x07",
    "\x1b[31mred\x1b[0m",
    "\x1b[38;5;999999999999m",
    "\x1b[" + "1;" * 500 + "m",
    "\x1b[31;<script>m",
    "\x9b31m",
    "\x07",
    "\x08\x08\x08",
    "\u202egnp.exe",
    "\u2066hidden\u2069",
    "\u200f\u200e",
    "\u2028window.hit=1",
    "\ufeff",
    "\ud7ff",
    "\U000e0001tag",
    "\\u003cscript\\u003e",
    "&lt;script&gt;",
    "&#x3c;script&#x3e;",
    "&",
    "&amp;amp;",
    "%3Cscript%3E",
    "a" * 300,
    "]]>",
    "*/",
    "//",
    "\\",
    '"',
    "'",
    "`",
    "\r\nSet-Cookie: a=b",
    "\t",
    "()",
    "constructor",
    "__proto__",
    "toString",
    "item-1",
    "#step-1",
    "?q=1",
    "../../etc/passwd",
    "file:///etc/passwd",
    "http://127.0.0.1:1/",
    "onerror=window.hit=1",
    "<b>bold</b>",
    "**bold**",
    "[x](javascript:window.hit=1)",
    "![x](http://evil.example/x.png)",
    "<xmp>",
    "<plaintext>",
]
"""Texts that would do something where a page did not take them as text."""


def ended(host: Host, session_id: str = "ended") -> None:
    """Reads, changes a file, has a command fail, prints in colours, and is done."""
    (host.workspace / "a.py").write_text("".join(f"line {number}\n" for number in range(30)))
    path = str(host.workspace / "a.py")
    edit = call("EditFile", path=path, edits=[{"oldText": "line 7\n", "newText": "line seven\nline 7 and a half\n"}])
    work = (
        use(call("ReadFile", path=path), shell(RED), usage=ANNOTATED),
        use(edit, shell("exit 3"), usage=ANNOTATED),
        use(call("WriteFile", path=str(host.workspace / "b.txt"), content="new\nfile\n")),
    )
    with gateway(*work, say("Done: **a.py** has a new line.")) as model:
        assert host.task(model.url, "--session-id", session_id).code == 0


def _kill(host: Host, session_id: str) -> dict[str, Any]:
    """A command that kills its host as soon as the host has recorded it."""
    log = host.records(session_id) / "events.jsonl"
    return shell(f"until grep -q tool_requested {log}; do sleep 0.02; done; kill -9 $PPID; sleep 60")


def crashed(host: Host, session_id: str = "crashed") -> None:
    """Its process is killed in a command; another one resumes it."""
    with gateway(use(_kill(host, session_id)), say("Done.")) as model:
        assert host.task(model.url, "--session-id", session_id).code == -9
        assert host.resume(session_id).code == 0


def interrupted(host: Host, session_id: str = "interrupted") -> None:
    """Its process is killed in a command, and nobody has resumed it."""
    with gateway(use(_kill(host, session_id)), say("Done.")) as model:
        assert host.task(model.url, "--session-id", session_id).code == -9


def denied(host: Host, session_id: str = "denied") -> None:
    """A call that the policy denies, and one that nobody was there to approve."""
    asks = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}
    rules = [{"approvalRuleId": "shell", "title": "Run a command", "description": "Commands are asked for."}]
    policy = host.policy(grants=asks, approvalRules=rules)
    with gateway(use(call("ReadFile", path="/etc/shadow"), shell("make deploy")), say("I could not.")) as model:
        assert host.task(model.url, "--session-id", session_id, policy=policy).code == 4


def parallel(host: Host, session_id: str = "parallel", count: int = 60) -> None:
    """So many calls at once, more than there are slots."""
    calls = [shell(f"sleep 0.{number % 10}1; echo {number}") for number in range(count)]
    with gateway(use(*calls), say("Done.")) as model:
        assert host.task(model.url, "--session-id", session_id).code == 0


def summarised(host: Host, session_id: str = "summarised") -> None:
    """Its requests show less from some step on."""
    path = host.root / "user.toml"
    before = path.read_text()
    path.write_text('[llm]\ncontext_strategy = "clear_tool_results"\nretry_base_s = 0.01\nretry_max_s = 0.02\n')
    for number in range(12):
        (host.workspace / f"file{number}").write_text(f"content of {number}\n" * 200)
    reads = [use(call("ReadFile", path=str(host.workspace / f"file{number}"))) for number in range(12)]
    with gateway(*reads, say("Done.")) as model:
        policy = host.policy(llm={"maxInputTokens": 12_000})
        assert host.task(model.url, "--session-id", session_id, policy=policy).code == 0
    path.write_text(before)


def pictured(host: Host, session_id: str = "pictured", count: int = 3, size: int = 0) -> None:
    """Looks at pictures."""
    for number in range(count):
        (host.workspace / f"p{number}.png").write_bytes(png(40 + number, 30, size))
    looks = [call("ReadFile", path=str(host.workspace / f"p{number}.png")) for number in range(count)]
    with gateway(use(*looks), say("Done.")) as model:
        assert host.task(model.url, "--session-id", session_id).code == 0


def long(host: Host, steps: int, session_id: str = "long", text: str = "The next one.") -> None:
    """So many steps of one small read each."""
    for number in range(9):
        (host.workspace / f"n{number}.txt").write_text("0123456789abcdef\n" * 12)
    reads = [
        use(call("ReadFile", path=str(host.workspace / f"n{number % 9}.txt")), text=f"{text} {number}")
        for number in range(steps)
    ]
    policy = host.policy(llm={"maxInputTokens": 10**9, "maxSessionTokens": 10**12})
    with gateway(*reads, say("Done.")) as model:
        options = ("--session-id", session_id, "--max-steps", "10000")
        outcome = host.start_task(model.url, *options, policy=policy).finish(within_s=300)
    assert outcome.code == 0, outcome.stdout


def answered(host: Host, session_id: str, *turns: dict[str, Any], prompt: str = "Do it.") -> None:
    """A session of these turns; none of them has to succeed."""
    with gateway(*turns) as model:
        options = ("--gateway", model.url, "--session-id", session_id, "--policy", "full", "--output", "json")
        assert host.run("run", prompt, *options).code == 0
