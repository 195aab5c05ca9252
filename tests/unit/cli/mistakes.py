"""Mistakes of users: what they write, and pieces that the answer has to hold and must not hold.

`{root}` is the folder of a world: `home` (HOME), `work` (the current directory), `state` (not there yet), `tmp`, and a
script `gateway.toml` of one answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mistake(NamedTuple):
    """`line` is the command line without the program, `config` the user's configuration, `files` others by their paths
    below the root, `env` variables. `says` and `lacks` are pieces of the answer; `code` is the exit code."""

    name: str
    line: str
    says: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    code: int = 2
    config: str | None = None
    files: Mapping[str, str | bytes] = {}
    env: Mapping[str, str] = {}
    stdin: bytes = b""


MISTAKES: list[Mistake] = []

KEY = {"AGENT_HOST_GRANT_KEY": "0" * 64}
GO = "run x --gateway mock:{root}/gateway.toml"
TRY = "policy tools"
CHECK = 'policy check ReadFile \'{"path": "a"}\''


def _add(name: str, line: str, *says: str, **more: Any) -> None:
    MISTAKES.append(Mistake(name, line, says, **more))


# Options of a command line that no parser knows, and commands.  # options

for word, known in (
    ("--polciy", "--policy"),
    ("--modle", "--model"),
    ("--workpsace", "--workspace"),
    ("--max-step", "--max-steps"),
    ("--maxsteps", "--max-steps"),
    ("--state_dir", "--state-dir"),
    ("--approve_all", "--approve-all"),
    ("--aprove", "--approve"),
    ("--gatway", "--gateway"),
    ("--sesion-id", "--session-id"),
    ("--or-resum", "--or-resume"),
    ("--no-inputs", "--no-input"),
    ("--sanbox", "--sandbox"),
    ("--allow-domains", "--allow-domain"),
    ("--verbos", "--verbose"),
):
    _add(
        f"option {word}",
        f"run x {word} y",
        f"error: unknown option {word}; did you mean {known}? (see `agent-host run --help`)",
    )
for word, known in (
    ("rnu", "run"),
    ("resum", "resume"),
    ("docter", "doctor"),
    ("session", "sessions"),
    ("shwo", "show"),
):
    _add(
        f"command {word}",
        f"{word} x",
        f"error: unknown command {word}; did you mean {known}? (see `agent-host --help`)",
    )
for line, word in (("'fix the test'", "fix the test"), ("-p hi", "hi"), ("-p 'fix it'", "fix it")):
    _add(
        f"prompt without a command: {line}",
        line,
        f"error: unknown command {word}; for a task: agent-host run PROMPT (see `agent-host --help`)",
    )
_add("command x", "x", "error: unknown command x (see", lacks=("PROMPT",))
_add("verb of two words", "policy 'check it'", "unknown verb check it", lacks=("PROMPT",))
_add("help", "help", "usage: agent-host [options] COMMAND", code=0)
_add("help of a command", "help run", "usage: agent-host run [options] PROMPT", code=0)
_add("help of a verb", "help policy check", "usage: agent-host policy check", code=0)
_add("help of nothing", "help rnu", "error: unknown command rnu; did you mean run?")
_add("command policy chekc", "policy chekc x", "unknown verb chekc; did you mean check?", "agent-host policy --help")
_add("option of another command", "sessions --polciy ci", "unknown option --polciy", "agent-host sessions --help")
_add("option without value", "run x --policy", "--policy", "agent-host run --help")
_add("no prompt", "run", "PROMPT", "agent-host run --help")
_add("two prompts", "run make it", "it", "agent-host run --help")
_add("no command", "", "choose a command of this list")
_add("no verb", "policy", "choose a command of this list")
_add("gateway without script", "mock-gateway", "--script", "agent-host mock-gateway --help")
_add("service without tenants", "tool-service", "--tenants", "agent-host tool-service --help")

# Values of options

_add("output josn", "run x --output josn", "error: --output: choose text, json or jsonl, not josn; did you mean json?")
_add("output of sessions", "sessions --output jsn", "--output: choose text or json, not jsn; did you mean json?")
_add("output of show", "show x --output yaml", "--output: choose text or json, not yaml")
for value, said in (("0", "0"), ("10001", "10001"), ("-1", "-1")):
    _add(
        f"steps {value}",
        f"run x --max-steps {value}",
        f"error: --max-steps must be a whole number from 1 to 10,000, not {said}",
        lacks=("host.max_steps", "the command line"),
    )
for value in ("many", "1.5", "''"):
    _add(f"steps {value}", f"run x --max-steps {value}", "--max-steps", "whole number", "--help")
for value in ("0", "-1", "free", "nan"):
    _add(f"cost {value}", f"run x --max-cost {value}", "--max-cost", "an amount above 0", value)
_add("cost inf", "run x --max-cost inf", "--max-cost must be a number", "not Infinity", lacks=("llm.max_cost",))
_add(
    "toolset",
    "run x --toolset desktp",
    "--toolset: choose desktop, native, skills or slim, not desktp; did you mean desktop?",
)
_add(
    "dialect",
    "run x --dialect opnai",
    "--dialect: choose anthropic, openai, responses or auto, not opnai; did you mean openai?",
)
_add(
    "sandbox",
    "run x --sandbox landlok",
    "--sandbox: choose none, landlock, namespace or auto, not landlok; did you mean landlock?",
)
_add("sandbox off", "run x --sandbox off", "--sandbox: choose none, landlock, namespace or auto, not off")
_add("policy name", f"{GO} --policy workspce", "--policy", "workspce", "did you mean workspace?")
_add("policy name alone", f"{GO} --policy strict", "--policy", "'strict'", "read-only, workspace, ci, full")
_add("policy name in validate", "policy validate workspace", "workspace", "No such file")
_add("policy show", "policy show workspce", "workspce", "did you mean workspace?")
_add("policy empty", f"{GO} --policy ''", "--policy")
_add("model empty", f"{GO} --model ''", "--model is empty", code=0)
_add("provider", "run x --provider opnai", "--provider", "opnai", "did you mean openai?")
_add("provider of init", "init --provider anthropc --yes", "--provider", "anthropc", "did you mean anthropic?")
_add(
    "domain with scheme",
    f"{GO} --allow-domain https://example.com",
    "--allow-domain",
    "https://example.com",
    "example.com",
)
_add("domain with path", f"{GO} --allow-domain example.com/x", "--allow-domain", "example.com/x")
_add("domain empty", f"{GO} --allow-domain ''", "--allow-domain")
_add("approve nothing known", f"{GO} --approve RunComand", "--approve RunComand", "did you mean RunCommand?")
_add("approve capability", f"{GO} --approve shell.exec", "--approve shell.exec", "did you mean Shell.Exec?")
_add("or-resume without id", "run x --or-resume", "--or-resume needs --session-id ID")
_add("limit of prune without it", "sessions --max-age 3d", "--max-age goes with --prune only")
_add("age", "sessions --prune --max-age 3x", "--max-age", "3x")
_add("age zero", "sessions --prune --max-age 0d", "--max-age", "0d")
_add("size", "sessions --prune --max-size big", "--max-size", "big")
_add("count", "sessions --prune --max-count two", "--max-count", "two")
_add("limit of list", "sessions --limit -3", "--limit", "-3")
_add("limit of list word", "sessions --limit all", "--limit", "all")
_add("port", "mock-gateway --script x.toml --port 70000", "--port", "from 0 to 65535", "70000")
_add("port word", "mock-gateway --script x.toml --port http", "--port", "from 0 to 65535", "http")
_add("workers", "tool-service --tenants t.json --workers 0", "--workers", "1 to 128", "0")
_add("workers word", "tool-service --tenants t.json --workers two", "--workers", "1 to 128", "two")
_add("reconnect", "serve --reconnect-s soon --socket s", "--reconnect-s", "from 0 to 86,400", "soon")
_add("reconnect without socket", "serve --reconnect-s 5", "--reconnect-s", "--socket")
_add("step", "show x --step first", "--step", "first")
_add(
    "two values at once",
    "run x --max-steps 0 --sandbox landlok --dialect opnai",
    "--max-steps must be",
    "--sandbox: choose",
    "--dialect: choose",
)
_add("tool without arguments", "policy check ReadFile", "give a tool and its arguments as JSON, or --batch FILE")
_add("tool and batch", "policy check ReadFile '{}' --batch x", "not both")
_add("arguments no JSON", "policy check ReadFile '{path: a}'", "the arguments are not JSON")
_add("arguments a list", "policy check ReadFile '[]'", "the arguments are a JSON object")
_add("arguments twice", """policy check ReadFile '{"path": "a", "path": "b"}'""", "'path' occurs twice")
_add("arguments empty", "policy check ReadFile ''", "the arguments are empty")
_add("tool unknown", "policy check ReadFil '{}'", "did you mean ReadFile?", code=0)

# Prompts and standard input

_add("prompt empty", "run ''", "the prompt is empty")
_add("prompt of blanks", "run '  '", "the prompt is empty")
_add("prompt of stdin", "run -", "standard input", "empty")
_add("prompt of a bom", "run -", "standard input", "empty", stdin=b"\xef\xbb\xbf\n")
_add("batch of stdin", "policy check --batch -", "line 1", "a case is a JSON object", stdin=b"[]\n")
_add("batch no JSON", "policy check --batch -", "line 1", "not JSON", stdin=b"ReadFile a\n")
_add("batch without tool", "policy check --batch -", "line 2", "toolName", stdin=b'\n{"arguments": {}}\n')
_add("batch empty", "policy check --batch -", "standard input", "no case", stdin=b"", code=0)
_add("batch missing", "policy check --batch nowhere.jsonl", "--batch nowhere.jsonl", "No such file")
_add("batch folder", "policy check --batch {root}", "--batch {root}", "directory")

# The configuration


def _config(name: str, text: str, *says: str, line: str = TRY, **more: Any) -> None:
    _add(f"config {name}", line, *says, config=text, **more)


FILE = "{root}/home/.config/agent-host/config.toml"
_config("section", "[lmm]\nmodel = 'x'", FILE, "unknown section [lmm]; did you mean llm?")
_config("section alone", "[zzz]\nmodel = 'x'", FILE, "unknown section [zzz]; known are")
_config("key", "[llm]\ngatway = 'x'", "unknown key llm.gatway; did you mean llm.gateway?")
_config("key of another section", "[host]\nmodel = 'x'", "unknown key host.model; did you mean llm.model?")
_config("key without section", "max_steps = 3", "max_steps is outside of any section; did you mean host.max_steps?")
_config("key with dots", "llm.modle = 'x'", "unknown key llm.modle; did you mean llm.model?")
_config("section as value", "llm = 'x'", "llm must be a section of keys: [llm]")
_config("syntax", "[llm\nmodel = 'x'", FILE, "not valid TOML", "line 1")
_config("no quotes", "[llm]\nmodel = sonnet", FILE, "not valid TOML", "line 2", "quotes")
_config("JSON", '{"llm": {"model": "x"}}', FILE, "is JSON", "[section]")
_config("YAML", "llm:\n  model: x\n", FILE, "is YAML", "[section]")
_config("not UTF-8", "", FILE, "UTF-8", files={"home/.config/agent-host/config.toml": b"[llm]\nmodel='\xff'"})
MISTAKES[-1] = MISTAKES[-1]._replace(config=None)
_config("UTF-16", "", FILE, "UTF-16", files={"home/.config/agent-host/config.toml": "[llm]\n".encode("utf-16")})
MISTAKES[-1] = MISTAKES[-1]._replace(config=None)
_config("type", "[host]\nmax_steps = '3'", 'host.max_steps must be a whole number from 1 to 10,000, not "3"')
_config("bounds", "[host]\nmax_steps = 0", "host.max_steps must be a whole number from 1 to 10,000, not 0")
_config("flag", "[redaction]\ndetectors = 'on'", 'redaction.detectors must be true or false, not "on"')
_config("list", "[tools]\ndisabled = 'RunCommand'", 'tools.disabled must be a list, not "RunCommand"')
_config("list of numbers", "[tools]\ndisabled = [1]", "tools.disabled[0] must be a string, not 1")
_config("choice", "[llm]\ndialect = 'opnai'", "llm.dialect must be one of", 'not "opnai"; did you mean openai?')
_config("choice in a list", "[host]\ntoolset = ['desktp']", "host.toolset[0] must be one of", "did you mean desktop?")
_config("ceiling", "[policy]\nrisk_ceiling = 'hihg'", "policy.risk_ceiling", "did you mean high?")
_config(
    "three at once",
    "[host]\nmax_steps = 0\noutput = 'xml'\n[llm]\ngatway = 'x'\n[lmm]\na = 1",
    "host.max_steps must be",
    "host.output must be",
    "unknown key llm.gatway",
    "unknown section [lmm]",
)
_config("twice", "[llm]\nmodel = 'a'\nmodel = 'b'", "not valid TOML", "overwrite")
_config("headers", "[llm]\nheaders = 'x'", "llm.headers", "table of strings")
_config("header of a number", "[llm.headers]\nx = 1", "llm.headers", "table of strings")
_config("proxy", "[tools]\nhttp_proxy = 'proxy:8080'", "tools.http_proxy must be empty or the URL of a proxy")
_config("price", "[models.x]\nprice_input = -1\nprice_output = 1", "models.x.price_input")
_config("half a price", "[models.x]\nprice_input = 1", "models.x", "price_output")
_config("key of a model", "[models.x]\nprice_in = 1", "models.x.price_in", "did you mean price_input?")
_config("provider", "[providers.work]\ndialect = 'openai'", "providers.work", "needs base_url")
_config("provider url", "[providers.work]\nbase_url = 'llm.example.com'", "providers.work.base_url", "http")
_config("provider dialect", "[providers.work]\nbase_url = 'http://a'\ndialect = 'opnai'", "did you mean openai?")
_config("provider default", "[providers]\ndefault = 'anthropc'", "providers.default", "did you mean anthropic?")
_config("provider keys", "[providers.openai]\nkey_env = 'A'\nkey_keyring = 'b'", "give one of them")
_config("provider variable", "[providers.openai]\nkey_env = 'sk-123'", "providers.openai.key_env", "variable")
_config(
    "policy", "[host]\npolicy = 'workspce'", "host.policy", "workspce", "did you mean workspace?", lacks=("--policy",)
)
_config("policy file", "[host]\npolicy = './p.json'", "host.policy", "p.json", "No such file", lacks=("--policy",))
_config("program", "[policy]\nallowed_commands = ['make test']", "policy.allowed_commands[0]", "commandPolicies")
_config(
    "command policy",
    "[[policy.command_policies]]\ncommnd = 'git'",
    "policy.command_policies[0]",
    "did you mean command?",
)
_config("command policies", "[policy]\ncommand_policies = ['git']", "list of tables: [[policy.command_policies]]")
_config("root", "[host]\ntoolset = ['native']\n[native]\nroot_dir = 'src'", "native.root_dir", "src", "absolute")
_config("exec", "[host]\ntoolset = ['native']\n[[native.exec]]\nprogram = 'git'", "native.exec")
_config("hidden", "[host]\ntoolset = ['skills']\n[skills]\nhidden_files = ['/']", "skills.hidden_files", line=GO)
_config("installed", "[tools]\ninstalled = ['nothing']", "tools.installed", "nothing")
_config("tokenizer", "[llm]\ntokenizer = 'o200k'", "llm.tokenizer", "did you mean o200k_base?")
_config(
    "bad tool name",
    "[tools]\ndisabled = ['RunComand']",
    "tools.disabled",
    "RunComand",
    "did you mean RunCommand?",
    line=GO,
    code=0,
)
_config(
    "allowed tool name",
    "[tools]\nallowed = ['ReadFil']",
    "tools.allowed",
    "ReadFil",
    "did you mean ReadFile?",
    line=GO,
    code=0,
)
_config(
    "enabled server",
    "[mcp]\nenabled = ['githb']\n[[mcp.servers]]\nname = 'github'\nurl = 'https://example.com'",
    "mcp.enabled",
    "githb",
    "did you mean github?",
    line=GO,
    code=0,
)
_config(
    "domain",
    "[sandbox]\nallowed_domains = ['https://example.com']",
    "sandbox.allowed_domains",
    "https://example.com",
    line=GO,
)
_config(
    "blocked domain",
    "[policy]\nblocked_domains = ['https://example.com']",
    "policy.blocked_domains",
    "https://example.com",
    line=GO,
    code=0,
)
_config(
    "gateway", "[llm]\ngateway = 'ftp://x'", "llm.gateway", "ftp://x", "http://", line="run x", lacks=("--gateway",)
)
_config(
    "gateway script",
    "[llm]\ngateway = 'mock:none.toml'",
    "llm.gateway",
    "none.toml",
    "No such file",
    line="run x",
    lacks=("--gateway",),
)
_config("header name", "[llm.headers]\n'a b' = 'x'", "llm.headers", "'a b'", line="run x --gateway http://127.0.0.1:1")
_config("a folder", "", FILE, "Is a directory", files={"home/.config/agent-host/config.toml/x": ""})
MISTAKES[-1] = MISTAKES[-1]._replace(config=None)
_config(
    "workspace key",
    "",
    "work/.agent/config.toml",
    "unknown key llm.modle; did you mean llm.model?",
    files={"work/.agent/config.toml": "[llm]\nmodle = 'x'"},
)
_config(
    "workspace widens",
    "",
    "work/.agent/config.toml",
    "host.max_steps = 9999 is ignored",
    code=0,
    files={"work/.agent/config.toml": "[host]\nmax_steps = 9999"},
)
_config(
    "workspace chooses a policy",
    "",
    "host.policy = 'full' is ignored",
    code=0,
    files={"work/.agent/config.toml": "[host]\npolicy = 'full'"},
)
_config("bom", "[llm]\ngatway = 'x'", "did you mean llm.gateway?", files={"x": ""})
MISTAKES[-1] = MISTAKES[-1]._replace(config="\ufeff[llm]\ngatway = 'x'")

# Environment

_add(
    "env config missing",
    TRY,
    "AGENT_HOST_CONFIG",
    "nowhere.toml",
    "No such file",
    env={"AGENT_HOST_CONFIG": "nowhere.toml"},
)
_add(
    "env gateway",
    "run x",
    "LLM_GATEWAY_ENDPOINT",
    "gateway.example.com",
    "http://",
    lacks=("--gateway",),
    env={"LLM_GATEWAY_ENDPOINT": "gateway.example.com"},
)
_add(
    "env state dir a file",
    GO,
    "AGENT_HOST_STATE_DIR",
    "{root}/gateway.toml",
    "is a file",
    lacks=("Errno",),
    env={"AGENT_HOST_STATE_DIR": "{root}/gateway.toml"},
)
_add(
    "env token",
    "run x --gateway http://127.0.0.1:1",
    "LLM_GATEWAY_AUTH_TOKEN",
    "no header can carry",
    env={"LLM_GATEWAY_AUTH_TOKEN": "a\nb"},
)
_add("env no gateway", "run x", "--gateway", "LLM_GATEWAY_ENDPOINT")
_add("env key empty", "run x", "--gateway", env={"ANTHROPIC_API_KEY": " "})
_add("env provider without key", "run x --provider openai", "OPENAI_API_KEY")
NO_URL = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "127.0.0.1:1"}
for line, code in (("run x", 2), ("init --provider openai", 2), ("doctor", 1)):
    _add(
        f"env url of a provider, {line}",
        line,
        "OPENAI_BASE_URL '127.0.0.1:1': give an http:// or https:// URL",
        lacks=("--gateway", "mock:"),
        env=NO_URL,
        code=code,
    )
_add("env gateway of doctor", "doctor", "LLM_GATEWAY_ENDPOINT 'x'", env={"LLM_GATEWAY_ENDPOINT": "x"}, code=1)
_add(
    "url of an entry",
    "run x",
    "provider work 'http://x:99999'",
    lacks=("--gateway",),
    config="[providers]\ndefault = 'work'\n[providers.work]\nbase_url = 'http://x:99999'\nkey_env = 'WORK_KEY'",
)

# Bundles


def _bundle(
    name: str, content: Any, *says: str, code: int = 2, line: str = "policy validate {root}/p.json", **more: Any
) -> None:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    _add(f"bundle {name}", line, *says, code=code, files={"p.json": text, **more.pop("files", {})}, **more)


RUN = GO + " --policy {root}/p.json"
NO_LINE = ("line 1 column 1",)
_bundle("empty", "", "is empty", "agent-host policy show", lacks=NO_LINE)
_bundle("blank", " \n\n", "is empty", "agent-host policy show", lacks=NO_LINE)
_bundle("only a bom", b"\xef\xbb\xbf", "is empty", lacks=NO_LINE)
_bundle("TOML", 'extends = "ci"\n', "is TOML", "JSON", lacks=NO_LINE)
_bundle("TOML with a section", "[llmPolicy]\nmaxInputTokens = 3\n", "is TOML", lacks=NO_LINE)
_bundle("YAML", "extends: ci\n", "is YAML", "JSON", lacks=NO_LINE)
_bundle("YAML document", "---\nextends: ci\ncapabilities:\n  - name: LLM.Call\n", "is YAML", lacks=NO_LINE)
_bundle("comment in front", '// mine\n{"extends": "ci"}', "line 1", "comment", lacks=NO_LINE)
_bundle("comment inside", '{"extends": "ci", // mine\n "capabilities": []}', "line 1", "comment")
_bundle("comment block", '{"extends": "ci", /* mine */ "capabilities": []}', "line 1", "comment")
_bundle("hash comment", '# mine\n{"extends": "ci"}', "line 1", "comment", lacks=NO_LINE)
_bundle("comma at the end", '{"extends": "ci",}', "line 1", "comma")
_bundle("comma at the end of a list", '{"extends": "ci", "capabilities": [],\n}', "line 2", "comma")
_bundle("single quotes", "{'extends': 'ci'}", "line 1", "double quotes")
_bundle("no quotes", "{extends: 'ci'}", "line 1", "double quotes")
_bundle("not closed", '{"extends": "ci"', "line 1", "not closed")
_bundle("two objects", '{"extends": "ci"}\n{}', "line 2", "ends")
_bundle("a list", "[]", "not a JSON object, but a list")
_bundle("a string", '"ci"', "not a JSON object, but text")
_bundle("NaN", '{"extends": "ci", "approvalTimeoutS": NaN}', "NaN is not a JSON number")
_bundle("not UTF-8", b'{"extends": "\xff"}', "UTF-8")
_bundle("field", {"extends": "ci", "capabilites": []}, "capabilites", "did you mean capabilities?")
_bundle("extends", {"extends": "workspce"}, "extends", "did you mean workspace?")
_bundle("extends a number", {"extends": 3}, "extends: must be text")
_bundle("nothing", {}, "policyBundleVersion: is missing", "capabilities: is missing")


def _cap(name: str, **fields: Any) -> dict[str, Any]:
    return {"extends": "ci", "capabilities": [{"name": name, **fields}]}


_bundle("capability", _cap("File.Reed"), "capabilities[0].name", "did you mean File.Read?")
_bundle("capability of one word", _cap("file.read"), "capabilities[0].name", "did you mean File.Read?")
_bundle(
    "capability field", _cap("File.Read", allowedPath=[]), "capabilities[0].allowedPath", "did you mean allowedPaths?"
)
_bundle(
    "list of another", _cap("File.Read", allowedCommands=["git"]), "allowedCommands", "restricts nothing in File.Read"
)
_bundle("relative path", _cap("File.Read", allowedPaths=["src*"]), "allowedPaths[0]", "'src*'")
_bundle("home path", _cap("File.Read", allowedPaths=["~/x"]), "allowedPaths[0]", "${home}")
_bundle("pattern", _cap("File.Read", allowedPaths=["/srv/*"]), "is a pattern")
_bundle("placeholder", _cap("File.Read", allowedPaths=["${workspce}"]), "did you mean ${workspace}?")
_bundle("placeholder open", _cap("File.Read", allowedPaths=["${workspace"]), "cannot be read")
_bundle("group", _cap("File.Read", blockedPaths=["@credential"]), "did you mean @credentials?")
_bundle("group allowed", _cap("File.Read", allowedPaths=["@credentials"]), "is a group of places to block")
_bundle("line as program", _cap("Shell.Exec", allowedCommands=["make test"]), "'make test' is not a program name")
_bundle("pattern as program", _cap("Shell.Exec", allowedCommands=["git*"]), "'git*' is not a program name")
_bundle(
    "url as domain", _cap("Network.Http", allowedDomains=["https://example.com"]), "allowedDomains[0]", "example.com"
)
_bundle("rule", _cap("Shell.Exec", requiresApproval=True, approvalRuleId="shel"), "approvalRuleId", "'shel'")
_bundle("text as list", _cap("File.Read", allowedPaths="/srv"), "must be a list", "square brackets")
_bundle("text as flag", _cap("Shell.Exec", requiresApproval="yes"), "must be true or false", "without quotes")
_bundle(
    "two of one name",
    {"extends": "ci", "capabilities": [{"name": "File.Read"}, {"name": "File.Read"}]},
    "capabilities[1].name",
    "merge the two",
)
_bundle(
    "no model",
    {"extends": "ci", "llmPolicy": {"allowedModels": []}},
    "llmPolicy.allowedModels",
    "name at least one model",
)
_bundle("time", {"extends": "ci", "expiresAt": "tomorrow"}, "expiresAt", "2026-01-31T12:00:00Z")
_bundle(
    "regular expression",
    {"extends": "ci", "redactionRules": [{"redactionRuleId": "a", "pattern": "("}]},
    "redactionRules[0].pattern",
)
_bundle(
    "server", {"extends": "ci", "mcpServers": [{"name": "x", "transport": "stdio"}]}, "mcpServers[0].command", "stdio"
)
_bundle(
    "server transport",
    {"extends": "ci", "mcpServers": [{"name": "x", "transport": "sse", "url": "https://a"}]},
    "mcpServers[0].transport",
    "'http'",
)
_bundle("session", {"extends": "ci", "sessionId": "a b"}, "sessionId", "'a b' names no session")
_bundle("expired", {"extends": "ci", "expiresAt": "2020-01-01T00:00:00Z"}, "expired at 2020")
_bundle(
    "many at once",
    {"extends": "workspce", "capabilites": [], "expiresAt": "soon"},
    "extends:",
    "capabilites:",
    "expiresAt:",
)
_bundle(
    "path that is not there",
    _cap("File.Read", allowedPaths=["${workspace}", "{root}/nowhere"]),
    "capabilities[0].allowedPaths[1]",
    "{root}/nowhere",
    "does not exist",
    code=0,
)
_bundle(
    "path of the workspace that is not there",
    _cap("File.Read", allowedPaths=["${workspace}/scr"]),
    "capabilities[0].allowedPaths[0]",
    "${workspace}/scr",
    "did you mean {work}/src?",
    code=0,
    files={"work/src/a": ""},
)
_bundle(
    "blocked path that is not there",
    _cap("File.Read", blockedPaths=["${workspace}/secret"]),
    "capabilities[0].blockedPaths[0]",
    "does not exist",
    code=0,
)
_bundle(
    "allowed and blocked",
    _cap("File.Read", allowedPaths=["{root}/home"], blockedPaths=["{root}/home"]),
    "capabilities[0].allowedPaths[0]",
    "{root}/home",
    "blocked",
    code=0,
)
_bundle(
    "allowed below blocked",
    _cap("File.Read", allowedPaths=["{root}/home/x"], blockedPaths=["{root}/home"]),
    "capabilities[0].allowedPaths[0]",
    "blocked",
    code=0,
    files={"home/x/y": ""},
)
_bundle(
    "program allowed and blocked",
    _cap("Shell.Exec", allowedCommands=["git"], blockedCommands=["git"]),
    "capabilities[0].allowedCommands[0]",
    "blocked",
    code=0,
)
_bundle(
    "domain allowed and blocked",
    _cap("Network.Http", allowedDomains=["a.example"], blockedDomains=["a.example"]),
    "capabilities[0].allowedDomains[0]",
    "blocked",
    code=0,
)
_bundle(
    "in a run: path that is not there",
    _cap("File.Read", allowedPaths=["${workspace}", "{root}/nowhere"]),
    "{root}/p.json",
    "{root}/nowhere",
    "does not exist",
    code=0,
    line=RUN,
)
_bundle(
    "in a run: allowed and blocked",
    _cap("File.Read", allowedPaths=["{root}/home"], blockedPaths=["{root}/home"]),
    "{root}/p.json",
    "blocked",
    code=0,
    line=RUN,
)
_bundle("in a run: empty", "", "--policy {root}/p.json", "is empty", line=RUN, lacks=NO_LINE)
_bundle("in a run: YAML", "extends: ci", "--policy {root}/p.json", "is YAML", line=RUN, lacks=NO_LINE)
_bundle("in a run: two at once", {"extends": "workspce", "capabilites": []}, "extends:", "capabilites:", line=RUN)
_bundle(
    "in a run: expired",
    {"extends": "ci", "expiresAt": "2020-01-01T00:00:00Z"},
    "--policy {root}/p.json",
    "expired",
    line=RUN,
)
_bundle(
    "in a run: of another session", {"extends": "ci", "sessionId": "abc"}, "the bundle is for session abc", line=RUN
)
_bundle("missing", {}, "--policy '{root}/q.json'", "No such file", line=GO + " --policy {root}/q.json")
_bundle(
    "missing near", {}, "--policy '{root}/pp.json'", "did you mean {root}/p.json?", line=GO + " --policy {root}/pp.json"
)
_bundle("a folder", {}, "--policy '{root}/home'", "Is a directory", line=GO + " --policy {root}/home/")
_bundle("to validate missing", {}, "{root}/q.json", "No such file", line="policy validate {root}/q.json")
_bundle("to validate a folder", {}, "{root}/home", "directory", line="policy validate {root}/home")

# Tools of the project


def _manifest(
    name: str, text: str | bytes, *says: str, code: int = 0, line: str = TRY, file: str = "count", **more: Any
) -> None:
    files = {f"work/.agent/tools/{file}.toml": text, **more.pop("files", {})}
    _add(f"manifest {name}", line, *says, code=code, files=files, **more)


GOOD = 'name = "count"\ndescription = "Count."\nargv = ["./count"]\nside_effects = false\n[input]\ntype = "object"\n'
WHERE = ".agent/tools/count.toml"
_manifest("empty", "", WHERE, "name: is missing", "argv: is missing")
_manifest("no TOML", "name: count\n", WHERE, "is YAML")
_manifest("JSON", '{"name": "count"}', WHERE, "is JSON")
_manifest("not UTF-8", b"name = '\xff'", WHERE, "UTF-8")
_manifest("field", GOOD.replace("side_effects", "side_effect"), WHERE, "side_effect", "did you mean side_effects?")
_manifest("another name", GOOD.replace('"count"', '"cuont"', 1), WHERE, "name: has to be that of its file, count")
_manifest("reserved name", GOOD.replace('"count"', '"ReadFile"', 1), "ReadFile.toml", file="ReadFile")
_manifest("no description", GOOD.replace("Count.", " "), WHERE, "description: is empty")
_manifest("argv as text", GOOD.replace('["./count"]', '"./count"'), WHERE, "argv: must be a list")
_manifest("argv empty", GOOD.replace('["./count"]', "[]"), WHERE, "argv: names a program")
_manifest("timeout", "timeout_s = 0\n" + GOOD, WHERE, "timeout_s: must be a number from 0.1")
_manifest("effect", "effect = 'non'\n" + GOOD, WHERE, "effect: must be one of", "did you mean none?")
_manifest("effect of none", "effect = 'edit'\n" + GOOD, WHERE, "effect: none is for a tool without side effects")
_manifest("input", GOOD.replace('"object"', '"string"'), WHERE, "input: is the schema of an object")
_manifest("schema", GOOD + "properties = { a = { type = 'numbr' } }\n", WHERE, "input")
_manifest(
    "two at once",
    GOOD.replace("Count.", " ").replace('["./count"]', "[]"),
    "description: is empty",
    "argv: names a program",
)
_manifest("program missing", GOOD, WHERE, "./count", "does not exist")
_manifest("program of PATH missing", GOOD.replace("./count", "no-such-program"), WHERE, "no-such-program", "PATH")
_manifest("program that may not run", GOOD, WHERE, "./count", "chmod +x", files={"work/count": "#!/bin/sh\n"})
_manifest(
    "program absolute missing", GOOD.replace("./count", "/opt/none/count"), WHERE, "/opt/none/count", "does not exist"
)
_manifest("program missing in a run", GOOD, WHERE, "./count", "does not exist", line=GO)

# Skills


def _skill(
    name: str, text: str | bytes, *says: str, line: str = TRY, folder: str = "work/.agent/skills/pdf", **more: Any
) -> None:
    _add(
        f"skill {name}",
        line,
        *says,
        code=more.pop("code", 0),
        files={f"{folder}/SKILL.md": text, **more.pop("files", {})},
        **more,
    )


FRONT = "---\nname: pdf\ndescription: Read.\n---\nText.\n"
_skill("empty", "", "the skill pdf cannot be used", "SKILL.md", "is empty")
_skill("no front matter", "# Pdf\n", "the skill pdf cannot be used", "three hyphens")
_skill("not closed", "---\nname: pdf\n", "the skill pdf cannot be used", "three hyphens")
_skill("another name", FRONT.replace("name: pdf", "name: pfd"), "'pfd' has to be that of its folder")
_skill("no description", "---\nname: pdf\n---\n", "description: is missing")
_skill("folder name", FRONT.replace("name: pdf", "name: My_Pdf"), "My_Pdf", folder="work/.agent/skills/My_Pdf")
_skill("not UTF-8", b"---\nname: pdf\ndescription: \xff\n---\n", "not UTF-8")
_skill("field", FRONT.replace("description", "descripton"), "descripton", "did you mean description?")
_skill("in a run", "", "the skill pdf cannot be used", "is empty", line=GO)
_skill(
    "of the user in a run",
    "# Pdf",
    "the skill pdf cannot be used",
    "three hyphens",
    line=GO,
    folder="home/.config/agent-host/skills/pdf",
)
_skill(
    "without its file",
    "",
    "the skill notes cannot be used",
    "SKILL.md",
    line=GO,
    files={"work/.agent/skills/notes/skill.md": FRONT},
)
_skill("unknown", FRONT, "pfd", "did you mean pdf?", line=TRY + " --skill pfd", code=2)
_skill(
    "tool that is none",
    FRONT.replace("---\nText", "allowed-tools: ReadFil\n---\nText"),
    "ReadFil",
    line=TRY + " --skill pdf",
)

# Servers


def _server(name: str, text: str, *says: str, line: str = GO, code: int = 2, **more: Any) -> None:
    _add(f"server {name}", line, *says, config=text, code=code, **more)


ONE = "[[mcp.servers]]\nname = 'one'\n"
_server("nothing to start", ONE, "mcp.servers[0]", "mcp:one", "neither command nor url", code=0)
_server("two with nothing", ONE + "[[mcp.servers]]\nname = 'two'\n", "mcp.servers[0]", "mcp.servers[1]", code=0)
_server("no name", "[[mcp.servers]]\nurl = 'https://a'", "mcp.servers[0].name is missing")
_server("field", ONE + "comand = 'x'", "mcp.servers[0].comand", "did you mean command?")
_server("odd name", "[[mcp.servers]]\nname = 'a b'\nurl = 'https://a'", "mcp.servers[0]", "'a b' names no server")
_server(
    "same name", ONE + "url = 'https://a'\n" + ONE + "url = 'https://b'", "mcp.servers[1]", "another server called one"
)
_server("url", ONE + "url = 'example.com/mcp'", "mcp.servers[0]", "is not an http or https URL")
_server("both", ONE + "transport = 'stdio'\nurl = 'https://a'\ncommand = 'x'", "mcp.servers[0]", "no url")
_server("command and url", ONE + "url = 'https://a'\ncommand = 'x'", "mcp.servers[0]", "command", "url", code=0)
_server(
    "transport", ONE + "transport = 'sse'\nurl = 'https://a'", "mcp.servers[0].transport must be one of stdio, http"
)
_server("args as text", ONE + "command = 'x'\nargs = '-y'", "mcp.servers[0].args must be a list")
_server("token without url", ONE + "command = 'x'\ntoken_env = 'T'", "credentials are for one URL")
_server("writes without command", ONE + "url = 'https://a'\nwrite = ['/srv']", "write and domains are for a program")
_server(
    "two tokens",
    ONE + "url = 'https://a'\ntoken_env = 'T'\noauth = true",
    "give one of token_env, token_keyring and oauth",
)
_server("timeout", ONE + "url = 'https://a'\ntimeout_s = 0", "mcp.servers[0].timeout_s must be a number from 0.1")
_server("domain", ONE + "command = 'x'\ndomains = ['https://a']", "domains", "https://a")
_server(
    "many at once",
    "[[mcp.servers]]\nurl = 3\nargs = 'x'\n" + ONE + "comand = 'x'",
    "mcp.servers[0].name is missing",
    "mcp.servers[0].url",
    "mcp.servers[0].args",
    "mcp.servers[1].comand",
)
_server("a table", "[mcp.servers]\none = 'x'", "mcp.servers must be a list of tables: [[mcp.servers]]")
_server("section", "[[mcp.server]]\nname = 'x'", "unknown key mcp.server; did you mean mcp.servers?")
_server(
    "environment with a value", ONE + "command = 'x'\nenvironment_names = ['A=b']", "environment_names", "A=b", code=0
)
_server("not https", ONE + "url = 'http://example.com/mcp'", "mcp:one", "allow_http", code=0)
_server("no token", ONE + "url = 'https://127.0.0.1:1/mcp'\ntoken_env = 'NO_SUCH'", "mcp:one", "$NO_SUCH", code=0)
_server("program missing", ONE + "command = 'no-such-program'", "mcp:one", "no-such-program", code=0)
_server("program absolute missing", ONE + "command = '/opt/none/server'", "mcp:one", "/opt/none/server", code=0)
_server("ca file", ONE + "url = 'https://127.0.0.1:1/mcp'\nca_file = '/no/ca.pem'", "mcp:one", "/no/ca.pem", code=0)

# Ids

for key in ("../x", "a b", "a/b", "ü", "a" * 129, "''"):
    shown = key[:8]
    _add(
        f"id {shown}",
        f"{GO} --session-id {key if key != 'a b' else chr(39) + key + chr(39)}",
        "--session-id",
        "1 to 128 of the characters A-Z a-z 0-9 _ -",
    )
_add("show nobody", "show nobody", "nobody", "agent-host sessions")
_add("show odd", "show ../x", "../x", "1 to 128")
_add("show latest of none", "show latest", "no session")
_add("resume nobody", "resume nobody", "nobody", "agent-host sessions")
_add("resume none", "resume", "no session to resume", "{root}/state")
_add("resume odd", "resume a/b", "a/b", "1 to 128")
_add("resume with empty prompt", "resume x ''", "the prompt is empty")
_add("replay nobody", "replay nobody --workspace .", "nobody", "agent-host sessions")
_add("rejudge nobody", "policy rejudge nobody --policy ci", "nobody", "agent-host sessions")
_add("rejudge odd", "policy rejudge .. --policy ci", "..", "1 to 128")
_add("show empty", "show ''", "1 to 128")
_add("or-resume odd", f"{GO} --session-id a/b --or-resume", "--session-id", "1 to 128")

# Paths

_add("workspace missing", f"{GO} --workspace nowhere", "--workspace nowhere", "there is no such directory")
_add("workspace near", f"{GO} --workspace {{root}}/wrok", "--workspace {root}/wrok", "did you mean {root}/work?")
_add(
    "workspace a file",
    f"{GO} --workspace {{root}}/gateway.toml",
    "--workspace {root}/gateway.toml",
    "is a file",
    lacks=("no such directory",),
)
_add(
    "workspace below a file",
    f"{GO} --workspace {{root}}/gateway.toml/x",
    "--workspace {root}/gateway.toml/x",
    "{root}/gateway.toml is a file",
)
_add("workspace empty", f"{GO} --workspace ''", "--workspace is empty", code=0)
_add("workspace root", f"{GO} --workspace /", "--workspace /", "the whole", code=0)
_add("workspace home", f"{GO} --workspace {{root}}/home", "--workspace {root}/home", "home directory", code=0)
_add("workspace home by tilde", f"{GO} --workspace '~'", "home directory", code=0)
_add("workspace above home", f"{GO} --workspace {{root}}", "home directory", code=0)
_add("workspace of tools", "policy tools --workspace nowhere", "--workspace nowhere", "there is no such directory")
_add(
    "workspace of check a file",
    f"{CHECK} --workspace {{root}}/gateway.toml",
    "--workspace {root}/gateway.toml",
    "is a file",
)
_add(
    "workspace of validate",
    "policy validate {root}/p.json --workspace nowhere",
    "--workspace nowhere",
    files={"p.json": '{"extends": "ci"}'},
)
_add(
    "state dir a file",
    f"{GO} --state-dir {{root}}/gateway.toml",
    "--state-dir {root}/gateway.toml",
    "is a file",
    lacks=("Errno",),
)
_add(
    "state dir below a file",
    f"{GO} --state-dir {{root}}/gateway.toml/x",
    "--state-dir {root}/gateway.toml/x",
    "is a file",
)
_add(
    "state dir a file of sessions",
    "sessions --state-dir {root}/gateway.toml",
    "--state-dir {root}/gateway.toml",
    "is a file",
)
_add(
    "state dir a file of resume",
    "resume --state-dir {root}/gateway.toml",
    "--state-dir {root}/gateway.toml",
    "is a file",
)
_add(
    "state dir a file of show", "show x --state-dir {root}/gateway.toml", "--state-dir {root}/gateway.toml", "is a file"
)
_add(
    "state dir a file of policy",
    f"{TRY} --state-dir {{root}}/gateway.toml",
    "--state-dir {root}/gateway.toml",
    "is a file",
)
_add("state dir empty", f"{GO} --state-dir ''", "--state-dir is empty", code=0)
_add("workspace of tools empty", "policy tools --workspace ''", "--workspace is empty", code=0)
_add("state dir of sessions empty", "sessions --state-dir ''", "--state-dir is empty", code=0)
_add("tenants missing", "tool-service --tenants nowhere.json", "nowhere.json", "No such file", env=KEY)
_add(
    "tenants JSON",
    "tool-service --tenants {root}/t.json",
    "{root}/t.json",
    "is not JSON",
    files={"t.json": "{"},
    env=KEY,
)
_add("script missing", "mock-gateway --script nowhere.toml", "--script", "nowhere.toml", "No such file")
_add("script suffix", "mock-gateway --script {root}/a.txt", "{root}/a.txt", ".toml", ".jsonl", files={"a.txt": ""})
_add(
    "recording suffix",
    "mock-gateway --record http://127.0.0.1:1 --script {root}/a.toml",
    "--script {root}/a.toml",
    ".jsonl",
)
_add(
    "recording again",
    "mock-gateway --record http://127.0.0.1:1 --script {root}/a.jsonl",
    "--script {root}/a.jsonl",
    "already",
    files={"a.jsonl": ""},
)

# URLs

for url in ("ftp://x", "gateway.example.com", "http://", "https://", "localhost:8080", "http://a b", "http://x:99999"):
    _add(f"gateway {url}", f"run x --gateway {url if ' ' not in url else chr(39) + url + chr(39)}", "--gateway", "http")
_add("gateway empty", "run x --gateway ''", "--gateway is empty", "no LLM gateway")
_add("gateway mock without file", "run x --gateway mock:", "--gateway", "mock:FILE")
_add("gateway a file", "run x --gateway {root}/gateway.toml", "--gateway", "did you mean mock:{root}/gateway.toml?")
_add(
    "recording url",
    "mock-gateway --record gateway.example.com --script {root}/a.jsonl",
    "--record",
    "gateway.example.com",
    "http://",
)
_add(
    "init without a key",
    "init --provider anthropic",
    "error: provider anthropic: set ANTHROPIC_API_KEY to its key\n",
    lacks=("asking", "agent-host init"),
)
_add("init gateway", "init --gateway gateway.example.com --yes", "--gateway", "gateway.example.com", "http://")
_add("doctor gateway", "doctor --gateway ftp://x", "--gateway", "ftp://x", "http://", code=1)

# Scripts


def _script(
    name: str,
    text: str | bytes,
    *says: str,
    file: str = "s.toml",
    line: str = "run x --gateway mock:{root}/",
    **more: Any,
) -> None:
    _add(f"script {name}", line + file, "{root}/" + file, *says, files={file: text}, **more)


_script("empty", "", "has no turns")
_script("syntax", "[[turn]\n", "is not TOML", "line 1")
_script("key", "[[turn]]\ntxt = 'a'\n", "turn 1", "'txt'", "did you mean")
_script("key of file", "turns = []\n", "'turns'", "did you mean")
_script("type", "[[turn]]\ntext = 3\n", "turn 1", "'text'", "string")
_script("call", "[[turn]]\ntool_calls = [{ nam = 'x' }]\n", "turn 1", "nam", "did you mean")
_script(
    "condition", "[[turn]]\nexpect = { last_contain = 'x' }\ntext = 'a'\n", "turn 1", "last_contain", "did you mean"
)
_script("placeholder", "[[turn]]\ntext = '${worskpace}'\n", "turn 1", "${worskpace}", "workspace")
_script("line", "{}\nx\n", "line 2", "not JSON", file="s.jsonl")
_script("not UTF-8", b"[[turn]]\ntext = '\xff'\n", "not UTF-8")
_script("two at once", "[[turn]]\ntxt = 'a'\n[[turn]]\ntext = 3\n", "turn 1", "turn 2")

# What a run leaves for others, and its limits

for option in ("--patch", "--result", "--summary", "--junit"):
    _add(f"file of {option}", f"{GO} {option} {{root}}/gateway.toml/x", option, "{root}/gateway.toml")
    _add(f"{option} a directory", f"{GO} {option} {{root}}/home", option, "{root}/home", "directory")
for value in ("soon", "0", "-1", "nan", "5m"):
    _add(f"timeout {value}", f"{GO} --timeout {value}", "--timeout", value)
_add("timeout empty", f"{GO} --timeout ''", "--timeout", "--help")
_add("stdin twice", "run - --stdin", "--stdin", "give one of them")
_add("schema missing", f"{GO} --schema {{root}}/s.json", "--schema {root}/s.json", "No such file")
_add(
    "schema empty",
    f"{GO} --schema {{root}}/s.json",
    "--schema {root}/s.json",
    "is empty",
    files={"s.json": ""},
    lacks=NO_LINE,
)
_add(
    "schema YAML",
    f"{GO} --schema {{root}}/s.json",
    "--schema {root}/s.json",
    "is YAML",
    files={"s.json": "type: object"},
)
_add("schema comment", f"{GO} --schema {{root}}/s.json", "line 2", "comment", files={"s.json": "{\n// a\n}"})
_add(
    "schema a list", f"{GO} --schema {{root}}/s.json", "--schema {root}/s.json", "not an object", files={"s.json": "[]"}
)
_add("schema type", f"{GO} --schema {{root}}/s.json", "--schema {root}/s.json", files={"s.json": '{"type": "strng"}'})
_add("cases missing", "policy test nowhere.jsonl --policy ci", "nowhere.jsonl", "No such file")
_add("cases empty", "policy test {root}/c.jsonl --policy ci", "0 cases", files={"c.jsonl": ""})
_add(
    "case without expectation",
    "policy test {root}/c.jsonl --policy ci",
    "line 1",
    "expect is one of",
    files={"c.jsonl": '{"toolName": "ReadFile", "arguments": {"path": "a"}}'},
)
_add("case no JSON", "policy test {root}/c.jsonl --policy ci", "line 1", files={"c.jsonl": "ReadFile"})

# A mark of the order of bytes, which editors of Windows put first, is read over

BOM = "\ufeff"
_bundle("after a bom", BOM + '{"extends": "workspce"}', "did you mean workspace?")
_bundle("good after a bom", BOM + '{"extends": "ci"}', "valid: version", code=0)
_bundle("comment after a bom", BOM + '{\n// a\n"extends": "ci"}', "line 2", "comment")
_manifest("after a bom", BOM + GOOD.replace("Count.", " "), WHERE, "description: is empty")
_skill("after a bom", BOM + "---\nname: pfd\n---\n", "'pfd' has to be that of its folder")
_skill("only a bom", BOM, "the skill pdf cannot be used", "is empty")
_script("after a bom", BOM + "[[turn]]\ntxt = 'a'\n", "turn 1", "'txt'")
_script("lines after a bom", BOM + '{"txt": "a"}\n', "turn 1", "'txt'", file="s.jsonl")
_add("schema after a bom", f"{GO} --schema {{root}}/s.json", "not an object", files={"s.json": BOM + "[]"})
_add(
    "cases after a bom",
    "policy test {root}/c.jsonl --policy ci",
    "line 1",
    "expect is one of",
    files={"c.jsonl": BOM + '{"toolName": "ReadFile"}'},
)
_add(
    "tenants after a bom",
    "tool-service --tenants {root}/t.json",
    "{root}/t.json",
    "tenants",
    files={"t.json": BOM + "{}"},
    env=KEY,
)
_config(
    "of the workspace after a bom",
    "",
    "did you mean llm.model?",
    files={"work/.agent/config.toml": BOM + "[llm]\nmodle = 'x'"},
)

# Several at once

_config(
    "option and file",
    "[llm]\ngatway = 'x'",
    "unknown key llm.gatway",
    "--max-steps must be",
    line=f"{GO} --max-steps 0",
)
_config(
    "user and workspace",
    "[llm]\ngatway = 'x'",
    "unknown key llm.gatway",
    "unknown key llm.modle",
    files={"work/.agent/config.toml": "[llm]\nmodle = 'x'"},
)
_config(
    "two programs", "[policy]\nallowed_commands = ['make test', 'git *']", "allowed_commands[0]", "allowed_commands[1]"
)
_config(
    "two roots",
    "[host]\ntoolset = ['native']\n[native]\nroot_dir = 'a'\nadditional_roots = ['b']",
    "root_dir",
    "additional_roots[0]",
)
_config("two domains", "[sandbox]\nallowed_domains = ['http://a', 'http://b']", "http://a", "http://b", line=GO)
_config("array of an unknown section", "[[lmm]]\nmodel = 'x'", "unknown section [lmm]")
_add("two approvals", f"{GO} --approve RunComand --approve Reed", "--approve RunComand", "--approve Reed")
_add("two toolsets", "run x --toolset desktp --toolset natve", "did you mean desktop?", "did you mean native?")
_manifest(
    "two manifests",
    GOOD.replace("Count.", " "),
    WHERE,
    ".agent/tools/other.toml",
    files={"work/.agent/tools/other.toml": ""},
)
